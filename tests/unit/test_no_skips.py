"""In CI nothing is skipped in silence, and nothing may fail without a reason."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).resolve().parents[1]
SKIPS = {
    "a skip": "import pytest\ndef test_a():\n    pytest.skip('no such tool')\n",
    "a marked skip": "import pytest\n@pytest.mark.skip(reason='no such tool')\ndef test_a():\n    pass\n",
    "a module": "import pytest\npytest.importorskip('no_such_package', reason='no such tool')\ndef test_a():\n    pass\n",
}
EXPECTED = "import pytest\n@pytest.mark.xfail(reason={reason!r})\ndef test_a():\n    assert False\n"


def run(folder: Path, text: str, *, is_ci: bool) -> subprocess.CompletedProcess[str]:
    (folder / "test_it.py").write_text(text)
    environment = {**os.environ, "PYTHONPATH": str(TESTS), "KVGATE_NO_SKIPS": "1" if is_ci else ""}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "support.no_skips",
        "-p",
        "no:cacheprovider",
        "-rA",
        "test_it.py",
    ]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", SKIPS)
def test_a_skip_is_a_failure_in_ci_alone(tmp_path: Path, name: str) -> None:
    assert run(tmp_path, SKIPS[name], is_ci=False).returncode in (0, 5)  # 5: no test is left
    done = run(tmp_path, SKIPS[name], is_ci=True)
    assert done.returncode not in (0, 5)
    assert "KVGATE_NO_SKIPS=1, but it is skipped: " in done.stdout
    assert "no such tool" in done.stdout


@pytest.mark.parametrize(("reason", "passes"), [("the chart has a defect", True), ("", False)])
def test_a_test_that_may_fail_says_why(tmp_path: Path, reason: str, *, passes: bool) -> None:
    done = run(tmp_path, EXPECTED.format(reason=reason), is_ci=True)
    assert (done.returncode == 0) is passes, done.stdout
