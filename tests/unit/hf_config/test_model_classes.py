"""Classes with layers, names or towers of their own: Gemma 3n, Zamba2, DBRX, InternVL, Kimi-VL."""

from typing import Any

import pytest

from kvgate.budget.engine.request import EngineSettings
from kvgate.budget.engine.run import built_shape
from kvgate.budget.ground.hardware import Parallelism
from kvgate.budget.model.shape import FullAttention, ModelShape, RecurrentState, SharedCache
from kvgate.budget.model.weights import rank_weights
from kvgate.budget.releases.versions import accounting_of
from kvgate.hf_config import ModelConfigError, read_config
from support.builders import catalogue_shape

Config = dict[str, Any]


def rank_bytes(shape: ModelShape, tensor: int) -> int:
    cut = Parallelism(tensor=tensor)
    built = built_shape(shape, accounting_of("0.32.0"), EngineSettings(parallelism=cut))
    return rank_weights(built, cut, (0, len(shape.layers)), unsplit_large_blocks=False).parameter_bytes


def text(
    architecture: str, vocab: int, width: int, inner: int, layers: int, heads: int, kv: int, **more: Any
) -> Config:
    values = {"vocab_size": vocab, "hidden_size": width, "intermediate_size": inner, "num_hidden_layers": layers,
              "num_attention_heads": heads, "num_key_value_heads": kv, "torch_dtype": "bfloat16"}  # fmt: skip
    return {"architectures": [architecture], **values, **more}


DBRX = {"architectures": ["DbrxForCausalLM"], "d_model": 2048, "n_heads": 16, "n_layers": 24, "vocab_size": 32000,
        "max_seq_len": 2048, "attn_config": {"kv_n_heads": 4},
        "ffn_config": {"ffn_hidden_size": 3584, "moe_num_experts": 4, "moe_top_k": 1}}  # fmt: skip


def test_a_class_may_have_other_names_for_the_usual_keys() -> None:
    assert read_config(DBRX).mixers == (FullAttention(num_heads=16, num_kv_heads=4, head_dim=128),)
    listed = {**DBRX, "ffn_config": {"ffn_hidden_size": 3584, "moe_num_experts": [4, 8], "moe_top_k": 1}}
    with pytest.raises(ModelConfigError, match="moe_num_experts differs from layer to layer"):
        read_config(listed)


def test_layers_of_gemma_3n_read_the_last_cache_of_their_kind() -> None:
    mixers = [layer.mixers[0] for layer in catalogue_shape("google/gemma-3n-E4B-it").layers]
    assert {mixer.target for mixer in mixers if isinstance(mixer, SharedCache)} == {18, 19}
    assert sum(isinstance(mixer, FullAttention) for mixer in mixers) == 20


def test_hybrid_layers_of_zamba2_attend_with_shared_weights_and_keep_caches_of_their_own() -> None:
    shape = catalogue_shape("Zyphra/Zamba2-2.7B")
    states = sum(isinstance(mixer, RecurrentState) for layer in shape.layers for mixer in layer.mixers)
    caches = sum(isinstance(mixer, FullAttention) for layer in shape.layers for mixer in layer.mixers)
    assert (states, caches) == (54, 9)
    assert sum(matrix.name == "qkv_proj" for matrix in shape.everywhere) == 2


@pytest.mark.parametrize(
    ("name", "items"),
    [
        ("OpenGVLab/InternVL3-8B", {"image": 13 * 256, "video": 32_768}),
        ("moonshotai/Kimi-VL-A3B-Instruct", {"image": 1024}),
        ("google/gemma-3n-E4B-it", {"image": 256, "audio": 188}),
    ],
)
def test_the_largest_item_gives_so_many_embeddings(name: str, items: dict[str, int]) -> None:
    encoders = catalogue_shape(name).encoders
    assert {item.modality: item.tokens for encoder in encoders for item in encoder.items} == items


def test_ranks_that_do_not_divide_the_heads_of_internvit_hold_its_attention_whole_and_cut_the_rest() -> None:
    """25 heads: vLLM's own class has 80,431,264,000 bytes on a rank of two (tests/parity)."""
    shape = catalogue_shape("OpenGVLab/InternVL3-78B")
    assert rank_bytes(shape, 2) == 80_431_264_000


def test_intern_s1_ties_its_ends_where_transformers_does() -> None:
    """The wrapper's `tie_word_embeddings` is true unless config.json says otherwise (transformers 5)."""
    vision = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    inner = text("Qwen2ForCausalLM", 1024, 64, 128, 2, 4, 4, model_type="qwen2", tie_word_embeddings=False)
    config = {"architectures": ["InternVLForConditionalGeneration"], "text_config": inner, "vision_config": vision}
    head = 1024 * 64 * 2
    tied, untied = (rank_bytes(read_config({**config, **more}), 1) for more in ({}, {"tie_word_embeddings": False}))
    assert untied - tied == head


def test_llava_1_6_sees_the_largest_grid_of_tiles_with_a_separator_behind_each_row() -> None:
    """576 of the whole picture, and 48 rows of 48 patches and a separator."""
    vision = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "image_size": 336,
        "patch_size": 14,
    }
    inner = text("LlamaForCausalLM", 1024, 64, 128, 2, 4, 4, model_type="llama")
    config = {"architectures": ["LlavaNextForConditionalGeneration"], "text_config": inner, "vision_config": vision}
    (encoder,) = read_config(config).encoders
    assert encoder.max_item_tokens == 576 + 48 * 49
    with pytest.raises(ModelConfigError, match="kvgate knows no other tower"):
        read_config({**config, "vision_config": {**vision, "model_type": "siglip_vision_model"}})
