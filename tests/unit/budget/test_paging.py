"""Static against paged allocation, and what a larger block wastes: the textbook's figures to the byte, then hybrids and windows."""

from fractions import Fraction

import pytest

from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.ground.units import GIB, MIB
from kvgate.budget.model.shape import FullAttention, LayerShape, Mixer
from kvgate.explained.paging import Paged, PagedRequest, default_lengths, paging_of
from support.builders import catalogue_shape, new_gdn, new_model_shape, new_request

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"


def llama(**settings: object) -> Budget:
    """64 GiB of cache for requests of 32,768 tokens, before the null block."""
    defaults = {"kv_cache_memory_bytes": 64 * GIB, "max_model_len": 40_960, "vllm_version": "0.28.0"}
    return plan(new_request(shape=catalogue_shape(LLAMA), **{**defaults, **settings}))


def layered(*mixers: Mixer, times: int, **settings: object) -> Budget:
    layers = tuple(LayerShape(mixers=(mixer,)) for mixer in mixers) * times
    return plan(new_request(shape=new_model_shape(layers=layers), kv_cache_memory_bytes=43 * GIB, **settings))


def sized(budget: Budget, *lengths: int) -> dict[int, Paged]:
    return {size.block_size: size for size in paging_of(budget, lengths)}


def paged(budget: Budget, block_size: int, tokens: int) -> PagedRequest:
    return sized(budget, tokens)[block_size].requests[0]


@pytest.mark.parametrize(
    ("tokens", "block_size", "blocks", "wasted", "wasted_bytes", "percent"),
    [
        pytest.param(2048, 16, 128, 0, 0, 0.0, id="P1"),
        pytest.param(2048, 256, 8, 0, 0, 0.0, id="P1, 256"),
        pytest.param(2049, 16, 129, 15, 1_966_080, 0.7, id="P2"),
        pytest.param(2049, 256, 9, 255, 33_423_360, 12.4, id="P2, 256"),
        pytest.param(32_768, 16, 2048, 0, 0, 0.0, id="P3"),
        pytest.param(32_768, 256, 128, 0, 0, 0.0, id="P3, 256"),
        pytest.param(32_769, 16, 2049, 15, 15 * 131_072, 0.0, id="P4"),
        pytest.param(32_769, 256, 129, 255, 255 * 131_072, 0.8, id="P4, 256"),
    ],
)
def test_a_larger_block_wastes_more_on_short_requests(
    tokens: int, block_size: int, blocks: int, wasted: int, wasted_bytes: int, percent: float
) -> None:
    request = paged(llama(), block_size, tokens)
    assert (request.blocks, request.wasted_tokens, request.wasted_bytes) == (blocks, wasted, wasted_bytes)
    assert round(float(request.wasted_share) * 100, 1) == percent


@pytest.mark.parametrize(
    ("block_size", "tokens", "mebibytes"),
    [pytest.param(16, 7.5, 0.94, id="P5"), pytest.param(256, 127.5, 15.94, id="P5, 256")],
)
def test_on_average_half_a_block_is_wasted(block_size: int, tokens: float, mebibytes: float) -> None:
    size = sized(llama(), 1000)[block_size]
    assert float(size.mean_wasted_tokens) == tokens
    assert round(float(size.mean_wasted_bytes) / MIB, 2) == mebibytes


@pytest.mark.parametrize(("length", "paged_requests"), [(4096, 128), (32_768, 16), (2049, 254)])
def test_64_gib_hold_16_static_slots_and_128_short_requests(length: int, paged_requests: int) -> None:
    size = sized(llama(max_model_len=32_768), length)[16]
    assert (size.static_slots, size.static_concurrency) == (16, 16)
    assert size.slot_bytes == 4 * GIB
    assert size.requests[0].requests == paged_requests


def test_the_null_block_costs_one_request_where_all_divides_evenly() -> None:
    size = sized(llama(max_model_len=32_768, vllm_version="0.29.0"), 4096)[16]
    assert (size.static_slots, size.static_concurrency, size.requests[0].requests) == (15, 16, 127)


def test_a_mix_of_lengths_fits_as_a_whole() -> None:
    """2,048 blocks of a long one and 256 of a short one: 14 of each in 32,768."""
    assert sized(llama(max_model_len=32_768), 4096, 32_768)[16].of_each == 14


def test_the_block_size_in_use_is_marked_and_kept_where_it_is_no_usual_one() -> None:
    assert [size for size, found in sized(llama(), 16).items() if found.in_use] == [16]
    assert sorted(sized(llama(block_size=48), 16)) == [16, 32, 48, 64, 128, 256]


GDN = new_gdn()
FULL = FullAttention(num_heads=24, num_kv_heads=4, head_dim=256)


def test_a_hybrid_has_the_block_sizes_that_its_states_leave() -> None:
    """`--block-size` 16 means 1,568, 32 means 1,600 … and a request of one token holds seven blocks, 0.33 GiB."""
    hybrid = layered(GDN, GDN, GDN, FULL, times=16, kv_cache_dtype="fp8", max_model_len=131_072)
    sizes = sized(hybrid, 1, 131_072)
    assert [(size, found.in_use) for size, found in sizes.items()] == [
        (1568, True), (1600, False), (1664, False), (1792, False),
    ]  # fmt: skip
    short, whole = sizes[1568].requests
    assert (short.blocks, whole.blocks) == (7, 90)
    assert short.blocks * sizes[1568].bytes_per_block / GIB == pytest.approx(0.335, abs=0.001)
    assert short.wasted_tokens == 1567
    assert whole.held_bytes == 6 * 16 * 3_207_168 + 131_072 * 32 * 1024


def test_windows_keep_what_they_look_back_on_and_share_what_is_in_flight() -> None:
    window = FullAttention(num_heads=32, num_kv_heads=16, head_dim=128, sliding_window=1024)
    budget = layered(window, FullAttention(num_heads=32, num_kv_heads=16, head_dim=128), times=8, max_model_len=32_768)
    request = sized(budget, 32_768)[16].requests[0]
    kept = 1023 + 2 * 8192
    assert request.held_bytes == 8 * 8192 * (kept + 32_768)
    assert request.blocks == 2048 + 1089
    assert request.requests is not None
    assert request.requests > (budget.usable_blocks.expected if budget.usable_blocks else 0) // request.blocks


def test_states_alone_have_no_tokens_to_waste() -> None:
    sizes = paging_of(layered(GDN, times=4, max_model_len=2048), (7, 2048))
    assert len(sizes) == 1
    assert [request.wasted_tokens for request in sizes[0].requests] == [0, 0]
    assert sizes[0].mean_wasted_bytes == 0


def test_a_pipeline_counts_its_largest_stage() -> None:
    request = sized(llama(pipeline=3), 2049)[16].requests[0]
    assert request.wasted_bytes == 15 * 11 * 4096


def test_without_a_pool_the_waste_is_still_told() -> None:
    budget = plan(new_request(unmodelled_settings=("LoRA",), max_model_len=4096))
    size = paging_of(budget, (17,))[0]
    assert (size.num_blocks, size.static_slots, size.of_each) == (None, None, None)
    assert (size.requests[0].blocks, size.requests[0].wasted_tokens, size.requests[0].requests) == (2, 15, None)


def test_a_model_without_a_cache_has_nothing_to_page() -> None:
    budget = plan(new_request(shape=new_model_shape(layers=(LayerShape(),) * 4), max_model_len=512))
    assert paging_of(budget, (16,)) == ()


@pytest.mark.parametrize(("longest", "lengths"), [(32_768, (2048, 2049, 8192, 32_768)), (1, (1,)), (16, (1, 2, 4, 16))])
def test_lengths_are_chosen_where_nobody_names_any(longest: int, lengths: tuple[int, ...]) -> None:
    assert default_lengths(longest) == lengths


def test_the_wasted_share_is_that_of_one_request_of_each_length() -> None:
    size = sized(llama(), 2048, 2049)[16]
    assert size.wasted_share == Fraction(15, 2048 + 2049)  # tokens, each of the same bytes
    assert sized(llama(), 2048)[16].wasted_share == 0
