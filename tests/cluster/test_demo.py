"""`make demo` does what it says: every sample through command line, webhook and controller, and nothing is left behind."""

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from support.assets import require_assets

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]


def test_the_demo_ends_well_and_leaves_nothing(pytestconfig: pytest.Config) -> None:
    require_assets(pytestconfig)
    before = set(Path(tempfile.gettempdir()).glob("kvgate-*"))
    done = subprocess.run(
        [sys.executable, ROOT / "tools" / "demo.py"], capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for sample in (ROOT / "deploy" / "samples").glob("*.yaml"):
        assert f"$ kubectl apply -f deploy/samples/{sample.name}" in done.stdout
    assert set(Path(tempfile.gettempdir()).glob("kvgate-*")) <= before
