"""Events for changes of the conditions: one per new reason."""

from collections.abc import Iterable, Iterator

from kvgate.api.conditions import ConditionType
from kvgate.api.status import Condition
from kvgate.cluster.events import Notice

_TOLD = {
    ConditionType.ACCEPTED: "Assess",
    ConditionType.STALLED: "Apply",
    ConditionType.DRIFTED: "Apply",
    ConditionType.PREDICTION_DRIFT: "Observe",
}
"""Conditions that an owner wants to hear of, each with kvgate's action; the others follow the pods up and down."""


def notices(before: Iterable[Condition], after: Iterable[Condition]) -> Iterator[Notice]:
    """A stall that repeats the refusal's reason is not told twice."""
    was = {condition.type: condition.reason for condition in before}
    now = {condition.type: condition for condition in after}
    told = set()
    for kind, action in _TOLD.items():
        condition = now.get(kind)
        if condition is None or condition.reason == was.get(kind) or condition.reason in told:
            continue
        if kind is not ConditionType.ACCEPTED and condition.status != "True":
            continue
        told.add(condition.reason)
        good = (
            kind is ConditionType.ACCEPTED and condition.status == "True" and condition.reason in ("Fits", "Adjusted")
        )
        yield Notice(
            kind="Normal" if good else "Warning",
            reason=condition.reason,
            action=action,
            note=condition.message,
        )
