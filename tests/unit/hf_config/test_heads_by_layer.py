"""Laguna, Step, MiMo-V2, Llama 4 and gpt-oss: heads, windows, chunks and experts that differ from layer to layer."""

from collections import Counter
from typing import Any

import pytest

from kvgate.budget.model.shape import DenseMlp, FullAttention, ModelShape, SparseMlp
from kvgate.hf_config import ModelConfigError, read_config
from support.builders import catalogue_shape, new_llama_config

SLIDING, FULL = "sliding_attention", "full_attention"


def mixers(shape: ModelShape) -> Counter[object]:
    return Counter(layer.mixers[0] for layer in shape.layers)


def rows(shape: ModelShape, layer: int, name: str) -> list[int]:
    """Output features of every matrix of that name."""
    return [sum(part.elements for part in m.rows) for m in shape.layers[layer].matrices if m.name == name]


def test_laguna_has_more_query_heads_where_it_has_a_window() -> None:
    shape = catalogue_shape("poolside/Laguna-XS.2-FP8")
    assert mixers(shape) == {
        FullAttention(num_heads=48, num_kv_heads=8, head_dim=128): 10,
        FullAttention(num_heads=64, num_kv_heads=8, head_dim=128, sliding_window=512): 30,
    }
    assert [type(layer.mlps[0]) for layer in shape.layers] == [DenseMlp] + [SparseMlp] * 39
    assert rows(shape, 0, "gate_up_proj") == [8192, 8192]


@pytest.mark.parametrize(
    ("gating", "expected"),
    [(True, [32]), ("per-head", [32]), ("per-element", [4096]), (False, []), (None, [])],
    ids=repr,
)
def test_the_gate_of_laguna_is_as_wide_as_the_config_says(gating: object, expected: list[int]) -> None:
    config = new_llama_config(architectures=["LagunaForCausalLM"], gating=gating)
    assert rows(read_config(config), 0, "g_proj") == expected


@pytest.mark.parametrize(
    ("heads", "problem"),
    [([32, 32], "num_attention_heads_per_layer has 2 entries for 4 layers"),
     ([32, 0, 32, 32], "num_attention_heads_per_layer has 0"),
     ([32, "x", 32, 32], "num_attention_heads_per_layer has 'x'")],
    ids=repr,
)  # fmt: skip
def test_a_list_of_heads_that_is_wrong_is_named(heads: list[Any], problem: str) -> None:
    config = new_llama_config(architectures=["LagunaForCausalLM"], num_attention_heads_per_layer=heads)
    with pytest.raises(ModelConfigError, match=problem):
        read_config(config)


def test_mimo_v2_has_narrow_values_and_other_heads_where_it_has_a_window() -> None:
    shape = catalogue_shape("XiaomiMiMo/MiMo-V2-Flash")
    assert mixers(shape) == {
        FullAttention(num_heads=64, num_kv_heads=4, head_dim=192, v_head_dim=128): 9,
        FullAttention(
            num_heads=64, num_kv_heads=8, head_dim=192, v_head_dim=128, sliding_window=128, has_sinks=True
        ): 39,
    }
    assert rows(shape, 0, "sinks") == []
    assert rows(shape, 1, "sinks") == [64]
    assert isinstance(shape.layers[0].mlps[0], DenseMlp)


def test_every_fourth_layer_of_llama_4_sees_all_and_the_others_their_chunk() -> None:
    text: dict[str, Any] = {
        "attention_chunk_size": 8192, "interleave_moe_layer_step": 2, "intermediate_size_mlp": 16384, "num_local_experts": 128,
        "no_rope_layers": [], "num_hidden_layers": 8,
    }  # fmt: skip
    shape = read_config(new_llama_config(architectures=["Llama4ForConditionalGeneration"], text_config=text))
    chunks = [layer.mixers[0].chunk_size for layer in shape.layers if isinstance(layer.mixers[0], FullAttention)]
    assert chunks == [8192, 8192, 8192, 0] * 2
    assert [layer.mlps[0] for layer in shape.layers[:2]] == [
        DenseMlp(intermediate_size=16384),
        SparseMlp(num_experts=128, num_experts_per_token=1, intermediate_size=14336, shared_intermediate_size=14336),
    ]


def test_gpt_oss_has_sinks_everywhere_and_windows_at_even_indices_whatever_its_list_says() -> None:
    config = new_llama_config(
        architectures=["GptOssForCausalLM"], sliding_window=128, layer_types=[FULL] * 4, num_local_experts=8
    )
    shape = read_config(config)
    seen = [layer.mixers[0] for layer in shape.layers]
    assert [mixer.sliding_window for mixer in seen if isinstance(mixer, FullAttention)] == [128, 0, 128, 0]
    assert all(isinstance(mixer, FullAttention) and mixer.has_sinks for mixer in seen)
    assert {m.name for m in shape.layers[0].matrices if m.bias} == {"qkv_proj", "o_proj", "experts", "router"}


def test_step_takes_other_heads_for_one_type_of_layer_and_names_its_sparse_layers() -> None:
    config = new_llama_config(
        architectures=["Step3p5ForCausalLM"], layer_types=[FULL, SLIDING, SLIDING, SLIDING], sliding_window=512,
        attention_other_setting={"attention_type": SLIDING, "num_attention_heads": 96, "num_attention_groups": 8, "head_dim": 128},
        moe_layers_enum="2,3", moe_num_experts=288, moe_top_k=8, moe_intermediate_size=1280, share_expert_dim=1280,
        use_head_wise_attn_gate=True,
    )  # fmt: skip
    shape = read_config(config)
    assert mixers(shape) == {
        FullAttention(num_heads=32, num_kv_heads=8, head_dim=128): 1,
        FullAttention(num_heads=96, num_kv_heads=8, head_dim=128, sliding_window=512): 3,
    }
    assert [type(layer.mlps[0]) for layer in shape.layers] == [DenseMlp, DenseMlp, SparseMlp, SparseMlp]
    assert rows(shape, 1, "g_proj") == [96]


def test_step_without_a_list_has_experts_after_its_dense_layers() -> None:
    shape = catalogue_shape("stepfun-ai/Step-3.7-Flash")
    assert [type(layer.mlps[0]) for layer in shape.layers] == [DenseMlp] * 3 + [SparseMlp] * 42
    assert Counter(m.sliding_window for m in mixers(shape).elements() if isinstance(m, FullAttention)) == {
        0: 12,
        512: 33,
    }
