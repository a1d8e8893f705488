"""What holds for every pinned capacity: never above the low end, and the same blocks on every rank, as vLLM counts them."""

import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from kvgate.budget.answers.answer import plan
from kvgate.budget.engine.request import BudgetRequest, Capacity
from kvgate.budget.ground.interval import Interval, Verdict
from kvgate.budget.kv_cache.capacity import PINNED_SAFETY_BYTES
from kvgate.budget.releases.versions import parse_patch
from kvgate.judgement.assess import pinned_option
from property.test_budget_properties import requests

pytestmark = pytest.mark.slow

settings.register_profile("kvgate", derandomize=True, deadline=None, max_examples=60, database=None)
settings.load_profile("kvgate")


@given(requests())
def test_pinned_bytes_are_whole_blocks_below_the_low_end_and_equal_on_all_ranks(request: BudgetRequest) -> None:
    profiled, pinned = plan(request), plan(replace(request, capacity=Capacity.PINNED))
    assert pinned.pin is not None
    assert profiled.num_blocks is not None
    given_bytes, blocks = pinned.pin.cache_memory_bytes, pinned.pin.num_blocks
    sizes = [stage.bytes_per_block for stage in pinned.stages]
    assert given_bytes % max(sizes) == 0
    assert blocks == min(given_bytes // size for size in sizes), "all ranks take the fewest blocks of any"
    assert pinned.num_blocks == Interval.exactly(blocks)
    assert blocks <= profiled.num_blocks.low
    assert pinned.pin.forgone_blocks >= 0
    is_shrunk = parse_patch(request.vllm_version) >= (0, 12, 0)
    for stage, size in zip(profiled.stages, sizes, strict=True):
        held = blocks * size if is_shrunk else given_bytes // size * size
        assert held <= max(0, stage.available.low - PINNED_SAFETY_BYTES)
        assert held <= request.accelerator.memory_high_bytes


@given(requests())
def test_a_pinned_capacity_decides_and_never_promises_more_than_measuring_does(request: BudgetRequest) -> None:
    profiled, pinned = plan(request), plan(replace(request, capacity=Capacity.PINNED))
    assert pinned.verdict in (Verdict.FITS, Verdict.DOES_NOT_FIT)
    if pinned.verdict is Verdict.FITS:
        assert profiled.verdict is Verdict.FITS
        assert pinned.surely_starts
    if profiled.verdict is Verdict.DOES_NOT_FIT:
        assert pinned.verdict is Verdict.DOES_NOT_FIT


@given(requests())
def test_what_is_pinned_is_one_option_that_the_release_has(request: BudgetRequest) -> None:
    pinned = plan(replace(request, capacity=Capacity.PINNED))
    assert pinned.pin is not None
    option = pinned_option(pinned)
    if not pinned.pin.num_blocks:
        assert option == {}
    elif parse_patch(request.vllm_version) >= (0, 10, 2) and request.accelerator.vendor != "intel":
        assert option == {"kv_cache_memory_bytes": pinned.pin.cache_memory_bytes}
    else:
        assert option == {"num_gpu_blocks_override": pinned.pin.num_blocks}
