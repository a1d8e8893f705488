"""What all commands have in common."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from kvgate.cli.main import main

FULL = Path("/dev/full")


@pytest.mark.skipif(not FULL.exists(), reason="Linux has a device that is always full")
@pytest.mark.parametrize("command", [("gpus",), ("size", "--model", "Qwen/Qwen3-8B", "--gpus", "L4")])
def test_a_full_disk_is_no_finding(command: tuple[str, ...]) -> None:
    with FULL.open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "kvgate", *command], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (2, "the output cannot be written: No space left on device\n")


def test_an_interrupted_check_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("kvgate.cli.check.report_or_exit", interrupt)
    result = CliRunner().invoke(main, ["check", "."])
    assert (result.exit_code, result.output.strip()) == (130, "interrupted")
