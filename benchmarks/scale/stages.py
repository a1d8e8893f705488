"""Stages of the benchmark: each does one thing to a fleet, and returns its figures by their names."""

import asyncio
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from datetime import datetime
from math import inf
from subprocess import Popen

import webhook_load
from controlplane.plane import ControlPlane
from controlplane.programs import wait_until
from scale import processes
from scale.fleet import by_kind, controller, ours, until_quiet, until_reconciled
from support.inference import Objects, inference_deployment, place

Figures = Mapping[str, float]


def cold(plane: ControlPlane, process: Popen[bytes], count: int) -> Figures:
    """Objects that exist before the controller starts, until it has nothing left to write."""
    until_reconciled(plane, process, count)
    until_quiet(plane)
    requests = ours(plane)
    print("   ", ", ".join(f"{name} {number}" for name, number in by_kind(requests).most_common()))
    return {
        "CPU of all processes (s)": processes.cpu_seconds(process.pid),
        "requests per object": len(requests) / count,
        "lists": sum(each.verb == "list" for each in requests),
        "resident memory of the process (MiB)": processes.resident_mib(process.pid),
        "memory of all processes (MiB)": processes.family_mib(process.pid),
    }


def settled(plane: ControlPlane, process: Popen[bytes], seconds: float) -> Figures:
    """A window in which nobody changes anything, with one resync at least."""
    plane.begin_audit()
    before = processes.cpu_seconds(process.pid)
    time.sleep(seconds)
    requests = ours(plane)
    return {
        "GETs": sum(each.verb == "get" for each in requests),
        "writes": sum(each.is_write for each in requests),
        "resyncs": sum((each.verb, each.resource) == ("list", "inferencedeployments") for each in requests),
        "cores": (processes.cpu_seconds(process.pid) - before) / seconds,
    }


def restarted(plane: ControlPlane, count: int) -> Figures:
    """A controller that starts over settled objects, until all their figures are served."""
    plane.begin_audit()
    with controller(plane) as process:
        time.sleep(max(5.0, count / 50))
        until_quiet(plane)
        requests = ours(plane)
        print("   ", ", ".join(f"{name} {number}" for name, number in by_kind(requests).most_common()))
        beside = [each for each in requests if each.verb not in ("list", "watch")]
        return {
            "requests beside LIST and watch": len(beside),
            "writes": sum(each.is_write for each in beside),
            "CPU of all processes (s)": processes.cpu_seconds(process.pid),
        }


def failed_over(plane: ControlPlane, name: str = "new") -> Figures:
    """Time from the takeover of a second controller, or from a new object's creation if that is later, to its Deployment."""
    with ExitStack() as first:
        first.enter_context(controller(plane))
        time.sleep(5)
        with controller(plane, is_ready=False):
            time.sleep(3)
            first.close()
            plane.apply(inference_deployment(name))
            created = time.time()
            wait_until(lambda: Objects(plane=plane).find("deployment", name), "the Deployment is there")
            made = time.time()
            lease = plane.request("GET", f"{place('lease', 'kube-system')}/kvgate-controller")
    taken = datetime.fromisoformat(lease["spec"]["acquireTime"]).timestamp()
    return {"seconds to a new object's Deployment": made - max(created, taken)}


def churned(plane: ControlPlane, count: int, *, per_second: float, seconds: float) -> Figures:
    """Edits of one object after the other; the time of each until its status is written, without those before it."""
    sent = list[tuple[float, str]]()
    began = time.monotonic()
    for number in range(int(per_second * seconds)):
        time.sleep(max(0.0, began + number / per_second - time.monotonic()))
        name = f"scale-{number % count}"
        sent.append((time.time(), name))
        plane.apply(inference_deployment(name, vllm={"maxNumSeqs": 1 + (number // count) % 4}))
    until_quiet(plane)
    written = defaultdict[str, list[float]](list)
    for each in ours(plane):
        if each.subresource == "status":
            written[each.name].append(datetime.fromisoformat(each.time).timestamp())
    waits = sorted(next((at - when for at in written[name] if at > when), inf) for when, name in sent)
    return {"edits": len(waits), "p50 (s)": waits[len(waits) // 2], "p99 (s)": waits[int(len(waits) * 0.99)]}


def reviewed(per_second: float, seconds: float) -> Figures:
    """Reviews of mixed verdicts by the webhook, over TLS."""
    result = asyncio.run(webhook_load.measure(Namespace(rps=per_second, seconds=seconds, only_fitting=False)))
    times = sorted(result.latencies_seconds)
    return {"errors": len(result.errors), "p99 (ms)": times[int(len(times) * 0.99)] * 1e3}
