"""Programs that other people install, such as Helm: found outside of the checkout, run behind a wall, bounded in time and output.

The input may be anybody's. Two walls hold it, each by itself: the program gets only what kvgate wrote for it (`kustomize.py`,
`helm.py`), and the kernel keeps it from everything else (`confined.py`).
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from signal import SIGKILL
from tempfile import TemporaryDirectory, TemporaryFile
from threading import Timer

from msgspec import Struct

from kvgate.documents import confined
from kvgate.documents.bounded_files import repository_of
from kvgate.documents.confined import MAX_OUTPUT_BYTES, NO_WALL

SECONDS = 20
"""Time for one run; a chart can hold loops of any length."""
_PROBE_SECONDS = 10
_MAX_MESSAGE_BYTES = 8 << 10


class Failed(Struct, frozen=True, kw_only=True):
    """A run without output that can be used."""

    message: str
    """The program's own words, or what kvgate did to it."""


def find_program(names: Sequence[str], root: Path | None) -> Path | None:
    """Return the first of these programs that PATH has: never one of the checkout, and no script, which would need other programs.

    `root`: the folder of the checkout.
    """
    checkout = (root or repository_of(Path()) or Path("/nonexistent")).resolve()
    folders = [Path(each) for each in os.environ.get("PATH", "").split(os.pathsep)]
    outside = [each for each in folders if each.is_absolute() and not each.resolve().is_relative_to(checkout)]
    found = (shutil.which(name, path=str(folder)) for name in names for folder in outside)
    for program in (Path(each) for each in found if each):
        with suppress(OSError), program.open("rb") as file:
            if not program.resolve().is_relative_to(checkout) and file.read(2) != b"#!":
                return program
    return None


@lru_cache
def walls() -> tuple[str, ...]:
    """Return the walls that this system offers, the best first, by trying: words of `confined`."""
    with TemporaryDirectory(prefix="kvgate-") as folder, suppress(OSError, subprocess.TimeoutExpired):
        Path(folder, confined.HOME).mkdir()
        command = [*_launcher(), "probe", os.path.realpath(folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PROBE_SECONDS, check=False, env={})  # noqa: S603
        return tuple(done.stdout.split())
    return ()


def wall() -> str:
    return next(iter(walls()), NO_WALL)


def _launcher() -> list[str]:
    return [sys.executable, "-I", "-S", confined.__file__]


def run_program(program: Path, arguments: Sequence[str], folder: Path) -> bytes | Failed:
    """Run a program that sees nothing but this folder, in which it can write nothing; return its output.

    `folder`: without links on the way, and without a file `home`, which becomes the empty home of the program.
    """
    (folder / confined.HOME).mkdir()
    command = [*_launcher(), wall(), str(folder), str(program.resolve()), program.name, *arguments]
    with TemporaryFile() as messages:
        process = subprocess.Popen(  # noqa: S603 - the words of the command are kvgate's own, and paths of its copies
            command, cwd=folder, env={}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=messages,
            start_new_session=True,
        )  # fmt: skip
        late, output = list[bool](), b""
        timer = Timer(SECONDS, lambda: late.append(True) or _kill(process))  # type: ignore[func-returns-value]
        timer.start()
        try:
            with process:
                output = process.stdout.read(MAX_OUTPUT_BYTES + 1) if process.stdout else b""
                if len(output) > MAX_OUTPUT_BYTES:
                    _kill(process)
        finally:
            timer.cancel()
        code, timed_out = process.returncode, bool(late)
        messages.seek(0)
        said = messages.read(_MAX_MESSAGE_BYTES).decode(errors="replace").strip()
    (folder / confined.HOME).rmdir()
    if timed_out:
        return Failed(message=f"it was not done after {SECONDS} seconds and was stopped")
    if len(output) > MAX_OUTPUT_BYTES:
        return Failed(message=f"its output has more than {MAX_OUTPUT_BYTES >> 20} MiB")
    return output if code == 0 else Failed(message=said or f"it ended with exit code {code}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, SIGKILL)
