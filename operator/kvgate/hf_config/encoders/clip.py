"""CLIP towers: LLaVA, Phi-3 Vision, and MiniMax-M3, whose layers are CLIP's too."""

from msgspec.structs import replace

from kvgate.budget.model.matrix import Matrix
from kvgate.budget.model.shape import Encoder, MediaItem
from kvgate.hf_config.blocks import replicated, vector
from kvgate.hf_config.encoders.parts import TowerLayer, built_layers, layer_norm, patch_embedding, tower, two_linears
from kvgate.hf_config.fields import Fields

_CLIP_DEFAULTS = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 224,
    "patch_size": 32, "num_channels": 3,
}  # fmt: skip
"""Defaults of `CLIPVisionConfig` in transformers 4.57."""

_VIT_L_14_336 = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16, "image_size": 336,
    "patch_size": 14, "num_channels": 3,
}  # fmt: skip
"""openai/clip-vit-large-patch14-336 (`CLIP_VIT_LARGE_PATCH14_336_CONFIG` in phi3v.py); vLLM does not build its last layer."""
_PHI3_MERGED_PATCHES = 4
_PHI3_IMAGE_TOKENS = 17 * 144 + 1 + 17 * 12
"""16 crops above each other and the whole picture, with separators (`num_crops` of Phi-3-vision's preprocessor_config.json)."""


def llava_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return LLaVA 1.5's tower; the projector reads the last layer but one."""
    vision = config.section("vision_config").over(_CLIP_DEFAULTS)
    width = vision.count("hidden_size")
    bias = config.flag("multimodal_projector_bias", default=True)
    projector = two_linears("multi_modal_projector", columns=width, inner=hidden_size, rows=hidden_size, bias=bias)
    num_layers = built_layers(config, vision, default=-2)
    return (_clip_tower(vision, num_layers, projector, MediaItem(modality="image", tokens=_patches(vision))),)


_GRID = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
"""Default `image_grid_pinpoints` of `LlavaNextConfig` in transformers 5."""


def llava_next_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return LLaVA 1.6's tower, which sees the whole picture and its tiles: a grid of patches with a separator behind each row."""
    (seeing,) = llava_vision(config, hidden_size)
    vision = config.section("vision_config").over(_CLIP_DEFAULTS)
    if vision.text("model_type", default="clip_vision_model") != "clip_vision_model":
        config.problems.append(
            "vision_config.model_type must be clip_vision_model; kvgate knows no other tower of this class"
        )
    side, whole = vision.count("image_size"), _patches(vision)
    edge = side // vision.count("patch_size")
    grids = [
        pair
        for pair in config.sequence("image_grid_pinpoints") or _GRID
        if isinstance(pair, list | tuple) and len(pair) == 2 and all(isinstance(n, int) and 0 < n < 10**5 for n in pair)
    ]
    # rows × columns and one separator a row (vLLM 0.32, `LlavaNextProcessingInfo.get_num_image_tokens`)
    tiles = [(edge * (height // side)) * (edge * (width // side) + 1) for height, width in grids]
    item = MediaItem(modality="image", tokens=whole + max(tiles, default=0))
    return (replace(seeing, matrices=(*seeing.matrices, (vector("image_newline", hidden_size), 1)), items=(item,)),)


def phi3_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return Phi-3 Vision's tower: its config names no sizes, it is always CLIP ViT-L/14 at 336 pixels; 2 × 2 patches are merged."""
    vision = Fields(_VIT_L_14_336, problems=config.problems)
    merged = _PHI3_MERGED_PATCHES * vision.count("hidden_size")
    projector = (
        vector("separators", 2 * merged),
        replicated("img_projection", hidden_size, columns=merged, bias=True),
        replicated("img_projection", hidden_size, columns=hidden_size, bias=True),
    )
    item = MediaItem(modality="image", tokens=_PHI3_IMAGE_TOKENS)
    return (replace(_clip_tower(vision, 23, projector, item), patches_per_token=_PHI3_MERGED_PATCHES),)


def _clip_tower(vision: Fields, num_layers: int, projector: tuple[Matrix, ...], item: MediaItem) -> Encoder:
    """Return one such tower; it has no norm behind its last layer."""
    width = vision.count("hidden_size")
    layer = TowerLayer(
        hidden_size=width,
        intermediate_size=vision.count("intermediate_size"),
        num_heads=vision.count("num_attention_heads"),
    )
    patch = vision.count("patch_size")
    around = (
        vector("class_embedding", width),
        patch_embedding(width, columns=vision.count("num_channels") * patch * patch),
        replicated("position_embedding", _patches(vision) + 1, columns=width),
        layer_norm("pre_layrnorm", width),
        *projector,
    )
    return tower(layer, num_layers, around, item)


def _patches(vision: Fields) -> int:
    side = vision.count("image_size") // vision.count("patch_size")
    return side * side


def minimax_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return MiniMax-M3's tower: patches of two frames, rotary positions; embeddings are projected first and merged afterwards."""
    vision = config.section("vision_config").over(_CLIP_DEFAULTS)
    compression = vision.section("img_token_compression_config")
    merged = compression.count("spatial_merge_size", default=2) ** 2
    width = vision.count("hidden_size")
    layer = TowerLayer(
        hidden_size=width,
        intermediate_size=vision.count("intermediate_size"),
        num_heads=vision.count("num_attention_heads"),
    )
    patch = vision.count("patch_size")
    pixels = vision.count("num_channels") * compression.count("temporal_patch_size", default=2) * patch * patch
    inner = config.count("projector_hidden_size", default=hidden_size)
    bias = config.flag("multimodal_projector_bias", default=True)
    merge_bias = config.flag("patch_merge_bias", default=True)
    around = (
        patch_embedding(width, columns=pixels),
        layer_norm("pre_layrnorm", width),
        *two_linears("multi_modal_projector", columns=width, inner=inner, rows=hidden_size, bias=bias),
        *two_linears("patch_merge_mlp", columns=hidden_size * merged, inner=inner, rows=hidden_size, bias=merge_bias),
    )
    tokens = (vision.count("image_size") // patch) ** 2 // merged
    items = (MediaItem(modality="image", tokens=tokens), MediaItem(modality="video", tokens=tokens))
    return (tower(layer, vision.count("num_hidden_layers"), around, *items, patches_per_token=merged),)
