"""The state of a rollout, as it is read from a Deployment, and the three conditions that tell it."""

from typing import Any

import pytest

from kvgate.api.conditions import ConditionType, Reason
from kvgate.rendering.observation import Obstacle, Rollout, progress, rollout_of
from kvgate.rendering.workload import NotRendered
from support.manifests import a_deployment
from support.tables import table

COMPLETE, ROLLING = rollout_of(a_deployment()), rollout_of(a_deployment(available=1))
REFUSED = NotRendered(reason=Reason.BUDGET_EXCEEDED, message="too large")
WAITS = NotRendered(reason=Reason.RESOLVING, message="it is fetched", is_waiting=True)
AWAY = Obstacle(reason=Reason.API_UNAVAILABLE, message="nobody answers")
FORBIDDEN = Obstacle(reason=Reason.API_FORBIDDEN, message="no")


def failing(status: str) -> dict[str, Any]:
    return {"status": {"conditions": [{"type": "ReplicaFailure", "status": status, "message": "quota"}]}}


CRASH = (Reason.OUT_OF_MEMORY, "no memory")


@pytest.mark.parametrize(
    ("deployment", "rollout"),
    [
        ({}, Rollout(wanted=1)),
        ({"metadata": {"generation": 1}}, Rollout(wanted=1)),
        ({"metadata": {"generation": 2}, "status": {"observedGeneration": 1}}, Rollout(wanted=1)),
        ({"status": {"observedGeneration": 1}}, Rollout(wanted=1, is_observed=True)),
        ({"spec": {"replicas": 0}}, Rollout()),
        (
            {
                "metadata": {"generation": 3}, "spec": {"replicas": 5},
                "status": {
                    "observedGeneration": 3, "replicas": 6, "readyReplicas": 4, "availableReplicas": 2, "updatedReplicas": 1,
                    "conditions": [{"type": "Progressing", "reason": "ProgressDeadlineExceeded", "message": "late"}],
                },
            },
            Rollout(wanted=5, existing=6, ready=4, available=2, updated=1, is_observed=True, stuck="late"),
        ),
        ({"status": {"conditions": [{"type": "Progressing", "reason": "Other", "message": "x"}]}}, Rollout(wanted=1)),
        (failing("True"), Rollout(wanted=1, refused="quota")),
        (failing("False"), Rollout(wanted=1)),
    ],
    ids=repr,
)  # fmt: skip
def test_a_rollout_is_read_from_its_deployment(deployment: dict[str, Any], rollout: Rollout) -> None:
    assert rollout_of(deployment) == rollout


@table(
    ("left_out", "obstacle", "rollout", "crash", "expected"),
    [
        (None, None, COMPLETE, None,
         [(True, Reason.REPLICAS_READY, "2 of 2 replicas are ready"), (False, Reason.UP_TO_DATE), (False, Reason.UP_TO_DATE)]),
        (None, None, ROLLING, None,
         [(False, Reason.REPLICAS_NOT_READY, "1 of 2 replicas are ready"), (True, Reason.ROLLING_OUT), (False, Reason.ROLLING_OUT)]),
        (None, None, Rollout(), None,
         [(False, Reason.REPLICAS_NOT_READY, "0 of 0 replicas are ready"), (True, Reason.ROLLING_OUT), (False, Reason.ROLLING_OUT)]),
        (None, AWAY, COMPLETE, None,
         [(True, Reason.REPLICAS_READY, "2 of 2 replicas are ready"), (True, Reason.API_UNAVAILABLE), (False, Reason.UP_TO_DATE)]),
        (None, FORBIDDEN, COMPLETE, None,
         [(False, Reason.REPLICAS_NOT_READY, "no"), (False, Reason.API_FORBIDDEN), (True, Reason.API_FORBIDDEN)]),
        (None, None, ROLLING, CRASH, [(False, CRASH[0], CRASH[1]), (False, CRASH[0]), (True, CRASH[0])]),
        (None, None, COMPLETE, CRASH,
         [(True, Reason.REPLICAS_READY, "2 of 2 replicas are ready"), (False, Reason.UP_TO_DATE), (False, Reason.UP_TO_DATE)]),
        (REFUSED, None, Rollout(), None,
         [(False, Reason.NOT_RENDERED, "too large"), (False, Reason.BUDGET_EXCEEDED), (True, Reason.BUDGET_EXCEEDED)]),
        (REFUSED, None, COMPLETE, None,
         [(False, Reason.NOT_RENDERED, "too large; 2 pods of an earlier spec keep running"), (False, Reason.BUDGET_EXCEEDED),
          (True, Reason.BUDGET_EXCEEDED)]),
        (WAITS, None, Rollout(), None,
         [(False, Reason.NOT_RENDERED, "it is fetched"), (True, Reason.RESOLVING), (False, Reason.RESOLVING)]),
    ],
)  # fmt: skip
def test_progress_is_told_in_three_conditions(
    left_out: NotRendered | None,
    obstacle: Obstacle | None,
    rollout: Rollout,
    crash: tuple[Reason, str] | None,
    expected: list[tuple[Any, ...]],
) -> None:
    found = progress(left_out, obstacle, rollout, crash)
    kinds = (ConditionType.READY, ConditionType.RECONCILING, ConditionType.STALLED)
    assert [each[0] for each in found] == list(kinds)
    (_, *ready), *others = found
    assert [tuple(ready), *((status, reason) for _, status, reason, _ in others)] == expected
