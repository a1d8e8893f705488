"""What all commands have in common."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from kvgate.cli.main import main
from kvgate.cli.terminal import Styled, text_of

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

    monkeypatch.setattr("kvgate.cli.check.command.report_or_exit", interrupt)
    result = CliRunner().invoke(main, ["check", "."])
    assert (result.exit_code, result.output.strip()) == (130, "interrupted")


def test_signs_that_a_terminal_lacks_are_escapes() -> None:
    program = "from kvgate.cli.terminal import show; show('8 \\u2192 4')"
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, env=environment, check=True)
    assert ended.stdout == b"8 \\u2192 4\n"


@pytest.mark.parametrize("parts", [("::error::x",), ("", Styled(text="::error::x", colour="red")), (" ", "::error::x")])
def test_no_part_of_a_line_begins_it_with_a_command(parts: tuple[str | Styled, ...]) -> None:
    assert click.unstyle(text_of([parts])).strip() == "\\x3a:error::x"
