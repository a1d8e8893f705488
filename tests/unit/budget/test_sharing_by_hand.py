"""Engines that share a GPU, in GiB that can be added by hand: 80 on the card, half a GiB gone before each start."""

from fractions import Fraction
from typing import Any

import pytest

from kvgate.budget import Interval, Verdict
from kvgate.budget.answers.sharing import WORKSPACES, Sharer, equal_share, part_of, share_gpu, utilizations
from kvgate.budget.ground import fitted
from kvgate.budget.ground.units import GIB, MIB
from support.builders import new_accelerator
from support.tables import table

HALF = GIB // 2


def gibs(low: float, expected: float | None = None, high: float | None = None) -> Interval:
    expected = low if expected is None else expected
    return Interval(
        low=int(low * GIB), expected=int(expected * GIB), high=int((expected if high is None else high) * GIB)
    )


def sharer(requested: float, held: Interval | None = None, **more: Any) -> Sharer:
    """An engine that requests so many GiB and holds them, with what is gone before, unless `held` says otherwise."""
    values: dict[str, Any] = {
        "name": f"{requested}", "memory_bytes": 80 * GIB, "total": gibs(80), "before": gibs(0.5),
        "requested_bytes": int(requested * GIB), "held": held or gibs(requested + 0.5),
    }  # fmt: skip
    return Sharer(**{**values, **more})


@pytest.mark.parametrize(
    ("held", "beyond"),
    [(gibs(30.5), gibs(0.5)), (gibs(20, 30, 33), gibs(0.5, 0.5, 3)), (gibs(5, 6, 7), gibs(0.5))],
)
def test_what_may_be_held_beyond_the_request(held: Interval, beyond: Interval) -> None:
    assert sharer(30, held).beyond_request == beyond


def test_the_guarantee_needs_the_high_end_of_the_overhead_and_its_caches() -> None:
    assert sharer(30, overhead=gibs(10, 11, 12), demand_bytes=3 * GIB).needed_bytes == 15 * GIB
    assert sharer(30, demand_bytes=3 * GIB).needed_bytes == 3 * GIB


@pytest.mark.parametrize(
    ("checks", "held", "peak"), [(True, 20, 30.5), (True, 40, 40), (False, 20, 20), (True, 30.5, 30.5)]
)
def test_a_release_that_checks_wants_its_whole_request_free(held: float, peak: float, *, checks: bool) -> None:
    assert sharer(30, checks_free=checks).peak_bytes(int(held * GIB), HALF) == peak * GIB


@pytest.mark.parametrize(
    ("used", "level"),
    [
        (0, 30),  # it fills the card up to its share
        (17, 30), (18, 30),  # 18 + 10 + 2 are just its share
        (18.25, None),
    ],
)  # fmt: skip
def test_an_engine_that_counts_others_fills_up_to_its_share_or_does_not_start(used: float, level: float | None) -> None:
    counting = sharer(30, overhead=gibs(10), demand_bytes=2 * GIB, counts_others=True)
    expected = None if level is None else int(level * GIB)
    assert counting.level_bytes(int(used * GIB), "expected") == expected
    without_model = sharer(30, demand_bytes=2 * GIB, counts_others=True)
    assert without_model.level_bytes(27 * GIB, "expected") == 30 * GIB  # 27 + 0.5 + 2
    assert without_model.level_bytes(28 * GIB, "expected") is None


def test_an_engine_that_holds_less_than_its_share_leaves_the_rest() -> None:
    given = sharer(30, gibs(12.5), overhead=gibs(10), counts_others=True)
    assert given.level_bytes(0, "expected") == 12 * GIB
    assert given.level_bytes(15 * GIB, "expected") == 25 * GIB


@table(
    ("engines", "verdict", "any_order"),
    [
        ([sharer(39.5), sharer(39.5)], Verdict.FITS, True),  # just 80
        ([sharer(39.5), sharer(39.75)], Verdict.DOES_NOT_FIT, False),
        ([sharer(60, gibs(20)), sharer(50, gibs(20))], Verdict.FITS, False),  # the larger must start first
        ([sharer(59.5, gibs(20)), sharer(50, gibs(20))], Verdict.FITS, True),  # 20 held, and then 60 more
        ([sharer(60, gibs(20)), sharer(59.5, gibs(20))], Verdict.FITS, False),
        ([sharer(60, gibs(20)), sharer(59.75, gibs(20))], Verdict.DOES_NOT_FIT, False),
        ([sharer(39, gibs(39, 39.5, 40)), sharer(39, gibs(39, 39.5, 40))], Verdict.FITS, True),
        ([sharer(39, gibs(39.5, 40, 40.5)), sharer(39, gibs(39.5, 40, 40.5))], Verdict.MAY_NOT_FIT, True),
    ],
)  # fmt: skip
def test_engines_start_one_after_the_other(engines: list[Sharer], verdict: Verdict, *, any_order: bool) -> None:
    found = share_gpu(engines)
    assert found.verdict is verdict
    assert found.any_order is any_order
    assert found.claimed.expected == sum(engine.held.expected for engine in engines)


def test_the_smallest_card_of_those_that_are_reported_counts() -> None:
    small = sharer(39.5, total=gibs(79))
    found = share_gpu([sharer(39.5), small])
    assert found.total == gibs(79)
    assert found.verdict is Verdict.DOES_NOT_FIT


def test_the_memory_is_divided_into_equal_parts_or_by_need() -> None:
    """80 less twice half a GiB beyond the requests: 79."""
    small, large = (sharer(20, overhead=gibs(need), demand_bytes=0) for need in (10, 30))
    found = share_gpu([small, large])
    assert utilizations(found, by_need=False) == (Fraction(49, 100), Fraction(49, 100))  # 39.5 of 80
    assert utilizations(found, by_need=True) == (Fraction(24, 100), Fraction(74, 100))  # 19.75 and 59.25
    needy = share_gpu([small, sharer(20, overhead=gibs(39.25))])
    assert utilizations(needy, by_need=False) is None  # 0.49 of 80 are 39.2
    just = share_gpu([small, sharer(20, overhead=gibs(39))])
    assert utilizations(just, by_need=False) is not None


def test_an_engine_whose_cache_is_given_keeps_what_it_holds() -> None:
    """It holds 20 with the half before; 19.5 of 80 are 0.24 in whole hundredths. The other has 80 − 20 − 0.5."""
    given = sharer(70, gibs(20), measures=False)
    found = share_gpu([given, sharer(20, overhead=gibs(10))])
    assert utilizations(found, by_need=False) == (Fraction(24, 100), Fraction(74, 100))
    tiny = share_gpu([sharer(70, gibs(0.75), measures=False), sharer(20)])
    assert utilizations(tiny, by_need=False) == (Fraction(1, 100), Fraction(97, 100))  # 80 − (0.5 + 0.8) − 0.5 = 78.2
    counting = share_gpu([sharer(20), sharer(20, counts_others=True)])
    assert utilizations(counting, by_need=False) is None


def test_engines_of_which_nothing_is_known_have_equal_hundredths() -> None:
    card = new_accelerator(memory_gib=80)
    beyond = fitted.SLACK_CONTEXT.interval.high + WORKSPACES.high
    for count in (1, 2, 5):
        share = equal_share(card, count)
        assert share is not None
        assert share.denominator <= 100
        assert (
            count * (share * 80 * GIB + beyond) <= 80 * GIB < count * ((share + Fraction(1, 100)) * 80 * GIB + beyond)
        )
    assert equal_share(card, 1000) is None


def test_workspaces_are_the_buffer_of_flashinfer_by_default() -> None:
    """VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE: 394 MiB; a backend without it takes nothing."""
    assert Interval(low=0, expected=0, high=394 * MIB) == WORKSPACES


@pytest.mark.parametrize(("shared_by", "mib"), [(1, 1000), (3, 333), (7, 142)])
def test_a_part_of_the_card_is_whole_mib(shared_by: int, mib: int) -> None:
    """HAMi sets a limit of so many MiB, which every driver reports alike."""
    card = new_accelerator(memory_gib=1000 / 1024)
    part = part_of(card, shared_by)
    assert {part.memory_bytes, part.memory_low_bytes, part.memory_high_bytes} == {mib * MIB}
