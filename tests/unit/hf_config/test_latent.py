from typing import Any

import pytest

from kvgate.budget.answers.answer import plan
from kvgate.budget.engine.request import Speculation
from kvgate.budget.ground.hardware import Parallelism
from kvgate.budget.model.matrix import Matrix, Units
from kvgate.budget.model.shape import CompressedAttention, FullAttention, LatentAttention, LayerShape
from kvgate.budget.model.weights import rank_weights
from kvgate.hf_config import ModelConfigError, read_config
from support.builders import catalogue_shape, new_request

DEEPSEEK = {
    "architectures": ["DeepseekV32ForCausalLM"], "model_type": "deepseek_v32", "hidden_size": 1024, "intermediate_size": 2048,
    "moe_intermediate_size": 512, "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "first_k_dense_replace": 1, "num_hidden_layers": 8, "num_attention_heads": 8, "q_lora_rank": 256, "kv_lora_rank": 128,
    "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64, "vocab_size": 4096, "torch_dtype": "bfloat16",
    "max_position_embeddings": 4096, "index_topk": 64, "index_head_dim": 32, "index_n_heads": 4,
}  # fmt: skip
V4 = {
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "hidden_size": 1024, "moe_intermediate_size": 512,
    "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "num_hidden_layers": 4, "num_attention_heads": 128,
    "head_dim": 128, "q_lora_rank": 256, "o_lora_rank": 64, "o_groups": 4, "vocab_size": 4096, "torch_dtype": "bfloat16",
    "max_position_embeddings": 4096, "sliding_window": 128, "index_head_dim": 32, "index_n_heads": 4, "index_topk": 64,
    "hc_mult": 4, "qk_rope_head_dim": 32, "num_hash_layers": 1, "compress_ratios": [0, 4, 128, 4, 0],
}  # fmt: skip


def elements(matrix: Matrix) -> int:
    return max(1, matrix.experts) * matrix.columns * sum(part.elements for part in matrix.rows)


def total(layer: LayerShape) -> int:
    return sum(map(elements, layer.matrices))


def indexed(**overrides: Any) -> list[int]:
    """Layers with an indexer of their own; the others are sparse all the same."""
    mixers = [layer.mixers[0] for layer in read_config({**DEEPSEEK, **overrides}).layers]
    assert all(isinstance(mixer, LatentAttention) and mixer.is_sparse for mixer in mixers)
    return [index for index, mixer in enumerate(mixers) if getattr(mixer, "index_head_dim", 0) == 32]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, list(range(8))),
        ({"indexer_types": ["full", "shared", "full", "shared"] * 2}, list(range(8))),
        ({"index_topk_freq": 4}, [0, 1, 5]),
        ({"index_topk_pattern": "FSFS"}, [0, 2, 4, 5, 6, 7]),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3}, [0, 1, 2, 6]),
        ({"index_topk_freq": 4, "index_skip_topk_offset": 3, "index_topk_pattern": "FFSSSSSF"}, [0, 1, 7]),
        ({"index_topk_freq": 1}, list(range(8))),
    ],
)
def test_some_layers_take_the_choice_of_the_one_before(overrides: dict[str, Any], expected: list[int]) -> None:
    assert indexed(**overrides) == expected


def test_the_layers_of_glm_5_2_share_21_indexers() -> None:
    """GLM-5 has one in each of its 78 layers: https://huggingface.co/zai-org/GLM-5, 743,911,218,432 parameters."""
    one, two = catalogue_shape("zai-org/GLM-5"), catalogue_shape("zai-org/GLM-5.2")
    own = [sum(getattr(layer.mixers[0], "index_head_dim", 0) > 0 for layer in shape.layers) for shape in (one, two)]
    assert own == [78, 21]
    assert sum(map(total, one.layers)) + 2 * 154880 * 6144 + 6144 == 743_911_218_432


def test_keys_of_the_indexer_are_never_quantised() -> None:
    layer = catalogue_shape("deepseek-ai/DeepSeek-V3.2").layers[30]
    formats = {matrix.name: matrix.format for matrix in layer.matrices}
    assert formats["indexer_wq_b"] is not None
    assert formats["indexer_wk_weights_proj"] is None


def test_multi_token_prediction_waits_for_speculative_decoding() -> None:
    """https://huggingface.co/deepseek-ai/DeepSeek-V3: 11.5 billion parameters of its own beside 671 billion."""
    shape = catalogue_shape("deepseek-ai/DeepSeek-V3")
    (draft,) = shape.draft_layers
    assert len(shape.layers) == 61
    assert draft.mixers == shape.layers[-1].mixers
    assert total(draft) == pytest.approx(11.5e9, rel=0.01)


@pytest.mark.parametrize(
    ("name", "size"),
    [("deepseek-ai/DeepSeek-V3", 20_971_520), ("deepseek-ai/DeepSeek-V3.2", 83_886_080), ("zai-org/GLM-5.2", 134_217_728),
     ("deepseek-ai/DeepSeek-V4-Flash", 536_870_912)],
)  # fmt: skip
def test_rotary_tables(name: str, size: int) -> None:
    """Buffers of vLLM 0.32's model classes on the meta device."""
    tables = catalogue_shape(name).rotary
    assert sum(table.max_position * table.rotary_dim * (table.element_bytes or 2) for table in tables) == size


def test_what_drafts_decides_whether_the_checkpoint_s_own_layers_are_held() -> None:
    shape, cached = catalogue_shape("deepseek-ai/DeepSeek-V3"), []
    for method in ("ngram", "mtp", "deepseek_mtp"):
        speculation = Speculation(method=method, num_speculative_tokens=1)
        kv_cache = plan(new_request(shape=shape, kv_cache_memory_bytes=2**36, speculation=speculation)).kv_cache
        assert kv_cache is not None
        cached.append(kv_cache.bytes_per_block // (16 * 576 * 2))
    assert cached == [61, 62, 62]
    other = Speculation(method="eagle3", num_speculative_tokens=1)
    unknown = plan(new_request(shape=shape, kv_cache_memory_bytes=2**36, speculation=other))
    assert unknown.kv_cache is None
    assert "drafts by eagle3" in unknown.unmodelled


def test_the_last_stage_holds_the_layers_that_draft() -> None:
    shape = catalogue_shape("deepseek-ai/DeepSeek-V3")
    stages = [(0, 31), (31, 61)]
    without, with_drafts = (
        [
            rank_weights(shape, Parallelism(pipeline=2), stage, unsplit_large_blocks=True, with_drafts=drafts)
            for stage in stages
        ]
        for drafts in (False, True)
    )
    more = [b.parameter_bytes - a.parameter_bytes for a, b in zip(without, with_drafts, strict=True)]
    assert more[0] == 0
    assert more[1] == pytest.approx(11.5e9, rel=0.05)


def test_mistral_4_is_latent() -> None:
    """36 layers × 320 elements: 22.5 GiB for 1,048,576 tokens in 16 bits (https://github.com/kaito-project/kaito/issues/2132)."""
    shape = catalogue_shape("mistralai/Mistral-Small-4-119B-2603")
    (mixer,) = shape.mixers
    assert isinstance(mixer, LatentAttention)
    assert len(shape.layers) * mixer.width * 2 * 1_048_576 == 22.5 * 2**30


def test_every_layer_of_deepseek_v4_compresses_as_listed() -> None:
    shape = read_config(V4)
    assert [getattr(layer.mixers[0], "ratio", None) for layer in shape.layers] == [0, 4, 128, 4]
    assert all(isinstance(mixer, CompressedAttention) and mixer.index_head_dim == 32 for mixer in shape.mixers)


def test_compressors_of_overlapping_windows_are_twice_as_wide() -> None:
    _, four, many, _ = read_config(V4).layers
    compressors = [[m for m in layer.matrices if m.name == "compressor_wkv_wgate"] for layer in (four, many)]
    assert [[sum(p.elements for p in m.rows) for m in each] for each in compressors] == [[512, 128], [256]]


def test_the_first_layers_look_experts_up_by_token() -> None:
    names = [{matrix.name for matrix in layer.matrices} for layer in read_config(V4).layers]
    assert ["tid2eid" in each for each in names] == [True, False, False, False]
    assert ["router_bias" in each for each in names] == [False, True, True, True]


def test_sinks_are_padded_to_64_heads() -> None:
    (sink,) = (matrix for matrix in read_config(V4).layers[0].matrices if matrix.name == "attn_sink")
    assert [sink.rows[0].on_rank(tensor) for tensor in (1, 2, 4, 8)] == [128, 64, 64, 64]
    assert Units(count=8, width=4).on_rank(16) == 4


@pytest.mark.parametrize(
    ("ratios", "problem"),
    [([4], "compress_ratios has 1 entries for 4 layers"), ([4, "x", 4, 4], "something else than whole numbers")],
    ids=repr,
)
def test_ratios_that_are_none_are_told(ratios: list[Any], problem: str) -> None:
    with pytest.raises(ModelConfigError, match=problem):
        read_config({**V4, "compress_ratios": ratios})


@pytest.mark.parametrize(
    ("quantization", "more", "experts"),
    [
        ({}, {}, "mxfp4"),
        ({}, {"expert_dtype": "fp8"}, "fp8-block"),
        ({"quantized_layers": {f"layers.{i}.ffn.experts": {"quant_algo": "NVFP4"} for i in range(4)},
          "ignore": ["*.attn.*", "*.ffn.shared_experts.*"]}, {}, "nvfp4"),
    ],
)  # fmt: skip
def test_experts_of_deepseek_v4_have_a_format_of_their_own(
    quantization: dict[str, Any], more: dict[str, Any], experts: str
) -> None:
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128], **quantization}
    layer = read_config({**V4, **more, "quantization_config": fp8}).layers[1]
    formats = {matrix.name: matrix.format.format for matrix in layer.matrices if matrix.format}
    linears = ("fused_wqa_wkv", "wq_b", "wo_a", "wo_b", "indexer_wq_b", "shared_experts")
    assert formats == {**dict.fromkeys(linears, "fp8-block"), "experts": experts}


def test_minimax_m3_indexes_all_but_three_layers() -> None:
    shape = catalogue_shape("MiniMaxAI/MiniMax-M3")
    widths = [
        mixer.index_head_dim for layer in shape.layers for mixer in layer.mixers if isinstance(mixer, FullAttention)
    ]
    assert widths == [0] * 3 + [128] * 57
    assert {matrix.name for matrix in shape.layers[3].matrices} - {matrix.name for matrix in shape.layers[0].matrices} == {
        "index_q_proj", "index_k_proj", "index_qk_norm", "experts", "router", "router_bias", "shared_experts",
    }  # fmt: skip
