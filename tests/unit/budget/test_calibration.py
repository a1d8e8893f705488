"""Observed starts: exact for their own setting, a lesson for others of their machine, and no use where they contradict."""

import pytest
from msgspec.structs import replace

from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.engine.request import BudgetRequest
from kvgate.budget.ground import fitted
from kvgate.budget.ground.interval import Interval, Verdict
from kvgate.budget.ground.units import GIB, MIB, gib
from kvgate.budget.observed.calibration import Calibration, StartState
from kvgate.budget.observed.starts import ObservedStart, StartKey
from kvgate.calibration.observed import start_of_blocks, start_of_bytes
from kvgate.judgement.what_if import read_request

ASKED = {
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "gpu": "H100-SXM-80GB",
    "vllm_version": "0.33.0",
    "max_num_seqs": 64,
    "enforce_eager": True,
}


def a_request(**changes: object) -> BudgetRequest:
    request, _ = read_request({**ASKED, **changes})
    assert request is not None
    return request


def budget_with(starts: tuple[ObservedStart, ...], **changes: object) -> Budget:
    return plan(replace(a_request(**changes), calibration=Calibration(starts=starts)))


def available(budget: Budget) -> Interval:
    assert budget.tightest is not None
    return budget.tightest.available


def a_start(error_gib: float = -2.0, **changes: object) -> ObservedStart:
    """A start that left so much more than predicted."""
    budget = plan(a_request(**changes))
    start = start_of_bytes(budget, available(budget).expected + gib(error_gib), source="a log")
    assert start is not None
    return start


def test_a_start_makes_the_next_of_its_setting_known_but_for_scatter() -> None:
    alone, start = available(budget_with(())), a_start(-2.0)
    corrected = available(budget_with((start,)))
    assert corrected.expected == start.available_kv_cache_bytes == alone.expected - gib(2)
    margin = fitted.SCATTER.interval.high + start.resolution_bytes
    assert (corrected.expected - corrected.low, corrected.high - corrected.expected) == (margin, margin)


@pytest.mark.parametrize(
    "changes",
    [{"gpu_memory_utilization": 0.5}, {"max_model_len": 4096}, {"enable_prefix_caching": False}, {"block_size": 32}],
    ids=str,
)
def test_what_moves_no_memory_of_the_profile_run_shares_its_start(changes: dict[str, object]) -> None:
    alone = available(budget_with((), **changes))
    assert available(budget_with((a_start(-2.0),), **changes)).expected == alone.expected - gib(2)


@pytest.mark.parametrize(
    "changes",
    [
        {"max_num_batched_tokens": 4096}, {"kv_cache_dtype": "fp8"}, {"model": "Qwen/Qwen3-8B"},
        {"model": "meta-llama/Meta-Llama-3-8B-Instruct", "max_model_len": 4096, "max_num_seqs": 32},
    ],
    ids=str,
)  # fmt: skip
def test_another_setting_of_the_machine_is_moved_by_what_no_formula_explains(changes: dict[str, object]) -> None:
    alone, corrected = available(budget_with((), **changes)), available(budget_with((a_start(-2.0),), **changes))
    assert corrected.expected == alone.expected - gib(2)
    assert (corrected.low, corrected.high) == (alone.low - gib(2), alone.high)


@pytest.mark.parametrize("error_gib", [-0.11, 0.11])
def test_scatter_moves_no_other_setting(error_gib: float) -> None:
    asked = {"max_num_batched_tokens": 4096}
    assert available(budget_with((a_start(error_gib),), **asked)) == available(budget_with((), **asked))


def test_an_error_that_is_too_large_for_every_setting_widens_others_and_moves_none() -> None:
    asked = {"max_num_batched_tokens": 4096}
    alone, corrected = available(budget_with((), **asked)), available(budget_with((a_start(-3.9),), **asked))
    assert corrected == Interval(low=alone.low - gib(3.9), expected=alone.expected, high=alone.high)


def test_starts_of_several_settings_have_one_voice_each() -> None:
    starts = (
        a_start(-2.0),
        a_start(-1.9),
        a_start(-1.0, kv_cache_dtype="fp8"),
        a_start(-0.9, max_num_batched_tokens=2048),
    )
    asked = {"max_num_batched_tokens": 4096}
    assert available(budget_with(starts, **asked)).expected == available(budget_with((), **asked)).expected - gib(1)


def test_one_start_settles_the_sampler_of_its_image_for_other_settings() -> None:
    asked = {"vllm_version": "0.10.2", "gpu": "L40S-48GB", "enforce_eager": False}
    fast = plan(a_request(**asked, sampler="flashinfer", max_num_seqs=1024))
    budget = plan(a_request(**asked, max_num_seqs=1024))
    start = start_of_bytes(budget, available(fast).expected, source="a log")
    assert start is not None
    assert start.circumstances == (("sampler", "flashinfer"),)
    other = {**asked, "max_num_seqs": 512, "max_num_batched_tokens": 4096}
    taught, told = available(budget_with((start,), **other)), available(budget_with((), **other, sampler="flashinfer"))
    assert taught == told
    assert taught.high - taught.low < available(budget_with((), **other)).high - available(budget_with((), **other)).low


@pytest.mark.parametrize("changes", [{"vllm_version": "0.33.1"}], ids=str)
def test_a_near_setting_of_another_release_is_only_less_certain(changes: dict[str, object]) -> None:
    alone, corrected = available(budget_with((), **changes)), available(budget_with((a_start(-2.0),), **changes))
    assert corrected.expected == alone.expected
    assert corrected.low == alone.expected - gib(2) < alone.low
    assert corrected.high == alone.high


@pytest.mark.parametrize(
    "changes",
    [
        {"gpu": "H200-SXM-141GB"}, {"vllm_version": "0.32.0"}, {"tensor_parallel_size": 2}, {"enforce_eager": False},
    ],
    ids=str,
)  # fmt: skip
def test_a_start_says_nothing_of_other_kernels_or_gpus(changes: dict[str, object]) -> None:
    assert available(budget_with((a_start(-2.0),), **changes)) == available(budget_with((), **changes))


def test_a_neighbour_inside_the_interval_changes_nothing() -> None:
    asked = {"max_num_batched_tokens": 4096}
    assert available(budget_with((a_start(0.01),), **asked)) == available(budget_with((), **asked))


def test_several_starts_that_agree_span_the_interval() -> None:
    corrected = available(budget_with((a_start(-2.0), a_start(-2.1), a_start(-2.05))))
    alone = available(budget_with(()))
    margin = fitted.SCATTER.interval.high + a_start().resolution_bytes
    assert corrected.expected == pytest.approx(alone.expected - gib(2.05), abs=1)
    assert corrected.low == pytest.approx(alone.expected - gib(2.1) - margin, abs=1)
    assert corrected.high == pytest.approx(alone.expected - gib(2.0) + margin, abs=1)


def test_starts_that_contradict_each_other_are_all_left_out() -> None:
    starts = (a_start(-2.0), a_start(-3.0))
    calibration = Calibration(starts=starts)
    assert {calibration.state(start) for start in starts} == {StartState.CONTRADICTORY}
    assert available(budget_with(starts)) == available(budget_with(()))


def test_a_start_that_cannot_be_of_its_setting_is_left_out() -> None:
    start = a_start(-20.0)
    assert Calibration(starts=(start,)).state(start) is StartState.IMPLAUSIBLE
    assert available(budget_with((start,))) == available(budget_with(()))


def test_a_compile_cache_that_may_be_missing_next_time_keeps_the_interval_open() -> None:
    """0.28 counts what compiling leaves behind: Qwen3-32B-AWQ on RTX 5090 left 2.5 GiB less without a cache (two logged starts)."""
    asked = {
        "model": "Qwen/Qwen3-32B-AWQ",
        "gpu": "RTX-5090-32GB",
        "vllm_version": "0.28.0",
        "max_model_len": 8192,
        "max_num_seqs": 256,
    }
    request, _ = read_request({**asked, "gpu_memory_utilization": 0.7})
    assert request is not None
    warm = start_of_bytes(plan(request), gib(3.0), source="warm")
    cold_request, _ = read_request({**asked, "gpu_memory_utilization": 0.85})
    assert warm is not None
    assert cold_request is not None
    corrected = available(plan(replace(cold_request, calibration=Calibration(starts=(warm,)))))
    assert corrected.low <= gib(5.16) <= corrected.expected
    cold = start_of_bytes(plan(cold_request), gib(5.16), source="cold")
    assert cold is not None
    both = Calibration(starts=(warm, cold))
    assert {both.state(start) for start in both.starts} == {StartState.USED}


# Two starts of one server (github.com/StellaLee/vllm-experiment; Qwen2.5-Coder-7B has the same shapes): 6.06 GiB for the KV cache
# without a compile cache, 6.84 GiB with one.
TWICE = {
    "model": "Qwen/Qwen2.5-7B-Instruct", "gpu": "RTX-4090-24GB", "vllm_version": "0.23.0", "max_model_len": 32768,
    "max_num_seqs": 32, "enforce_eager": False,
}  # fmt: skip
COLD_GIB, WARM_GIB = 6.06, 6.84


def logged(available_gib: float, kind: str) -> ObservedStart:
    start = start_of_bytes(plan(a_request(**TWICE)), gib(available_gib), source="a log", compile_cache=kind)
    assert start is not None
    return start


@pytest.mark.parametrize(
    ("kind", "seen_gib", "other", "other_gib"),
    [("cold", COLD_GIB, "warm", WARM_GIB), ("warm", WARM_GIB, "cold", COLD_GIB)],
)
def test_a_start_whose_kind_is_known_predicts_both_kinds(
    kind: str, seen_gib: float, other: str, other_gib: float
) -> None:
    start = logged(seen_gib, kind)
    same = available(budget_with((start,), **TWICE, compile_cache=kind))
    assert same.expected == start.available_kv_cache_bytes
    assert same.high - same.low == 2 * (fitted.SCATTER.interval.high + start.resolution_bytes)
    moved = available(budget_with((start,), **TWICE, compile_cache=other))
    assert moved.expected == pytest.approx(gib(other_gib), abs=gib(0.15))
    assert min(moved.expected, same.expected) >= moved.low
    assert max(moved.expected, same.expected) <= moved.high
    unknown = available(budget_with((start,), **TWICE))
    assert unknown.low <= min(same.low, moved.expected)
    assert unknown.high >= max(same.high, moved.expected)
    assert unknown.expected == same.expected


def test_a_known_cold_start_says_that_no_start_takes_more() -> None:
    start = logged(COLD_GIB, "cold")
    unknown = available(budget_with((start,), **TWICE))
    assert unknown.expected - unknown.low == fitted.SCATTER.interval.high + start.resolution_bytes


def test_starts_of_one_known_kind_contradict_each_other_sooner() -> None:
    def state(first: str, second: str) -> StartState:
        starts = (logged(COLD_GIB, first), logged(WARM_GIB, second))
        return Calibration(starts=starts).state(starts[0])

    assert state("cold", "warm") is StartState.USED
    assert state("", "") is StartState.USED
    assert state("cold", "cold") is StartState.CONTRADICTORY


def test_where_cpu_and_gpu_share_memory_neighbours_keep_the_interval_wide() -> None:
    asked = {"gpu": "GB10-128GB"}
    corrected = available(budget_with((a_start(-1.0, **asked),), **asked))
    assert corrected.expected - corrected.low >= fitted.SCATTER_UNIFIED.interval.high


def test_a_verdict_can_be_given_as_of_an_earlier_start() -> None:
    first, second = replace(a_start(-1.0), revision=1), replace(a_start(-1.1), revision=2)
    calibration = Calibration(starts=(first, second))
    assert calibration.revision == 2
    assert calibration.as_of(2) is calibration
    assert calibration.as_of(1).starts == (first,)
    assert calibration.as_of(1) is calibration.as_of(1)
    assert calibration.as_of(0).starts == ()


def test_blocks_are_a_start_within_half_a_block() -> None:
    budget = plan(a_request())
    start = start_of_blocks(budget, 28_000, source="metrics")
    assert start is not None
    assert budget.tightest is not None
    size = budget.tightest.bytes_per_block
    assert start.available_kv_cache_bytes - start.resolution_bytes == 28_000 * size
    corrected = plan(replace(a_request(), calibration=Calibration(starts=(start,))))
    assert corrected.num_blocks is not None
    assert corrected.num_blocks.expected == 28_000


def test_blocks_of_another_size_than_expected_are_counted_in_their_own() -> None:
    budget = plan(a_request())
    as_expected, of_64 = (
        start_of_blocks(budget, blocks, block_size=size, source="metrics")
        for blocks, size in ((28_000, 16), (7_000, 64))
    )
    assert as_expected is not None
    assert of_64 is not None
    assert abs(of_64.available_kv_cache_bytes - as_expected.available_kv_cache_bytes) <= of_64.resolution_bytes
    assert of_64.resolution_bytes == 4 * as_expected.resolution_bytes


@pytest.mark.parametrize("changes", [{"kv_cache_memory_bytes": 10 * GIB}, {"num_gpu_blocks_override": 100}], ids=str)
def test_memory_that_was_given_by_hand_says_nothing_of_the_formulas(changes: dict[str, object]) -> None:
    assert start_of_bytes(plan(a_request(**changes)), 10 * GIB, source="") is None


def test_one_start_decides_what_the_formulas_had_left_open() -> None:
    """Between the bounds the verdict was MayNotFit; the observed start says which it is."""
    open_length = next(
        length for length in range(8192, 131072, 256)
        if budget_with((), max_model_len=length, gpu="L4-24GB").verdict is Verdict.MAY_NOT_FIT
    )  # fmt: skip
    asked = {"gpu": "L4-24GB"}
    more, less = a_start(0.2, **asked), a_start(-0.9, **asked)
    assert budget_with((more,), max_model_len=open_length, **asked).verdict is Verdict.FITS
    assert budget_with((less,), max_model_len=open_length, **asked).verdict is Verdict.DOES_NOT_FIT


def test_a_key_names_everything_that_tells_starts_apart() -> None:
    key = StartKey(
        architecture="A", weights_bytes=MIB, accelerator="G", vllm_version="0.33.0",
        max_num_batched_tokens=1, max_model_len=1,
    )  # fmt: skip
    assert (
        key.neighbourhood
        == replace(key, weights_bytes=2, vllm_version="0.33.1", max_num_batched_tokens=2).neighbourhood
    )
    assert key.neighbourhood != replace(key, vllm_version="0.3.3").neighbourhood


@pytest.mark.parametrize("quantization", ["bitsandbytes", "fp8"])
def test_weights_that_are_quantized_while_loading_are_another_setting(quantization: str) -> None:
    budget = budget_with((a_start(-2.0),), quantization=quantization)
    assert budget.tightest is not None
    assert budget.tightest.ledger is not None
    correction = budget.tightest.ledger.correction
    assert correction is not None
    assert not correction.is_same_setting


def test_as_of_every_revision_is_as_if_no_more_had_been_recorded() -> None:
    errors = (-1.0, -1.05, -3.0, -1.1)
    starts = tuple(replace(a_start(error), revision=n) for n, error in enumerate(errors, start=1))
    whole = Calibration(starts=starts)
    for revision in range(len(starts) + 1):
        seen, alone = whole.as_of(revision), Calibration(starts=starts[:revision])
        assert (seen.starts, seen.revision) == (alone.starts, alone.revision)
        assert [seen.state(start) for start in seen.starts] == [alone.state(start) for start in alone.starts]
        for changes in ({}, {"max_num_seqs": 32}, {"max_num_batched_tokens": 4096}):
            asked = a_request(**changes)
            told = [plan(replace(asked, calibration=known)).tightest for known in (seen, alone)]
            assert told[0] == told[1]
        assert seen.as_of(1) is seen.as_of(1)
    assert whole.as_of(3).as_of(2).starts == starts[:2]


def test_a_key_without_more_is_one_gpu_that_runs_alone() -> None:
    batch = {
        "max_num_batched_tokens": 2048,
        "max_model_len": 4096,
        "kv_cache_dtype": "auto",
        "enforce_eager": False,
    }
    key = StartKey(
        architecture="LlamaForCausalLM", weights_bytes=1, accelerator="L4-24GB", vllm_version="0.33.0", **batch
    )
    sizes = (
        key.tensor_parallel_size,
        key.pipeline_parallel_size,
        key.data_parallel_size,
        key.decode_context_parallel_size,
    )
    assert sizes == (1, 1, 1, 1)
    assert (key.enable_expert_parallel, key.first_layer, key.speculative_tokens) == (False, 0, 0)
