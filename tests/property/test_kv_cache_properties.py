"""What holds for every kind of cache: order, maximal answers, every layer in one place, nothing given away twice."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.answers.solver import fits_low, largest_max_model_len, largest_max_num_seqs
from kvgate.budget.engine.request import BudgetRequest, Guarantee, Speculation, Workload
from kvgate.budget.ground.interval import Verdict
from kvgate.budget.kv_cache.capacity import KVCache
from kvgate.budget.kv_cache.spec import StateSpec
from kvgate.budget.model.shape import ModelShape, RecurrentState, SharedCache
from support import kinds
from support.builders import catalogue_accelerator, new_request, new_workload
from support.tables import table

pytestmark = pytest.mark.slow

settings.register_profile("kvgate", derandomize=True, deadline=None, max_examples=60, database=None)
settings.load_profile("kvgate")

SHAPES = [build() for build in kinds.KINDS]
GPUS = [
    catalogue_accelerator(name)
    for name in ("H100-SXM-80GB", "A100-SXM-80GB", "B200-SXM-180GB", "L4-24GB", "MI300X-192GB")
]
RANK = {Verdict.FITS: 0, Verdict.MAY_NOT_FIT: 1, Verdict.DOES_NOT_FIT: 2}
workloads = st.builds(
    new_workload,
    peak_concurrency=st.integers(1, 300),
    prompt_tokens=st.integers(1, 50_000),
    output_tokens=st.integers(0, 5000),
    shared_prefix_tokens=st.integers(0, 60_000),
)


@st.composite
def requests(draw: st.DrawFn) -> BudgetRequest:
    """The bytes of the cache are given; weights and ledgers are another matter."""
    return new_request(
        shape=draw(st.sampled_from(SHAPES)),
        accelerator=draw(st.sampled_from(GPUS)),
        vllm_version=draw(st.sampled_from(["0.8.5", "0.20.0", "0.25.1", "0.28.0", "0.32.0"])),
        unmodelled_settings=("weights",),
        guarantee=draw(st.sampled_from(Guarantee)),
        workload=draw(st.none() | workloads),
        max_model_len=draw(st.integers(1, 200_000)),
        max_num_seqs=draw(st.integers(1, 1024)),
        max_num_batched_tokens=draw(st.sampled_from([1024, 2048, 8192, 16_384])),
        kv_cache_dtype=draw(st.sampled_from(["auto", "bfloat16", "fp8"])),
        block_size=draw(st.sampled_from([None, None, 128, 256])),
        enable_prefix_caching=draw(st.sampled_from([None, True, False])),
        disable_hybrid_kv_cache_manager=draw(st.booleans()),
        speculation=draw(st.none() | st.builds(Speculation, method=st.just("mtp"), num_speculative_tokens=st.integers(1, 4))),
        kv_cache_memory_bytes=draw(st.integers(1 << 24, 1 << 37)),
        tensor=draw(st.sampled_from([1, 2, 4])),
        pipeline=draw(st.sampled_from([1, 2, 3])),
    )  # fmt: skip


def cache_of(budget: Budget) -> KVCache:
    assert budget.kv_cache is not None
    return budget.kv_cache


def pool_of(budget: Budget) -> int:
    assert budget.num_blocks is not None
    return budget.num_blocks.expected


@given(requests())
def test_groups_hold_every_cache_of_every_layer_once(request: BudgetRequest) -> None:
    held = Counter(layer for group in cache_of(plan(request)).groups for layer in group.layers)
    owners = {
        i: sum(not isinstance(mixer, SharedCache) for mixer in layer.mixers)
        for i, layer in enumerate(request.shape.layers)
    }
    assert set(held) == {layer for layer, count in owners.items() if count}
    assert all(held[layer] >= count for layer, count in owners.items())


@given(requests())
def test_a_block_takes_what_the_fullest_group_takes_and_the_pool_never_more_than_there_is(
    request: BudgetRequest,
) -> None:
    budget = plan(request)
    cache, pool = cache_of(budget), pool_of(budget)
    given_bytes = request.settings.kv_cache_memory_bytes
    assert given_bytes is not None
    assert sum(stage.bytes_per_block for stage in budget.stages) >= max(
        (group.bytes_between(0, None) for group in cache.groups), default=0
    )
    assert all(pool * stage.bytes_per_block <= given_bytes for stage in budget.stages)


@given(requests(), st.integers(1, 200_000), st.integers(0, 50_000))
def test_longer_requests_never_take_fewer_blocks(request: BudgetRequest, tokens: int, more: int) -> None:
    cache = cache_of(plan(request))
    assert cache.blocks_of(tokens) <= cache.blocks_of(tokens + more)
    states = [group.spec for group in cache.groups if isinstance(group.spec, StateSpec)]
    assert all(spec.state_bytes <= spec.page_size_bytes for spec in states)


@given(requests(), st.integers(0, 200_000), st.integers(0, 500))
def test_asking_for_more_never_fits_better(request: BudgetRequest, tokens: int, sequences: int) -> None:
    asked = request.settings
    longer = request.with_settings(max_model_len=(asked.max_model_len or 0) + tokens)
    busier = request.with_settings(max_num_seqs=(asked.max_num_seqs or 0) + sequences)
    rank = RANK[plan(request).verdict]
    assert rank <= RANK[plan(longer).verdict]
    assert rank <= RANK[plan(busier).verdict]


@given(requests())
def test_the_longest_request_that_fits_is_the_longest(request: BudgetRequest) -> None:
    budget = plan(request)
    cache, pool, limit = cache_of(budget), pool_of(budget), budget.resolved.max_model_len
    found, usable = cache.max_model_len_that_fits(pool, at_most=limit), pool - cache.null_blocks
    assert found == 0 or cache.blocks_of(found) <= usable
    assert found == limit or cache.blocks_of(found + 1) > usable


@given(requests())
def test_the_largest_settings_are_the_largest(request: BudgetRequest) -> None:
    """For models with recurrent states the graphs' own condition is part of it."""
    settled = plan(request).resolved
    length, sequences = largest_max_model_len(request), largest_max_num_seqs(request, 1024)
    assert length == 0 or fits_low(request.with_settings(max_model_len=length))
    assert length == settled.max_model_len or not fits_low(request.with_settings(max_model_len=length + 1))
    assert sequences == 0 or fits_low(request.with_settings(max_num_seqs=sequences))
    assert sequences == 1024 or not fits_low(request.with_settings(max_num_seqs=sequences + 1))


@given(requests())
def test_full_graphs_never_start_with_more_sequences_than_blocks(request: BudgetRequest) -> None:
    budget = plan(request)
    states = any(isinstance(mixer, RecurrentState) for mixer in request.shape.mixers)
    if budget.verdict is Verdict.FITS and states and request.vllm_version == "0.32.0":
        assert budget.resolved.max_num_seqs <= pool_of(budget)


@given(requests(), workloads)
def test_a_workload_takes_between_one_request_and_all_of_them_whole(request: BudgetRequest, workload: Workload) -> None:
    asked = replace(request, guarantee=Guarantee.WORKLOAD, workload=workload).with_settings(enforce_eager=True)
    budget = plan(asked)
    cache, demand = cache_of(budget), budget.demand
    assert demand is not None
    each = cache.blocks_of(workload.request_tokens)
    assert each <= demand.blocks <= max(cache.request_blocks, workload.peak_concurrency * each)
    assert cache.request_blocks <= demand.blocks


@table("shape", SHAPES[:-1])
def test_a_shared_prefix_never_costs_more(shape: ModelShape) -> None:
    def blocks(prefix: int) -> int:
        workload = new_workload(50, 20_000, 500, shared_prefix_tokens=prefix)
        demand = plan(
            new_request(
                shape=shape, vllm_version="0.32.0", unmodelled_settings=("weights",), guarantee=Guarantee.WORKLOAD,
                workload=workload, kv_cache_memory_bytes=1 << 36, max_model_len=32_768, enforce_eager=True,
            )
        ).demand  # fmt: skip
        assert demand is not None
        return demand.blocks

    figures = [blocks(prefix) for prefix in (0, 1000, 10_000, 20_000, 40_000)]
    assert figures == sorted(figures, reverse=True)
