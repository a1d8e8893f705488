"""One event per new reason."""

from kvgate.api.conditions import ConditionType, Reason, set_condition
from kvgate.api.status import Condition
from kvgate.controller.reconcile import notices
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
    ],
)
def test_only_a_new_reason_is_told(before: list[Claim], after: list[Claim], expected: list[tuple[str, str]]) -> None:
    told = [(notice.kind, notice.reason) for notice in notices(conditions(*before), conditions(*after))]
    assert told == expected
