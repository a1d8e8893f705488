"""MoonViT, the vision tower of Kimi K2.5 and K3; its projector is whole on every rank."""

from collections.abc import Iterator

from kvgate.budget.matrix import Matrix
from kvgate.budget.model_shape import Encoder, MediaItem
from kvgate.hf_config.blocks import replicated, vector
from kvgate.hf_config.encoders.parts import TowerLayer, counted, patch_embedding
from kvgate.hf_config.fields import Fields

MOONVIT_DEFAULTS = {
    "vt_hidden_size": 1152, "vt_intermediate_size": 4304, "vt_num_hidden_layers": 27, "vt_num_attention_heads": 16,
    "patch_size": 14, "init_pos_emb_height": 64, "init_pos_emb_width": 64, "merge_kernel_size": (2, 2), "attn_bias": True,
    "linear_bias": True, "patch_embed_proj_bias": True, "norm_type": "layernorm", "mm_projector_type": "patchmerger",
}  # fmt: skip
"""Defaults of `KimiK25VisionConfig` in vLLM 0.32; K3 has others for the last five."""
MAX_PATCHES = 16384
"""`in_patch_limit` of the checkpoints' preprocessor_config.json."""


def moonvit(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Pictures and pieces of videos are one modality, `vision_chunk`."""
    vision = config.section("vision_config").over(MOONVIT_DEFAULTS)
    width, merged = vision.count("vt_hidden_size"), _merged_patches(vision)
    norms = _norm_vectors(vision)
    num_heads = vision.count("vt_num_attention_heads")
    layer = TowerLayer(
        hidden_size=width,
        intermediate_size=vision.count("vt_intermediate_size"),
        num_heads=num_heads,
        head_dim=(vision.optional_count("qkv_hidden_size") or width) // num_heads,
        attention_bias=vision.flag("attn_bias"),
        mlp_bias=vision.flag("linear_bias"),
        norm_vectors=2 * norms,
    )
    around = (
        *_patches(vision, width),
        vector("final_layernorm", norms * width),
        *_projector(vision, width, merged, hidden_size),
    )
    return (
        Encoder(
            matrices=(*counted(vision.count("vt_num_hidden_layers"), layer.matrices()), *counted(1, around)),
            hidden_size=width,
            intermediate_size=layer.intermediate_size,
            items=(MediaItem(modality="vision_chunk", tokens=MAX_PATCHES // merged),),
            patches_per_token=merged,
            num_heads=num_heads,
        ),
    )


def _norm_vectors(vision: Fields) -> int:
    """LayerNorm has a bias, RMSNorm none."""
    return 1 if vision.text("norm_type") == "rmsnorm" else 2


def _merged_patches(vision: Fields) -> int:
    sizes = vision.sequence("merge_kernel_size")
    if len(sizes) == 2 and all(isinstance(size, int) and 0 < size < 100 for size in sizes):
        return int(sizes[0] * sizes[1])
    vision.problems.append("vision_config.merge_kernel_size must be two whole numbers")
    return 1


def _patches(vision: Fields, width: int) -> Iterator[Matrix]:
    patch = vision.count("patch_size")
    yield patch_embedding(width, columns=3 * patch * patch, bias=vision.flag("patch_embed_proj_bias"))
    rows = vision.count("init_pos_emb_height") * vision.count("init_pos_emb_width")
    yield replicated("pos_emb", rows, columns=width)


def _projector(vision: Fields, width: int, merged: int, hidden_size: int) -> Iterator[Matrix]:
    """K2.5 norms the patches before they are merged, K3 what comes out."""
    is_second = vision.text("mm_projector_type") == "patchmergerv2"
    yield vector("mm_projector.norm", hidden_size if is_second else 2 * width)
    yield replicated("mm_projector", merged * width, columns=merged * width, bias=not is_second)
    yield replicated("mm_projector", hidden_size, columns=merged * width, bias=not is_second)
