"""CLIP towers with the projectors of LLaVA and Phi-3 Vision."""

from collections.abc import Iterator
from dataclasses import replace

from kvgate.budget.matrix import Matrix
from kvgate.budget.model_shape import Encoder, MediaItem
from kvgate.hf_config.blocks import replicated, vector
from kvgate.hf_config.encoders.parts import TowerLayer, built_layers, counted, layer_norm, patch_embedding, two_linears
from kvgate.hf_config.fields import Fields

CLIP_DEFAULTS = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 224,
    "patch_size": 32, "num_channels": 3,
}  # fmt: skip
"""Defaults of `CLIPVisionConfig` in transformers 4.57."""

VIT_L_14_336 = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": 336,
    "patch_size": 14, "num_channels": 3,
}  # fmt: skip
"""openai/clip-vit-large-patch14-336 (`CLIP_VIT_LARGE_PATCH14_336_CONFIG` in phi3v.py); its last layer is not built."""
PHI3_MERGED_PATCHES = 4
PHI3_IMAGE_TOKENS = 17 * 144 + 1 + 17 * 12
"""16 crops above each other and the whole picture, with separators (`num_crops` of Phi-3-vision's preprocessor_config.json)."""


def llava_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """LLaVA 1.5: the projector reads the last layer but one."""
    vision = config.section("vision_config").over(CLIP_DEFAULTS)
    width = vision.count("hidden_size")
    bias = config.flag("multimodal_projector_bias", default=True)
    projector = two_linears("multi_modal_projector", columns=width, inner=hidden_size, rows=hidden_size, bias=bias)
    layers = built_layers(config, vision, default=-2)
    return (clip_tower(vision, layers, projector, MediaItem(modality="image", tokens=_patches(vision))),)


def phi3_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Phi-3 Vision names no sizes: its tower is always CLIP ViT-L/14 at 336 pixels, and merges 2 × 2 patches."""
    vision = Fields(VIT_L_14_336, problems=config.problems)
    merged = PHI3_MERGED_PATCHES * vision.count("hidden_size")
    projector = (
        vector("separators", 2 * merged),
        replicated("img_projection", hidden_size, columns=merged, bias=True),
        replicated("img_projection", hidden_size, columns=hidden_size, bias=True),
    )
    item = MediaItem(modality="image", tokens=PHI3_IMAGE_TOKENS)
    return (replace(clip_tower(vision, 23, projector, item), patches_per_token=PHI3_MERGED_PATCHES),)


def clip_tower(vision: Fields, num_layers: int, projector: tuple[Matrix, ...], item: MediaItem) -> Encoder:
    """One such tower, without the norm after its last layer."""
    width = vision.count("hidden_size")
    layer = TowerLayer(
        hidden_size=width,
        intermediate_size=vision.count("intermediate_size"),
        num_heads=vision.count("num_attention_heads"),
    )
    return Encoder(
        matrices=(*counted(num_layers, layer.matrices()), *counted(1, (*_around(vision, width), *projector))),
        hidden_size=width,
        intermediate_size=layer.intermediate_size,
        items=(item,),
    )


def _around(vision: Fields, width: int) -> Iterator[Matrix]:
    patch = vision.count("patch_size")
    yield vector("class_embedding", width)
    yield patch_embedding(width, columns=vision.count("num_channels") * patch * patch)
    yield replicated("position_embedding", _patches(vision) + 1, columns=width)
    yield layer_norm("pre_layrnorm", width)


def _patches(vision: Fields) -> int:
    side = vision.count("image_size") // vision.count("patch_size")
    return side * side
