"""The GitHub Action's step that checks, with a Helm that renders one pod."""

import os
import subprocess
import sys
from pathlib import Path

import yaml

from support.chart import ROOT

POD = """\
apiVersion: v1
kind: Pod
metadata: {name: engine}
spec:
  containers:
  - name: vllm
    image: vllm/vllm-openai:v0.32.0
    args: [--model=Qwen/Qwen3-8B, --max-model-len=40960]
    resources: {limits: {nvidia.com/gpu: 1}}
"""


def test_a_rendered_chart_is_judged_with_the_configuration_of_the_working_directory(tmp_path: Path) -> None:
    _, check = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["runs"]["steps"]
    helm = tmp_path / "bin" / "helm"
    helm.parent.mkdir()
    helm.write_text(f"#!/bin/sh\ncat <<'END'\n{POD}END\n")
    helm.chmod(0o755)
    (tmp_path / ".kvgate.yaml").write_text("accelerator: L4-24GB\n")
    environment = {
        **os.environ,
        "PATH": f"{helm.parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT / "operator"),
        "PYTHON": sys.executable,
        "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md"),
        **dict.fromkeys(check["env"].keys() - {"PYTHON"}, ""),
        "KVGATE_CHART": "chart",
    }
    done = subprocess.run(
        ["bash", "-ec", check["run"]], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "::error file=stdin,line=8" in done.stdout
    assert "pod engine on L4-24GB" in (tmp_path / "summary.md").read_text()
