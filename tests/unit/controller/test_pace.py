"""Replacing pods that nobody edited: one first, then a few at a time, and none after a failure."""

from typing import Any

from kvgate.api.conditions import Reason
from kvgate.controller.decision import Key
from kvgate.controller.pace import Pace, Progress
from kvgate.rendering.labels import PACED_ANNOTATION

KEYS = [("serving", f"chat-{number}") for number in range(6)]


def deployment(*, by: str = "0.2", ready: int = 1, stuck: bool = False) -> dict[str, Any]:
    late = [{"type": "Progressing", "reason": "ProgressDeadlineExceeded", "message": "timed out"}]
    counts = {
        "replicas": 1,
        "updatedReplicas": 1,
        "readyReplicas": ready,
        "availableReplicas": ready,
        "observedGeneration": 1,
    }
    return {
        "metadata": {"annotations": {PACED_ANNOTATION: by}, "generation": 1},
        "spec": {"replicas": 1},
        "status": counts | {"conditions": late if stuck else []},
    }


def a_pace(limit: int = 2) -> tuple[Pace, list[Key]]:
    pace, called = Pace(limit, release="0.2"), list[Key]()
    pace.enqueue, pace.is_known = called.append, True
    return pace, called


def reason(pace: Pace, key: Key) -> Reason | None:
    turn = pace.turn(key)
    return turn[2] if turn else None


def test_one_goes_first_and_then_as_many_as_may() -> None:
    pace, called = a_pace()
    assert [reason(pace, key) for key in KEYS] == [None, *[Reason.CANARY_FIRST] * 5]
    pace.note(KEYS[0], deployment(ready=0))
    assert reason(pace, KEYS[1]) is Reason.CANARY_FIRST
    pace.note(KEYS[0], deployment())
    assert called == KEYS[1:3], "as many are called as there is room for"
    assert [reason(pace, key) for key in KEYS[1:]] == [None, None, *[Reason.TURN_AWAITED] * 3]
    pace.note(KEYS[1], deployment())
    assert reason(pace, KEYS[3]) is None
    assert [pace.count(state) for state in Progress] == [2, 2, 0, 2]


def test_a_failure_halts_the_others_until_it_is_over() -> None:
    for failed, is_stalled in ((deployment(ready=0, stuck=True), False), (deployment(ready=0), True)):
        pace, called = a_pace()
        assert [reason(pace, key) for key in KEYS[:2]] == [None, Reason.CANARY_FIRST]
        pace.note(KEYS[0], failed, is_stalled=is_stalled)
        turn = pace.turn(KEYS[1])
        assert turn is not None
        assert turn[2:] == (
            Reason.REPLACEMENT_HALTED,
            (
                "serving/chat-0 did not become ready with the pods that kvgate 0.2 renders; "
                "the pods here stay until it is, or is edited or deleted"
            ),
        )
        called.clear()
        pace.forget(KEYS[0])
        assert called == [KEYS[1]]
        assert reason(pace, KEYS[1]) is None


def test_the_next_process_goes_on_where_the_deployments_say() -> None:
    pace, _ = a_pace()
    pace.is_known = False
    assert reason(pace, KEYS[0]) is Reason.CANARY_FIRST, "before it has seen them it begins nothing"
    pace.note(KEYS[1], deployment(ready=0))
    pace.is_known = True
    assert reason(pace, KEYS[0]) is Reason.CANARY_FIRST
    pace.note(KEYS[1], deployment())
    assert reason(pace, KEYS[0]) is None


def test_another_release_and_an_edit_are_no_part_of_the_wave() -> None:
    pace, _ = a_pace()
    pace.note(KEYS[1], deployment(by="0.1", ready=0))
    assert [pace.count(state) for state in Progress] == [0, 0, 0, 0]
    assert [reason(pace, key) for key in KEYS[:2]] == [None, Reason.CANARY_FIRST]
    pace.rest(KEYS[1])
    pace.note(KEYS[0], deployment(by=""))
    assert [pace.count(state) for state in Progress] == [0, 0, 0, 0]


def test_a_pod_that_is_lost_later_halts_nobody() -> None:
    pace, _ = a_pace()
    pace.note(KEYS[0], deployment())
    pace.note(KEYS[0], deployment(ready=0))
    assert reason(pace, KEYS[1]) is None
