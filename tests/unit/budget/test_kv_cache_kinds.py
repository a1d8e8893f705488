"""Every kind of cache as vLLM 0.32 cuts it: groups, bytes of a block, blocks of a request, on an H100 with 20 GiB."""

from collections.abc import Callable
from typing import Any

import pytest

from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.engine.request import Speculation
from kvgate.budget.ground.interval import UnmodelledKind, Verdict
from kvgate.budget.ground.units import GIB
from kvgate.budget.kv_cache.dtype import plain
from kvgate.budget.kv_cache.groups import form_groups
from kvgate.budget.kv_cache.spec import FullAttentionSpec, MLASpec, Reach, SlidingWindowSpec, WindowMLASpec
from kvgate.budget.model.shape import LayerShape, ModelShape, UnmodelledLayer
from support import kinds
from support.builders import catalogue_accelerator, new_request
from support.tables import table

B200, A100 = catalogue_accelerator("B200-SXM-180GB"), catalogue_accelerator("A100-SXM-80GB")


def given(shape: ModelShape, **settings: Any) -> Budget:
    """20 GiB for the cache and no ledger: the shapes have no weights."""
    values = {
        "vllm_version": "0.32.0",
        "kv_cache_memory_bytes": 20 * GIB,
        "max_num_seqs": 16,
        "max_num_batched_tokens": 8192,
    }
    return plan(new_request(shape=shape, unmodelled_settings=("weights",), **{**values, **settings}))


def cut(budget: Budget) -> tuple[list[int], int, int, int]:
    """(layers of each group, bytes of a block, blocks of a request, blocks of the pool)."""
    assert budget.kv_cache is not None
    assert budget.num_blocks is not None
    cache = budget.kv_cache
    return (
        [group.num_layers for group in cache.groups],
        cache.bytes_per_block,
        cache.request_blocks,
        budget.num_blocks.expected,
    )


Model = Callable[[], ModelShape]


@table(
    ("model", "settings", "expected"),
    [
        (kinds.gemma_3_27b, {"max_model_len": 4096}, ([9, 9, 9, 9, 8, 8, 10], 1_310_720, 1798, 16_384)),
        (kinds.gemma_3_27b, {"max_model_len": 32_768}, ([9, 9, 9, 9, 8, 8, 10], 1_310_720, 8582, 16_384)),
        (kinds.gemma_3_27b, {"max_model_len": 32_768, "max_num_batched_tokens": 2048}, ([9, 9, 9, 9, 8, 8, 10], 1_310_720, 3974, 16_384)),
        (kinds.gemma_3_27b, {"max_model_len": 32_768, "disable_hybrid_kv_cache_manager": True}, ([62], 8_126_464, 2048, 2642)),
        (kinds.gemma_3_27b, {"max_model_len": 32_768, "pipeline": 2}, ([9, 9, 9, 9, 8, 8, 10], 655_360, 6 * 1601 + 2048, 32_768)),
        (kinds.gpt_oss_120b, {"max_model_len": 32_768}, ([18, 18], 589_824, 3081, 36_408)),
        (kinds.gpt_oss_120b, {"max_model_len": 32_768, "async_scheduling": False}, ([18, 18], 589_824, 521 + 2048, 36_408)),
        (kinds.llama_4_scout, {"max_model_len": 32_768}, ([12, 12, 12, 12], 786_432, 6656, 27_306)),
        (kinds.mistral_7b, {"max_model_len": 32_768}, ([32], 2_097_152, 1281, 10_240)),
        (kinds.mimo_v2_flash, {"max_model_len": 32_768}, ([9, 8, 8, 8, 8, 7], 737_280, 6189, 29_127)),
        (kinds.gemma_4_31b, {"max_model_len": 32_768}, ([10] * 6, 10 * 262_144, 6469, 8192)),
        (kinds.gemma_4_e4b, {"max_model_len": 32_768}, ([4] * 6, 4 * 65_536, 4693, 81_920)),
        (kinds.deepseek_v3, {"max_model_len": 32_768}, ([61], 1_124_352, 2048, 19_099)),
        (kinds.deepseek_v3, {"max_model_len": 32_768, "tensor": 8}, ([61], 1_124_352, 2048, 19_099)),
        (kinds.deepseek_v3, {"max_model_len": 32_768, "tensor": 8, "decode_context": 8}, ([61], 1_124_352, 256, 19_099)),
        (kinds.deepseek_v3, {"max_model_len": 32_768, "kv_cache_dtype": "fp8"}, ([61], 61 * 64 * 576, 512, 9549)),
        (kinds.deepseek_v3, {"max_model_len": 32_768, "pipeline": 2}, ([61], 571_392, 2048, 37_583)),
        (kinds.deepseek_v32, {"max_model_len": 32_768}, ([122], 5_012_736, 512, 4284)),
        (kinds.deepseek_v32, {"max_model_len": 32_768, "kv_cache_dtype": "fp8"}, ([122], 3_076_352, 512, 6980)),
        (kinds.deepseek_v32, {"max_model_len": 32_768, "kv_cache_dtype": "nvfp4_ds_mla"}, ([122], 61 * (64 * 352 + 8448), 512, 11_365)),
        (kinds.deepseek_v4_flash, {"max_model_len": 32_768}, ([22, 21, 62, 42, 20], 1_002_240, 6810, 21_426)),
        (kinds.deepseek_v4_flash, {"max_model_len": 131_072}, ([22, 21, 62, 42, 20], 1_002_240, 7194, 21_426)),
        (kinds.deepseek_v4_flash, {"max_model_len": 131_072, "max_num_batched_tokens": 2048},
         ([22, 21, 62, 42, 20], 1_002_240, 2202, 21_426)),
        (kinds.minimax_m3, {"max_model_len": 32_768}, ([117], 17_596_416, 256, 1220)),
        (kinds.qwen_35_27b, {"max_model_len": 32_768}, ([16] * 4, 51_380_224, 48, 417)),
        (kinds.qwen_35_27b, {"max_model_len": 32_768, "kv_cache_dtype": "fp8"}, ([16] * 4, 51_380_224, 27, 417)),
        (kinds.qwen_35_27b, {"max_model_len": 32_768, "enable_prefix_caching": False}, ([16] * 4, 51_380_224, 45, 417)),
        (kinds.qwen_35_27b, {"max_model_len": 32_768, "mamba_cache_mode": "none"}, ([16] * 4, 51_380_224, 48, 417)),
        (kinds.qwen_35_27b, {"max_model_len": 32_768, "tensor": 8}, ([16] * 4, 16 * 400 * 1024, 88, 3276)),
        (kinds.qwen_35_27b, {"max_model_len": 32_768, "tensor": 8, "decode_context": 2}, ([16] * 4, 16 * 400 * 1024, 47, 3276)),
        (kinds.qwen_35_27b, {"max_model_len": 32_768, "block_size": 64}, ([16] * 4, 16 * 832 * 4096, 6 + 40, 393)),
        (kinds.qwen_35_27b, {"max_model_len": 32_768, "mamba_ssm_cache_dtype": "bfloat16"}, ([16] * 4, 16 * 400 * 4096, 6 + 82, 819)),
        (kinds.qwen_35_27b, {"max_model_len": 32_768, "speculation": Speculation(method="mtp", num_speculative_tokens=2)},
         ([16] * 4, 16 * 4096 * 800, 3 * 4 + 41, 409)),
        (kinds.nemotron_3_nano, {"max_model_len": 32_768}, ([6, 6, 6, 5, 6], 12_877_824, 28, 1667)),
        (kinds.nemotron_3_nano, {"max_model_len": 32_768, "vllm_version": "0.24.0"}, ([6, 6, 6, 5, 6], 12_877_824, 20, 1667)),
        (kinds.falcon_h1, {"max_model_len": 32_768}, ([44, 44], 70_647_808, 24, 303)),
        (kinds.jamba, {"max_model_len": 32_768}, ([4] * 8, 4 * 80 * 4096, 7 * 2 + 410, 16_384)),
        (kinds.kimi_linear, {"max_model_len": 32_768}, ([7, 7, 6, 7], 15_482_880, 3 * 2 + 18, 1387)),
        (kinds.kimi_linear, {"max_model_len": 32_768, "kv_cache_dtype": "fp8"}, ([7, 7, 6, 7], 15_482_880, 3 * 2 + 9, 1387)),
        (kinds.lfm2, {"max_model_len": 32_768}, ([5, 5, 6], 196_608, 2 * 2 + 2048, 109_226)),
        (kinds.whisper, {"max_model_len": 448}, ([32, 32], 2_621_440, 540, 8192)),
        (kinds.pure_mamba, {"max_model_len": 2048}, ([64], 64 * 194_560, 1, 1724)),
        (kinds.encoder_only, {"max_model_len": 512}, ([], 0, 0, 1)),
    ],
)  # fmt: skip
def test_a_cache_is_cut(model: Model, settings: dict[str, Any], expected: tuple[list[int], int, int, int]) -> None:
    layers, *figures = cut(given(model(), **settings))
    assert (sorted(layers), *figures) == (sorted(expected[0]), *expected[1:])


@table(
    ("model", "settings", "block_sizes"),
    [
        (kinds.gemma_4_31b, {}, {16, 32}),
        (kinds.gemma_4_31b, {"kv_cache_dtype": "fp8"}, {64, 128}),
        (kinds.gemma_4_31b, {"accelerator": B200}, {64, 128}),
        (kinds.mimo_v2_flash, {}, {16, 32}),
        (kinds.deepseek_v3, {"accelerator": B200}, {32}),
        (kinds.deepseek_v3, {"accelerator": A100}, {16}),
        (kinds.deepseek_v3, {"kv_cache_dtype": "fp8", "block_size": 128}, {128}),
        (kinds.deepseek_v4_flash, {}, {4, 8, 64, 256}),
        (kinds.deepseek_v4_flash, {"block_size": 128}, {4, 8, 64, 128}),
        (kinds.minimax_m3, {}, {128}),
        (kinds.minimax_m3, {"block_size": 16}, {16}),
        (kinds.qwen_35_27b, {}, {784}),
        (kinds.qwen_35_27b, {"kv_cache_dtype": "fp8"}, {1568}),
        (kinds.qwen_35_27b, {"kv_cache_dtype": "nvfp4"}, {2784}),
        (kinds.qwen_35_27b, {"kv_cache_dtype": "fp8_per_token_head"}, {1552}),
        (kinds.qwen_35_27b, {"kv_cache_dtype": "turboquant_k8v4"}, {2080}),
        (kinds.qwen_35_27b, {"enable_prefix_caching": False}, {0, 784}),
    ],
)
def test_blocks_have_as_many_tokens_as_kernels_and_states_want(
    model: Model, settings: dict[str, Any], block_sizes: set[int]
) -> None:
    cache = given(model(), max_model_len=4096, **settings).kv_cache
    assert cache is not None
    assert {group.spec.block_size for group in cache.groups} == block_sizes


@table(
    ("dtype", "head_128", "head_256"),
    [
        ("auto", 512, 1024), ("fp8", 256, 512), ("int8_per_token_head", 264, 520), ("int4_per_token_head", 136, 264),
        ("nvfp4", 144, 288), ("turboquant_k8v4", 196, 388), ("turboquant_4bit_nc", 134, 262), ("turboquant_k3v4_nc", 118, 230),
        ("turboquant_3bit_nc", 102, 198), ("ultraquant_4bit", 136, 272), ("octave_k3v4", None, 248), ("octave_k3v3", None, 216),
        ("octave_k3v3_compact", None, 196),
    ],
)  # fmt: skip
def test_a_token_of_a_head_takes(dtype: str, head_128: int | None, head_256: int) -> None:
    for head, expected in ((128, head_128), (256, head_256)):
        if expected is None:  # no kernel has such heads
            continue
        cache = given(kinds.shape_of([kinds.full(1, head)] * 5), kv_cache_dtype=dtype, max_model_len=4096).kv_cache
        assert cache is not None
        specs = {spec for group in cache.groups for spec, _ in group.parts}
        assert expected in {spec.token_bytes for spec in specs if isinstance(spec, FullAttentionSpec)}


def test_packed_formats_leave_out_both_ends_of_a_model() -> None:
    budget = given(kinds.shape_of([kinds.full()] * 32), kv_cache_dtype="turboquant_k8v4", max_model_len=32_768)
    assert cut(budget) == ([32], 4 * 131_072 + 28 * 50_176, 1024, 11_131)
    assert budget.kv_cache is not None
    parts = budget.kv_cache.groups[0].parts
    assert {layers for _, layers in parts} == {(0, 1, 30, 31), tuple(range(2, 30))}


@pytest.mark.parametrize(("dtype", "page", "block"), [("fp8", 65_536, 32), ("nvfp4", 4 * 18_432, 64)])
def test_windows_that_are_left_out_keep_the_model_dtype_in_pages_of_one_size(dtype: str, page: int, block: int) -> None:
    shape = kinds.shape_of([kinds.full(sliding_window=1024), kinds.full()] * 8)
    cache = given(
        shape, kv_cache_dtype=dtype, kv_cache_dtype_skip_layers=("sliding_window",), max_model_len=4096
    ).kv_cache
    assert cache is not None
    assert {group.page_size_bytes for group in cache.groups} == {page}
    assert {group.spec.kind: group.spec.block_size for group in cache.groups} == {
        "sliding-window attention": 16,
        "full attention": block,
    }


def test_layers_are_left_out_by_index() -> None:
    budget = given(
        kinds.shape_of([kinds.full()] * 4), kv_cache_dtype="fp8", kv_cache_dtype_skip_layers=("0",), max_model_len=4096
    )
    assert cut(budget)[1] == 3 * 32_768 + 65_536


@pytest.mark.parametrize(
    ("architecture", "accelerator", "dtype", "expected"),
    [
        ("GlmMoeDsaForCausalLM", B200, "auto", "fp8_e4m3"), ("GlmMoeDsaForCausalLM", B200, "bfloat16", "bfloat16"),
        ("GlmMoeDsaForCausalLM", None, "auto", "bfloat16"), ("DeepseekV32ForCausalLM", B200, "auto", "bfloat16"),
        ("DeepseekV32ForCausalLM", B200, "fp8", "fp8"), ("DeepseekV32ForCausalLM", None, "fp8", "fp8_ds_mla"),
    ],
)  # fmt: skip
def test_sparse_mla_chooses_its_format(architecture: str, accelerator: Any, dtype: str, expected: str) -> None:
    shape = kinds.shape_of([kinds.latent(is_sparse=True, index_head_dim=128)] * 4, architecture=architecture)
    where = {"accelerator": accelerator} if accelerator else {}
    cache = given(shape, kv_cache_dtype=dtype, max_model_len=4096, **where).kv_cache
    assert cache is not None
    assert cache.dtype.name == expected


def test_compressed_caches_have_one_format() -> None:
    blocks = {
        dtype: cut(given(kinds.deepseek_v4_flash(), kv_cache_dtype=dtype)) for dtype in ("auto", "fp8", "fp8_ds_mla")
    }
    assert len({figures[1] for figures in blocks.values()}) == 1


def test_the_scheme_of_a_checkpoint_is_what_auto_means_and_the_user_wins() -> None:
    shape = kinds.shape_of([kinds.full()] * 4, kv_cache_scheme="nvfp4")
    sizes = [cut(given(shape, kv_cache_dtype=dtype, max_model_len=4096))[1] for dtype in ("auto", "bfloat16")]
    assert sizes == [4 * 18_432, 4 * 65_536]


@table(
    ("version", "settings", "batches"),
    [
        ("0.25.0", {}, 1), ("0.26.0", {}, 2), ("0.32.0", {}, 2), ("0.32.0", {"pipeline": 2}, 3), ("0.26.0", {"pipeline": 2}, 3),
        ("0.32.0", {"async_scheduling": False}, 1), ("0.32.0", {"async_scheduling": False, "pipeline": 2}, 2),
        ("0.32.0", {"speculation": Speculation(method="ngram", num_speculative_tokens=3)}, 1),
        ("0.32.0", {"speculation": Speculation(method="mtp", num_speculative_tokens=3)}, 2),
    ],
)  # fmt: skip
def test_windows_hold_the_batches_in_flight(version: str, settings: dict[str, Any], batches: int) -> None:
    budget = given(kinds.mistral_7b(), vllm_version=version, max_num_batched_tokens=1024, **settings)
    assert budget.resolved.in_flight_tokens == batches * 1024
    assert budget.kv_cache is not None
    assert budget.kv_cache.request_blocks == -(-(4095 + batches * 1024) // 16) + 1


def test_the_v1_runner_has_no_third_batch_in_a_pipeline() -> None:
    shape = kinds.shape_of([kinds.full(sliding_window=4096)] * 8, architecture="UnknownForCausalLM", draft_layers=())
    moe = kinds.gpt_oss_120b()
    assert given(shape, vllm_version="0.26.0", pipeline=2).resolved.in_flight_tokens == 3 * 8192  # dense: V2
    assert given(moe, vllm_version="0.26.0").resolved.in_flight_tokens == 2 * 8192


def test_draft_layers_keep_caches_on_the_last_stage() -> None:
    shape = kinds.shape_of([kinds.latent()] * 4, draft_layers=(LayerShape(mixers=(kinds.latent(),)),))
    drafting = {"speculation": Speculation(method="mtp", num_speculative_tokens=1)}
    assert cut(given(shape))[1] == 4 * 18_432
    assert cut(given(shape, **drafting))[1] == 5 * 18_432
    stages = given(shape, pipeline=2, **drafting).stages
    assert [stage.bytes_per_block for stage in stages] == [2 * 18_432, 3 * 18_432]
    assert [(stage.first, stage.last) for stage in stages] == [(0, 2), (2, 4)]


def test_draft_modules_that_follow_each_other_look_back_further() -> None:
    window = kinds.full(sliding_window=128)
    shape = kinds.shape_of([window] * 4, draft_layers=(LayerShape(mixers=(window,)),) * 3)
    settings = {"max_num_batched_tokens": 16, "max_num_seqs": 16, "max_model_len": 4096}
    blocks = [
        cut(given(shape, **settings, speculation=Speculation(method="mtp", num_speculative_tokens=k)))[2]
        for k in (1, 3)
    ]
    assert blocks == [-(-(127 + 32) // 16) + 1, -(-(129 + 32) // 16) + 1]


@pytest.mark.parametrize(("modules", "drafts", "window"), [(1, 3, 127), (2, 3, 129), (2, 1, 127), (3, 8, 134)])
def test_two_draft_modules_are_several(modules: int, drafts: int, window: int) -> None:
    """`SlidingWindowSpec` (0.32): one token further for each draft but the first, where several modules take turns."""
    mixer = kinds.full(sliding_window=128)
    shape = kinds.shape_of([mixer] * 4, draft_layers=(LayerShape(mixers=(mixer,)),) * modules)
    speculation = Speculation(method="mtp", num_speculative_tokens=drafts)
    found = given(shape, max_model_len=4096, speculation=speculation).kv_cache
    assert found is not None
    specs = [group.spec for group in found.groups]
    assert {spec.reach_back for spec in specs if isinstance(spec, SlidingWindowSpec)} == {window}


@pytest.mark.parametrize(("version", "tokens"), [("0.20.0", 18_204 * 16), ("0.21.0", 8192 * 36_408 // 1025)])
def test_the_logged_number_of_tokens_means_what_its_release_says(version: str, tokens: int) -> None:
    """Blocks of one of two groups, then concurrency × max_model_len; one request takes 512 and 513 blocks."""
    budget = given(kinds.gpt_oss_120b(), vllm_version=version, max_model_len=8192)
    assert budget.num_tokens is not None
    assert budget.num_tokens.expected == tokens


def test_pages_that_do_not_divide_are_padded() -> None:
    shape = kinds.shape_of([kinds.full(3), kinds.full(2, sliding_window=1024)] * 2)
    cache = given(shape, max_model_len=4096).kv_cache
    assert cache is not None
    assert {group.page_size_bytes for group in cache.groups} == {16 * 3 * 512}


def specs(vector_bytes: int) -> list[tuple[int, Any]]:
    dtype = plain("bfloat16")
    window = SlidingWindowSpec(block_size=16, num_kv_heads=8, head_dim=128, dtype=dtype, window=128)
    return [(0, MLASpec(block_size=16, vector_bytes=vector_bytes)), (1, window)]


def test_windows_beside_mla_become_full_attention_where_pages_do_not_divide() -> None:
    (group,) = form_groups(specs(1152))
    assert [spec.kind for spec, _ in group.parts] == ["MLA", "full attention"]
    assert [g.num_layers for g in form_groups(specs(2048))] == [1, 1]


def test_other_caches_beside_mla_have_no_way_out() -> None:
    ring = WindowMLASpec(block_size=16, vector_bytes=1000, window=8)
    with pytest.raises(UnmodelledKind, match="do not divide"):
        form_groups([*specs(1152), (2, ring)])


def test_a_packed_layout_without_a_pattern_is_unknown() -> None:
    ring = WindowMLASpec(block_size=16, vector_bytes=1000, window=8)
    with pytest.raises(UnmodelledKind, match="repeating pattern"):
        form_groups([*specs(1152), (2, ring)], packed=True)


@pytest.mark.parametrize("settings", [{"mamba_cache_mode": "all"}, {"kv_cache_dtype": "of_a_plug_in"}])
def test_what_has_no_formula_is_named(settings: dict[str, Any]) -> None:
    budget = given(kinds.qwen_35_27b(), **settings)
    assert budget.verdict is Verdict.UNKNOWN
    assert any(value in kind for kind in budget.unmodelled for value in settings.values())


def test_a_layer_without_a_formula_is_named() -> None:
    shape = kinds.shape_of([kinds.full(), UnmodelledLayer(kind="a new layer")])
    assert "a new layer" in given(shape).unmodelled


def test_blocks_can_be_given_instead_of_bytes() -> None:
    budget = given(kinds.shape_of([kinds.full()] * 32), num_gpu_blocks_override=500, max_model_len=32_768)
    assert cut(budget)[3] == 500
    assert budget.verdict is Verdict.DOES_NOT_FIT
    assert budget.kv_cache is not None
    assert budget.kv_cache.max_model_len_that_fits(500, at_most=32_768) == 499 * 16


def test_an_automatic_length_keeps_the_batches_of_the_whole() -> None:
    budget = given(kinds.gpt_oss_120b(), max_model_len=-1, kv_cache_memory_bytes=5 * GIB, max_num_batched_tokens=None)
    assert budget.resolved.max_model_len == 129_088
    assert budget.resolved.max_num_batched_tokens == 8192
    assert budget.verdict is Verdict.FITS


def test_a_sliding_window_grows_no_further() -> None:
    spec = SlidingWindowSpec(block_size=16, num_kv_heads=8, head_dim=128, dtype=plain("bfloat16"), window=128)
    counts = [spec.blocks(Reach(max_model_len=length, in_flight_tokens=256)) for length in (1, 128, 383, 384, 10**6)]
    assert counts == [2, 9, 25, 25, 25]
