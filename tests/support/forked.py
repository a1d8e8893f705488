"""kvgate's two processes, forked from one that has imported them: importing is most of what a start costs.

Each is a process of its own, with the arguments, environment, log and exit code of `kvgate NAME …`; only its workers have the environment
of the tests. The demo, `make observe`, the questions at every door and the faults that need the program itself start it as users do.
"""

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing import forkserver
from pathlib import Path

IMPORTED = (
    "kvgate.controller.command",
    "kvgate.controller.decision",
    "kvgate.webhook.command",
    "kvgate.runtime.worker",
)
_CONTEXT = multiprocessing.get_context("forkserver")


class Forked:
    """A running process, with the part of `subprocess.Popen` that `fleet.doors` needs."""

    def __init__(self, log: Path, environment: Mapping[str, str] | None, *arguments: str) -> None:
        _CONTEXT.set_forkserver_preload(list(IMPORTED))
        variables = dict(os.environ if environment is None else environment)
        self._process = _CONTEXT.Process(target=_serve, args=(str(log), variables, arguments))
        self._process.start()
        self.pid = self._process.pid
        self.terminate, self.kill = self._process.terminate, self._process.kill

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if (code := self._process.exitcode) is None:
            raise subprocess.TimeoutExpired("kvgate", timeout or 0)
        return code


def _serve(log: str, variables: dict[str, str], arguments: tuple[str, ...]) -> None:
    """Become `kvgate NAME …`. Its workers come from the process that this one comes from, which has imported what they need."""
    forkserver._forkserver.ensure_running = lambda: None  # type: ignore[attr-defined]
    os.environ.clear()
    os.environ.update(variables)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.argv = ["kvgate", *arguments]
    from kvgate.__main__ import main

    main()
