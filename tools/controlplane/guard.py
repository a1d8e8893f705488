"""Run one program which cannot outlive the process that started it: `python guard.py PARENT FOLDER -- program ...`.

The kernel's parent-death signal alone is bound to the *thread* that started the program, so a control plane started
from a worker thread would die with that thread. This guard has a single thread and waits on two process descriptors:
when PARENT ends in any way, SIGKILL included, the program is killed and FOLDER removed; when the guard itself is
killed, the parent-death signal takes the program along. SIGTERM ends both. Linux only.
"""

from __future__ import annotations

import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def guarded(command: Sequence[str], folder: Path) -> list[str]:
    """The command line which runs `command` under a guard of the calling process."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), str(folder), "--", *command]


def _die_with_guard() -> None:
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def main(parent: int, folder: str, command: Sequence[str]) -> int:
    """The exit status of the program."""
    parent_ended = os.pidfd_open(parent)
    if os.getppid() != parent:  # it ended before we could watch it
        return 1
    program = subprocess.Popen(command, preexec_fn=_die_with_guard)  # noqa: PLW1509 - there is one thread here
    signal.signal(signal.SIGTERM, lambda *_: program.kill())
    ended, _, _ = select.select([parent_ended, os.pidfd_open(program.pid)], [], [])
    if parent_ended in ended:
        program.kill()
        program.wait()
        shutil.rmtree(folder, ignore_errors=True)  # every guard tries; the last one finds nobody writing
    return program.wait()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2], sys.argv[4:]))
