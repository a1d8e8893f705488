"""Whose starts move a prediction in a cluster: one start of another object may widen an interval and never moves it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.ground.interval import Interval, Verdict
from kvgate.budget.observed.calibration import NOTHING_OBSERVED, Calibration, CalibrationScope, StartState
from kvgate.budget.observed.starts import ObservedStart
from kvgate.judgement.what_if import read_request
from support.starts import ASKED, a_pods_start, a_start
from support.tables import table

HERE = ("serving", "mine")
ERRORS = (-14.0, -3.0, -0.5, -0.01, 0.0, 0.3, 1.0, 1.6)
"""GiB beside the prediction; a fifth of what is requested, 14.6 GiB, is where a start counts as implausible."""


def budget(calibration: Calibration, **changes: object) -> Budget:
    request, _ = read_request({**ASKED, **changes})
    assert request is not None
    return plan(replace(request, calibration=calibration))


def seen(
    *starts: ObservedStart, scope: CalibrationScope = CalibrationScope.NAMESPACE, reader: tuple[str, str] = HERE
) -> Calibration:
    return Calibration(starts=starts, scope=scope).seen_from(*reader)


def available(calibration: Calibration, **changes: object) -> Interval:
    stage = budget(calibration, **changes).tightest
    assert stage is not None
    return stage.available


ALONE = available(NOTHING_OBSERVED)


def is_only_wider(interval: Interval, than: Interval = ALONE) -> bool:
    return interval.expected == than.expected and interval.low <= than.low and interval.high >= than.high


@table("error_gib", ERRORS)
def test_one_start_of_another_object_widens_and_never_moves(error_gib: float) -> None:
    start = a_pods_start(error_gib, "a")
    interval = available(seen(start))
    assert is_only_wider(interval)
    assert interval.low <= start.available_kv_cache_bytes <= interval.high


@given(errors=st.lists(st.floats(-14.0, 1.6), min_size=1, max_size=5), max_num_seqs=st.sampled_from([32, 64]))
def test_whatever_one_pod_reports_moves_nobody_else(errors: list[float], max_num_seqs: int) -> None:
    starts, changes = (a_pods_start(error, "a") for error in errors), {"max_num_seqs": max_num_seqs}
    assert is_only_wider(available(seen(*starts), **changes), available(NOTHING_OBSERVED, **changes))


@pytest.mark.parametrize("length", [4096, 16384, 24576, 32768, 40960])
@pytest.mark.parametrize("error_gib", [-14.0, 2.0])
def test_one_start_of_another_object_makes_no_yes_a_no_and_no_no_a_yes(error_gib: float, length: int) -> None:
    asked: dict[str, object] = {"max_model_len": length, "max_num_seqs": 16, "gpu": "L40S-48GB"}
    before = budget(NOTHING_OBSERVED, **asked).verdict
    after = budget(seen(a_pods_start(error_gib / 2, "a", **asked)), **asked).verdict
    assert after in (before, Verdict.MAY_NOT_FIT)


@table("error_gib", ERRORS)
def test_a_start_of_another_namespace_says_nothing(error_gib: float) -> None:
    for count in (1, 2, 8):
        starts = [a_pods_start(error_gib, f"pod-{number}", namespace="elsewhere") for number in range(count)]
        assert available(seen(*starts)) == ALONE
        assert available(seen(*starts), max_num_seqs=32) == available(NOTHING_OBSERVED, max_num_seqs=32)


def test_with_scope_cluster_another_namespace_is_heard_and_one_start_still_moves_nothing() -> None:
    one = a_pods_start(-3.0, "a", namespace="elsewhere")
    assert is_only_wider(available(seen(one, scope=CalibrationScope.CLUSTER)))
    two = a_pods_start(-3.0, "b", namespace="elsewhere")
    assert available(seen(one, two, scope=CalibrationScope.CLUSTER)).expected == one.available_kv_cache_bytes


def test_two_pods_that_agree_move_it() -> None:
    first, second = a_pods_start(-3.0, "a"), a_pods_start(-3.02, "b")
    corrected = available(seen(first, second))
    assert corrected.expected in (first.available_kv_cache_bytes, second.available_kv_cache_bytes)
    assert corrected.high - corrected.low < ALONE.high - ALONE.low


def test_two_starts_of_one_pod_are_one_witness() -> None:
    assert is_only_wider(available(seen(a_pods_start(-3.0, "a"), a_pods_start(-3.02, "a"))))


def test_an_objects_own_start_moves_its_next_verdict_and_no_other() -> None:
    own = a_pods_start(-3.0, "a", owner="mine")
    assert available(seen(own)).expected == own.available_kv_cache_bytes
    assert is_only_wider(available(seen(own, reader=("serving", "yours"))))
    assert available(seen(own, reader=("elsewhere", "mine"))) == ALONE
    assert is_only_wider(available(seen(own, reader=("serving", "")))), "an object that has no name yet owns nothing"


def test_another_objects_start_does_not_move_what_follows_the_own() -> None:
    own, other = a_pods_start(-3.0, "a", owner="mine"), a_pods_start(1.2, "b")
    alone, together = available(seen(own)), available(seen(own, other))
    assert is_only_wider(together, alone)
    assert together.high >= other.available_kv_cache_bytes


def test_one_dissenter_does_not_unsettle_two_that_agree() -> None:
    agreed = (a_pods_start(-3.0, "a"), a_pods_start(-3.02, "b"))
    before, after = available(seen(*agreed)), available(seen(*agreed, a_pods_start(1.2, "c")))
    assert is_only_wider(after, before)


def test_two_against_two_move_nothing() -> None:
    starts = [a_pods_start(error, pod) for error, pod in ((-3.0, "a"), (-3.0, "b"), (1.2, "c"), (1.2, "d"))]
    assert is_only_wider(available(seen(*starts)))


def test_what_the_operator_states_is_followed_everywhere_and_by_one_start() -> None:
    stated = a_start(-3.0)
    for scope in CalibrationScope:
        assert available(seen(stated, scope=scope)).expected == stated.available_kv_cache_bytes
        contested = available(seen(stated, a_pods_start(1.2, "a"), a_pods_start(1.2, "b"), scope=scope))
        assert contested.expected == stated.available_kv_cache_bytes


def test_in_a_file_of_the_users_own_every_start_moves_whoever_reported_it() -> None:
    start = a_pods_start(-3.0, "a", namespace="elsewhere")
    calibration = Calibration(starts=(start,))
    assert calibration.seen_from(*HERE) is calibration
    assert available(calibration).expected == start.available_kv_cache_bytes


def test_implausible_starts_do_not_even_widen() -> None:
    assert available(seen(*(a_pods_start(sign * 20.0, pod) for sign, pod in ((1, "a"), (-1, "b"))))) == ALONE


def test_starts_of_different_namespaces_do_not_contradict_each_other() -> None:
    here, there = a_pods_start(-3.0, "a"), a_pods_start(1.2, "a", namespace="elsewhere")
    assert {
        Calibration(starts=(here, there), scope=CalibrationScope.NAMESPACE).state(start) for start in (here, there)
    } == {StartState.USED}
    assert Calibration(starts=(here, there), scope=CalibrationScope.CLUSTER).state(here) is StartState.CONTRADICTORY


def test_the_dissenter_is_told_and_not_those_who_agree() -> None:
    agreed, dissenter = [a_pods_start(-3.0, pod) for pod in ("a", "b")], a_pods_start(1.2, "c")
    calibration = Calibration(starts=(*agreed, dissenter), scope=CalibrationScope.NAMESPACE)
    assert [calibration.state(start) for start in calibration.starts] == ["used", "used", "contradictory"]


def test_who_has_no_starts_shares_one_view_whatever_it_is_called() -> None:
    calibration = Calibration(starts=(a_pods_start(-3.0, "a"),), scope=CalibrationScope.NAMESPACE)
    views = {id(calibration.seen_from(f"namespace-{number}", f"name-{number}")) for number in range(100)}
    views |= {id(calibration.seen_from("serving", f"name-{number}")) for number in range(100)}
    assert len(views) == 2


def test_as_of_an_earlier_start_a_view_knows_no_more() -> None:
    first, second = replace(a_pods_start(-3.0, "a"), revision=1), replace(a_pods_start(-3.0, "b"), revision=2)
    whole = Calibration(starts=(first, second), scope=CalibrationScope.NAMESPACE)
    assert not is_only_wider(available(whole.seen_from(*HERE)))
    assert is_only_wider(available(whole.as_of(1).seen_from(*HERE)))
    assert is_only_wider(available(whole.seen_from(*HERE).as_of(1)))
    assert available(whole.as_of(0).seen_from(*HERE)) == ALONE
