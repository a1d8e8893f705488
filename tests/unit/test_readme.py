"""The front page shows what really happens: every command of kvgate in it is run, and its output compared."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```console\n\$ (kvgate [^\n]+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(("command", "output"), SHOWN, ids=[command for command, _ in SHOWN])
def test_a_command_of_the_readme_prints_what_the_readme_shows(command: str, output: str) -> None:
    program, *arguments = command.split()
    done = subprocess.run(
        [Path(sys.executable).parent / program, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout + done.stderr).rstrip() == output.rstrip()


def test_the_readme_shows_commands_of_kvgate_and_stays_short() -> None:
    assert len(SHOWN) >= 2
    assert len(README.splitlines()) <= 120


def test_no_module_lies_loose_where_it_would_shadow_the_standard_library() -> None:
    assert not list((ROOT / "operator").glob("*.py"))
