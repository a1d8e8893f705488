"""The vision tower of GLM-4.1V and GLM-4.5V: patches of two frames, a convolution and a gated block in front of the language model."""

from collections.abc import Iterator

from kvgate.budget.matrix import Matrix, Units
from kvgate.budget.model_shape import DenseMlp, Encoder, MediaItem
from kvgate.hf_config.blocks import column_parallel, dense_mlp, replicated, vector
from kvgate.hf_config.encoders.parts import TowerLayer, counted, layer_norm, patch_embedding
from kvgate.hf_config.fields import Fields

GLM4V_DEFAULTS = {
    "depth": 24, "hidden_size": 1536, "num_heads": 12, "in_channels": 3, "image_size": 336, "patch_size": 14,
    "temporal_patch_size": 2, "spatial_merge_size": 2, "intermediate_size": 13696,
}  # fmt: skip
"""Defaults of `Glm4vVisionConfig` in transformers 4.57."""
MAX_PIXELS = 9_633_792
"""`size.longest_edge` of the checkpoints' preprocessor_config.json, over both frames of a patch."""


def glm4v_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Its layers are as wide inside as what comes out; `intermediate_size` belongs to the merger."""
    vision = config.section("vision_config").over(GLM4V_DEFAULTS)
    width, merge = vision.count("hidden_size"), vision.count("spatial_merge_size")
    layer = TowerLayer(
        hidden_size=width,
        intermediate_size=hidden_size,
        num_heads=vision.count("num_heads"),
        gated=True,
        attention_bias=False,
        mlp_bias=False,
        norm_vectors=2,
    )
    around = (*_patches(vision, width), *_merger(vision, width, hidden_size, merge))
    patch = vision.count("patch_size")
    tokens = MAX_PIXELS // (vision.count("temporal_patch_size") * (patch * merge) ** 2)
    return (
        Encoder(
            matrices=(*counted(vision.count("depth"), layer.matrices()), *counted(1, around)),
            hidden_size=width,
            intermediate_size=hidden_size,
            items=(MediaItem(modality="image", tokens=tokens), MediaItem(modality="video", tokens=tokens)),
            patches_per_token=merge * merge,
        ),
    )


def _patches(vision: Fields, width: int) -> Iterator[Matrix]:
    patch = vision.count("patch_size")
    pixels = vision.count("in_channels") * vision.count("temporal_patch_size") * patch * patch
    yield patch_embedding(width, columns=pixels, bias=True)
    yield replicated("position_embedding", (vision.count("image_size") // patch) ** 2, columns=width)
    yield vector("norm", 2 * width)


def _merger(vision: Fields, width: int, hidden_size: int, merge: int) -> Iterator[Matrix]:
    yield replicated("downsample", hidden_size, columns=width * merge * merge, bias=True)
    yield column_parallel("merger.proj", Units(count=hidden_size), columns=hidden_size)
    yield layer_norm("merger.norm", hidden_size)
    yield from dense_mlp(DenseMlp(intermediate_size=vision.count("intermediate_size")), hidden_size)
