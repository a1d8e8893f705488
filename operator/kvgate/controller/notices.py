"""The events that follow from a change of conditions: one per change, and none while nothing changes. Pure."""

from collections.abc import Iterable, Iterator

from kvgate.api.conditions import ConditionType, Reason
from kvgate.api.status import Condition
from kvgate.cluster.events import Notice

_ACTIONS = {
    ConditionType.ACCEPTED: "Assess",
    ConditionType.STALLED: "Apply",
    ConditionType.DEGRADED: "Observe",
    ConditionType.SCHEDULED: "Observe",
    ConditionType.LOADING: "Observe",
    ConditionType.DRIFTED: "Apply",
    ConditionType.REPLACEMENT_PENDING: "Apply",
    ConditionType.PREDICTION_DRIFT: "Observe",
    ConditionType.PREDICTION_OUTDATED: "Assess",
    ConditionType.SCALED_BELOW_WORKLOAD: "Assess",
    ConditionType.NODES_DIFFER: "Assess",
    ConditionType.LENGTH_BELOW_FLOOR: "Observe",
}
"""Conditions whose changes become events, each with kvgate's action; a reason that two of them share gives one event."""
_USUAL = (
    Reason.LOADING, Reason.CONTAINER_CREATING, Reason.WAITING_FOR_SCHEDULER, Reason.REPLICAS_READY, Reason.SCALED_TO_ZERO,
)  # fmt: skip
"""Reasons that each start, or each scaling, passes through: they are no events."""
_GOOD = (Reason.RESOLVING, Reason.FIGURES_MOVED, Reason.CANARY_FIRST, Reason.TURN_AWAITED)
_WANTED = (ConditionType.SCHEDULED, ConditionType.LOADING)


def notices(before: Iterable[Condition], after: Iterable[Condition]) -> Iterator[Notice]:
    """Yield an event for each reason that is new, and one where all replicas are ready again."""
    was, now = ({each.type: each for each in conditions} for conditions in (before, after))
    reported = {_news(each) for kind, each in was.items() if kind in _ACTIONS and _is_told(each)}
    for kind, action in _ACTIONS.items():
        condition = now.get(kind)
        if condition is None or not _is_told(condition) or _news(condition) in reported:
            continue
        reported.add(_news(condition))
        is_admitted = (kind, condition.status) == (ConditionType.ACCEPTED, "True")
        is_good = is_admitted and condition.reason in (Reason.FITS, Reason.ADJUSTED)
        is_good = is_good or condition.reason in _GOOD
        yield Notice(
            kind="Normal" if is_good else "Warning", reason=condition.reason, action=action, note=condition.message
        )
    degraded, ready = was.get(ConditionType.DEGRADED), now.get(ConditionType.READY)
    if degraded and degraded.status == "True" and ready and ready.status == "True":
        yield Notice(kind="Normal", reason=ready.reason, action="Observe", note=ready.message)


def _news(condition: Condition) -> tuple[str, int | None]:
    """Return what makes a condition new: its reason, and where the audit mode admits, each generation."""
    return condition.reason, condition.observed_generation if condition.reason == Reason.WOULD_BE_REFUSED else None


def _is_told(condition: Condition) -> bool:
    """Return True where a person should hear of a condition."""
    if condition.type == ConditionType.ACCEPTED:
        return True
    is_bad = condition.status == "False" if condition.type in _WANTED else condition.status == "True"
    is_bad = is_bad or condition.reason == Reason.LOADING_SLOWLY
    return is_bad and condition.reason not in _USUAL
