"""What holds for every model, GPU and setting: order, monotony, maximal answers, and that nothing is given away twice."""

import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget.answers.advice import alternatives
from kvgate.budget.answers.answer import plan
from kvgate.budget.answers.changes import Alternative, Scope, with_change
from kvgate.budget.answers.solver import (
    AdjustLimits,
    Knob,
    adjust,
    fits_low,
    largest_max_model_len,
    largest_max_num_seqs,
)
from kvgate.budget.engine.request import BudgetRequest, EngineSettings, Guarantee
from kvgate.budget.gpu.cuda_graphs import num_capture_sizes
from kvgate.budget.ground.hardware import Accelerator, Parallelism, stage_sizes
from kvgate.budget.ground.interval import Interval, Verdict, verdict_of
from kvgate.budget.ground.units import cdiv, round_up, share_of
from kvgate.budget.kv_cache.capacity import largest
from kvgate.budget.model.shape import LatentAttention
from kvgate.vllm.pod_options import OWNED_FLAG_PATTERN, OWNED_FLAGS, owned_flag
from support.builders import catalogue_accelerator, catalogue_shape, new_accelerator, new_request
from support.tables import table

pytestmark = pytest.mark.slow

settings.register_profile("kvgate", derandomize=True, deadline=None, max_examples=60, database=None)
settings.load_profile("kvgate")

MODELS = (
    "Qwen/Qwen3-8B", "meta-llama/Llama-2-7b-hf", "meta-llama/Llama-3.1-70B-Instruct", "Qwen/Qwen3-30B-A3B-FP8",
    "deepseek-ai/DeepSeek-V3", "facebook/opt-125m", "Qwen/Qwen3-8B-AWQ",
)  # fmt: skip
RANK = {Verdict.FITS: 0, Verdict.MAY_NOT_FIT: 1, Verdict.DOES_NOT_FIT: 2}

lengths = st.integers(1, 40_000)
sequences = st.integers(1, 2048)


nothing = st.none()


@st.composite
def requests(draw: st.DrawFn, *, kv_bytes: st.SearchStrategy[int | None] = nothing) -> BudgetRequest:
    """Settings of a user, mostly near the edge of what fits."""
    return new_request(
        shape=catalogue_shape(draw(st.sampled_from(MODELS))),
        accelerator=draw(st.sampled_from(catalogue.accelerators())),
        vllm_version=draw(st.sampled_from(["0.6.6", "0.8.5", "0.10.2", "0.19.1", "0.24.0", "0.28.0", "0.33.0", "0.40.0"])),
        guarantee=draw(st.sampled_from([Guarantee.STARTUP, Guarantee.FULL_CONTEXT])),
        max_model_len=draw(lengths),
        max_num_seqs=draw(sequences),
        max_num_batched_tokens=draw(st.none() | st.integers(1, 32_768)),
        kv_cache_dtype=draw(st.sampled_from(["auto", "fp8"])),
        gpu_memory_utilization=draw(st.none() | st.fractions(Fraction(1, 10), 1, max_denominator=1000)),
        enforce_eager=draw(st.booleans()),
        kv_cache_memory_bytes=draw(kv_bytes),
        tensor=draw(st.sampled_from([1, 2, 4, 8])),
        pipeline=draw(st.sampled_from([1, 2, 3])),
    )  # fmt: skip


@given(requests())
def test_low_is_at_most_expected_is_at_most_high(request: BudgetRequest) -> None:
    budget = plan(request)
    intervals = [stage.available for stage in budget.stages] + [
        budget.num_blocks,
        budget.usable_blocks,
        budget.headroom,
    ]
    assert intervals
    assert all(i is not None and i.low <= i.expected <= i.high for i in intervals)


@given(requests(kv_bytes=st.none() | st.integers(1, 1 << 36)))
def test_the_pool_is_never_larger_than_what_there_is(request: BudgetRequest) -> None:
    budget = plan(request)
    assert budget.num_blocks is not None
    for stage in budget.stages:
        for end in ("low", "expected", "high"):
            assert getattr(budget.num_blocks, end) * stage.bytes_per_block <= max(0, getattr(stage.available, end))


@given(requests(), st.sampled_from(["max_model_len", "max_num_seqs"]), st.integers(1, 5000))
def test_asking_for_more_never_fits_better(request: BudgetRequest, field: str, more: int) -> None:
    wider = request.with_settings(**{field: getattr(request.settings, field) + more})
    assert RANK[plan(request).verdict] <= RANK[plan(wider).verdict]


def grown(accelerator: Accelerator, extra: int) -> Accelerator:
    return replace(
        accelerator,
        memory_bytes=accelerator.memory_bytes + extra,
        memory_low_bytes=accelerator.memory_low_bytes + extra,
        memory_high_bytes=accelerator.memory_high_bytes + extra,
    )


@given(requests(), st.integers(0, 1 << 34))
def test_more_memory_never_fits_worse(request: BudgetRequest, extra: int) -> None:
    """With the batch limits held, which jump with the size of a card."""
    settled = plan(request).resolved
    held = request.with_settings(max_num_batched_tokens=settled.max_num_batched_tokens)
    larger = replace(held, accelerator=grown(held.accelerator, extra))
    assert RANK[plan(larger).verdict] <= RANK[plan(held).verdict]


@given(requests())
def test_the_demand_is_whole_requests(request: BudgetRequest) -> None:
    budget = plan(request)
    assert budget.demand is not None
    assert budget.kv_cache is not None
    count = budget.resolved.max_num_seqs if request.guarantee is Guarantee.FULL_CONTEXT else 1
    assert budget.demand.blocks == count * budget.kv_cache.request_blocks
    assert budget.demand.startup_blocks == budget.kv_cache.request_blocks


def turned_back(request: BudgetRequest, wanted: BudgetRequest, field: str, after: object) -> BudgetRequest:
    """The rendered request with one knob a step nearer to what the user wrote."""
    if field == "kv_cache_dtype":
        return request.with_settings(kv_cache_dtype=wanted.settings.kv_cache_dtype)
    assert isinstance(after, int)
    return request.with_settings(**{field: after + 1})


@given(requests(), st.permutations(list(Knob)), st.integers(1, 3), st.integers(1, 4096), st.integers(1, 64))
def test_an_adjustment_fits_keeps_to_its_limits_and_gives_back_all_it_can(
    request: BudgetRequest, order: list[Knob], count: int, least_length: int, least_seqs: int
) -> None:
    limits = AdjustLimits(knobs=tuple(order[:count]), min_max_model_len=least_length, min_max_num_seqs=least_seqs)
    adjustment = adjust(request, limits)
    start = plan(request)
    if start.verdict is Verdict.FITS:
        assert adjustment is not None
        assert adjustment.changes == ()
    if adjustment is None:
        return
    end = adjustment.budget
    assert end.verdict is Verdict.FITS
    assert end.resolved.max_model_len >= min(least_length, start.resolved.max_model_len)
    assert end.resolved.max_num_seqs >= min(least_seqs, start.resolved.max_num_seqs)
    names = {
        "max_num_seqs": Knob.MAX_NUM_SEQS,
        "max_model_len": Knob.MAX_MODEL_LEN,
        "kv_cache_dtype": Knob.KV_CACHE_DTYPE,
    }
    for change in adjustment.changes:
        assert names[change.field] in limits.knobs
        assert not fits_low(turned_back(end.request, request, change.field, change.after))


@given(requests())
def test_the_longest_context_is_the_longest(request: BudgetRequest) -> None:
    found = largest_max_model_len(request)
    wanted = plan(request).resolved.max_model_len
    assert found == 0 or fits_low(request.with_settings(max_model_len=found))
    assert found == wanted or not fits_low(request.with_settings(max_model_len=found + 1))


@given(requests())
def test_the_most_sequences_are_the_most(request: BudgetRequest) -> None:
    found = largest_max_num_seqs(request, 1024)
    assert found == 0 or fits_low(request.with_settings(max_num_seqs=found))
    assert found == 1024 or not fits_low(request.with_settings(max_num_seqs=found + 1))


SCOPE = Scope(accelerators=tuple(catalogue.accelerators()))


def changed(request: BudgetRequest, alternative: Alternative) -> BudgetRequest:
    """The request with the changes that are proposed."""
    for change in alternative.changes:
        request = with_change(request, change.field, change.after, SCOPE)
    return request


@settings(max_examples=15)
@given(requests())
def test_every_change_that_is_proposed_fits(request: BudgetRequest) -> None:
    assert all(fits_low(changed(request, one)) for one in alternatives(request, SCOPE))


def test_each_kind_of_change_is_proposed_where_it_helps_and_then_fits() -> None:
    """So that the property above cannot hold for want of proposals."""
    request = new_request(
        shape=catalogue_shape("meta-llama/Llama-3.1-70B-Instruct"),
        accelerator=catalogue_accelerator("H100-SXM-80GB"),
        guarantee=Guarantee.FULL_CONTEXT,
        max_model_len=32_768,
        max_num_seqs=16,
        tensor=4,
    )
    proposed = alternatives(request, SCOPE)
    assert not fits_low(request)
    assert {one.field for one in proposed} >= {
        "max_model_len", "max_num_seqs", "kv_cache_dtype", "tensor_parallel_size", "accelerator",
    }  # fmt: skip
    assert all(fits_low(changed(request, one)) for one in proposed)


@given(st.sampled_from(MODELS), st.integers(0, 4))
def test_ranks_beyond_the_kv_heads_save_nothing(model: str, power: int) -> None:
    shape, tensor = catalogue_shape(model), 2**power

    def block(size: int) -> int:
        kv_cache = plan(new_request(shape=shape, tensor=size, kv_cache_memory_bytes=1 << 30)).kv_cache
        assert kv_cache is not None
        return kv_cache.bytes_per_block

    mixer = shape.mixers[0]
    heads = 1 if isinstance(mixer, LatentAttention) else mixer.num_kv_heads  # type: ignore[union-attr]
    if heads % tensor and tensor % heads:
        return
    assert block(tensor) == block(1) // min(tensor, heads)


@given(st.integers(1, 1024), st.integers(1, 64))
def test_stages_hold_every_layer_once_and_none_is_two_larger(num_layers: int, pipeline: int) -> None:
    sizes = stage_sizes(num_layers, pipeline)
    assert (len(sizes), sum(sizes)) == (pipeline, num_layers)
    assert max(sizes) - min(sizes) <= 1
    assert sizes[-1] == min(sizes)


@given(requests())
def test_stages_follow_each_other(request: BudgetRequest) -> None:
    stages = plan(request).stages
    assert [stage.first for stage in stages] == [0, *(stage.last for stage in stages[:-1])]
    assert stages[-1].last == len(request.shape.layers)


@given(st.integers(0, 10**6), st.integers(0, 3000))
def test_bisection_finds_the_edge(edge: int, at_most: int) -> None:
    assert largest(at_most, lambda n: n <= edge) == min(edge, at_most)


@given(st.integers(0, 1 << 60), st.integers(1, 1 << 40))
def test_ceiling_division_is_exact(numerator: int, denominator: int) -> None:
    assert (cdiv(numerator, denominator) - 1) * denominator < numerator <= cdiv(numerator, denominator) * denominator
    assert round_up(numerator, denominator) % denominator == 0


@given(st.integers(0, 1 << 40), st.fractions(0, 1))
def test_a_share_is_rounded_up(total: int, share: Fraction) -> None:
    assert total * share <= share_of(total, share) < total * share + 1


@given(st.lists(st.integers(-(10**12), 10**12), min_size=6, max_size=6), st.integers(-(10**12), 10**12))
def test_intervals_keep_their_order_through_arithmetic_and_decide_once(ends: list[int], demand: int) -> None:
    one, other = (Interval(low=a, expected=b, high=c) for a, b, c in (sorted(ends[:3]), sorted(ends[3:])))
    for result in (one + other, one.less(demand), one.times(abs(demand))):
        assert result.low <= result.expected <= result.high
    assert one.less(demand).high == one.high - demand
    verdict = verdict_of(demand, one)
    assert (verdict is Verdict.FITS) is (demand <= one.low)
    assert (verdict is Verdict.DOES_NOT_FIT) is (demand > one.high)


@given(st.integers(1, 2000))
def test_capture_sizes_are_counted_as_they_are_listed(limit: int) -> None:
    listed = [size for size in (1, 2, 4, *range(8, 256, 8), *range(256, limit + 1, 16)) if size <= limit]
    assert num_capture_sizes(limit) == len(listed)


@given(requests())
def test_an_automatic_length_always_starts(request: BudgetRequest) -> None:
    automatic = plan(replace(request, guarantee=Guarantee.STARTUP).with_settings(max_model_len=-1))
    assert 0 < automatic.resolved.max_model_len <= request.shape.max_model_len
    if 1 < automatic.resolved.max_model_len < request.shape.max_model_len:  # one token where the low end may hold none
        assert automatic.verdict is Verdict.FITS


option = st.sampled_from(list(OWNED_FLAGS))


@settings(max_examples=300)
@given(option, st.integers(1, 40), st.booleans(), st.sampled_from(["", "=x", "=", ".a", "x", " ", "-x"]))
def test_the_pattern_of_owned_options_takes_long_prefixes_and_no_longer_names(
    flag: str,
    length: int,
    underscores: bool,  # noqa: FBT001
    rest: str,
) -> None:
    """A prefix of eight characters or more is taken, alone or with a value; another name is not."""
    stem = flag[:length]
    argument = (f"--{stem[2:].replace('-', '_')}" if underscores and stem.startswith("--") else stem) + rest
    assert owned_flag(argument) is (re.fullmatch(OWNED_FLAG_PATTERN[1:-1], argument) is not None)
    if flag.startswith("--") and len(stem) >= min(8, len(flag)) and rest in ("", "=x", "=", ".a"):
        assert owned_flag(argument)
    if stem == flag and flag.startswith("--") and rest == " ":
        assert not owned_flag(argument)


@table("construct", [r"(?=", r"(?!", r"(?<", r"\1", r"(?P=", "*+", "++", "?+", "(?>"])
def test_the_pattern_of_owned_options_is_re2(construct: str) -> None:
    """CEL evaluates it: no look-around, no back-references, nothing possessive."""
    assert construct not in OWNED_FLAG_PATTERN


def test_builders_make_distinct_requests() -> None:
    assert new_request(tensor=2).settings == EngineSettings(parallelism=Parallelism(tensor=2))
    assert new_accelerator(memory_gib=1).memory_bytes == 1 << 30
