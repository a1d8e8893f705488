"""tools/run_tests.py: how many control planes run side by side, and what is said when a step fails."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import run_tests
from run_tests import num_planes
from support import collecting

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


def test_every_step_runs_and_those_that_fail_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def ran(command: Sequence[str], **_: Any) -> subprocess.CompletedProcess[str]:
        asked.append(command[-1])
        return subprocess.CompletedProcess(command, 1 if "cluster" in command else 0, stdout="what it said\n")

    monkeypatch.setattr(run_tests.tempfile, "mkdtemp", lambda **_: str(tmp_path))
    monkeypatch.setattr(run_tests.subprocess, "run", ran)
    monkeypatch.setattr("sys.argv", ["run_tests.py", "--chosen"])
    with pytest.raises(SystemExit, match=f"failed: tests with a control plane; logs: {tmp_path}"):
        run_tests.main()
    assert sorted(asked) == ["--chosen", "--chosen", "--no-tests"]
    assert "what it said\nmake test: tests with a control plane: failed" in capsys.readouterr().out


def item(path: str, *, is_cluster: bool = True) -> Any:
    return SimpleNamespace(path=Path("/x", path), nodeid=path, get_closest_marker=lambda _: is_cluster or None)


def test_a_test_of_a_control_plane_that_would_not_be_found_is_refused() -> None:
    config: Any = SimpleNamespace(rootpath=Path("/x"))
    found = [
        item("tests/unit/a.py", is_cluster=False),
        item("tests/chart/b.py"),
        item("tests/cluster/test_resolving.py"),
    ]
    collecting.pytest_collection_modifyitems(config, found)
    assert [each.path.stem for each in found] == ["test_resolving", "a", "b"]
    with pytest.raises(
        pytest.UsageError, match=r"tests/unit/a\.py needs a control plane, but lies outside of tests/cluster"
    ):
        collecting.pytest_collection_modifyitems(config, [item("tests/unit/a.py")])
