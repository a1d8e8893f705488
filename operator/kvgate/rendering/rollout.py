"""Ready, Reconciling and Stalled: the conditions that `kubectl wait`, Helm and Flux look at, from the state of the Deployment's rollout."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from kvgate.api.conditions import ConditionType, Reason
from kvgate.rendering.admission import Admitted
from kvgate.rendering.observation import Statement
from kvgate.rendering.workload import NotRendered

OVER_QUOTA = "exceeded quota"
"""Words of the API server's ResourceQuota plugin, which the Deployment's controller repeats."""


WAITING = "waiting for a change of the spec or of the cluster"
_NOTHING_BLOCKS = "nothing blocks the rollout"


class Obstacle(Struct, frozen=True, kw_only=True):
    """The reason why the manifests could not be applied."""

    reason: Reason
    message: str

    @property
    def is_transient(self) -> bool:
        """True where the next try may succeed without a change by anybody."""
        return self.reason is Reason.API_UNAVAILABLE


class Rollout(Struct, frozen=True, kw_only=True):
    """The state of a Deployment's rollout: counts of pods, and what blocks it."""

    wanted: int = 0
    existing: int = 0
    ready: int = 0
    available: int = 0
    updated: int = 0
    is_observed: bool = False
    """True where the counts are about the present spec of the Deployment."""
    stuck: str = ""
    """Message of the Deployment's controller after the progress deadline; else empty."""
    refused: str = ""
    """Message of the API server where it refuses the pods (a quota, an admission policy); else empty."""

    @property
    def is_complete(self) -> bool:
        """True where all replicas are of the present spec and available, and no older one is left."""
        return self.is_observed and self.updated == self.available == self.existing == self.wanted


def rollout_of(deployment: Mapping[str, Any]) -> Rollout:
    """Read the state of a Deployment; the API server leaves out counts that are zero."""
    status, metadata = deployment.get("status", {}), deployment.get("metadata", {})
    conditions = {condition.get("type"): condition for condition in status.get("conditions", ())}
    progressing, failure = conditions.get("Progressing", {}), conditions.get("ReplicaFailure", {})
    return Rollout(
        wanted=deployment.get("spec", {}).get("replicas", 1),
        existing=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        available=status.get("availableReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        is_observed=status.get("observedGeneration", 0) >= metadata.get("generation", 1),
        stuck=str(progressing.get("message", "")) if progressing.get("reason") == "ProgressDeadlineExceeded" else "",
        refused=str(failure.get("message", "")) if failure.get("status") == "True" else "",
    )


def progress(
    left_out: NotRendered | None, obstacle: Obstacle | None, rollout: Rollout, crash: tuple[Reason, str] | None,
    admitted: Admitted | None = None,
) -> list[Statement]:  # fmt: skip
    if left_out is not None and admitted is not None and admitted.owner is not None:
        return _of_earlier(left_out, obstacle, rollout, admitted.record.generation)
    if left_out is not None:
        stale = f"; {rollout.existing} pods of an earlier spec keep running" if rollout.existing else ""
        ready: Statement = (ConditionType.READY, False, Reason.NOT_RENDERED, left_out.message + stale)
        return [ready, *_left_out(left_out, stale)]
    if obstacle is not None and not obstacle.is_transient:
        return _halted(obstacle.reason, obstacle.message, Reason.REPLICAS_NOT_READY)
    if crash is not None and not rollout.is_complete:
        return _halted(*crash, crash[0])
    ready, reconciling, stalled = _of_rollout(rollout)
    if obstacle is not None:
        reconciling = (ConditionType.RECONCILING, True, obstacle.reason, obstacle.message)
    return [ready, reconciling, stalled]


def _of_earlier(left_out: NotRendered, obstacle: Obstacle | None, rollout: Rollout, generation: int) -> list[Statement]:
    """Return the conditions where the present generation is left out and an earlier one runs; Ready is about the pods that run."""
    reason = Reason.REPLICAS_READY if rollout.is_complete else Reason.REPLICAS_NOT_READY
    this_one = "this one is not judged yet" if left_out.is_waiting else "this one is refused"
    ready = f"{rollout.available} of {rollout.wanted} replicas of generation {generation} are ready; {this_one}"
    more = f"; {obstacle.message}" if obstacle else ""
    state = _left_out(left_out, f"; generation {generation} keeps running{more}")
    return [(ConditionType.READY, rollout.is_complete, reason, ready), *state]


def _left_out(left_out: NotRendered, more: str) -> list[Statement]:
    """Return Reconciling and Stalled; a spec that waits for kvgate alone is not stalled."""
    if left_out.is_waiting:
        return [
            (ConditionType.RECONCILING, True, left_out.reason, left_out.message + more),
            (ConditionType.STALLED, False, left_out.reason, _NOTHING_BLOCKS),
        ]
    return _halted(left_out.reason, left_out.message + more, left_out.reason)[1:]


def _of_rollout(rollout: Rollout) -> list[Statement]:
    ready = f"{rollout.available} of {rollout.wanted} replicas are ready"
    if rollout.is_complete:
        return [
            (ConditionType.READY, True, Reason.REPLICAS_READY, ready),
            (ConditionType.RECONCILING, False, Reason.UP_TO_DATE, "all replicas are of the current spec"),
            (ConditionType.STALLED, False, Reason.UP_TO_DATE, _NOTHING_BLOCKS),
        ]
    if rollout.refused:
        reason = Reason.QUOTA_EXCEEDED if OVER_QUOTA in rollout.refused else Reason.PODS_REFUSED
    else:
        reason = Reason.PROGRESS_DEADLINE_EXCEEDED if rollout.stuck else Reason.ROLLING_OUT
    trouble = rollout.refused or rollout.stuck
    return [
        (ConditionType.READY, False, Reason.REPLICAS_NOT_READY, ready),
        (ConditionType.RECONCILING, not trouble, reason, trouble or ready),
        (ConditionType.STALLED, bool(trouble), reason, trouble or _NOTHING_BLOCKS),
    ]


def _halted(reason: Reason, message: str, ready: Reason) -> list[Statement]:
    return [
        (ConditionType.READY, False, ready, message),
        (ConditionType.RECONCILING, False, reason, WAITING),
        (ConditionType.STALLED, True, reason, message),
    ]
