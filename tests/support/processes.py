"""Programs of a test's own, and what runs on this machine, read from /proc: to prove that nothing is left behind."""

import contextlib
from pathlib import Path


def place(path: Path, script: str = "true") -> Path:
    """A shell script that stands in for a program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    path.chmod(0o755)
    return path


def command_lines(word: str) -> dict[int, list[str]]:
    """Process number → arguments, for every live process whose command line holds this word (a zombie's is empty)."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found[int(path.parent.name)] = path.read_text(encoding="utf-8", errors="replace").split("\0")
    return {number: arguments for number, arguments in found.items() if word in " ".join(arguments)}
