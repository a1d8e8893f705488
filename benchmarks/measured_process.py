"""What one process takes: wall time, time of processors, peak memory."""

import json
import os
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

LAUNCHER = """
import json, os, subprocess, sys, tempfile, time
with tempfile.TemporaryFile() as written:
    started = time.perf_counter()
    process = subprocess.Popen(sys.argv[1:], stdout=written, stderr=written)
    _, status, usage = os.wait4(process.pid, 0)
    seconds = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 1):
        written.seek(0)
        sys.exit(f"{sys.argv[1:]} ended with {process.returncode}: {written.read()[-500:].decode()}")
cpu_seconds = usage.ru_utime + usage.ru_stime
print(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "peak_mib": usage.ru_maxrss / 1024}))
"""
"""A small process of its own, because Linux counts the memory of whoever starts a program to the peak of the program."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Of one process."""

    seconds: float
    cpu_seconds: float
    """Of all its threads, without what the machine did beside it."""
    peak_mib: float

    @classmethod
    def median(cls, runs: Sequence[Self]) -> Self:
        """Of each figure by itself."""
        return cls(**{name: statistics.median(getattr(run, name) for run in runs) for name in cls.__slots__})


def run(command: Sequence[str], environment: Mapping[str, str], stream: Path | None = None) -> Run:
    """With this file on standard input; 0 and 1 are verdicts, any other end of it ends us."""
    launched = [sys.executable, "-I", "-S", "-c", LAUNCHER, *command]
    with Path(stream or os.devnull).open("rb") as standard_input:
        done = subprocess.run(launched, env=environment, stdin=standard_input, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(done.returncode)
    return Run(**json.loads(done.stdout))


def kvgate(*arguments: str) -> list[str]:
    """The command line without what pip's console script adds."""
    return [sys.executable, "-m", "kvgate", *arguments]


def own_bytecode(folder: Path) -> dict[str, str]:
    """An environment in which bytecode is kept for the next run, whatever the environment's setting for it."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder / "bytecode"), "PYTHONPATH": "operator"}
