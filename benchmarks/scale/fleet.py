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
from support.inference import Objects, inference_deployment  # noqa: E402

SPECS: tuple[dict[str, Any], ...] = (
    {"vllm": {"maxNumSeqs": 4}},
    {"vllm": {"maxNumSeqs": 2, "kvCacheDtype": "fp8"}},
    {"vllm": {"maxNumSeqs": 64}, "admission": {"policy": "Adjust"}},
    {"vllm": {"maxNumSeqs": 64}},
)
"""Half of the objects fit, a quarter is adjusted, and a quarter refused."""
SLOWEST_SECONDS = 900.0
OURS = "kvgate-controller"
"""User agent of the controller's requests, its watches among them."""


def create(plane: ControlPlane, count: int, *, prefix: str = "scale") -> None:
    """In one kubectl call: a List of them."""
    items = [inference_deployment(f"{prefix}-{n}", **SPECS[n % len(SPECS)]) for n in range(count)]
    plane.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


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
