"""The vision tower of Step 3.7, a perception encoder: layers with scales, and two convolutions that leave a sixteenth."""

from collections.abc import Iterator

from kvgate.budget.matrix import Matrix, Units
from kvgate.budget.model_shape import Encoder, MediaItem
from kvgate.hf_config.blocks import column_parallel, replicated, vector
from kvgate.hf_config.encoders.parts import TowerLayer, counted, layer_norm, patch_embedding
from kvgate.hf_config.fields import Fields

PATCHES_PER_TOKEN = 16
CROP_TOKENS, MAX_CROPS = 81, 36
"""Crops of 504 pixels out of a picture of at most 3024 (vLLM 0.32, `Step3VLProcessor`)."""


def step_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """A class token and absolute positions are there where the config says so; otherwise they are rotary alone."""
    vision = config.section("vision_config")
    width = vision.count("width", "hidden_size")
    layer = TowerLayer(
        hidden_size=width,
        intermediate_size=int(width * _ratio(vision)),
        num_heads=vision.count("heads", "num_attention_heads"),
        norm_vectors=6 if vision.has("ls_init_value") else 4,
    )
    grid = vision.count("image_size") // vision.count("patch_size")
    projector = column_parallel(
        "vit_large_projector", Units(count=hidden_size), columns=4 * width, bias=config.flag("projector_bias")
    )
    around = (*_around(vision, width, grid * grid), projector)
    tokens = grid * grid // PATCHES_PER_TOKEN + MAX_CROPS * CROP_TOKENS
    return (
        Encoder(
            matrices=(*counted(vision.count("layers", "num_hidden_layers"), layer.matrices()), *counted(1, around)),
            hidden_size=width,
            intermediate_size=layer.intermediate_size,
            items=(MediaItem(modality="image", tokens=tokens),),
            patches_per_token=PATCHES_PER_TOKEN,
        ),
    )


def _ratio(vision: Fields) -> float:
    ratio = vision.values.get("mlp_ratio", 4)
    if isinstance(ratio, int | float) and not isinstance(ratio, bool) and 0 < ratio <= 100:
        return ratio
    vision.problems.append("vision_config.mlp_ratio must be a number above 0")
    return 1


def _around(vision: Fields, width: int, patches: int) -> Iterator[Matrix]:
    patch, has_class = vision.count("patch_size"), vision.flag("use_cls_token")
    yield patch_embedding(width, columns=3 * patch * patch)
    yield replicated("vit_downsampler1", 2 * width, columns=9 * width, bias=True)
    yield replicated("vit_downsampler2", 4 * width, columns=18 * width, bias=True)
    if has_class:
        yield vector("class_embedding", width)
    if vision.flag("use_abs_posemb", default=True):
        yield replicated("positional_embedding", patches + has_class, columns=width)
    for key, default in (("use_ln_pre", True), ("use_ln_post", False)):
        if vision.flag(key, default=default):
            yield layer_norm(key, width)
