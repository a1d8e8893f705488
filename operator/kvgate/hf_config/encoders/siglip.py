"""SigLIP towers with Gemma 3's projector."""

from kvgate.budget.model_shape import Encoder, MediaItem
from kvgate.hf_config.blocks import replicated, vector
from kvgate.hf_config.encoders.parts import TowerLayer, counted, layer_norm, patch_embedding
from kvgate.hf_config.fields import Fields

SIGLIP_DEFAULTS = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 224,
    "patch_size": 16, "num_channels": 3,
}  # fmt: skip
"""Defaults of `SiglipVisionConfig` in transformers 4.57."""


def gemma3_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Patches are pooled to `mm_tokens_per_image`, and projected by a matrix that is no linear layer: every rank holds it."""
    vision = config.section("vision_config").over(SIGLIP_DEFAULTS)
    width, patch = vision.count("hidden_size"), vision.count("patch_size")
    patches = (vision.count("image_size") // patch) ** 2
    tokens = config.count("mm_tokens_per_image", default=256)
    layer = TowerLayer(
        hidden_size=width,
        intermediate_size=vision.count("intermediate_size"),
        num_heads=vision.count("num_attention_heads"),
    )
    around = (
        patch_embedding(width, columns=vision.count("num_channels") * patch * patch, bias=True),
        replicated("position_embedding", patches, columns=width),
        layer_norm("post_layernorm", width),
        vector("mm_soft_emb_norm", width),
        replicated("mm_input_projection", width, columns=hidden_size),
    )
    return (
        Encoder(
            matrices=(*counted(vision.count("num_hidden_layers"), layer.matrices()), *counted(1, around)),
            hidden_size=width,
            intermediate_size=layer.intermediate_size,
            items=(MediaItem(modality="image", tokens=tokens),),
            patches_per_token=max(1, patches // tokens),
        ),
    )
