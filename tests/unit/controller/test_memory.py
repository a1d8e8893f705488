"""A child is corrected as long as that helps; what comes back, or is refused, is left for a while and told."""

import pytest

from kvgate.api.conditions import Reason
from kvgate.controller.memory import MAX_CORRECTIONS, REFUSED_SECONDS, WINDOW_SECONDS, Corrections
from kvgate.rendering.observation import Obstacle
from support.waiting import Clock

ENV, IMAGE = ("hash-1", "/spec/env/0"), ("hash-1", "spec.image")


@pytest.fixture
def corrections(clock: Clock) -> Corrections:
    return Corrections(clock)


def test_the_same_difference_is_corrected_a_few_times_in_an_hour(corrections: Corrections, clock: Clock) -> None:
    for _ in range(MAX_CORRECTIONS):
        assert corrections.may_try("Deployment", ENV)
        corrections.note("Deployment", ENV)
        clock.now += 60
    assert not corrections.may_try("Deployment", ENV)
    assert corrections.may_try("Deployment", IMAGE), "another difference is another matter"
    assert corrections.may_try("Service", ENV)
    assert corrections.may_try("Deployment", ("hash-2", *ENV[1:])), "and so is another rendering"
    clock.now = WINDOW_SECONDS + 1
    assert corrections.may_try("Deployment", ENV)


def test_what_a_webhook_changes_on_its_way_is_not_written_again(corrections: Corrections, clock: Clock) -> None:
    corrections.note("Deployment", ("hash-1", "all of it"), left=IMAGE)
    assert not corrections.may_try("Deployment", IMAGE)
    corrections.note("Deployment", ENV, left=ENV)
    assert not corrections.may_try("Deployment", ENV)
    clock.now = 3599
    assert not corrections.may_try("Deployment", IMAGE)
    clock.now = 3601
    assert corrections.may_try("Deployment", IMAGE)


@pytest.mark.parametrize(
    ("reason", "seconds"),
    [
        (Reason.API_REJECTED, WINDOW_SECONDS),
        (Reason.QUOTA_EXCEEDED, REFUSED_SECONDS),
        (Reason.ADMISSION_DENIED, REFUSED_SECONDS),
    ],
)
def test_what_is_refused_is_told_and_tried_again_later(
    corrections: Corrections, clock: Clock, reason: Reason, seconds: float
) -> None:
    obstacle = Obstacle(reason=reason, message="no")
    corrections.note("Deployment", ENV, obstacle=obstacle)
    clock.now = seconds - 1
    assert not corrections.may_try("Deployment", ENV)
    assert corrections.obstacle("Deployment", ENV) == obstacle
    clock.now = seconds + 1
    assert corrections.may_try("Deployment", ENV)
    assert corrections.obstacle("Deployment", ENV) is None
