"""A pinned capacity: the low end less a safety, in whole blocks, the same number on every rank."""

import pytest
from msgspec.structs import replace

from kvgate.budget.answers.advice import alternatives
from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.answers.changes import Scope
from kvgate.budget.answers.solver import AdjustLimits, Knob, adjust
from kvgate.budget.engine.request import AUTO_MAX_MODEL_LEN, BudgetRequest, Capacity, Guarantee
from kvgate.budget.ground.interval import Interval, Verdict
from kvgate.budget.ground.units import GIB, MIB
from kvgate.budget.kv_cache.capacity import PINNED_SAFETY_BYTES, pin
from kvgate.calibration.observed import start_of_blocks, start_of_bytes
from support.builders import catalogue_shape, new_accelerator, new_request

POOL = Interval(low=10_000, expected=11_000, high=12_000)
"""Blocks that vLLM would find itself; only the case of a stage without caches looks at it."""


def room(low: int) -> Interval:
    """A stage whose low end leaves so many bytes above the safety."""
    low += PINNED_SAFETY_BYTES
    return Interval(low=low, expected=low + GIB, high=low + 2 * GIB)


def profiled_and_pinned(**settings: object) -> tuple[Budget, Budget]:
    request = new_request(shape=catalogue_shape("Qwen/Qwen3-32B"), max_model_len=8192, **settings)
    return plan(request), plan(replace(request, capacity=Capacity.PINNED))


def test_the_safety_is_the_one_that_vllm_leaves_itself() -> None:
    assert PINNED_SAFETY_BYTES == 150 * MIB


@pytest.mark.parametrize(
    ("stages", "shrinks", "blocks", "decides"),
    [
        ([(room(1000), 10)], True, 100, 0),
        ([(room(1009), 10)], True, 100, 0),
        ([(room(-1), 10)], True, 0, 0),
        ([(room(1000), 10), (room(1000), 20)], True, 50, 1),
        ([(room(500), 10), (room(2000), 20)], True, 50, 0),
        ([(room(500), 10), (room(2000), 20)], False, 25, 0),
        ([(room(1000), 10), (room(0), 0)], True, 100, 0),
        ([(room(1000), 10), (room(-1), 0)], True, 0, 1),
    ],
    ids=["whole", "rounded down", "overdrawn", "large blocks decide", "little room decides", "a rank keeps all it is given",
         "a stage without caches", "an overdrawn stage without caches"],
)  # fmt: skip
def test_the_stage_with_the_least_room_decides(
    stages: list[tuple[Interval, int]],
    shrinks: bool,  # noqa: FBT001
    blocks: int,
    decides: int,
) -> None:
    found, index = pin(stages, POOL, shrinks_to_fewest_blocks=shrinks)
    assert (found.num_blocks, index) == (blocks, decides)
    assert found.cache_memory_bytes == blocks * max(size for _, size in stages)
    assert found.available == stages[decides][0]


@pytest.mark.parametrize(
    ("pipeline", "version"), [(1, "0.33.0"), (3, "0.33.0"), (3, "0.11.0"), (3, "0.10.2"), (1, "0.8.5")]
)
def test_one_value_gives_every_rank_the_blocks_that_were_promised(pipeline: int, version: str) -> None:
    profiled, pinned = profiled_and_pinned(pipeline=pipeline, vllm_version=version)
    assert pinned.pin is not None
    assert profiled.num_blocks is not None
    blocks = min(pinned.pin.cache_memory_bytes // stage.bytes_per_block for stage in pinned.stages)
    assert pinned.num_blocks == Interval.exactly(blocks)
    assert 0 < blocks < profiled.num_blocks.low
    for before, after in zip(profiled.stages, pinned.stages, strict=True):
        assert after.available == Interval.exactly(blocks * after.bytes_per_block)
        assert after.available.low <= before.available.low - PINNED_SAFETY_BYTES
    assert pinned.num_tokens is not None
    assert pinned.num_tokens.low == pinned.num_tokens.high
    assert pinned.pin.profiled_blocks == profiled.num_blocks
    assert pinned.pin.forgone_blocks == profiled.num_blocks.expected - blocks
    told = pinned.pinned
    assert told is not None
    assert profiled.num_tokens is not None
    assert (told.num_blocks, told.num_tokens) == (blocks, pinned.num_tokens.low)
    assert told.num_tokens + told.forgone_tokens == profiled.num_tokens.expected
    assert told.profiled_bytes.expected >= told.kv_cache_bytes + told.forgone_bytes
    assert profiled.pinned is None


def test_before_0_12_the_value_itself_fits_on_every_stage() -> None:
    profiled, pinned = profiled_and_pinned(pipeline=3, vllm_version="0.11.0")
    assert pinned.pin is not None
    assert pinned.pin.cache_memory_bytes <= min(stage.available.low for stage in profiled.stages) - PINNED_SAFETY_BYTES


def test_a_size_of_the_users_own_is_not_replaced() -> None:
    for given in ({"kv_cache_memory_bytes": 10 * GIB}, {"num_gpu_blocks_override": 1000}):
        profiled, pinned = profiled_and_pinned(**given)
        assert pinned.pin is None
        assert pinned.num_blocks == profiled.num_blocks


def test_a_model_that_keeps_nothing_has_nothing_to_pin() -> None:
    shape = catalogue_shape("BAAI/bge-m3")
    budget = plan(new_request(shape=shape, capacity=Capacity.PINNED))
    assert budget.pin is None
    assert budget.num_blocks == plan(new_request(shape=shape)).num_blocks


def test_auto_is_the_longest_request_that_the_pinned_size_holds() -> None:
    tight = {
        "shape": catalogue_shape("Qwen/Qwen3-8B"),
        "accelerator": new_accelerator(memory_gib=22),
        "max_num_seqs": 8,
    }
    request = new_request(**tight, max_model_len=AUTO_MAX_MODEL_LEN, capacity=Capacity.PINNED)
    longest = plan(request)
    assert longest.verdict is Verdict.FITS
    assert longest.resolved.max_model_len < plan(replace(request, capacity=Capacity.PROFILED)).resolved.max_model_len
    longer = longest.request.with_settings(max_model_len=longest.resolved.max_model_len + 16)
    assert plan(longer).verdict is Verdict.DOES_NOT_FIT


def at_the_edge(blocks_above_low: int) -> BudgetRequest:
    """One request of so many blocks more than what the low end of the prediction holds."""
    request = new_request(shape=catalogue_shape("Qwen/Qwen3-8B"), is_stretched=True, guarantee=Guarantee.STARTUP)
    pool = plan(request).usable_blocks
    assert pool is not None
    return request.with_settings(max_model_len=(pool.low + blocks_above_low) * 16)


def test_a_pinned_size_has_no_maybe_and_measuring_is_proposed_where_it_fits_for_sure() -> None:
    inside_the_safety = replace(at_the_edge(-1), capacity=Capacity.PINNED)
    assert plan(inside_the_safety).verdict is Verdict.DOES_NOT_FIT
    assert ("capacity", "Profiled") in {(each.field, each.value) for each in alternatives(inside_the_safety, Scope())}
    inside_the_interval = replace(at_the_edge(1), capacity=Capacity.PINNED)
    assert plan(replace(inside_the_interval, capacity=Capacity.PROFILED)).verdict is Verdict.MAY_NOT_FIT
    assert plan(inside_the_interval).verdict is Verdict.DOES_NOT_FIT
    assert "capacity" not in {each.field for each in alternatives(inside_the_interval, Scope())}


def test_adjusting_finds_what_the_pinned_size_holds() -> None:
    adjusted = adjust(replace(at_the_edge(1), capacity=Capacity.PINNED), AdjustLimits(knobs=(Knob.MAX_MODEL_LEN,)))
    assert adjusted is not None
    pinned = adjusted.budget.pin
    assert pinned is not None
    assert adjusted.budget.demand is not None
    assert adjusted.budget.demand.blocks <= pinned.num_blocks - adjusted.budget.accounting.null_blocks
    assert [each.field for each in adjusted.changes] == ["max_model_len"]


def test_nothing_is_learnt_from_a_start_that_was_given_its_size() -> None:
    profiled, pinned = profiled_and_pinned()
    assert start_of_blocks(profiled, 1000, source="a pod") is not None
    assert start_of_blocks(pinned, 1000, source="a pod") is None
    assert start_of_bytes(pinned, GIB, source="a pod") is None
