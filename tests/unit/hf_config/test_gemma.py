"""Gemma 3 and 4: which layers own a cache, how wide it is, and what stands beside the ordinary weights."""

from collections import Counter
from typing import Any

import pytest

from kvgate.budget.ground.hardware import SINGLE_GPU
from kvgate.budget.model.shape import DenseMlp, FullAttention, LayerShape, ModelShape, SharedCache, SparseMlp
from kvgate.budget.model.weights import rank_weights
from kvgate.hf_config import read_config
from support.builders import catalogue_shape, new_llama_config

SLIDING, FULL = "sliding_attention", "full_attention"


def language_part(name: str) -> ModelShape:
    """The model without its towers."""
    from kvgate import catalogue

    config = {**catalogue.load_model(name).config, "architectures": ["Gemma4ForCausalLM"]}
    return read_config({key: value for key, value in config.items() if key not in ("vision_config", "audio_config")})


def parameters(shape: ModelShape) -> int:
    whole = (0, len(shape.layers))
    return rank_weights(shape, SINGLE_GPU, whole, unsplit_large_blocks=False).parameter_bytes // 2


def columns(layer: LayerShape, name: str) -> list[int]:
    return [sum(part.elements for part in matrix.rows) for matrix in layer.matrices if matrix.name == name]


def test_full_layers_of_gemma_4_have_fewer_and_wider_heads() -> None:
    counted = Counter(layer.mixers[0] for layer in language_part("google/gemma-4-31B-it").layers)
    both_ways: dict[str, Any] = {"num_heads": 32, "sees_images_both_ways": True}
    assert counted == {
        FullAttention(num_kv_heads=16, head_dim=256, sliding_window=1024, **both_ways): 50,
        FullAttention(num_kv_heads=4, head_dim=512, **both_ways): 10,
    }


@pytest.mark.parametrize(
    ("name", "owned", "targets"),
    [
        ("google/gemma-4-E2B-it", {512: 12, 0: 3}, {13: 16, 14: 4}),
        ("google/gemma-4-E4B-it", {512: 20, 0: 4}, {22: 15, 23: 3}),
        ("google/gemma-4-31B-it", {1024: 50, 0: 10}, {}),
    ],
)
def test_the_last_layers_read_the_last_cache_of_their_type(
    name: str, owned: dict[int, int], targets: dict[int, int]
) -> None:
    mixers = [layer.mixers[0] for layer in language_part(name).layers]
    assert Counter(mixer.sliding_window for mixer in mixers if isinstance(mixer, FullAttention)) == owned
    assert Counter(mixer.target for mixer in mixers if isinstance(mixer, SharedCache)) == targets


def test_a_layer_that_shares_a_cache_projects_queries_alone_and_may_be_twice_as_wide() -> None:
    layers = language_part("google/gemma-4-E2B-it").layers
    own, shared = layers[0], layers[-2]
    assert (columns(own, "qkv_proj"), columns(shared, "qkv_proj")) == ([10 * 256], [8 * 256])
    assert (columns(own, "qk_norm"), columns(shared, "qk_norm")) == ([512], [256])
    assert own.mlps == (DenseMlp(intermediate_size=6144),)
    assert shared.mlps == (DenseMlp(intermediate_size=12288),)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        # published counts have a scalar per layer that vLLM keeps as a buffer
        ("google/gemma-4-E2B-it", 4_628_569_379 - 35),
        ("google/gemma-4-E4B-it", 7_463_013_418 - 42),
        # and no values where keys serve as values; vLLM projects them twice
        ("google/gemma-4-26B-A4B-it", 25_233_141_790 - 30 + 5 * 2816 * 1024),
        ("google/gemma-4-31B-it", 30_697_345_340 - 60 + 10 * 5376 * 2048),
        ("google/gemma-4-12B-it", 11_907_350_320 - 48 + 8 * 3840 * 512),
    ],
)
def test_the_language_part_has_the_published_parameters(name: str, expected: int) -> None:
    assert parameters(language_part(name)) == expected


def test_gemma_4_26b_has_a_dense_block_beside_its_experts() -> None:
    shape = language_part("google/gemma-4-26B-A4B-it")
    assert {layer.mlps for layer in shape.layers} == {
        (
            DenseMlp(intermediate_size=2112),
            SparseMlp(num_experts=128, num_experts_per_token=8, intermediate_size=704, suits_trtllm=False),
        )
    }


def test_keys_serve_as_values_only_where_the_config_says_so() -> None:
    config = new_llama_config(
        architectures=["Gemma4ForCausalLM"], layer_types=[SLIDING, FULL] * 2, sliding_window=512, num_global_key_value_heads=2
    )  # fmt: skip
    heads = [layer.mixers[0] for layer in read_config(config).layers]
    assert [mixer.num_kv_heads for mixer in heads if isinstance(mixer, FullAttention)] == [8] * 4


@pytest.mark.parametrize(("vision", "both_ways"), [({"vision_config": {"hidden_size": 1152}}, True), ({}, False)])
def test_images_make_gemma_3_attend_both_ways(vision: dict[str, Any], both_ways: bool) -> None:  # noqa: FBT001
    mixers = read_gemma_3(vision).mixers
    assert all(isinstance(mixer, FullAttention) and mixer.sees_images_both_ways == both_ways for mixer in mixers)


def read_gemma_3(more: dict[str, Any]) -> ModelShape:
    architecture = "Gemma3ForConditionalGeneration" if more else "Gemma3ForCausalLM"
    text = {"model_type": "gemma3_text", "num_hidden_layers": 6}
    return read_config({"architectures": [architecture], "text_config": text, **more})


def test_gemma_2_alternates() -> None:
    mixers = [layer.mixers[0] for layer in catalogue_shape("google/gemma-2-2b-it").layers]
    assert [mixer.sliding_window for mixer in mixers[:4] if isinstance(mixer, FullAttention)] == [4096, 0, 4096, 0]
