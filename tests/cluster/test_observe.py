"""`make observe` does what it says: predicted and observed side by side, the alerts, the picture; nothing is left behind."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.assets import require_assets
from support.pictures import require_matplotlib
from support.prometheus import require_prometheus

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[2]
PNG = b"\x89PNG\r\n\x1a\n"


def test_predicted_and_observed_stand_side_by_side_and_the_alerts_fire(
    pytestconfig: pytest.Config, tmp_path: Path, temporary: Path
) -> None:
    require_assets(pytestconfig)
    require_prometheus(pytestconfig, "3")
    require_matplotlib(pytestconfig)
    picture = tmp_path / "observed.png"
    command = [sys.executable, ROOT / "tools" / "observe.py", "--picture", picture]
    environment = {**os.environ, "TMPDIR": str(temporary)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for line in (
        r"as-logged +[\d,]+ to [\d,]+ +418,688 +\+0.0%  yes      none",
        r"other-image +[\d,]+ to [\d,]+ +420,896 +-11.6%  no       KvgatePredictionWrong, KvgatePreemptionStorm, Kvgate.+",
        r"shared-gpu +[\d,]+ to [\d,]+ +829,680 +-50.6%  no       KvgateCapacityDropped, KvgatePredictionWrong",
        r"adjusted +[\d,]+ to [\d,]+ +117,216 +-0.4%  yes      KvgateHeadroomLow",
        r"as-logged +[\d,]+ to [\d,]+ tokens, 418,688 expected, from 2 observed starts",
        r"shared-gpu +[\d,]+ to [\d,]+ tokens, 1,684,784 expected, from 1 observed starts",
    ):
        assert re.search(rf"^ +{line}$", done.stdout, re.MULTILINE), done.stdout
    assert picture.read_bytes().startswith(PNG)
    assert list(temporary.iterdir()) == []
