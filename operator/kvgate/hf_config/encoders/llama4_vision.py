"""The vision tower of Llama 4: patches are shuffled 2 × 2 into one, then projected twice."""

from collections.abc import Iterator

from kvgate.budget.matrix import Matrix, Units
from kvgate.budget.model_shape import Encoder, MediaItem
from kvgate.hf_config.blocks import column_parallel, replicated, vector
from kvgate.hf_config.encoders.parts import TowerLayer, counted, layer_norm, two_linears
from kvgate.hf_config.fields import Fields

LLAMA4_DEFAULTS = {
    "hidden_size": 768, "intermediate_size": 5632, "num_hidden_layers": 34, "num_attention_heads": 16, "image_size": 448,
    "patch_size": 14, "num_channels": 3, "vision_output_dim": 7680, "projector_input_dim": 4096, "projector_output_dim": 4096,
}  # fmt: skip
"""Defaults of `Llama4VisionConfig` in transformers 5; a config without `vision_config` gets all of them."""
PATCHES_PER_TOKEN = 4
"""`pixel_shuffle_ratio` 0.5 in both directions."""
MAX_TILES = 17
"""`max_patches` 16 of the checkpoints' preprocessor_config.json, and the whole picture once more."""


def llama4_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Even the patches are dealt out (`Llama4UnfoldConvolution`)."""
    vision = config.section("vision_config").over(LLAMA4_DEFAULTS)
    layer = TowerLayer(
        hidden_size=vision.count("hidden_size"),
        intermediate_size=vision.count("intermediate_size"),
        num_heads=vision.count("num_attention_heads"),
    )
    patches = (vision.count("image_size") // vision.count("patch_size")) ** 2
    around = (*_around(vision, layer.hidden_size, patches), *_projector(vision, layer.intermediate_size, hidden_size))
    return (
        Encoder(
            matrices=(*counted(vision.count("num_hidden_layers"), layer.matrices()), *counted(1, around)),
            hidden_size=layer.hidden_size,
            intermediate_size=layer.intermediate_size,
            items=(MediaItem(modality="image", tokens=MAX_TILES * (patches // PATCHES_PER_TOKEN)),),
            patches_per_token=PATCHES_PER_TOKEN,
        ),
    )


def _around(vision: Fields, width: int, patches: int) -> Iterator[Matrix]:
    patch = vision.count("patch_size")
    yield column_parallel("patch_embed", Units(count=width), columns=vision.count("num_channels") * patch * patch)
    yield vector("class_embedding", width)
    yield replicated("positional_embedding_vlm", patches + 1, columns=width)
    yield layer_norm("layernorm_pre", width)
    yield layer_norm("layernorm_post", width)


def _projector(vision: Fields, shuffled: int, hidden_size: int) -> Iterator[Matrix]:
    inner, outer = vision.count("projector_input_dim"), vision.count("projector_output_dim")
    yield from two_linears("vision_adapter", columns=shuffled, inner=inner, rows=outer, bias=False)
    yield column_parallel("multi_modal_projector", Units(count=hidden_size), columns=vision.count("vision_output_dim"))
