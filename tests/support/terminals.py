"""A shell in a real terminal, by tmux: what a person sees in it, and whether the terminal had to break a line."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import Struct

from support.assets import say_loudly
from support.waiting import until

NO_TMUX = "no tmux on PATH (Debian: apt-get install tmux)"
ROWS = 24
"""Rows of a terminal's window that nobody enlarged."""


def require_tmux(config: pytest.Config) -> str:
    """The program; with KVGATE_REQUIRE_TERMINAL=1 (CI) a missing one is a failure and never a skip."""
    found = shutil.which("tmux")
    if found:
        return found
    if os.environ.get("KVGATE_REQUIRE_TERMINAL") == "1":
        pytest.fail(f"KVGATE_REQUIRE_TERMINAL=1, but {NO_TMUX}", pytrace=False)
    say_loudly(config, f"NOT TESTED: {NO_TMUX}")
    pytest.skip(NO_TMUX)


class Terminal(Struct, frozen=True, kw_only=True):
    """A window of ROWS rows, with a prompt `$`."""

    tmux: tuple[str, ...]

    async def type(self, command: str) -> None:
        """Type a command as soon as there is a prompt, and wait for the next one."""
        await until(self._waits)
        before = self.everything()
        self._run("send-keys", "-l", command)
        self._run("send-keys", "Enter")
        await until(lambda: self.everything() != before and self._waits())

    def screen(self) -> str:
        """The rows that are visible."""
        return self._captured()

    def everything(self, *, joined: bool = False) -> str:
        """All rows from the first; joined: rows that the terminal broke are one line again."""
        return self._captured("-S", "-", *(["-J"] if joined else []))

    def _waits(self) -> bool:
        return self.everything().splitlines()[-1:] == ["$"]

    def _captured(self, *options: str) -> str:
        return "\n".join(line.rstrip() for line in self._run("capture-pane", "-p", *options).splitlines()).strip("\n")

    def _run(self, *arguments: str) -> str:
        return subprocess.run([*self.tmux, *arguments], capture_output=True, text=True, check=True, timeout=20).stdout


@contextmanager
def terminal(tmux: str, folder: Path, columns: int) -> Iterator[Terminal]:
    """A new terminal in the folder, with a server of its own that ends with it."""
    programs = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    environment = {"HOME": str(folder), "LANG": "C.UTF-8", "PATH": programs, "PS1": "$ ", "TERM": "xterm"}
    command = (tmux, "-u", "-f", "/dev/null", "-S", str(folder / "tmux"))
    shell = [
        "env",
        "-i",
        *(f"{name}={value}" for name, value in environment.items()),
        "TERM=screen",
        "bash",
        "--norc",
        "--noprofile",
    ]
    start = ["new-session", "-d", "-x", str(columns), "-y", str(ROWS), *shell]
    subprocess.run([*command, *start], cwd=folder, env=environment, check=True, timeout=20)
    try:
        yield Terminal(tmux=command)
    finally:
        subprocess.run([*command, "kill-server"], check=False, timeout=20)
