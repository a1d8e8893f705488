"""The vision towers of Meta's models: Llama 3.2 Vision, Llama 4 and Muse Glimmer."""

from kvgate.budget.model.matrix import Units, whole
from kvgate.budget.model.shape import DenseMlp, Encoder, FullAttention, MediaItem
from kvgate.hf_config.blocks import attention, column_parallel, dense_mlp, replicated, vector
from kvgate.hf_config.encoders.parts import (
    COMPLEX_ROTATION,
    TowerLayer,
    counted,
    layer_norm,
    patch_embedding,
    tower,
    two_linears,
)
from kvgate.hf_config.fields import Fields

_MLLAMA_DEFAULTS = {
    "hidden_size": 1280, "intermediate_size": 5120, "num_hidden_layers": 32, "num_global_layers": 8, "attention_heads": 16,
    "image_size": 448, "patch_size": 14, "num_channels": 3, "max_num_tiles": 4, "vision_output_dim": 7680,
    "supported_aspect_ratios": ((1, 1), (1, 2), (1, 3), (1, 4), (2, 1), (2, 2), (3, 1), (4, 1)),
}  # fmt: skip
"""Defaults of `MllamaVisionConfig` in transformers 4.57."""

_LLAMA4_DEFAULTS = {
    "hidden_size": 768, "intermediate_size": 5632, "num_hidden_layers": 34, "num_attention_heads": 16, "image_size": 448,
    "patch_size": 14, "num_channels": 3, "vision_output_dim": 7680, "projector_input_dim": 4096, "projector_output_dim": 4096,
}  # fmt: skip
"""Defaults of `Llama4VisionConfig` in transformers 5; a config without `vision_config` gets all of them."""
_LLAMA4_PATCHES_PER_TOKEN = 4
"""`pixel_shuffle_ratio` 0.5 in both directions."""
_LLAMA4_MAX_TILES = 17
"""`max_patches` 16 of the checkpoints' preprocessor_config.json, and the whole picture once more."""

_MUSE_DEFAULTS = {
    "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 50, "num_attention_heads": 16, "patch_size": 14,
    "patch_temporal": 2, "merge_size": 2, "pos_emb_height": 32, "pos_emb_width": 32,
}  # fmt: skip
"""Defaults of `MuseGlimmerVisionConfig` in transformers 5."""
_MUSE_IMAGE_TOKENS, _MUSE_FRAME_TOKENS, _MUSE_FRAMES = 4096, 144, 96
"""Most tokens of a picture and of a frame, and most frames: defaults of its processors; two frames make a patch."""


def mllama_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return the tower of Llama 3.2 Vision: gated layers behind the plain ones; the language model attends to every patch of a tile."""
    vision = config.section("vision_config").over(_MLLAMA_DEFAULTS)
    width = vision.count("hidden_size")
    layer = TowerLayer(
        hidden_size=width,
        intermediate_size=vision.count("intermediate_size"),
        num_heads=vision.count("attention_heads"),
        attention_bias=False,
    )
    plain, gated = vision.count("num_hidden_layers"), vision.count("num_global_layers")
    patches = (vision.count("image_size") // vision.count("patch_size")) ** 2 + 1
    outer, patch, tiles = vision.count("vision_output_dim"), vision.count("patch_size"), vision.count("max_num_tiles")
    layouts = (
        len(vision.sequence("supported_aspect_ratios")) + 1
    )  # a row for each way to lay out tiles, and one for none
    around = (
        column_parallel("patch_embed", Units(count=width), columns=vision.count("num_channels") * patch * patch),
        vector("class_embedding", width),
        replicated("gated_positional_embedding", patches, columns=width),
        replicated("tile_embedding", layouts, columns=tiles * patches * width),
        replicated("pre_tile_positional_embedding", layouts, columns=tiles * width),
        replicated("post_tile_positional_embedding", layouts, columns=tiles * width),
        vector("positional_gates", 3),
        layer_norm("layernorm_pre", width),
        layer_norm("layernorm_post", width),
        column_parallel("multi_modal_projector", Units(count=hidden_size), columns=outer, bias=True),
    )
    layers = (*counted(plain + gated, layer.matrices()), *counted(gated, (vector("gates", 2),)))
    return (
        Encoder(
            matrices=(*layers, *counted(1, around)),
            hidden_size=width,
            intermediate_size=layer.intermediate_size,
            items=(MediaItem(modality="image", tokens=tiles * patches),),
        ),
    )


def llama4_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return Llama 4's tower: 2 × 2 patches are shuffled into one, then projected twice.

    Even the patch embedding is dealt out (`Llama4UnfoldConvolution`).
    """
    vision = config.section("vision_config").over(_LLAMA4_DEFAULTS)
    width = vision.count("hidden_size")
    layer = TowerLayer(
        hidden_size=width,
        intermediate_size=vision.count("intermediate_size"),
        num_heads=vision.count("num_attention_heads"),
    )
    patch = vision.count("patch_size")
    patches = (vision.count("image_size") // patch) ** 2
    pixels = vision.count("num_channels") * patch * patch
    inner, outer = vision.count("projector_input_dim"), vision.count("projector_output_dim")
    around = (
        column_parallel("patch_embed", Units(count=width), columns=pixels),
        vector("class_embedding", width),
        replicated("positional_embedding_vlm", patches + 1, columns=width),
        layer_norm("layernorm_pre", width),
        layer_norm("layernorm_post", width),
        *two_linears("vision_adapter", columns=layer.intermediate_size, inner=inner, rows=outer, bias=False),
        column_parallel("multi_modal_projector", Units(count=hidden_size), columns=vision.count("vision_output_dim")),
    )
    item = MediaItem(modality="image", tokens=_LLAMA4_MAX_TILES * (patches // _LLAMA4_PATCHES_PER_TOKEN))
    return (
        tower(
            layer,
            vision.count("num_hidden_layers"),
            around,
            item,
            patches_per_token=_LLAMA4_PATCHES_PER_TOKEN,
            block=COMPLEX_ROTATION,
        ),
    )


def muse_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return Muse Glimmer's tower: its attention is dealt out, the rest is whole on every rank."""
    vision = config.section("vision_config").over(_MUSE_DEFAULTS)
    width, merged = vision.count("hidden_size"), vision.count("merge_size") ** 2
    inner, frames = vision.count("intermediate_size"), vision.count("patch_temporal")
    num_layers, num_heads = vision.count("num_hidden_layers"), vision.count("num_attention_heads")
    heads = FullAttention(num_heads=num_heads, num_kv_heads=num_heads, head_dim=width // num_heads)
    layer = (
        *attention(heads, width, qkv_bias=True, output_bias=True),
        *map(whole, dense_mlp(DenseMlp(intermediate_size=inner, gated=False), width, bias=True)),
        layer_norm("ln", 2 * width),
    )
    adapter, patch = config.count("projector_hidden_size", default=4096), vision.count("patch_size")
    positions = vision.count("pos_emb_height") * vision.count("pos_emb_width")
    around = (
        patch_embedding(width, columns=3 * frames * patch * patch),
        replicated("positional_embedding_vlm", positions, columns=width),
        layer_norm("ln_pre", width),
        layer_norm("ln_post", width),
        replicated("vision_adapter", adapter, columns=width * merged),
        replicated("vision_adapter", adapter, columns=adapter),
        replicated("vision_projection", hidden_size, columns=adapter),
    )
    video_tokens = _MUSE_FRAMES // frames * _MUSE_FRAME_TOKENS
    return (
        Encoder(
            matrices=(*counted(num_layers, layer), *counted(1, around)),
            hidden_size=width,
            intermediate_size=inner,
            items=(
                MediaItem(modality="image", tokens=_MUSE_IMAGE_TOKENS),
                MediaItem(modality="video", tokens=video_tokens, step_tokens=_MUSE_FRAME_TOKENS),
            ),
            patches_per_token=merged,
        ),
    )
