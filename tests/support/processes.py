"""What runs on this machine, read from /proc: to prove that nothing is left behind."""

import contextlib
from pathlib import Path


def command_lines(word: str) -> dict[int, list[str]]:
    """Process number → arguments, for every live process whose command line holds this word (a zombie's is empty)."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            found[int(path.parent.name)] = path.read_text(encoding="utf-8", errors="replace").split("\0")
    return {number: arguments for number, arguments in found.items() if word in " ".join(arguments)}
