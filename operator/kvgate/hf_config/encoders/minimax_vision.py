"""The vision tower of MiniMax-M3: CLIP's layers over patches of two frames, projected first and merged afterwards."""

from collections.abc import Iterator

from kvgate.budget.matrix import Matrix
from kvgate.budget.model_shape import Encoder, MediaItem
from kvgate.hf_config.encoders.clip import CLIP_DEFAULTS
from kvgate.hf_config.encoders.parts import TowerLayer, counted, layer_norm, patch_embedding, two_linears
from kvgate.hf_config.fields import Fields


def minimax_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Rotary positions; no norm behind the last layer."""
    vision = config.section("vision_config").over(CLIP_DEFAULTS)
    compression = vision.section("img_token_compression_config")
    merged = compression.count("spatial_merge_size", default=2) ** 2
    layer = TowerLayer(
        hidden_size=vision.count("hidden_size"),
        intermediate_size=vision.count("intermediate_size"),
        num_heads=vision.count("num_attention_heads"),
    )
    patch = vision.count("patch_size")
    pixels = vision.count("num_channels") * compression.count("temporal_patch_size", default=2) * patch * patch
    around = (
        patch_embedding(layer.hidden_size, columns=pixels),
        layer_norm("pre_layrnorm", layer.hidden_size),
        *_projectors(config, layer.hidden_size, hidden_size, merged),
    )
    tokens = (vision.count("image_size") // patch) ** 2 // merged
    return (
        Encoder(
            matrices=(*counted(vision.count("num_hidden_layers"), layer.matrices()), *counted(1, around)),
            hidden_size=layer.hidden_size,
            intermediate_size=layer.intermediate_size,
            items=(MediaItem(modality="image", tokens=tokens), MediaItem(modality="video", tokens=tokens)),
            patches_per_token=merged,
        ),
    )


def _projectors(config: Fields, width: int, hidden_size: int, merged: int) -> Iterator[Matrix]:
    inner = config.count("projector_hidden_size", default=hidden_size)
    bias = config.flag("multimodal_projector_bias", default=True)
    yield from two_linears("multi_modal_projector", columns=width, inner=inner, rows=hidden_size, bias=bias)
    merge_bias = config.flag("patch_merge_bias", default=True)
    columns = hidden_size * merged
    yield from two_linears("patch_merge_mlp", columns=columns, inner=inner, rows=hidden_size, bias=merge_bias)
