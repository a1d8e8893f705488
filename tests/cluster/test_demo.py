"""`make demo` does what it says: every sample through command line, webhook and controller, and nothing is left behind."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.assets import require_assets

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]


def test_the_demo_ends_well_and_leaves_nothing(pytestconfig: pytest.Config, temporary: Path) -> None:
    require_assets(pytestconfig)
    command, environment = [sys.executable, ROOT / "tools" / "demo.py"], {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for sample in (ROOT / "deploy" / "samples").glob("*.yaml"):
        assert f"$ kubectl apply -f deploy/samples/{sample.name}" in done.stdout
    assert "pods run as before" in done.stdout
    assert "NotEnoughGpus" in done.stdout
    assert list(temporary.iterdir()) == []
