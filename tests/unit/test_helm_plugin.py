"""`helm kvgate`: what its script does before Helm renders anything."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from plugins import helm_kvgate
from support.assets import require_assets
from support.chart import ROOT
from support.command_line import MISTAKEN_POD


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_renders_nothing(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], flag: str) -> None:
    monkeypatch.setenv("HELM_BIN", "/no/such/helm")
    assert helm_kvgate.main([flag]) == 0
    assert capsys.readouterr().out == f"{helm_kvgate.USAGE}\n"


def test_a_plugin_without_a_chart_or_without_kvgate_says_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("shutil.which", lambda name, path: name)
    assert helm_kvgate.main([]) == 2
    assert helm_kvgate.USAGE in capsys.readouterr().err
    monkeypatch.setattr("shutil.which", lambda name, path: None)
    assert helm_kvgate.main(["chart"]) == 2
    assert f"kvgate on PATH: pip install {ROOT}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["chart"], "chart/templates/pod.yaml:7: pod engine"),
        (["--namespace", "x", "./chart", "--set", "name=other"], "chart/templates/pod.yaml:7: pod other"),
    ],
    ids=["a folder", "between flags"],
)
def test_a_chart_in_a_folder_is_rendered_by_kvgate(
    pytestconfig: pytest.Config, arguments: list[str], place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    template = MISTAKEN_POD.replace("name: engine", "name: {{ .Values.name }}")
    (tmp_path / "chart" / "templates").mkdir(parents=True)
    (tmp_path / "chart" / "Chart.yaml").write_text("apiVersion: v2\nversion: 1.0.0\nname: 'serving' # here\n")
    (tmp_path / "chart" / "values.yaml").write_text("name: engine\n")
    (tmp_path / "chart" / "templates" / "pod.yaml").write_text(template)
    monkeypatch.setenv("HELM_BIN", str(require_assets(pytestconfig, "helm") / "helm"))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    monkeypatch.chdir(tmp_path)
    assert helm_kvgate.main(arguments) == 1
    assert place in capfd.readouterr().out
    assert helm_kvgate.main([*arguments, "--post-renderer", "./run-me"]) == 2
    assert "--post-renderer is not passed on to Helm" in capfd.readouterr().err


def test_a_chart_from_elsewhere_is_rendered_by_helm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    helm = tmp_path / "helm"
    helm.write_text(f"#!/bin/sh\ncat <<'END'\n---\n# Source: serving/templates/pod.yaml\n{MISTAKEN_POD}END\n")
    helm.chmod(0o755)
    monkeypatch.setenv("HELM_BIN", str(helm))
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    monkeypatch.chdir(tmp_path)
    assert helm_kvgate.main(["oci://registry.example/charts/serving"]) == 1
    assert "<stdin>:9: pod" in capfd.readouterr().out


def test_nothing_of_the_current_folder_is_run(tmp_path: Path) -> None:
    """The command of plugin.yaml in a folder of modules and programs that would sing."""
    here, canary = tmp_path / "here", tmp_path / "canary"
    here.mkdir()
    for module in ("yaml", "click", "json", "shutil", "subprocess", "sitecustomize", "kvgate"):
        (here / f"{module}.py").write_text(f"open({str(canary)!r}, 'a').write({module!r})\n")
    for program in ("kvgate", "helm"):
        (here / program).write_text(f"#!/bin/sh\necho {program} >>'{canary}'\n")
        (here / program).chmod(0o755)
    helm = tmp_path / "helm"
    helm.write_text(f"#!/bin/sh\ncat <<'END'\n{MISTAKEN_POD}END\n")
    helm.chmod(0o755)
    python, *words = shlex.split(yaml.safe_load((ROOT / "plugin.yaml").read_text(encoding="utf-8"))["command"])
    assert python == "python3"
    command = [sys.executable, *(word.replace("$HELM_PLUGIN_DIR", str(ROOT)) for word in words), "chart"]
    environment = {
        "PATH": f".::{Path(sys.executable).parent}:{os.environ['PATH']}", "HELM_BIN": str(helm), "PYTHONPATH": ".:",
        "PYTHONSTARTUP": "yaml.py",
    }  # fmt: skip
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1, done.stderr
    assert "no-such-option" in done.stdout
    assert not canary.exists(), canary.read_text()
