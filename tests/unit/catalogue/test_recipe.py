"""The recipe "a model or a GPU" of CONTRIBUTING, followed in a temporary copy of the package."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import kvgate
from support.json_schemas import checked_report

PACKAGE = Path(kvgate.__file__).parent
TOOLS = Path(__file__).parents[3] / "tools"
GPU = """
  - name: TOY-24GB
    product: NVIDIA Toy
    aliases: [Toy Card]
    vendor: nvidia
    memory_mib: 22564
    compute_capability: "8.9"
    gpu_labels: [NVIDIA-Toy]
    resource: nvidia.com/gpu
    interconnect: pcie
    sm_count: 58
    memory_bandwidth_bytes_per_second: null
    memory_bandwidth_source: "not known: a toy"
    source: nobody
    confidence: inferred
    date: 2026-11-22
"""
MODEL_TO_COPY = "Qwen--Qwen3-0.6B.yaml"
MANIFEST = """
apiVersion: v1
kind: Pod
metadata: {name: toy}
spec:
  nodeSelector: {nvidia.com/gpu.product: NVIDIA-Toy}
  containers:
  - name: vllm
    image: vllm/vllm-openai:v0.33.0
    args: [--model, toy/Tiny-0.6B]
    resources: {limits: {nvidia.com/gpu: 1}}
"""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy with one entry more of each kind, after `make generate`."""
    root = tmp_path_factory.mktemp("root")
    shutil.copytree(PACKAGE, root / "operator" / "kvgate", ignore=shutil.ignore_patterns("__pycache__"))
    data = root / "operator" / "kvgate" / "catalogue" / "data"
    with (data / "accelerators.yaml").open("a", encoding="utf-8") as file:
        file.write(GPU)
    copied = (data / "models" / MODEL_TO_COPY).read_text(encoding="utf-8")
    renamed = copied.replace("name: Qwen/Qwen3-0.6B", "name: toy/Tiny-0.6B", 1)
    (data / "models" / "toy--Tiny-0.6B.yaml").write_text(renamed, encoding="utf-8")
    run(root, "--root", str(root), program="generate")
    return root


def run(root: Path, *arguments: str, stdin: str = "", program: str = "kvgate") -> str:
    """What the copy prints; its exit code must be 0."""
    environment = {**os.environ, "PYTHONPATH": f"{root / 'operator'}{os.pathsep}{TOOLS}"}
    command = [sys.executable, "-m", program, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, env=environment, cwd=root, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("gpu", ["TOY-24GB", "nvidia toy", "toycard"])
def test_a_new_gpu_is_found_by_each_of_its_names_and_judged(root: Path, gpu: str) -> None:
    answer = json.loads(run(root, "explain", "--model", "toy/tiny-0.6b", "--gpu", gpu, "-o", "json"))
    assert (answer["verdict"], answer["ledger"]["total_bytes"]) == ("Fits", 22564 * 2**20)


def test_a_new_gpu_is_judged_where_a_manifest_selects_its_node_label(root: Path) -> None:
    answer = checked_report(run(root, "check", "-o", "json", "-", stdin=MANIFEST))
    (document,) = answer["documents"]
    assert (document["engine"]["accelerator"], document["verdict"]) == ("TOY-24GB", "Fits")
