"""tools/run_tests.py: how many control planes run side by side."""

import os
from pathlib import Path

import pytest

from run_tests import num_planes

GIB = 2**30


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        ({"proc/meminfo": "MemTotal: 1 kB\nMemAvailable:   4194304 kB\n"}, 4),
        ({"proc/meminfo": "MemAvailable:     1 kB\n"}, 1),
        ({"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        ({"sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1),
        ({"sys/fs/cgroup/cpu.max": "max 100000\n", "sys/fs/cgroup/memory.max": "max\n"}, 8),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "250000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 8),
        ({"sys/fs/cgroup/memory.max": f"{5 * GIB}\n"}, 5),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n"}, 8),
    ],
)
def test_cores_and_memory_decide_how_many_control_planes_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert num_planes(tmp_path) == expected
