"""Which starts are kept: what adds nothing, what somebody dropped, and what makes room."""

import pytest
from msgspec.structs import replace

from kvgate.budget.observed.starts import ObservedStart
from kvgate.calibration.keeping import MAX_STARTS_OF_A_SETTING, with_start
from kvgate.calibration.records import MAX_STARTS
from support.starts import a_pods_start


def kept(*starts: ObservedStart) -> tuple[ObservedStart, ...]:
    known: tuple[ObservedStart, ...] = ()
    for start in starts:
        known = with_start(known, start)
    return known


@pytest.mark.parametrize("pod", ["a", "b"])
def test_what_was_dropped_is_not_learnt_again_from_any_pod(pod: str) -> None:
    dropped = (replace(a_pods_start(-0.5, "a"), is_dropped=True),)
    assert with_start(dropped, a_pods_start(-0.5, pod)) is dropped
    assert with_start(dropped, a_pods_start(-0.52, pod)) is dropped
    assert len(with_start(dropped, a_pods_start(-3.0, pod))) == 2, "another figure is news"
    assert len(with_start(dropped, a_pods_start(-0.5, pod, namespace="elsewhere"))) == 2


def test_a_pinned_start_makes_no_room() -> None:
    starts = kept(*(a_pods_start(-number, "a") for number in range(MAX_STARTS_OF_A_SETTING)))
    pinned = tuple(replace(start, is_pinned=number < 2) for number, start in enumerate(starts))
    more = with_start(pinned, a_pods_start(-9.0, "b"))
    assert len(more) == MAX_STARTS_OF_A_SETTING
    assert [start.revision for start in pinned if start not in more] == [3]
    every = tuple(replace(start, is_pinned=True) for start in starts)
    assert with_start(every, a_pods_start(-9.0, "b")) is every


def test_a_figure_that_newer_starts_had_replaced_can_come_back() -> None:
    old = [a_pods_start(-3.0, pod) for pod in "ab"]
    starts = kept(*old, *(a_pods_start(1.0 + number / 20, pod) for number, pod in enumerate("cde")))
    assert len(starts) == 5
    assert len(with_start(starts, a_pods_start(-3.0, "f"))) == 6


def test_the_same_figure_under_another_driver_is_news() -> None:
    starts = kept(*(a_pods_start(-0.5, pod, owner="c") for pod in "abd"))
    assert with_start(starts, a_pods_start(-0.5, "c", owner="c")) is starts
    assert len(with_start(starts, replace(a_pods_start(-0.5, "c", owner="c"), driver="580.95"))) == 4


def test_a_restart_storm_adds_a_few_starts_and_then_none() -> None:
    starts = kept(*(a_pods_start(-0.5, f"engine-{number}", owner="storm") for number in range(500)))
    assert len(starts) == 3, "enough that newer ones can replace an older one"
    fleet = kept(*(a_pods_start(-0.5, f"engine-{number}") for number in range(500)))
    assert len(fleet) == MAX_STARTS_OF_A_SETTING
    noisy = kept(*(a_pods_start(-0.5 - number % 7 / 100, f"engine-{number}", owner="storm") for number in range(500)))
    assert len(noisy) <= MAX_STARTS_OF_A_SETTING


def test_what_has_expired_makes_room_first_and_confirms_nothing() -> None:
    known = kept(*(a_pods_start(-0.5, f"engine-{number}") for number in range(MAX_STARTS_OF_A_SETTING)))
    old = tuple(replace(start, is_expired=start.revision > 2) for start in known)
    more = with_start(old, a_pods_start(-0.5, "new"))
    assert {start.revision for start in old if start not in more} == {3}
    every = tuple(replace(start, is_expired=True) for start in known)
    assert len(with_start(every, a_pods_start(-0.5, "new"))) == len(every), (
        "the same figure is news, and one makes room"
    )


def test_what_is_impossible_is_not_kept() -> None:
    start = a_pods_start(-0.5, "a")
    assert (
        with_start((), replace(start, available_kv_cache_bytes=start.possible_bytes[1] + start.resolution_bytes + 1))
        == ()
    )
    assert (
        with_start((), replace(start, available_kv_cache_bytes=start.possible_bytes[1] + start.resolution_bytes)) != ()
    )


def of_setting(start: ObservedStart, number: int, **more: object) -> ObservedStart:
    return replace(start, key=replace(start.key, max_num_batched_tokens=number), revision=number, **more)


def test_a_namespace_that_fills_the_store_costs_no_other_one_its_starts() -> None:
    flood, mine = a_pods_start(-0.5, "a", namespace="flood"), a_pods_start(-0.5, "a", namespace="mine")
    starts = tuple(of_setting(flood, number) for number in range(MAX_STARTS // 2))
    starts += tuple(of_setting(mine, MAX_STARTS + number) for number in range(MAX_STARTS // 2))
    for number in range(20):
        starts = with_start(starts, of_setting(flood, 5000 + number))
    assert sum(start.namespace == "mine" for start in starts) == MAX_STARTS // 2
    assert len(starts) == MAX_STARTS


def test_records_of_dropped_starts_make_room_last_and_pinned_ones_never() -> None:
    base = a_pods_start(-0.5, "a")
    starts = (
        of_setting(base, 1, is_dropped=True), of_setting(base, 2, is_pinned=True),
        *(of_setting(base, number) for number in range(3, MAX_STARTS + 1)),
    )  # fmt: skip
    more = with_start(starts, of_setting(base, 9999))
    assert {start.revision for start in starts} - {start.revision for start in more} == {3}
    decided = tuple(replace(start, is_pinned=not start.is_dropped) for start in starts)
    assert {start.revision for start in decided} - {
        start.revision for start in with_start(decided, of_setting(base, 9999))
    } == {1}
