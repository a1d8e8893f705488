"""Whisper, Llama 3.2 Vision, Nemotron-NAS and embedding models: layers with two caches, another one, or none."""

from collections import Counter
from typing import Any

import pytest

from kvgate.budget.ground.hardware import Parallelism
from kvgate.budget.model.shape import CrossAttention, DenseMlp, FullAttention, ModelShape, UnmodelledLayer
from kvgate.budget.model.weights import rank_weights
from kvgate.hf_config import ModelConfigError, read_config
from support.builders import catalogue_shape, new_llama_config


def parameters(shape: ModelShape, tensor: int = 1) -> int:
    whole = (0, len(shape.layers))
    return rank_weights(shape, Parallelism(tensor=tensor), whole, unsplit_large_blocks=False).parameter_bytes // 2


def test_a_whisper_layer_looks_at_text_and_at_sound() -> None:
    shape = catalogue_shape("openai/whisper-large-v3")
    assert {layer.mixers for layer in shape.layers} == {
        (
            FullAttention(num_heads=20, num_kv_heads=20, head_dim=64),
            CrossAttention(num_heads=20, num_kv_heads=20, head_dim=64),
        )
    }
    assert (len(shape.layers), shape.num_heads, shape.max_model_len, shape.supports_pipeline) == (32, 20, 448, False)


def test_whispers_layers_are_its_decoders() -> None:
    """whisper-large-v3-turbo: 32 layers of encoder, which num_hidden_layers repeats, before 4 of decoder."""
    from kvgate import catalogue

    config = {**catalogue.load_model("openai/whisper-large-v3").config, "decoder_layers": 4}
    shape = read_config(config)
    assert len(shape.layers) == 4
    assert shape.encoders[0].max_item_tokens == 1500


@pytest.mark.parametrize(("tensor", "expected"), [(1, 1_543_613_440), (2, 809_262_080), (4, 442_086_400)])
def test_whispers_embedding_is_whole_on_every_rank(tensor: int, expected: int) -> None:
    """Counted by vLLM 0.32's own class."""
    assert parameters(catalogue_shape("openai/whisper-large-v3"), tensor) == expected


def mllama(**more: Any) -> ModelShape:
    return read_config(new_llama_config(architectures=["MllamaForCausalLM"], cross_attention_layers=[1, 3], **more))


def test_some_layers_of_llama_3_2_vision_look_at_the_image_instead() -> None:
    own, cross = (
        FullAttention(num_heads=32, num_kv_heads=8, head_dim=128),
        CrossAttention(num_heads=32, num_kv_heads=8, head_dim=128),
    )
    assert [layer.mixers for layer in mllama().layers] == [(own,), (cross,), (own,), (cross,)]


def test_such_a_layer_has_norms_for_its_heads_and_two_gates_more() -> None:
    names = [Counter(matrix.name for matrix in layer.matrices) for layer in mllama().layers[:2]]
    assert names[1] - names[0] == Counter({"qk_norm": 1, "cross_attn_gates": 1})


def nas(*blocks: object) -> ModelShape:
    config = new_llama_config(
        architectures=["DeciLMForCausalLM"], num_hidden_layers=len(blocks), block_configs=list(blocks)
    )
    return read_config(config)


WHOLE = {"attention": {"n_heads_in_group": 8}, "ffn": {"ffn_mult": 5.25}}


def test_a_block_of_nemotron_nas_decides_heads_and_width() -> None:
    shape = nas(WHOLE, {**WHOLE, "attention": {"no_op": True}}, {**WHOLE, "ffn": {"no_op": True}})
    heads, mlp = FullAttention(num_heads=32, num_kv_heads=4, head_dim=128), DenseMlp(intermediate_size=14336)
    assert [(layer.mixers, layer.mlps) for layer in shape.layers] == [
        ((heads,), (mlp,)), ((), (mlp,)), ((heads,), ())
    ]  # fmt: skip
    assert [sum(m.name == "layernorm" for m in layer.matrices) for layer in shape.layers] == [2, 1, 1]


@pytest.mark.parametrize(("mult", "width"), [(2.625, 7168), (1.0, 2816), (0.5, 1536), (5, 13824)])
def test_the_width_is_two_thirds_of_the_multiple_in_steps_of_256(mult: float, width: int) -> None:
    (layer,) = nas({**WHOLE, "ffn": {"ffn_mult": mult}}).layers
    assert layer.mlps == (DenseMlp(intermediate_size=width),)


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ({**WHOLE, "attention": {}}, r"block_configs\[1\].attention.n_heads_in_group is missing"),
        ({**WHOLE, "ffn": {"ffn_mult": "wide"}}, r"block_configs\[1\].ffn.ffn_mult is 'wide'"),
        ({**WHOLE, "ffn": {"ffn_mult": float("inf")}}, r"block_configs\[1\].ffn.ffn_mult is inf"),
        (7, r"block_configs\[1\].attention.n_heads_in_group is missing"),
    ],
    ids=repr,
)
def test_a_block_that_says_nothing_is_named(block: object, problem: str) -> None:
    with pytest.raises(ModelConfigError, match=problem):
        nas(WHOLE, block)


def test_attention_that_was_replaced_has_no_formula() -> None:
    shape = nas({**WHOLE, "attention": {"replace_with_linear": True}})
    assert shape.mixers == (UnmodelledLayer(kind="attention replaced by a linear layer"),)


def test_nemotron_nas_49b_has_the_published_parameters() -> None:
    shape = catalogue_shape("nvidia/Llama-3_3-Nemotron-Super-49B-v1")
    assert parameters(shape) == 49_867_145_216
    assert Counter(len(layer.mixers) for layer in shape.layers) == {1: 49, 0: 31}


def test_an_embedding_model_has_no_head() -> None:
    with_head = read_config(new_llama_config(architectures=["MistralForCausalLM"]))
    without = read_config(new_llama_config(architectures=["MistralModel"]))
    assert without.layers == with_head.layers
    assert parameters(with_head) - parameters(without) == 128_256 * 4096
    assert parameters(with_head, tensor=2) - parameters(without, tensor=2) == 128_256 * 4096 // 2
