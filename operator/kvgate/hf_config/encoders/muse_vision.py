"""The vision tower of Muse Glimmer: its attention is dealt out, the rest is whole on every rank."""

from collections.abc import Iterator

from kvgate.budget.matrix import Matrix, whole
from kvgate.budget.model_shape import DenseMlp, Encoder, FullAttention, MediaItem
from kvgate.hf_config.blocks import attention, dense_mlp, replicated
from kvgate.hf_config.encoders.parts import counted, layer_norm, patch_embedding
from kvgate.hf_config.fields import Fields

MUSE_DEFAULTS = {
    "hidden_size": 1536, "intermediate_size": 8960, "num_hidden_layers": 50, "num_attention_heads": 16, "patch_size": 14,
    "patch_temporal": 2, "merge_size": 2, "pos_emb_height": 32, "pos_emb_width": 32,
}  # fmt: skip
"""Defaults of `MuseGlimmerVisionConfig` in transformers 5."""
MAX_IMAGE_TOKENS, MAX_FRAME_TOKENS, MAX_FRAMES = 4096, 144, 96
"""Defaults of its picture and video processors; two frames make a patch."""


def muse_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """An adapter of two layers, and a projection into the language model."""
    vision = config.section("vision_config").over(MUSE_DEFAULTS)
    width, merged = vision.count("hidden_size"), vision.count("merge_size") ** 2
    inner, frames = vision.count("intermediate_size"), vision.count("patch_temporal")
    layers = counted(vision.count("num_hidden_layers"), _layer(width, inner, vision.count("num_attention_heads")))
    adapter = config.count("projector_hidden_size", default=4096)
    around = (
        *_around(vision, width),
        replicated("vision_adapter", adapter, columns=width * merged),
        replicated("vision_adapter", adapter, columns=adapter),
        replicated("vision_projection", hidden_size, columns=adapter),
    )
    steps = MAX_FRAMES // frames
    return (
        Encoder(
            matrices=(*layers, *counted(1, around)),
            hidden_size=width,
            intermediate_size=inner,
            items=(
                MediaItem(modality="image", tokens=MAX_IMAGE_TOKENS),
                MediaItem(modality="video", tokens=steps * MAX_FRAME_TOKENS, step_tokens=MAX_FRAME_TOKENS),
            ),
            patches_per_token=merged,
        ),
    )


def _layer(width: int, inner: int, num_heads: int) -> Iterator[Matrix]:
    heads = FullAttention(num_heads=num_heads, num_kv_heads=num_heads, head_dim=width // num_heads)
    yield from attention(heads, width, qkv_bias=True, output_bias=True)
    yield from map(whole, dense_mlp(DenseMlp(intermediate_size=inner, gated=False), width, bias=True))
    yield layer_norm("ln", 2 * width)


def _around(vision: Fields, width: int) -> Iterator[Matrix]:
    patch, frames = vision.count("patch_size"), vision.count("patch_temporal")
    positions = vision.count("pos_emb_height") * vision.count("pos_emb_width")
    yield patch_embedding(width, columns=3 * frames * patch * patch)
    yield replicated("positional_embedding_vlm", positions, columns=width)
    yield layer_norm("ln_pre", width)
    yield layer_norm("ln_post", width)
