"""Run `make test`: the checks, then the whole test suite with the control plane that `make tools` built."""

import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from controlplane import build

PYTEST = ("-q", "--durations=10", "--dist", "loadfile", "--no-loadscope-reorder")
CLUSTER_FOLDERS = ("tests/cluster", "tests/chart")
"""Where tests with a control plane lie: each worker collects only these."""
AFTER_OTHERS = ("nice", "-n", "5")
PLANE_BYTES = 2**30
"""Memory of a control plane, its controllers and the process that tests them."""
ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Checks, tests, and tests with a control plane at once: the last wait most of the time, and go first where all want a core.

    Generated files are compared inside the tests. What failed is named last, with the folder of the logs.
    """
    logs = Path(tempfile.mkdtemp(prefix="kvgate-test-"))
    environment = {**os.environ, "KUBEBUILDER_ASSETS": str(build.find_assets() or ""), "KVGATE_LOGS": str(logs)}
    pytest, chosen = [sys.executable, "-m", "pytest", *PYTEST], sys.argv[1:]
    alone = ["-n", "auto", "-m", "not cluster", f"--junitxml={logs / 'tests.xml'}"]
    cluster = [
        "-n",
        str(num_planes(Path("/"))),
        "-m",
        "cluster",
        f"--junitxml={logs / 'cluster.xml'}",
        *CLUSTER_FOLDERS,
    ]
    steps = {
        "tests": [*AFTER_OTHERS, *pytest, *alone, *chosen],
        "checks": [*AFTER_OTHERS, sys.executable, "tools/run_checks.py", "--no-tests"],
        "tests with a control plane": [*pytest, *cluster, *chosen],
    }
    with ThreadPoolExecutor(len(steps)) as threads:
        done = dict(zip(steps, threads.map(partial(run, environment), steps, steps.values()), strict=True))
    failed = [name for name, is_well in done.items() if not is_well]
    if failed:
        sys.exit(f"make test: failed: {', '.join(failed)}; logs: {logs}")
    if kept := [str(path) for path in logs.iterdir() if path.is_dir()]:
        print(f"make test: passed, but a control plane did not start at once; logs: {', '.join(kept)}")
    else:
        shutil.rmtree(logs)


def run(environment: Mapping[str, str], name: str, command: Sequence[str]) -> bool:
    """Run one step. The tests say how far they are; of the others the output is printed in one piece, when they have ended."""
    pipe = None if name == "tests" else subprocess.PIPE
    done = subprocess.run(
        command, cwd=ROOT, env=environment, check=False, stdout=pipe, stderr=pipe and subprocess.STDOUT, text=True
    )
    print(f"{done.stdout or ''}make test: {name}: {'failed' if done.returncode else 'passed'}", flush=True)
    return done.returncode == 0


def num_planes(root: Path) -> int:
    """Control planes that the cores and the memory carry side by side, by the limits of this process and of its container.

    `root` holds proc and sys.
    """
    cores = float(len(os.sched_getaffinity(0)))
    cgroup = root / "sys/fs/cgroup"
    for quota in (_text(cgroup / "cpu.max"), _text(cgroup / "cpu/cpu.cfs_quota_us", cgroup / "cpu/cpu.cfs_period_us")):
        if limit := re.match(r"(\d+)\s+(\d+)", quota):
            cores = min(cores, int(limit[1]) / int(limit[2]))
    available = re.findall(r"^MemAvailable: +(\d+) kB", _text(root / "proc/meminfo"), re.MULTILINE)
    limits = re.findall(r"\d+", _text(cgroup / "memory.max", cgroup / "memory/memory.limit_in_bytes"))
    sizes_bytes = [*(int(size) * 1024 for size in available), *map(int, limits)]
    return max(1, min([math.ceil(cores), *(size // PLANE_BYTES for size in sizes_bytes)]))


def _text(*paths: Path) -> str:
    """Return the text of those that exist, in lines."""
    return "\n".join(path.read_text(encoding="ascii") for path in paths if path.is_file())


if __name__ == "__main__":
    main()
