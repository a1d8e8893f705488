"""Scheduled, Loading and Degraded: how far the pods are, and that one lost replica is no rollout."""

import pytest

from kvgate.api.conditions import ConditionType, Reason, set_condition
from kvgate.api.status import Condition
from kvgate.rendering.hindrances import Hindrance
from kvgate.rendering.observation import Rollout, progress, rollout_of
from kvgate.rendering.pod_conditions import pod_conditions, was_ready
from kvgate.rendering.workload import NotRendered
from support.manifests import NOW, a_deployment
from support.tables import table

COMPLETE, ROLLING = rollout_of(a_deployment()), rollout_of(a_deployment(available=1))
Expected = tuple[tuple[bool | None, str], ...]


def pod(reason: Reason, name: str = "qwen-1-b") -> Hindrance:
    return Hindrance(pod=name, template_hash="hash", reason=reason, message="as Kubernetes says")


FULL_QUOTA = Rollout(wanted=1, refused="exceeded quota")
LOADS, SLOW, NO_GPU = pod(Reason.LOADING), pod(Reason.LOADING_SLOWLY), pod(Reason.NOT_ENOUGH_GPUS)
NO_IMAGE, SICK = pod(Reason.IMAGE_NOT_FOUND), pod(Reason.NOT_ANSWERING)
CRASH = ("PortInUse", "pod qwen-1-b: another process listens")
REFUSED = NotRendered(reason=Reason.BUDGET_EXCEEDED, message="too large")
UNSEEN, PLACED = (None, "WaitingForScheduler"), (True, "PodsScheduled")
FIRST = (False, "RollingOut")


@table(
    ("left_out", "rollout", "crash", "hindrances", "lost", "expected"),
    [
        (None, COMPLETE, None, [], False, (PLACED, (False, "ReplicasReady"), (False, "ReplicasReady"))),
        (None, Rollout(is_observed=True), None, [], False, ((True, "ScaledToZero"), (False, "ScaledToZero"), (False, "ScaledToZero"))),
        (REFUSED, Rollout(), None, [], False, ((None, "BudgetExceeded"), (False, "BudgetExceeded"), (False, "BudgetExceeded"))),
        (None, ROLLING, None, [], False, (UNSEEN, (False, "WaitingForScheduler"), FIRST)),
        (None, ROLLING, None, [LOADS], False, (PLACED, (True, "Loading"), FIRST)),
        (None, ROLLING, None, [LOADS, SLOW], False, (PLACED, (True, "LoadingSlowly"), FIRST)),
        (None, ROLLING, None, [NO_GPU], False, ((False, "NotEnoughGpus"), (False, "WaitingForScheduler"), FIRST)),
        (None, ROLLING, None, [NO_GPU, LOADS], False, ((False, "NotEnoughGpus"), (True, "Loading"), FIRST)),
        (None, ROLLING, None, [NO_IMAGE, LOADS], False, (PLACED, (False, "ImageNotFound"), FIRST)),
        (None, FULL_QUOTA, None, [], False, ((False, "QuotaExceeded"), (False, "WaitingForScheduler"), FIRST)),
        (None, ROLLING, CRASH, [], False, (PLACED, (False, "PortInUse"), FIRST)),
        (None, ROLLING, CRASH, [LOADS], True, (PLACED, (False, "PortInUse"), (True, "PortInUse"))),
        (None, ROLLING, None, [SICK], True, (PLACED, (False, "NotAnswering"), (True, "NotAnswering"))),
        (None, ROLLING, None, [], True, (UNSEEN, (False, "WaitingForScheduler"), (True, "ReplicaLost"))),
    ],
)  # fmt: skip
def test_three_conditions_say_how_far_the_pods_are(
    left_out: NotRendered | None,
    rollout: Rollout,
    crash: tuple[str, str] | None,
    hindrances: list[Hindrance],
    lost: bool,  # noqa: FBT001
    expected: Expected,
) -> None:
    found = pod_conditions(left_out, rollout, crash, hindrances, was_ready=lost)
    assert [kind for kind, *_ in found] == [ConditionType.SCHEDULED, ConditionType.LOADING, ConditionType.DEGRADED]
    assert tuple((status, str(reason)) for _, status, reason, _ in found) == expected
    assert all(message for *_, message in found)


def test_a_lost_replica_is_named_and_is_no_rollout() -> None:
    *_, degraded = pod_conditions(None, ROLLING, None, [SICK], was_ready=True)
    assert degraded[3] == "1 of 2 replicas are ready, and all were; pod qwen-1-b: as Kubernetes says"
    ready, reconciling, stalled = progress(None, None, ROLLING, None, was_ready=True)
    assert [ready[2], reconciling[2], stalled[1]] == [Reason.REPLICA_LOST, Reason.REPLICA_LOST, False]


def test_a_crash_that_may_pass_does_not_stall_the_object() -> None:
    for may_pass in (True, False):
        ready, reconciling, stalled = progress(None, None, ROLLING, CRASH, may_pass=may_pass)
        assert (ready[2], reconciling[1], stalled[1]) == ("PortInUse", may_pass, not may_pass)


@pytest.mark.parametrize(
    ("kind", "status", "generation", "progressing", "expected"),
    [
        (ConditionType.READY, True, 1, "NewReplicaSetAvailable", True),
        (ConditionType.DEGRADED, True, 1, "NewReplicaSetAvailable", True),
        (ConditionType.READY, False, 1, "NewReplicaSetAvailable", False),
        (ConditionType.READY, True, 2, "NewReplicaSetAvailable", False),
        (ConditionType.READY, True, 1, "ReplicaSetUpdated", False),
    ],
    ids=["were ready", "were degraded", "never were", "another spec, such as more replicas", "restarted rollout"],
)
def test_replicas_were_ready_where_this_generation_once_was(
    kind: ConditionType,
    status: bool,  # noqa: FBT001
    generation: int,
    progressing: str,
    expected: bool,  # noqa: FBT001
) -> None:
    before: tuple[Condition, ...] = set_condition(
        (), kind, status=status, reason="Some", message="m", generation=1, now=NOW
    )
    deployment = a_deployment(available=1)
    deployment["status"]["conditions"] = [{"type": "Progressing", "status": "True", "reason": progressing}]
    assert was_ready(before, generation, rollout_of(deployment)) is expected
