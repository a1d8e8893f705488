"""Where kvgate plugs in: Helm's plugin with a real Helm, kubectl's with a real API server. The Action is in tests/integration."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.plane import ControlPlane
from controlplane.programs import PATIENCE_SECONDS
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
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_SECONDS
    )


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
    assert f"{chart}/templates/vllm.yaml" in done.stdout


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
