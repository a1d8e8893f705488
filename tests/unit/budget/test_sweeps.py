"""Llama-3.1-8B as one number is turned: batches, lengths and pages, then what each lever saves."""

from fractions import Fraction

import pytest

from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.engine.request import Guarantee
from kvgate.budget.ground.units import GIB, cdiv
from support.builders import catalogue_shape, new_request

LLAMA_31_8B = "meta-llama/Llama-3.1-8B-Instruct"


def given(pool_gib: int, max_model_len: int, **settings: object) -> Budget:
    """A plan with the bytes of the KV cache given, so that nothing is predicted."""
    return plan(
        new_request(
            shape=catalogue_shape(LLAMA_31_8B),
            max_model_len=max_model_len,
            kv_cache_memory_bytes=pool_gib * GIB,
            **settings,
        )
    )


@pytest.mark.parametrize(
    ("batch", "kv_gib", "total_gb", "percent"),
    [
        (1, 0.25, 16.33, 19.0), (4, 1, 17.13, 19.9), (8, 2, 18.21, 21.2), (16, 4, 20.36, 23.7), (32, 8, 24.65, 28.7),
        (64, 16, 33.24, 38.7), (128, 32, 50.42, 58.7),
    ],
)  # fmt: skip
def test_batches_of_2048_tokens(batch: int, kv_gib: float, total_gb: float, percent: float) -> None:
    check_sweep(batch, 2048, kv_gib, total_gb, percent)


@pytest.mark.parametrize(
    ("length", "kv_gib", "total_gb", "percent"),
    [
        (512, 0.5, 16.60, 19.3), (2048, 2, 18.21, 21.2), (8192, 8, 24.65, 28.7), (32_768, 32, 50.42, 58.7),
        (65_536, 64, 84.78, 98.7), (131_072, 128, 153.5, 178.7),
    ],
)  # fmt: skip
def test_eight_requests_of_growing_length(length: int, kv_gib: float, total_gb: float, percent: float) -> None:
    check_sweep(8, length, kv_gib, total_gb, percent)


def check_sweep(batch: int, length: int, kv_gib: float, total_gb: float, percent: float) -> None:
    budget = given(1, length, max_num_seqs=batch, guarantee=Guarantee.FULL_CONTEXT)
    demand = budget.demand_bytes
    assert demand == kv_gib * GIB
    total = demand + 16_060_522_496
    assert total / 1e9 == pytest.approx(total_gb, abs=0.06)
    assert 100 * total / (80 * GIB) == pytest.approx(percent, abs=0.06)


@pytest.mark.parametrize(
    ("length", "page", "blocks", "wasted"),
    [
        pytest.param(2048, 16, 128, 0, id="P1"),
        pytest.param(2048, 256, 8, 0, id="P1, 256"),
        pytest.param(2049, 16, 129, 15, id="P2"),
        pytest.param(2049, 256, 9, 255, id="P2, 256"),
        pytest.param(32_768, 16, 2048, 0, id="P3"),
        pytest.param(32_768, 256, 128, 0, id="P3, 256"),
        pytest.param(32_769, 16, 2049, 15, id="P4"),
        pytest.param(32_769, 256, 129, 255, id="P4, 256"),
    ],
)
def test_pages_waste_what_the_last_one_does_not_hold(length: int, page: int, blocks: int, wasted: int) -> None:
    budget = given(64, length, block_size=page)
    assert budget.kv_cache is not None
    assert budget.kv_cache.request_blocks == blocks
    assert budget.kv_cache.request_bytes - length * 131_072 == wasted * 131_072


@pytest.mark.parametrize(("page", "tokens"), [(16, Fraction(15, 2)), (256, Fraction(255, 2))])
def test_the_mean_waste_is_half_a_page(page: int, tokens: Fraction) -> None:
    lengths = range(1, 10 * page + 1)
    assert Fraction(sum(cdiv(n, page) * page - n for n in lengths), len(lengths)) == tokens


def test_paging_holds_eight_times_the_requests_of_static_slots() -> None:
    static = given(64, 32_768)
    assert static.kv_cache is not None
    assert static.num_blocks is not None
    pool = static.num_blocks.expected
    assert static.kv_cache.max_concurrency(pool) == 16
    assert pool // static.kv_cache.blocks_of(4096) == 128


def test_capping_the_context_divides_the_request() -> None:
    whole, capped = given(64, 131_072), given(64, 16_384)
    assert whole.demand_bytes == 8 * (capped.demand_bytes or 0)
    assert whole.num_blocks == capped.num_blocks


def test_limiting_sequences_leaves_the_bytes_of_a_request() -> None:
    assert given(64, 8192, max_num_seqs=8).demand == given(64, 8192, max_num_seqs=256).demand
