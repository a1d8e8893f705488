"""The textbook arithmetic that every user checks first: bytes per token, per request, per batch, and what fits.

Exact figures are exact to the byte; what depends on vLLM's own needs is an interval (test_published_ledgers.py).
"""

from fractions import Fraction

import pytest
from msgspec.structs import replace

from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.answers.support import parallelism_refusals
from kvgate.budget.engine.request import Guarantee
from kvgate.budget.ground.hardware import Parallelism, stage_sizes
from kvgate.budget.ground.interval import Verdict
from kvgate.budget.ground.units import GIB
from kvgate.budget.kv_cache.dtype import resolve
from kvgate.budget.kv_cache.groups import Groups, bytes_per_block, form_groups, request_blocks
from kvgate.budget.kv_cache.layout import aligned_block_size
from kvgate.budget.kv_cache.spec import FullAttentionSpec, KVCacheSpec, Reach, StateSpec
from kvgate.budget.model.weights import rank_weights
from kvgate.budget.releases.versions import DEFAULT_VERSION
from support.builders import catalogue_shape, new_model_shape, new_request, new_workload

LLAMA_2_7B = "meta-llama/Llama-2-7b-hf"
LLAMA_3_8B = "meta-llama/Meta-Llama-3-8B-Instruct"
LLAMA_31_8B = "meta-llama/Llama-3.1-8B-Instruct"
LLAMA_70B = "meta-llama/Llama-3.1-70B-Instruct"


def token_bytes(layers: int, kv_heads: int, head_dim: int, dtype: str) -> int:
    spec = FullAttentionSpec(
        block_size=16, num_kv_heads=kv_heads, head_dim=head_dim, dtype=resolve(dtype, model_dtype="bfloat16")
    )
    return layers * spec.token_bytes


def given(model: str, pool_gib: int, max_model_len: int, **settings: object) -> Budget:
    """A plan with the bytes of the KV cache given, so that nothing is predicted."""
    return plan(
        new_request(
            shape=catalogue_shape(model),
            max_model_len=max_model_len,
            kv_cache_memory_bytes=pool_gib * GIB,
            **settings,
        )
    )


def blocks_and_concurrency(budget: Budget) -> tuple[int, Fraction, int]:
    assert budget.num_blocks is not None
    assert budget.kv_cache is not None
    pool = budget.num_blocks.expected
    return pool, budget.kv_cache.max_concurrency(pool), budget.kv_cache.num_tokens(pool)


@pytest.mark.parametrize(
    ("layers", "kv_heads", "head_dim", "dtype", "expected"),
    [
        pytest.param(32, 32, 128, "float16", 524_288, id="F1 Llama-2-7B"),
        pytest.param(32, 8, 128, "bfloat16", 131_072, id="F2 Llama-3-8B"),
        pytest.param(32, 8, 128, "fp8", 65_536, id="F3 Llama-3-8B, fp8 cache"),
        pytest.param(80, 8, 128, "bfloat16", 327_680, id="F4 Llama-3.1-70B"),
        pytest.param(80, 8, 128, "fp8", 163_840, id="F5 Llama-3.1-70B, fp8 cache"),
        pytest.param(64, 4, 256, "fp8", 131_072, id="F6 Q1 Qwen3.6-27B, counting all layers, fp8"),
        pytest.param(64, 4, 256, "bfloat16", 262_144, id="F7 Q1 Qwen3.6-27B, counting all layers"),
        pytest.param(16, 4, 256, "fp8", 32 * 1024, id="Qwen3.6-27B, the layers that keep a cache, fp8"),
        pytest.param(16, 4, 256, "bfloat16", 64 * 1024, id="Qwen3.6-27B, the layers that keep a cache"),
        pytest.param(32, 1, 128, "bfloat16", 16_384, id="MQA of the 7B shape"),
        pytest.param(32, 1, 64, "bfloat16", 8 * 1024, id="falcon-7b"),
    ],
)
def test_a_token_costs(layers: int, kv_heads: int, head_dim: int, dtype: str, expected: int) -> None:
    assert token_bytes(layers, kv_heads, head_dim, dtype) == expected


@pytest.mark.parametrize(
    ("model", "dtype", "expected"),
    [
        (LLAMA_2_7B, "auto", 8_388_608),
        (LLAMA_3_8B, "auto", 2_097_152),
        (LLAMA_31_8B, "fp8", 1_048_576),
        (LLAMA_70B, "auto", 5_242_880),
        (LLAMA_70B, "fp8", 2_621_440),
        ("deepseek-ai/DeepSeek-V3", "auto", 16 * 70_272),
    ],
)
def test_a_block_of_16_tokens_costs(model: str, dtype: str, expected: int) -> None:
    budget = given(model, 20, 8192, kv_cache_dtype=dtype)
    assert budget.kv_cache is not None
    assert budget.kv_cache.bytes_per_block == expected


@pytest.mark.parametrize(
    ("model", "dtype", "tokens", "requests", "expected"),
    [
        pytest.param(LLAMA_2_7B, "auto", 4096, 1, 2_147_483_648, id="L1"),
        pytest.param(LLAMA_2_7B, "auto", 4096, 8, 17_179_869_184, id="L2"),
        pytest.param(LLAMA_70B, "auto", 8192, 1, 2_684_354_560, id="B1"),
        pytest.param(LLAMA_70B, "auto", 8192, 8, 21_474_836_480, id="B2"),
        pytest.param(LLAMA_70B, "auto", 8192, 16, 42_949_672_960, id="B3"),
        pytest.param(LLAMA_3_8B, "auto", 4096, 4, 2_147_483_648, id="B6"),
        pytest.param(LLAMA_3_8B, "auto", 4096, 8, 4 * GIB, id="B6, twice the requests"),
        pytest.param(LLAMA_70B, "fp8", 131_072, 1, 20 * GIB, id="C4 fp8"),
        pytest.param(LLAMA_70B, "auto", 131_072, 1, 40 * GIB, id="C4"),
        pytest.param(LLAMA_70B, "fp8", 128_000, 1, 20_971_520_000, id="C3 fp8"),
        pytest.param(LLAMA_70B, "auto", 128_000, 1, 41_943_040_000, id="C3"),
        pytest.param(LLAMA_70B, "fp8", 128_000, 5, 104_857_600_000, id="C5 fp8"),
        pytest.param(LLAMA_70B, "auto", 128_000, 5, 209_715_200_000, id="C5"),
        pytest.param(LLAMA_70B, "fp8", 10_000, 1, 1_638_400_000, id="C2 fp8"),
        pytest.param(LLAMA_70B, "auto", 10_000, 1, 3_276_800_000, id="C2"),
        pytest.param(LLAMA_70B, "fp8", 1000, 1, 63 * 2_621_440, id="C1 fp8, in whole blocks"),
        pytest.param(LLAMA_70B, "fp8", 3000, 64, 188 * 64 * 2_621_440, id="R1 fp8"),
        pytest.param(LLAMA_70B, "fp8", 6000, 64, 62_914_560_000, id="R2 fp8"),
        pytest.param(LLAMA_70B, "fp8", 12_000, 64, 125_829_120_000, id="R3 fp8"),
        pytest.param(LLAMA_70B, "auto", 6000, 64, 125_829_120_000, id="R2"),
        pytest.param(LLAMA_70B, "auto", 12_000, 64, 251_658_240_000, id="R3"),
        pytest.param(LLAMA_3_8B, "auto", 2048, 1, 268_435_456, id="W1"),
        pytest.param(LLAMA_31_8B, "auto", 131_072, 1, 17_179_869_184, id="W2"),
        pytest.param(LLAMA_31_8B, "auto", 32_768, 16, 64 * GIB, id="X5"),
    ],
)
def test_requests_need(model: str, dtype: str, tokens: int, requests: int, expected: int) -> None:
    budget = given(model, 20, tokens, kv_cache_dtype=dtype, max_num_seqs=requests, guarantee=Guarantee.FULL_CONTEXT)
    assert budget.demand_bytes == expected


@pytest.mark.parametrize(
    ("tokens", "blocks"),
    [
        pytest.param(3000, 12_032, id="R1"),
        pytest.param(6000, 24_000, id="R2"),
        pytest.param(12_000, 48_000, id="R3"),
        pytest.param(7024, 28_096, id="R2 with 1,024 generated tokens"),
    ],
)
@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_sixty_four_rag_requests_need_blocks(tokens: int, blocks: int, tensor: int) -> None:
    """However many ranks there are: each holds its share of every block."""
    budget = given(
        LLAMA_70B, 20, 131_072, kv_cache_dtype="fp8", tensor=tensor, guarantee=Guarantee.WORKLOAD,
        workload=new_workload(64, tokens, 0),
    )  # fmt: skip
    assert budget.demand is not None
    assert budget.kv_cache is not None
    assert budget.kv_cache.blocks_of(tokens) * 64 == blocks
    assert budget.demand.blocks == max(blocks, 8192)
    assert budget.kv_cache.bytes_per_block == 2_621_440 // tensor


def test_fp8_weights_do_not_make_an_fp8_cache() -> None:
    budget = given("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", 20, 8192)
    assert budget.kv_cache is not None
    assert budget.kv_cache.bytes_per_block == 16 * 327_680


@pytest.mark.parametrize(
    ("model", "pool_gib", "length", "dtype", "blocks", "concurrency", "tokens"),
    [
        pytest.param(LLAMA_2_7B, 66, 4096, "auto", 8448, Fraction(33), 135_168, id="L4"),
        pytest.param(LLAMA_2_7B, 20, 4096, "auto", 2560, Fraction(10), 40_960, id="L5, 20 GiB"),
        pytest.param(LLAMA_2_7B, 60, 4096, "auto", 7680, Fraction(30), 122_880, id="L5, 60 GiB"),
        pytest.param(LLAMA_70B, 20, 8192, "auto", 4096, Fraction(8), 65_536, id="B4"),
        pytest.param(LLAMA_31_8B, 20, 131_072, "auto", 10_240, Fraction(5, 4), 163_840, id="8B, 20 GiB"),
        pytest.param(LLAMA_31_8B, 20, 32_768, "fp8", 20_480, Fraction(10), 327_680, id="8B, 20 GiB, fp8"),
        pytest.param(LLAMA_70B, 60, 131_072, "auto", 12_288, Fraction(3, 2), 196_608, id="70B, 60 GiB"),
        pytest.param(LLAMA_70B, 43, 131_072, "auto", 8806, Fraction(8806, 8192), 140_896, id="70B, 43 GiB"),
    ],
)
def test_a_pool_holds(
    model: str, pool_gib: int, length: int, dtype: str, blocks: int, concurrency: Fraction, tokens: int
) -> None:
    budget = given(model, pool_gib, length, kv_cache_dtype=dtype)
    assert blocks_and_concurrency(budget) == (blocks, concurrency, tokens)
    assert budget.verdict is Verdict.FITS


@pytest.mark.parametrize(
    ("model", "pool_gib", "estimate"),
    [pytest.param(LLAMA_70B, 20, 65_520, id="B5"), pytest.param(LLAMA_31_8B, 5, 40_944, id="8B, 5 GiB")],
)
def test_a_pool_below_one_request_refuses_and_names_the_longest(model: str, pool_gib: int, estimate: int) -> None:
    budget = given(model, pool_gib, 131_072)
    assert budget.verdict is Verdict.DOES_NOT_FIT
    assert budget.kv_cache is not None
    assert budget.num_blocks is not None
    assert budget.kv_cache.max_model_len_that_fits(budget.num_blocks.low, at_most=131_072) == estimate


@pytest.mark.parametrize(
    ("model", "pool_gib", "length", "requests"),
    [pytest.param(LLAMA_2_7B, 66, 4096, 32, id="L4"), pytest.param(LLAMA_70B, 20, 8192, 7, id="B4")],
)
@pytest.mark.parametrize(("version", "extra"), [("0.28.0", 1), ("0.29.0", 0)])
def test_the_null_block_costs_the_last_full_request(
    model: str, pool_gib: int, length: int, requests: int, version: str, extra: int
) -> None:
    """33.00x is printed and 32 requests fit since vLLM 0.29."""
    for seqs, verdict in [(requests + extra, Verdict.FITS), (requests + extra + 1, Verdict.DOES_NOT_FIT)]:
        budget = given(
            model, pool_gib, length, max_num_seqs=seqs, guarantee=Guarantee.FULL_CONTEXT, vllm_version=version
        )
        assert budget.verdict is verdict


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        pytest.param(LLAMA_2_7B, 13_476_831_232, id="L6"),
        (LLAMA_3_8B, 16_060_522_496),
        (LLAMA_31_8B, 16_060_522_496),
        (LLAMA_70B, 141_107_412_992),
    ],
)
def test_the_weights_are(model: str, expected: int) -> None:
    shape = catalogue_shape(model)
    weights = rank_weights(shape, Parallelism(), (0, len(shape.layers)), unsplit_large_blocks=False)
    assert weights.parameter_bytes == expected


def test_fp8_weights_of_a_70b_are_72_7_gb() -> None:
    shape = catalogue_shape("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic")
    weights = rank_weights(shape, Parallelism(), (0, 80), unsplit_large_blocks=False)
    assert weights.parameter_bytes == pytest.approx(72.66e9, rel=1e-3)


@pytest.mark.parametrize("tensor", [3, 5, 6, 7])
def test_a_70b_cannot_be_cut_in(tensor: int) -> None:
    assert parallelism_refusals(catalogue_shape(LLAMA_70B), Parallelism(tensor=tensor), DEFAULT_VERSION)


@pytest.mark.parametrize(
    ("layers", "stages", "expected"),
    [(80, 3, (27, 27, 26)), (61, 4, (15, 15, 16, 15)), (94, 4, (23, 24, 24, 23)), (80, 1, (80,)), (5, 4, (1, 1, 2, 1))],
)
def test_layers_are_dealt_to_stages(layers: int, stages: int, expected: tuple[int, ...]) -> None:
    assert stage_sizes(layers, stages) == expected


# Qwen3.6-27B: three recurrent layers, then one of full attention, sixteen times

STATE_BYTES = 3 * 10_240 * 2 + 48 * 128 * 128 * 4


def qwen_groups(dtype: str, *, prefix_caching: bool = True) -> Groups:
    attention = FullAttentionSpec(
        block_size=16, num_kv_heads=4, head_dim=256, dtype=resolve(dtype, model_dtype="bfloat16")
    )
    block = aligned_block_size(attention, STATE_BYTES)
    state = StateSpec(block_size=block, state_bytes=STATE_BYTES, num_states=2 if prefix_caching else 1)
    full = replace(attention, block_size=block)
    assert isinstance(full, FullAttentionSpec)
    period: list[KVCacheSpec] = [state, state, state, full]
    return form_groups(list(enumerate(period * 16)))


def qwen_blocks(dtype: str, length: int, *, prefix_caching: bool = True) -> int:
    return request_blocks(qwen_groups(dtype, prefix_caching=prefix_caching), Reach(max_model_len=length))


@pytest.mark.parametrize(("dtype", "block_size"), [("fp8", 1568), ("bfloat16", 784)])
def test_a_hybrid_has_four_groups_with_equal_pages(dtype: str, block_size: int) -> None:
    groups = qwen_groups(dtype)
    assert STATE_BYTES == 3_207_168
    assert [group.num_layers for group in groups] == [16, 16, 16, 16]
    assert {group.spec.block_size for group in groups} == {block_size}
    assert len({group.spec.page_size_bytes for group in groups}) == 1
    assert bytes_per_block(groups) == 51_380_224


@pytest.mark.parametrize(
    ("length", "fp8", "bfloat16"),
    [
        pytest.param(4096, 9, 12, id="Q5"),
        pytest.param(32_768, 27, 48, id="Q6"),
        pytest.param(131_072, 90, 174, id="Q7"),
        pytest.param(262_144, 174, 341, id="Q8"),
        pytest.param(1, 7, 7, id="one token"),
        pytest.param(1568, 7, 8, id="one fp8 block"),
        pytest.param(1569, 8, 9, id="one token more"),
    ],
)
def test_a_request_of_a_hybrid_needs_blocks(length: int, fp8: int, bfloat16: int) -> None:
    assert (qwen_blocks("fp8", length), qwen_blocks("bfloat16", length)) == (fp8, bfloat16)


@pytest.mark.parametrize(
    ("dtype", "length", "naive_gib", "factor"),
    [
        pytest.param("fp8", 4096, 0.5, 1.16, id="Q5"),
        pytest.param("bfloat16", 4096, 1, 1.74, id="Q5, 16 bit"),
        pytest.param("fp8", 32_768, 4, 3.10, id="Q6"),
        pytest.param("fp8", 131_072, 16, 3.72, id="Q2 Q7"),
        pytest.param("bfloat16", 131_072, 32, 3.84, id="Q7, 16 bit"),
        pytest.param("fp8", 262_144, 32, 3.84, id="Q8"),
        pytest.param("bfloat16", 262_144, 64, 3.92, id="Q8, 16 bit"),
    ],
)
def test_the_naive_formula_overstates_a_hybrid(dtype: str, length: int, naive_gib: float, factor: float) -> None:
    assert token_bytes(64, 4, 256, dtype) * length == naive_gib * GIB
    real = qwen_blocks(dtype, length) * 51_380_224
    assert naive_gib * GIB / real == pytest.approx(factor, abs=0.006)


@pytest.mark.parametrize(
    ("dtype", "prefix_caching", "per_request", "printed", "tokens"),
    [
        pytest.param("fp8", True, 90, 9.98, 1_307_807, id="Q9"),
        pytest.param("bfloat16", True, 174, 5.16, 676_452, id="Q10"),
        pytest.param("fp8", False, 87, 10.32, None, id="Q11"),
    ],
)
def test_43_gib_of_a_hybrid_hold(
    dtype: str,
    prefix_caching: bool,  # noqa: FBT001
    per_request: int,
    printed: float,
    tokens: int | None,
) -> None:
    pool, each = 43 * GIB // 51_380_224, qwen_blocks(dtype, 131_072, prefix_caching=prefix_caching)
    assert (pool, each) == (898, per_request)
    assert round(pool / each, 2) == printed
    assert tokens is None or int(Fraction(pool, each) * 131_072) == tokens


def test_the_naive_pool_holds_2_7_full_contexts() -> None:
    assert pytest.approx(2.69, abs=0.005) == 43 / 16


def test_eight_full_contexts_fit_and_1024_states_do_not() -> None:
    usable = 898 - 1
    assert 8 * qwen_blocks("fp8", 131_072) == 720 <= usable
    assert usable < 1024  # vLLM: max_num_seqs (1024) exceeds available Mamba cache blocks (898)


def test_a_short_request_holds_half_a_percent() -> None:
    running = request_blocks(qwen_groups("fp8", prefix_caching=False), Reach(max_model_len=1568))
    assert running == 4
    assert running / 897 == pytest.approx(0.0045, abs=0.0001)


def test_an_mha_model_of_the_size_would_need_64_gib() -> None:
    mha = new_request(shape=new_model_shape(num_kv_heads=32), max_model_len=131_072, kv_cache_memory_bytes=GIB)
    assert plan(mha).demand_bytes == 64 * GIB


def test_a_70b_in_16_bit_fails_on_one_gpu_before_any_kv_question() -> None:
    budget = plan(new_request(shape=catalogue_shape(LLAMA_70B), max_model_len=4096, max_num_seqs=1))
    assert budget.tightest is not None
    assert budget.tightest.available.high < 0
    assert budget.verdict is Verdict.DOES_NOT_FIT


@pytest.mark.parametrize(
    ("memory", "weights", "token", "users"),
    [
        pytest.param(80 * GIB, 16.06e9, 131_072, 4, id="X1 naive"),
        pytest.param(141e9, 16.06e9, 131_072, 7, id="X4 16 bit"),
        pytest.param(141e9, 16.06e9, 65_536, 14, id="X4 8-bit cache"),
        pytest.param(141e9, 8.03e9, 65_536, 15, id="X4 8-bit cache and weights"),
    ],
)
def test_naive_users_at_131072_tokens(memory: float, weights: float, token: int, users: int) -> None:
    assert int((memory - weights) // (token * 131_072)) == users


@pytest.mark.parametrize(
    ("length", "factor"),
    [pytest.param(131_072, Fraction(174, 90), id="1.93x"), pytest.param(4096, Fraction(12, 9), id="1.33x")],
)
def test_an_fp8_cache_halves_only_the_attention_of_a_hybrid(length: int, factor: Fraction) -> None:
    assert Fraction(qwen_blocks("bfloat16", length), qwen_blocks("fp8", length)) == factor
