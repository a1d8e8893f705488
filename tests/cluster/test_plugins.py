"""Where kvgate plugs in: the Action's steps as they are written, Helm's plugin with a real Helm, kubectl's with a real API server."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane import ControlPlane
from support.assets import require_assets
from support.chart import ROOT

pytestmark = pytest.mark.cluster

DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}, namespace: default}}
spec:
  selector: {{matchLabels: {{app: vllm}}}}
  template:
    metadata: {{labels: {{app: vllm}}}}
    spec:
      nodeSelector: {{nvidia.com/gpu.product: NVIDIA-L4}}
      containers:
        - name: vllm
          image: vllm/vllm-openai:v0.29.0
          args: [--model, Qwen/Qwen3-8B, --max-model-len, "{length}"]
          resources: {{limits: {{nvidia.com/gpu: "1"}}}}
"""
FITS, TOO_LONG = DEPLOYMENT.format(name="fits", length=4096), DEPLOYMENT.format(name="too-long", length=40960)
FOLDER = Path(sys.executable).parent


def run(command: list[str | Path], **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{FOLDER}:{os.environ['PATH']}", **more}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)


@pytest.fixture(scope="module")
def steps(tmp_path_factory: pytest.TempPathFactory) -> tuple[Mapping[str, Any], Mapping[str, Any], str]:
    """The Action's two steps, the first one done: what pip installed goes before everything else."""
    install, check = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["runs"]["steps"]
    target = str(tmp_path_factory.mktemp("installed"))
    offline = {"PIP_TARGET": target, "PIP_NO_DEPS": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1"}
    done = run(["bash", "-ec", install["run"]], ACTION_PATH=str(ROOT), PYTHON=sys.executable, **offline)
    assert done.returncode == 0, done.stderr
    return install, check, target


def check_step(steps: tuple[Any, Mapping[str, Any], str], tmp_path: Path, **inputs: str) -> tuple[int, str, str]:
    """(exit code, annotations, summary) of the second step with these inputs."""
    _, check, target = steps
    summary = tmp_path / "summary.md"
    given = {"KVGATE_PATHS": ".", "KVGATE_CHART": "", "KVGATE_HELM_ARGUMENTS": "", "KVGATE_ARGUMENTS": "", **inputs}
    assert given.keys() | {"PYTHON"} == check["env"].keys()
    done = run(
        ["bash", "-ec", check["run"]],
        PYTHON=sys.executable,
        PYTHONPATH=target,
        GITHUB_STEP_SUMMARY=str(summary),
        **given,
    )
    return done.returncode, done.stdout + done.stderr, summary.read_text(encoding="utf-8")


def test_the_action_annotates_the_line_and_sums_up(steps: Any, tmp_path: Path) -> None:
    file = tmp_path / "too long.yaml"
    file.write_text(TOO_LONG)
    code, output, summary = check_step(steps, tmp_path, KVGATE_PATHS=f"{file}\n")
    assert code == 1
    assert f"::error file={file},line=13" in output
    assert "KVCacheTooSmall" in summary


def test_the_action_passes_what_fits_and_what_has_no_engine(steps: Any, tmp_path: Path) -> None:
    file = tmp_path / "fits.yaml"
    file.write_text(FITS)
    assert check_step(steps, tmp_path, KVGATE_PATHS=str(file))[0] == 0
    file.write_text("kind: Service\n")
    assert check_step(steps, tmp_path, KVGATE_PATHS=str(file), KVGATE_ARGUMENTS="--nothing-is-fine")[0] == 0


@pytest.fixture
def chart(tmp_path: Path) -> Path:
    folder = tmp_path / "chart"
    (folder / "templates").mkdir(parents=True)
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: serving\nversion: 0.1.0\n")
    (folder / "values.yaml").write_text("length: 4096\n")
    template = DEPLOYMENT.format(name="vllm", length="@").replace('"@"', "{{ .Values.length | quote }}")
    (folder / "templates" / "vllm.yaml").write_text(template)
    return folder


@pytest.mark.parametrize(("flags", "code"), [((), 0), (("--set", "length=40960"), 1), (("--", "-o", "json"), 0)])
def test_helm_renders_and_checks(
    pytestconfig: pytest.Config, chart: Path, tmp_path: Path, flags: tuple[str, ...], code: int
) -> None:
    helm = require_assets(pytestconfig, "helm") / "helm"
    homes = {f"HELM_{name}": str(tmp_path / name) for name in ("CACHE_HOME", "CONFIG_HOME", "DATA_HOME")}
    installed = run([helm, "plugin", "install", ROOT], **homes)
    assert installed.returncode == 0, installed.stderr
    done = run([helm, "kvgate", chart, *flags], **homes)
    assert done.returncode == code, done.stdout + done.stderr
    assert ("KVCacheTooSmall" in done.stdout) is (code == 1)


def test_kubectl_checks_what_is_in_the_context(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    assets = require_assets(pytestconfig)
    with ControlPlane(assets, full=False) as plane:
        connection = {"KUBECTL": str(assets / "kubectl"), "KUBECONFIG": str(plane.kubeconfig)}
        plane.kubectl("apply", "-f", "-", input=FITS)
        fits = run([FOLDER / "kubectl-kvgate", "--all-namespaces", f"--cache-dir={tmp_path}"], **connection)
        plane.kubectl("apply", "-f", "-", input=TOO_LONG)
        both = run(
            [FOLDER / "kubectl-kvgate", "-n", "default", f"--cache-dir={tmp_path}", "--", "-o", "json"], **connection
        )
    assert fits.returncode == 0, fits.stdout + fits.stderr
    assert "fits on L4-24GB: Fits" in fits.stdout
    assert both.returncode == 1
    assert '"name": "too-long"' in both.stdout


def test_a_cluster_that_does_not_answer_is_told(tmp_path: Path) -> None:
    done = run([FOLDER / "kubectl-kvgate"], KUBECTL=str(tmp_path / "none"))
    assert done.returncode == 2
    assert "did not answer" in done.stderr


def test_the_hook_of_other_repositories_runs_a_command_that_exists(tmp_path: Path) -> None:
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    (tmp_path / "too-long.yaml").write_text(TOO_LONG)
    (tmp_path / "other.yaml").write_text("kind: Service\n")
    command = hook["entry"].split()
    assert run([*command, tmp_path / "too-long.yaml"]).returncode == 1
    assert run([*command, tmp_path / "other.yaml"]).returncode == 0


def test_the_first_page_of_the_docs_shows_what_happens(pytestconfig: pytest.Config) -> None:
    page = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    command, output = re.search(
        r"```console\n\$ (helm template .*? \| kvgate check -)\n(.*?)```", page, re.DOTALL
    ).groups()  # type: ignore[union-attr]
    helm = require_assets(pytestconfig, "helm")
    path = f"{FOLDER}:{helm}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env={**os.environ, "PATH": path}, capture_output=True, text=True, check=False
    )
    assert done.stdout == output
    assert done.returncode == 1
