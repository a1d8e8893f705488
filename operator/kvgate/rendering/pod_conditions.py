"""Scheduled, Loading and Degraded: the conditions that say how far the pods of the current spec are. Pure."""

from collections.abc import Sequence

from kvgate.api.conditions import ConditionType, Reason
from kvgate.api.pod_reasons import POD_REASONS
from kvgate.api.status import Condition
from kvgate.rendering.hindrances import Hindrance, refusal_of
from kvgate.rendering.observation import Rollout, Statement, first_of
from kvgate.rendering.workload import NotRendered


def was_ready(conditions: Sequence[Condition], generation: int, rollout: Rollout) -> bool:
    """Return True where all replicas of this generation were ready once, and none of them waits for its first rollout.

    The conditions are the previous ones: so a restarted controller knows it as well.
    """
    of_ready = (ConditionType.READY, ConditionType.DEGRADED)
    return rollout.was_complete and any(
        each.type in of_ready and each.status == "True" and each.observed_generation == generation
        for each in conditions
    )


def pod_conditions(
    left_out: NotRendered | None, rollout: Rollout, crash: tuple[str, str] | None, hindrances: Sequence[Hindrance], *,
    was_ready: bool,
) -> list[Statement]:  # fmt: skip
    """Return the three conditions. `left_out` is None where the pods of an earlier spec are the ones that matter."""
    kinds = (ConditionType.SCHEDULED, ConditionType.LOADING, ConditionType.DEGRADED)
    if left_out is not None:
        return [
            (kind, status, left_out.reason, left_out.message)
            for kind, status in zip(kinds, (None, False, False), strict=True)
        ]
    if rollout.is_complete:
        ready = f"{rollout.available} of {rollout.wanted} replicas are ready"
        told = (Reason.REPLICAS_READY, ready) if rollout.wanted else (Reason.SCALED_TO_ZERO, "spec.replicas is 0")
        scheduled = (Reason.PODS_SCHEDULED, "all replicas have a node") if rollout.wanted else told
        return [(kinds[0], True, *scheduled), (kinds[1], False, *told), (kinds[2], False, *told)]
    return [
        (kinds[0], *_scheduled(rollout, crash, hindrances)),
        (kinds[1], *_loading(crash, hindrances)),
        (kinds[2], *_degraded(rollout, crash, hindrances, was_ready=was_ready)),
    ]


def _scheduled(
    rollout: Rollout, crash: tuple[str, str] | None, hindrances: Sequence[Hindrance]
) -> tuple[bool | None, str, str]:
    waits = [each for each in hindrances if POD_REASONS[each.reason].condition is ConditionType.SCHEDULED]
    if rollout.refused:
        return False, refusal_of(rollout.refused), rollout.refused
    if (first := first_of(waits)) is not None:
        return False, *first[:2]
    if crash is not None or rollout.ready + len(hindrances) >= rollout.wanted:
        return True, Reason.PODS_SCHEDULED, "all replicas have a node"
    return None, Reason.WAITING_FOR_SCHEDULER, "not all replicas have a pod of which it is known whether it has a node"


def _loading(crash: tuple[str, str] | None, hindrances: Sequence[Hindrance]) -> tuple[bool | None, str, str]:
    on_nodes = [each for each in hindrances if POD_REASONS[each.reason].condition is ConditionType.LOADING]
    loads = [each for each in on_nodes if POD_REASONS[each.reason].status]
    slow = [each for each in loads if each.reason is Reason.LOADING_SLOWLY]
    if crash is not None:
        return False, *crash
    if (first := first_of([each for each in on_nodes if each not in loads and each.needs_somebody])) is not None:
        return False, *first[:2]
    if (first := first_of(slow or loads)) is not None:
        return True, *first[:2]
    if (first := first_of(on_nodes)) is not None:
        return False, *first[:2]
    return False, Reason.WAITING_FOR_SCHEDULER, "no engine of the current spec runs that is not ready"


def _degraded(
    rollout: Rollout, crash: tuple[str, str] | None, hindrances: Sequence[Hindrance], *, was_ready: bool
) -> tuple[bool | None, str, str]:
    ready = f"{rollout.available} of {rollout.wanted} replicas are ready"
    if not was_ready:
        return False, Reason.ROLLING_OUT, f"{ready}; they were not all ready yet"
    reason, text = crash or (first_of(hindrances) or (Reason.REPLICA_LOST, ""))[:2]
    return True, reason, "; ".join(filter(None, (f"{ready}, and all were", text)))
