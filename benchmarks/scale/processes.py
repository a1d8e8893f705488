"""The processes of one door: processor time and memory, of the process itself and of those that it started."""

import os
from collections import defaultdict
from pathlib import Path

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def family(pid: int) -> list[int]:
    """Return the process and its living descendants: the workers and the server that forks them."""
    children = defaultdict[int, list[int]](list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        if fields := _stat(path):
            children[int(fields[1])].append(int(path.parent.name))
    found = [pid]
    for each in found:
        found += children[each]
    return found


def cpu_seconds(pid: int) -> float:
    """Return the processor time of the process, of its descendants, and of those that it has waited for."""
    spent = (_stat(Path(f"/proc/{each}/stat")) for each in family(pid))
    return sum(sum(map(int, fields[11:15])) for fields in spent if fields) / TICKS_PER_SECOND


def resident_mib(pid: int) -> float:
    """Return the resident memory of the process alone."""
    return _kib(Path(f"/proc/{pid}/status"), "VmRSS:") / 1024


def family_mib(pid: int) -> float:
    """Return the memory of all of them, in which pages that several share count once: as a container's limit counts it."""
    return sum(_kib(Path(f"/proc/{each}/smaps_rollup"), "Pss:") for each in family(pid)) / 1024


def _stat(path: Path) -> list[str]:
    """Return the fields after the name of the program; nothing where the process has ended."""
    try:
        return path.read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return []


def _kib(path: Path, field: str) -> int:
    lines = path.read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field))
