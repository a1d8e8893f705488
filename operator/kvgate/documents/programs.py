"""Programs that other people install, such as Helm: found outside of the checkout, run without network, bounded in time and output.

The input may be anybody's. Only programs are run here that render text and run nothing which the input names.
"""

import os
import resource
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from signal import SIGKILL
from tempfile import TemporaryFile
from threading import Timer

from msgspec import Struct

from kvgate.documents.bounded_files import repository_of

SECONDS = 20
"""Time for one run; a chart can hold loops of any length."""
MAX_OUTPUT_BYTES = 32 << 20
MAX_MEMORY_BYTES = 4 << 30
"""Address space; what Helm and kustomize need for the largest charts is some hundred MiB."""
_MAX_MESSAGE_BYTES = 8 << 10
_NOWHERE = "http://127.0.0.1:9"
"""A proxy that does not answer: kvgate fetches nothing that a manifest names."""
_WITHOUT_NETWORK = {
    **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"), _NOWHERE),
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_TERMINAL_PROMPT": "0",
}


class Failed(Struct, frozen=True, kw_only=True):
    """A run without output that can be used."""

    message: str
    """The program's own words, or what kvgate did to it."""


def find_program(names: Sequence[str], root: Path | None) -> Path | None:
    """Return the first of these programs that PATH has, but never one of the checkout. `root`: the folder of the checkout."""
    checkout = (root or repository_of(Path()) or Path("/nonexistent")).resolve()
    path = os.pathsep.join(_folders(checkout))
    found = (shutil.which(name, path=path) for name in names)
    return next((Path(each) for each in found if each and not Path(each).resolve().is_relative_to(checkout)), None)


def _folders(checkout: Path) -> list[str]:
    """Return the folders of PATH that are no part of the checkout."""
    folders = os.environ.get("PATH", "").split(os.pathsep)
    return [each for each in folders if os.path.isabs(each) and not Path(each).resolve().is_relative_to(checkout)]  # noqa: PTH117


def run_program(command: Sequence[str], folder: Path) -> bytes | Failed:
    """Run a program in a temporary folder, which is its home too; return its output."""
    path = os.pathsep.join(_folders(folder))
    variables = {**_WITHOUT_NETWORK, "PATH": path, "HOME": str(folder), "LANG": "C.UTF-8"}
    with TemporaryFile() as messages:
        process = subprocess.Popen(  # noqa: S603 - the words of the command are kvgate's own, and paths of its copies
            command, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=messages,
            start_new_session=True, preexec_fn=_limit,  # noqa: PLW1509 - no thread is running yet
        )  # fmt: skip
        late, output = list[bool](), b""
        timer = Timer(SECONDS, lambda: late.append(True) or _kill(process))  # type: ignore[func-returns-value]
        timer.start()
        with process:
            try:
                output = process.stdout.read(MAX_OUTPUT_BYTES + 1) if process.stdout else b""
                timed_out = bool(late)
            finally:
                timer.cancel()
                if len(output) > MAX_OUTPUT_BYTES:
                    _kill(process)
        code = process.returncode
        messages.seek(0)
        said = messages.read(_MAX_MESSAGE_BYTES).decode(errors="replace").strip()
    if timed_out:
        return Failed(message=f"it was not done after {SECONDS} seconds and was stopped")
    if len(output) > MAX_OUTPUT_BYTES:
        return Failed(message=f"its output has more than {MAX_OUTPUT_BYTES >> 20} MiB")
    return output if code == 0 else Failed(message=said or f"it ended with exit code {code}")


def _limit() -> None:
    """Set the limits of the process that becomes the program."""
    for what, limit in ((resource.RLIMIT_AS, MAX_MEMORY_BYTES), (resource.RLIMIT_FSIZE, MAX_OUTPUT_BYTES)):
        with suppress(OSError, ValueError):
            resource.setrlimit(what, (limit, limit))


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the program and what it started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, SIGKILL)
