"""Engines that share a GPU: what each holds, in which order they start, and the utilisation that would work for all."""

from dataclasses import dataclass
from fractions import Fraction
from itertools import permutations
from typing import Any

import pytest
from msgspec.structs import replace

from kvgate.budget import Guarantee, Interval, Verdict, plan
from kvgate.budget.answers.sharing import (
    Sharer,
    engines_per_gpu,
    equal_part,
    least_cache,
    share_gpu,
    sharer_of,
    utilizations,
    within_part,
)
from kvgate.budget.ground.units import GIB, KIB, gib
from support.builders import catalogue_accelerator, catalogue_shape, new_accelerator, new_request
from support.tables import table

SMALL = catalogue_shape("Qwen/Qwen3-0.6B")
FOUR = catalogue_shape("Qwen/Qwen3-4B")


def new_sharer(**overrides: Any) -> Sharer:
    """An engine that wants and then holds 30 of 80 GiB, of which 0.5 are gone before."""
    values: dict[str, Any] = {
        "name": "engine", "memory_bytes": 80 * GIB, "total": Interval.exactly(80 * GIB), "before": Interval.exactly(GIB // 2),
        "requested_bytes": 30 * GIB, "held": Interval.exactly(30 * GIB + GIB // 2),
    }  # fmt: skip
    return Sharer(**{**values, **overrides})


def asked(utilization: str, **more: Any) -> Sharer:
    """A small model at this share of an H100."""
    return sharer_of(plan(new_request(shape=SMALL, utilization=utilization, max_model_len=4096, **more)), utilization)


@table(
    ("shares", "verdict"),
    [
        (("0.45", "0.45"), Verdict.FITS),
        (("0.3", "0.3", "0.3"), Verdict.FITS),
        (("0.9",), Verdict.FITS),
        (("0.5", "0.5"), Verdict.MAY_NOT_FIT),  # the first frees its activations before the second looks
        (("0.6", "0.6"), Verdict.DOES_NOT_FIT),
        (("0.92", "0.92"), Verdict.DOES_NOT_FIT),
        (("0.34", "0.34", "0.34"), Verdict.MAY_NOT_FIT),
        (("0.4", "0.4", "0.4"), Verdict.DOES_NOT_FIT),
    ],
)
def test_the_shares_and_what_is_outside_them_must_fit_the_card(shares: tuple[str, ...], verdict: Verdict) -> None:
    assert share_gpu([asked(share) for share in shares]).verdict is verdict


def test_shares_of_exactly_one_are_certain_where_the_context_takes_more_than_the_profile_gives_back() -> None:
    half = new_sharer(requested_bytes=40 * GIB, held=Interval(low=40 * GIB, expected=41 * GIB, high=42 * GIB))
    assert share_gpu([half, half]).verdict is Verdict.DOES_NOT_FIT  # 40 held, then 0.5 + 40 more
    idle = replace(half, held=Interval(low=38 * GIB, expected=41 * GIB, high=42 * GIB))
    assert share_gpu([idle, idle]).verdict is Verdict.MAY_NOT_FIT


def test_what_an_engine_holds_goes_from_right_after_its_start_to_the_most_under_load() -> None:
    sharer = asked("0.5")
    ledger = plan(new_request(shape=SMALL, utilization="0.5", max_model_len=4096)).stages[0].ledger
    assert ledger is not None
    returned = ledger.peak_activation.high + ledger.cuda_graphs.high
    assert sharer.held.low == sharer.requested_bytes - returned + sharer.before.low
    assert sharer.held.expected == sharer.requested_bytes + sharer.before.expected
    assert sharer.held.high == sharer.requested_bytes + sharer.before.high + 394 * 2**20


def test_graphs_that_are_not_taken_out_of_the_budget_come_on_top() -> None:
    uncounted, counted = (asked("0.4", vllm_version=version) for version in ("0.19.0", "0.33.0"))
    assert uncounted.held.expected - uncounted.requested_bytes - uncounted.before.expected > gib(0.1)
    assert counted.held.expected - counted.requested_bytes == counted.before.expected
    eager = asked("0.4", vllm_version="0.19.0", enforce_eager=True)
    assert eager.held.expected - eager.requested_bytes == eager.before.expected


def test_a_given_cache_holds_its_bytes_and_still_wants_the_whole_share_free_at_the_start() -> None:
    given = asked("0.9", kv_cache_memory_bytes=8 * GIB)
    assert 9 * GIB < given.held.low < given.held.high < 15 * GIB
    assert not given.measures
    measured = asked("0.4")
    both = share_gpu([measured, given])
    assert both.verdict is Verdict.FITS
    assert not both.any_order
    assert [sharer.name for sharer in both.order] == ["0.9", "0.4"]
    low = share_gpu([measured, replace(given, requested_bytes=GIB)])
    assert low.any_order
    two = share_gpu([given, given])  # the second finds less than 90 % free
    assert two.verdict is Verdict.DOES_NOT_FIT


def test_releases_without_the_check_start_as_long_as_their_memory_can_be_had() -> None:
    v0 = asked("0.9", vllm_version="0.7.3")
    assert not v0.checks_free
    assert not v0.counts_others
    assert share_gpu([asked("0.45", vllm_version="0.7.3")] * 2).verdict is Verdict.FITS
    assert share_gpu([v0, v0]).verdict is Verdict.DOES_NOT_FIT
    turing = asked("0.9", vllm_version="0.9.2", accelerator=new_accelerator(compute_capability=(7, 5)))
    assert not turing.checks_free  # V0 runs there
    for release, checks in (("0.8.5", False), ("0.9.0", False), ("0.9.1", True), ("0.10.2", True)):
        sharer = asked("0.9", vllm_version=release)
        assert (sharer.checks_free, sharer.counts_others) == (checks, not checks)


def test_an_engine_that_counts_the_others_fills_the_card_up_to_its_share() -> None:
    """vLLM issue 14376: two TinyLlama-1.1B on an L40S (V1, March 2025); the second with 0.2 had no memory for cache blocks."""

    def engine(share: str) -> Sharer:
        request = new_request(
            shape=catalogue_shape("TinyLlama/TinyLlama-1.1B-Chat-v1.0"), accelerator=catalogue_accelerator("L40S-48GB"),
            utilization=share, max_model_len=1024, vllm_version="0.8.5",
        )  # fmt: skip
        return sharer_of(plan(request), share)

    assert share_gpu([engine("0.2"), engine("0.2")]).verdict is Verdict.DOES_NOT_FIT
    second_larger = share_gpu([engine("0.3"), engine("0.2")])
    assert second_larger.verdict is not Verdict.DOES_NOT_FIT  # it worked
    assert [sharer.name for sharer in second_larger.order] == ["0.2", "0.3"]
    assert not second_larger.any_order
    assert (
        share_gpu([engine("0.45"), engine("0.9")]).verdict is Verdict.FITS
    )  # vLLM's own tests did that (pull request 18974)
    assert utilizations(second_larger, by_need=False) is None
    beside_new = share_gpu([engine("0.5"), asked("0.2")])
    assert beside_new.verdict is not Verdict.DOES_NOT_FIT


@dataclass(frozen=True)
class Start:
    held: int
    peak: int


@pytest.mark.parametrize(
    "starts",
    [
        [Start(10, 60), Start(20, 30), Start(15, 15)],
        [Start(30, 30), Start(30, 35), Start(10, 25)],
        [Start(5, 80), Start(40, 41), Start(30, 35)],
        [Start(40, 45), Start(40, 40)],
        [Start(30, 50), Start(30, 51), Start(19, 20)],
        [Start(1, 70), Start(2, 70), Start(3, 74)],
    ],
)
def test_the_best_order_is_as_good_as_any_order(starts: list[Start]) -> None:
    def starts_in(order: tuple[Start, ...]) -> bool:
        used = 0
        for each in order:
            if used + each.peak > 80:
                return False
            used += each.held
        return True

    sharers = [
        new_sharer(name=str(i), held=Interval.exactly(s.held * GIB), requested_bytes=s.peak * GIB, before=Interval.exactly(0))
        for i, s in enumerate(starts)
    ]  # fmt: skip
    sharing, orders = share_gpu(sharers), [starts_in(order) for order in permutations(starts)]
    assert (sharing.verdict is Verdict.FITS) == any(orders)
    assert sharing.any_order == all(orders)
    best = tuple(starts[int(sharer.name)] for sharer in sharing.order)
    assert starts_in(best) == any(orders)


@pytest.mark.parametrize("by_need", [False, True])
@pytest.mark.parametrize("gpu", ["L4-24GB", "H100-SXM-80GB", "A100-SXM-40GB", "GB10-128GB"])
def test_the_suggested_utilisations_work_for_all(gpu: str, *, by_need: bool) -> None:
    accelerator = catalogue_accelerator(gpu)

    def engines(*shares: Fraction) -> list[Sharer]:
        requests = [
            new_request(shape=shape, accelerator=accelerator, utilization=str(share), max_model_len=length)
            for shape, share, length in zip((SMALL, SMALL), shares, (2048, 8192), strict=True)
        ]
        return [sharer_of(plan(request), "e") for request in requests]

    found = utilizations(share_gpu(engines(Fraction(9, 10), Fraction(9, 10))), by_need=by_need)
    assert found is not None
    assert all(share.limit_denominator(100) == share for share in found)
    sharing = share_gpu(engines(*found))
    assert sharing.verdict is Verdict.FITS
    assert sharing.any_order


def test_no_utilisation_is_suggested_where_a_guarantee_would_not_hold() -> None:
    large = sharer_of(plan(new_request(shape=catalogue_shape("Qwen/Qwen3-32B"), max_model_len=4096)), "large")
    small = asked("0.9")
    both = share_gpu([large, small])
    assert utilizations(both, by_need=False) is None  # half a card does not hold 61 GiB of weights
    by_need = utilizations(both, by_need=True)
    assert by_need is not None
    assert by_need[0] > 4 * by_need[1]
    assert utilizations(share_gpu([large, large]), by_need=True) is None


def test_an_engine_with_a_given_cache_is_suggested_a_share_that_it_holds_anyway() -> None:
    given, measured = asked("0.9", kv_cache_memory_bytes=8 * GIB), asked("0.9")
    found = utilizations(share_gpu([given, measured]), by_need=False)
    assert found is not None
    assert found[0] < Fraction(2, 10) < Fraction(6, 10) < found[1]


def test_the_equal_part_is_the_largest_hundredth_that_all_can_have() -> None:
    for shared_by in (2, 3, 4):
        request = replace(new_request(shape=SMALL, max_model_len=4096), shared_by=shared_by)
        part = equal_part(plan(request))
        assert part is not None
        assert share_gpu([asked(str(part))] * shared_by).verdict is Verdict.FITS
        assert share_gpu([asked(str(part + Fraction(1, 100)))] * shared_by).verdict is not Verdict.FITS
        assert within_part(request).settings.gpu_memory_utilization == part
    assert equal_part(plan(replace(new_request(), shared_by=64, accelerator=new_accelerator(memory_gib=24)))) is None


def test_a_smaller_share_than_the_equal_part_stays() -> None:
    request = replace(new_request(shape=SMALL, utilization="0.2", max_model_len=4096), shared_by=2)
    assert within_part(request) is request
    alone = new_request(shape=SMALL)
    assert within_part(alone) is alone


def test_engines_per_gpu_is_the_most_that_keep_their_guarantee() -> None:
    request = new_request(shape=FOUR, max_model_len=8192)
    count, part = engines_per_gpu(request)
    assert count >= 4
    assert part is not None

    def hold(number: int) -> bool:
        budget = plan(within_part(replace(request, shared_by=number)))
        sharing = share_gpu([sharer_of(budget, "")] * number)
        return budget.verdict is Verdict.FITS and sharing.verdict is Verdict.FITS

    assert hold(count)
    assert not hold(count + 1)
    assert engines_per_gpu(
        new_request(shape=catalogue_shape("Qwen/Qwen3-32B"), accelerator=new_accelerator(memory_gib=24))
    ) == (0, None)


def test_a_model_that_nobody_knows_is_seen_by_what_it_requests() -> None:
    shape = new_request().shape
    unknown = sharer_of(plan(new_request(shape=replace(shape, unmodelled=("experts",)), utilization="0.6")), "unknown")
    assert unknown.overhead is None
    assert unknown.held.low == unknown.before.low
    assert share_gpu([unknown, unknown]).verdict is Verdict.MAY_NOT_FIT


def test_a_model_without_caches_holds_its_weights_and_wants_its_share_free_at_the_start_only() -> None:
    encoder = sharer_of(plan(new_request(shape=catalogue_shape("BAAI/bge-large-en-v1.5"))), "embed")
    assert encoder.held.high < 6 * GIB < encoder.requested_bytes
    assert not encoder.measures
    both = share_gpu([asked("0.85"), encoder])
    assert both.verdict is Verdict.FITS
    assert [sharer.name for sharer in both.order] == ["embed", "0.85"]
    assert not both.any_order
    found = utilizations(share_gpu([asked("0.92"), encoder]), by_need=False)
    assert found is not None
    assert found[0] > Fraction(8, 10)
    assert found[1] == Fraction(1, 100)


def test_the_least_cache_holds_the_guarantee_and_leaves_the_rest_to_neighbours() -> None:
    """Qwen3-8B: 144 KiB a token; 4 requests of 1024 tokens take 256 blocks of 16, and one block is vLLM's own."""
    asked = new_request(
        shape=catalogue_shape("Qwen/Qwen3-8B"), max_model_len=1024, max_num_seqs=4, guarantee=Guarantee.FULL_CONTEXT
    )
    least = least_cache(plan(asked))
    assert least is not None
    assert least.cache_memory_bytes == 257 * 16 * 144 * KIB
    given = plan(
        asked.with_settings(
            kv_cache_memory_bytes=least.cache_memory_bytes, gpu_memory_utilization=least.gpu_memory_utilization
        )
    )
    assert given.verdict is Verdict.FITS
    assert given.usable_blocks is not None
    assert given.usable_blocks.low == 256
    held = sharer_of(given, "").held
    assert least.left.low == asked.accelerator.memory_low_bytes - held.high
    assert least_cache(given) is None  # a size is given already
    assert least_cache(plan(asked.with_settings(max_num_seqs=4000))) is None  # does not fit
