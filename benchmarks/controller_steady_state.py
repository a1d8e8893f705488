"""kvgate controller on a real control plane: cold start, memory, CPU and writes once nothing changes.

The objects exist before the controller starts; half of them fit, a quarter is adjusted, a quarter refused. Writes are counted
from the API server's audit log, over the window after the last object has settled, with a restart in between. One object is scaled a
hundred times: its record stays the same one.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]

from controlplane.build import ensure_assets  # noqa: E402
from controlplane.plane import PROGRAMS, ControlPlane  # noqa: E402
from fleet.doors import door  # noqa: E402
from support.inference import Objects, inference_deployment, install  # noqa: E402

SPECS: tuple[dict[str, Any], ...] = (
    {"vllm": {"maxNumSeqs": 4}},
    {"vllm": {"maxNumSeqs": 2, "kvCacheDtype": "fp8"}},
    {"vllm": {"maxNumSeqs": 64}, "admission": {"policy": "Adjust"}},
    {"vllm": {"maxNumSeqs": 64}},
)
MAX_COLD_SECONDS = 300
RESYNC_SECONDS = 20
"""Three resyncs in a minute; the default is one in five minutes."""
TOLD_SECONDS = 40.0
"""Two rounds of observing: that no vLLM answers behind kwok's pods is written once."""
SCALINGS = 100
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def create(plane: ControlPlane, count: int) -> None:
    """In one kubectl call: a List of them."""
    items = [inference_deployment(f"bench-{n}", **SPECS[n % len(SPECS)]) for n in range(count)]
    plane.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def undecided(plane: ControlPlane) -> int:
    items = plane.request("GET", "/apis/kvgate.io/v1alpha1/inferencedeployments")["items"]
    return sum(1 for item in items if not item.get("status", {}).get("conditions"))


def until_reconciled(plane: ControlPlane, began: float) -> float:
    """Looks once a second: the API server shares the cores with what is measured."""
    while undecided(plane):
        if time.monotonic() - began > MAX_COLD_SECONDS:
            sys.exit(f"{undecided(plane)} objects are not reconciled after {MAX_COLD_SECONDS} s")
        time.sleep(1)
    return time.monotonic() - began


@contextmanager
def controller(plane: ControlPlane, folder: Path) -> Iterator[Popen[bytes]]:
    options = ("--metrics-host=127.0.0.1", "--metrics-port=0", f"--kubeconfig={plane.kubeconfig}")
    with door("controller", folder / "log", *options, f"--resync-seconds={RESYNC_SECONDS}") as process:
        yield process


def resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


def watched(plane: ControlPlane, pid: int, seconds: float) -> dict[str, float]:
    """Writes and CPU of a window in which nobody changes anything."""
    objects = Objects(plane=plane)
    time.sleep(TOLD_SECONDS)
    writes, cpu = objects.settle(3.0), cpu_seconds(pid)
    time.sleep(seconds)
    return {
        "writes": len(objects.writes()) - writes,
        "cores": (cpu_seconds(pid) - cpu) / seconds,
        "resident MiB": resident_mib(pid),
    }


def requests(plane: ControlPlane) -> Counter[str]:
    """Requests of the controller by verb and resource, as the API server's audit log has them."""
    ours = (event for event in plane.audit() if event.user_agent.startswith("kvgate-controller"))
    return Counter(
        f"{event.verb} {event.resource}{'/' + event.subresource if event.subresource else ''}" for event in ours
    )


def stored_bytes(plane: ControlPlane, name: str) -> tuple[int, int]:
    """Bytes of one object with all that is kept of its admission, and the number of its records."""
    base = "/apis/kvgate.io/v1alpha1/namespaces/default"
    document = plane.request("GET", f"{base}/inferencedeployments/{name}")
    records = plane.request("GET", f"{base}/admissionrecords?labelSelector=kvgate.io/inferencedeployment={name}")[
        "items"
    ]
    return sum(len(json.dumps(each, separators=(",", ":"))) for each in (document, *records)), len(records)


def scaled(plane: ControlPlane, name: str, times: int) -> None:
    """Scale one object so often, and wait until the controller has answered the last time."""
    for number in range(times):
        plane.kubectl("scale", "infd", name, f"--replicas={number % 2}")
    Objects(plane=plane).settle(3.0)


def main() -> None:
    parser = argparse.ArgumentParser(description="Steady state of kvgate controller")
    parser.add_argument("--objects", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=60)
    arguments = parser.parse_args()
    with ControlPlane(ensure_assets(PROGRAMS)) as plane, tempfile.TemporaryDirectory(prefix="kvgate-bench-") as name:
        install(plane, gpus=arguments.objects)
        create(plane, arguments.objects)
        began = time.monotonic()
        with controller(plane, Path(name)) as process:
            cold_seconds = until_reconciled(plane, began)
            cold_cpu_seconds, cold = cpu_seconds(process.pid), requests(plane)
            steady = watched(plane, process.pid, arguments.seconds)
        before = len(Objects(plane=plane).writes())
        with controller(plane, Path(name)) as process:
            time.sleep(10)
            again = len(Objects(plane=plane).writes()) - before
            size, _ = stored_bytes(plane, "bench-0")
            scaled(plane, "bench-0", SCALINGS)
            size_after, records = stored_bytes(plane, "bench-0")
    print(f"{arguments.objects} objects, resync every {RESYNC_SECONDS} s, window of {arguments.seconds:g} s")
    print(
        f"cold start to all reconciled {cold_seconds:10.1f} s   (the process's own start included, {cold_cpu_seconds:.1f} s of CPU)"
    )
    each = sum(cold.values()) / arguments.objects
    print(
        f"requests of the cold start   {each:10.1f}     per object: {', '.join(f'{name} {n}' for name, n in cold.most_common(12))}"
    )
    print(
        f"bytes after {SCALINGS} scalings     {size_after:10.0f}     {size} before; the object and its {records} record"
    )
    print(f"writes in the window         {steady['writes']:10.0f}     target 0")
    print(f"writes after a restart       {again:10.0f}     target 0")
    print(f"CPU in the window            {steady['cores']:10.3f} cores")
    print(f"resident memory              {steady['resident MiB']:10.0f} MiB")
    if steady["writes"] or again:
        sys.exit(1)


if __name__ == "__main__":
    main()
