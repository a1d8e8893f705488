"""One event per new reason, none while nothing changes, and one where all replicas are ready again."""

from kvgate.api.conditions import ConditionType, Reason, set_condition
from kvgate.api.status import Condition
from kvgate.controller.notices import notices
from support.manifests import NOW
from support.tables import table

Claim = tuple[ConditionType, bool | None, Reason]


def conditions(*claims: Claim) -> tuple[Condition, ...]:
    found: tuple[Condition, ...] = ()
    for kind, status, reason in claims:
        found = set_condition(found, kind, status=status, reason=reason, message="m", generation=1, now=NOW)
    return found


FITS: Claim = (ConditionType.ACCEPTED, True, Reason.FITS)
WARNED: Claim = (ConditionType.ACCEPTED, True, Reason.POLICY_WARN)
REFUSED: Claim = (ConditionType.ACCEPTED, False, Reason.BUDGET_EXCEEDED)
STALLED: Claim = (ConditionType.STALLED, True, Reason.BUDGET_EXCEEDED)
FORBIDDEN: Claim = (ConditionType.STALLED, True, Reason.API_FORBIDDEN)
DRIFTED: Claim = (ConditionType.PREDICTION_DRIFT, True, Reason.CAPACITY_DIFFERS)
RIGHT: Claim = (ConditionType.PREDICTION_DRIFT, False, Reason.WITHIN_TOLERANCE)
RUNNING: Claim = (ConditionType.STALLED, False, Reason.UP_TO_DATE)
READY: Claim = (ConditionType.READY, True, Reason.REPLICAS_READY)
LOST: Claim = (ConditionType.DEGRADED, True, Reason.NOT_ANSWERING)
WHOLE: Claim = (ConditionType.DEGRADED, False, Reason.REPLICAS_READY)
LOADS: Claim = (ConditionType.LOADING, True, Reason.LOADING)
LOADS_SLOWLY: Claim = (ConditionType.LOADING, True, Reason.LOADING_SLOWLY)
LOADED: Claim = (ConditionType.LOADING, False, Reason.REPLICAS_READY)
NO_IMAGE: Claim = (ConditionType.LOADING, False, Reason.IMAGE_NOT_FOUND)
NO_IMAGE_HALTS: Claim = (ConditionType.STALLED, True, Reason.IMAGE_NOT_FOUND)
PORT: Claim = (ConditionType.LOADING, False, Reason.ENGINE_CRASHED)
WAITS: Claim = (ConditionType.SCHEDULED, None, Reason.WAITING_FOR_SCHEDULER)
NO_GPU: Claim = (ConditionType.SCHEDULED, False, Reason.NOT_ENOUGH_GPUS)
PLACED: Claim = (ConditionType.SCHEDULED, True, Reason.PODS_SCHEDULED)


@table(
    ("before", "after", "expected"),
    [
        ([], [FITS, RUNNING], [("Normal", "Fits")]),
        ([FITS], [FITS, RUNNING], []),
        ([FITS], [REFUSED, STALLED], [("Warning", "BudgetExceeded")]),
        ([REFUSED, STALLED], [REFUSED, STALLED], []),
        ([REFUSED, STALLED], [FITS, RUNNING], [("Normal", "Fits")]),
        ([FITS, RUNNING], [FITS, FORBIDDEN], [("Warning", "ApiForbidden")]),
        ([FITS], [WARNED], [("Warning", "PolicyWarn")]),
        ([FITS], [FITS, DRIFTED], [("Warning", "CapacityDiffers")]),
        ([FITS, DRIFTED], [FITS, DRIFTED], []),
        ([FITS, DRIFTED], [FITS, RIGHT], []),
        ([FITS], [FITS, WAITS, LOADS], []),
        ([FITS, LOADS], [FITS, READY, LOADED], []),
        ([FITS, WAITS], [FITS, NO_GPU], [("Warning", "NotEnoughGpus")]),
        ([FITS, NO_GPU], [FITS, PLACED, LOADS], []),
        ([FITS], [FITS, NO_IMAGE, NO_IMAGE_HALTS], [("Warning", "ImageNotFound")]),
        ([FITS, PORT], [FITS, PORT, (ConditionType.STALLED, True, Reason.ENGINE_CRASHED)], []),
        ([FITS, LOADS], [FITS, LOADS_SLOWLY], [("Warning", "LoadingSlowly")]),
        ([FITS, READY, WHOLE], [FITS, LOST], [("Warning", "NotAnswering")]),
        ([FITS, LOST], [FITS, LOST], []),
        ([FITS, LOST], [FITS, READY, WHOLE], [("Normal", "ReplicasReady")]),
    ],
)
def test_only_a_new_reason_is_told(before: list[Claim], after: list[Claim], expected: list[tuple[str, str]]) -> None:
    told = [(notice.kind, notice.reason) for notice in notices(conditions(*before), conditions(*after))]
    assert told == expected
