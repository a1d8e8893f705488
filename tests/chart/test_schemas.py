"""Everything that we ship for `kubectl apply`, by kubeconform against the schemas of the real API server."""

import subprocess
from pathlib import Path

import pytest

from chart.golden import CASES, INSTALL, golden_file
from controlplane.kubeconform import kubeconform
from support.assets import require_assets
from support.chart import ROOT

pytestmark = pytest.mark.cluster


@pytest.fixture(scope="module")
def command(pytestconfig: pytest.Config) -> list[str]:
    return kubeconform(require_assets(pytestconfig))


SHIPPED = [INSTALL, *map(golden_file, CASES), *sorted((ROOT / "deploy" / "samples").glob("*.yaml"))]


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_we_ship_is_as_its_schema_says(command: list[str], path: Path) -> None:
    checked = subprocess.run([*command, "-summary", path], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
    assert "Valid: 0," not in checked.stdout


@pytest.mark.parametrize(
    ("path", "right", "wrong"),
    [
        (INSTALL, "replicas: 2", "replikas: 2"),
        (INSTALL, "runAsNonRoot: true", "runAsNonRoot: 7"),
        (INSTALL, "containerPort: ", "containerPort: port-"),
        (ROOT / "deploy" / "samples" / "fits.yaml", "maxModelLen:", "maxModelLength:"),
    ],
)
def test_a_mistake_is_refused(command: list[str], tmp_path: Path, path: Path, right: str, wrong: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert right in text
    (tmp_path / "mistake.yaml").write_text(text.replace(right, wrong), encoding="utf-8")
    checked = subprocess.run([*command, tmp_path], capture_output=True, text=True)
    assert checked.returncode == 1
    assert " is invalid: " in checked.stdout
