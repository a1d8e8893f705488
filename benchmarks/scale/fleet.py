"""A fleet on a real control plane with scheduler and kwok, a controller that serves it, and the requests that it sends."""

import json
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]

from controlplane.audit import AuditEvent  # noqa: E402
from controlplane.plane import ControlPlane  # noqa: E402
from controlplane.programs import free_port, wait_until  # noqa: E402
from fleet.doors import door, wait_ready  # noqa: E402
from fleet.fake_gpus import fake_gpu_node  # noqa: E402
from support.inference import H100, Objects, inference_deployment  # noqa: E402

SPECS: tuple[dict[str, Any], ...] = (
    {"maxNumSeqs": 4},
    {"maxNumSeqs": 2, "kvCacheDtype": "fp8"},
    {"maxNumSeqs": 64},
    {"maxNumSeqs": 64},
)
"""Settings of vLLM: half of the objects fit; of the last two kinds one is adjusted, and one refused."""
ADJUSTED, LENGTHS = 2, 25
"""The kind under the policy Adjust, and the number of other lengths of requests: so there are a hundred specs, each judged once."""
SLOWEST_SECONDS = 900.0
OURS = "kvgate-controller"
"""User agent of the controller's requests, its watches among them."""


def create(plane: ControlPlane, count: int) -> None:
    """InferenceDeployments of the four kinds in turn."""
    items = [
        inference_deployment(
            f"scale-{n}",
            vllm={**SPECS[n % len(SPECS)], "maxModelLen": 32768 - 16 * (n // len(SPECS) % LENGTHS)},
            admission={"policy": "Adjust" if n % len(SPECS) == ADJUSTED else "Reject"},
        )
        for n in range(count)
    ]
    _create(plane, items)


def add_nodes(plane: ControlPlane, count: int) -> None:
    """Nodes of eight GPUs, so many that each object may have one: a node takes 110 pods at most, whatever GPUs it has."""
    nodes = [fake_gpu_node(f"scale-{n}", product=H100, memory_mib=81559) for n in range(count // 8 + 1)]
    _create(plane, nodes)


def _create(plane: ControlPlane, items: list[dict[str, Any]]) -> None:
    """Create them in one kubectl call."""
    whole = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    plane.kubectl("create", "--validate=false", "-f", "-", input=whole)


@contextmanager
def controller(plane: ControlPlane, *options: str, is_ready: bool = True) -> Iterator[Popen[bytes]]:
    """A controller as the chart starts it, with its intervals unless `options` name others."""
    log, port = plane.logs / f"controller-{time.monotonic_ns()}.log", free_port()
    given = ("--metrics-host=127.0.0.1", f"--metrics-port={port}", f"--kubeconfig={plane.kubeconfig}", *options)
    with door("controller", log, *given) as process:
        if is_ready:
            wait_ready("controller", process, log, port)
        yield process


def ours(plane: ControlPlane) -> list[AuditEvent]:
    """The controller's requests since `begin_audit`; those about its Lease aside, which follow the clock and not the objects."""
    return [each for each in plane.audit() if each.user_agent.startswith(OURS) and each.resource != "leases"]


def by_kind(events: Sequence[AuditEvent]) -> Counter[str]:
    """Count requests by verb and resource."""
    return Counter(
        f"{each.verb} {each.resource}{'/' + each.subresource if each.subresource else ''}" for each in events
    )


def reconciled(plane: ControlPlane) -> set[str]:
    """Names of the objects whose status was written since `begin_audit`."""
    return {each.name for each in ours(plane) if each.verb == "patch" and each.subresource == "status"}


def until_quiet(plane: ControlPlane, seconds: float = 5.0) -> None:
    """Wait until the controller has written nothing for so long."""
    Objects(plane=plane).settle(seconds)


def until_reconciled(plane: ControlPlane, process: Popen[bytes], count: int) -> None:
    """Look once a second, in the audit log: that costs the API server nothing."""

    def are_all() -> bool:
        time.sleep(1)
        return process.poll() is not None or len(reconciled(plane)) >= count

    wait_until(are_all, f"{count} objects have a status", within_seconds=SLOWEST_SECONDS)
