"""The vision tower of Llama 3.2 Vision: tiles with positions of their own, and layers with gates behind the plain ones."""

from collections.abc import Iterator

from kvgate.budget.matrix import Matrix, Units
from kvgate.budget.model_shape import Encoder, MediaItem
from kvgate.hf_config.blocks import column_parallel, replicated, vector
from kvgate.hf_config.encoders.parts import TowerLayer, counted, layer_norm
from kvgate.hf_config.fields import Fields

MLLAMA_DEFAULTS = {
    "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_global_layers": 8, "attention_heads": 16,
    "image_size": 448, "patch_size": 14, "num_channels": 3, "max_num_tiles": 4, "vision_output_dim": 7680,
    "supported_aspect_ratios": ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1)),
}  # fmt: skip
"""Defaults of `MllamaVisionConfig` in transformers 4.57."""


def mllama_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """The language model attends to every patch of every tile."""
    vision = config.section("vision_config").over(MLLAMA_DEFAULTS)
    layer = TowerLayer(
        hidden_size=vision.count("hidden_size"),
        intermediate_size=vision.count("intermediate_size"),
        num_heads=vision.count("attention_heads"),
        attention_bias=False,
    )
    plain, gated = vision.count("num_hidden_layers"), vision.count("num_global_layers")
    patches = (vision.count("image_size") // vision.count("patch_size")) ** 2 + 1
    output = column_parallel(
        "multi_modal_projector", Units(count=hidden_size), columns=vision.count("vision_output_dim"), bias=True
    )
    around = (*_around(vision, layer.hidden_size, patches), output)
    return (
        Encoder(
            matrices=(
                *counted(plain + gated, layer.matrices()),
                *counted(gated, (vector("gates", 2),)),
                *counted(1, around),
            ),
            hidden_size=layer.hidden_size,
            intermediate_size=layer.intermediate_size,
            items=(MediaItem(modality="image", tokens=vision.count("max_num_tiles") * patches),),
        ),
    )


def _around(vision: Fields, width: int, patches: int) -> Iterator[Matrix]:
    """Every table has a row for each way to lay out tiles, and one for none."""
    patch, tiles = vision.count("patch_size"), vision.count("max_num_tiles")
    layouts = len(vision.sequence("supported_aspect_ratios")) + 1
    yield column_parallel("patch_embed", Units(count=width), columns=vision.count("num_channels") * patch * patch)
    yield vector("class_embedding", width)
    yield replicated("gated_positional_embedding", patches, columns=width)
    yield replicated("tile_embedding", layouts, columns=tiles * patches * width)
    for name in ("pre_tile_positional_embedding", "post_tile_positional_embedding"):
        yield replicated(name, layouts, columns=tiles * width)
    yield vector("positional_gates", 3)
    yield layer_norm("layernorm_pre", width)
    yield layer_norm("layernorm_post", width)
