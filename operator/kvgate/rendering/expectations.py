"""Expectations of kvgate beside the reason why a pod is not ready: the need of host memory, and the time to load. Pure.

The time is a range, from the weights of the ledger and the speeds that storages of a kind have; it is no limit, and nothing ends a pod
for it. The limit is the load budget, after which the kubelet starts the container anew.
"""

from datetime import datetime
from math import ceil

from msgspec import Struct
from msgspec.structs import replace

from kvgate.api.conditions import Reason
from kvgate.api.v1alpha1 import InferenceDeployment, InferenceDeploymentSpec
from kvgate.budget import Budget
from kvgate.budget.ground.units import MIB, format_gib
from kvgate.judgement.assess import host_ledger_of
from kvgate.rendering.admission import Admitted
from kvgate.rendering.hindrances import Hindrance
from kvgate.rendering.workload import LOAD_BASE_SECONDS, LOAD_BYTES_PER_SECOND, loaded_bytes
from kvgate.statement.deployment import statement_of


class Storage(Struct, frozen=True, kw_only=True):
    """A kind of place that weights come from, and the speeds that are usual for it."""

    name: str
    slow_bytes_per_second: int
    fast_bytes_per_second: int
    source: str


HUB = Storage(
    name="the hub", slow_bytes_per_second=LOAD_BYTES_PER_SECOND, fast_bytes_per_second=500_000_000,
    source="the load budget's own slow download; README of hf_transfer: above about 500 MB/s Python is the limit",
)  # fmt: skip
VOLUME = Storage(
    name="a PersistentVolumeClaim", slow_bytes_per_second=250 * MIB, fast_bytes_per_second=1000 * MIB,
    source="Amazon EBS volume types: gp2 up to 250 MiB/s, gp3 up to 1,000 MiB/s",
)  # fmt: skip
IMAGE = Storage(
    name="an image on the node's disk", slow_bytes_per_second=250 * MIB, fast_bytes_per_second=1000 * MIB,
    source="the same volumes as a node's disk; the image is pulled before the container starts",
)  # fmt: skip


def storage_of(spec: InferenceDeploymentSpec) -> Storage:
    source = spec.model.source
    if source is None:
        return HUB
    return VOLUME if source.persistent_volume_claim else IMAGE if source.image else HUB


def expected_seconds(spec: InferenceDeploymentSpec, budget: Budget | None) -> tuple[int, int] | None:
    """Return the shortest and the longest usual time to load, in full minutes; None where the weights are not known."""
    weights, storage = loaded_bytes(budget), storage_of(spec)
    if weights is None:
        return None
    speeds = storage.fast_bytes_per_second, storage.slow_bytes_per_second
    low, high = (60 * ceil((weights / speed + LOAD_BASE_SECONDS) / 60) for speed in speeds)
    return low, high


def next_step_seconds(since: str, expected: tuple[int, int] | None, now: str) -> tuple[int, float] | None:
    """Return the step that a load has passed (0: none) and the seconds to the next. Steps double, so that a status seldom changes.

    None where a time cannot be read: it is a node's.
    """
    try:
        loaded = (datetime.fromisoformat(now) - datetime.fromisoformat(since)).total_seconds()
    except (ValueError, TypeError):
        return None
    if expected is None:
        return None
    step, due = 0, expected[1]
    while loaded >= due:
        step, due = due, due * 2
    return step, due - loaded


def with_expectation(
    hindrance: Hindrance, owner: InferenceDeployment, admitted: Admitted | None, budget: Budget | None, now: str
) -> Hindrance:
    """Put what the ledger expects beside the limit at which a container was killed, and beside a load that takes longer."""
    if hindrance.reason is Reason.LOADING:
        return _slow(hindrance, owner.spec, budget, now)
    if hindrance.reason is not Reason.HOST_MEMORY_EXCEEDED or admitted is None or admitted.owner is None:
        return hindrance
    ledger = host_ledger_of(statement_of(admitted.owner.spec), admitted.record.placement.vendor)
    if ledger is None:
        return hindrance
    expected, low, high = map(format_gib, (ledger.needs.expected, ledger.needs.low, ledger.needs.high))
    return replace(hindrance, message=f"{hindrance.message}; kvgate expects a need of {expected} ({low} to {high})")


def _slow(hindrance: Hindrance, spec: InferenceDeploymentSpec, budget: Budget | None, now: str) -> Hindrance:
    expected, weights, storage = expected_seconds(spec, budget), loaded_bytes(budget), storage_of(spec)
    found = next_step_seconds(hindrance.since, expected, now)
    if expected is None or weights is None or found is None or not found[0]:
        return hindrance
    passed = found[0]
    low, high = (seconds // 60 for seconds in expected)
    speeds = f"{storage.slow_bytes_per_second // 1_000_000} to {storage.fast_bytes_per_second // 1_000_000} MB/s"
    message = (
        f"the engine loads for more than {passed // 60} minutes, and {low} to {high} are usual: {format_gib(weights)} of weights from "
        f"{storage.name} at {speeds}, and {LOAD_BASE_SECONDS // 60} minutes to compile; that is less than "
        f"{weights // passed // 1_000_000} MB/s: look at the last lines of its log, and at the storage"
    )
    return replace(hindrance, reason=Reason.LOADING_SLOWLY, message=message)
