"""Towers of CLIP's kind: LLaVA, Phi-3 Vision and MiniMax-M3 have CLIP's layers; InternViT, the tower of InternVL and Intern-S1, merges
2 × 2 patches of each tile in front of the language model.
"""

from msgspec.structs import replace

from kvgate.budget.model.matrix import Matrix, whole
from kvgate.budget.model.shape import Encoder, MediaItem, TowerBlock
from kvgate.hf_config.blocks import replicated, vector
from kvgate.hf_config.encoders.parts import (
    TowerLayer,
    built_layers,
    counted,
    layer_norm,
    patch_embedding,
    tower,
    two_linears,
)
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
    return tower(layer, num_layers, around, item, block=TowerBlock(feed_forward="quick_gelu"))


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


_CHAT_DEFAULTS = {
    "hidden_size": 3200, "intermediate_size": 12800, "num_hidden_layers": 48, "num_attention_heads": 25, "image_size": 224,
    "patch_size": 14, "qkv_bias": False, "qk_normalization": True, "norm_type": "rms_norm",
}  # fmt: skip
"""Defaults of the checkpoints' `InternVisionConfig`, which is InternViT-6B."""
_HF_DEFAULTS = {
    "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    "image_size": (448, 448), "patch_size": (14, 14), "num_channels": 3, "attention_bias": False, "use_qk_norm": False,
    "use_mask_token": False, "use_absolute_position_embeddings": True, "norm_type": "layer_norm",
}  # fmt: skip
"""Defaults of `InternVLVisionConfig` in transformers 5."""
_HF_MAX_TILES = 12
"""`max_patches` of the checkpoints' preprocessor_config.json; the whole picture comes on top."""
_WITH_VIDEO = ("qwen2", "qwen3", "qwen3_moe", "gpt_oss")
"""Language models whose vocabulary has a token for frames (vLLM 0.32, `ctx_video_token`)."""


def internvl_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return the tower of `InternVLChatModel`: attention is cut if the ranks divide its heads, and otherwise whole beside cut blocks.

    Layers behind `select_layer` are not built.
    """
    vision = config.section("vision_config").over(_CHAT_DEFAULTS)
    num_layers, used = vision.count("num_hidden_layers"), config.values.get("select_layer", -1)
    if isinstance(used, int) and -num_layers <= used < num_layers:
        num_layers = num_layers + used + 1 if used < 0 else used + 1
    side = config.count("force_image_size", default=vision.count("image_size"))
    patches_of_tile = (side // vision.count("patch_size")) ** 2
    merged = _merged_patches(config)
    tiles = config.count("max_dynamic_patch", default=1) if config.flag("dynamic_image_size", default=True) else 1
    tiles += tiles > 1 and config.flag("use_thumbnail")
    text = config.section("llm_config" if config.has("llm_config") else "text_config")
    built = _tower(
        vision,
        num_layers,
        bias=vision.flag("qkv_bias"),
        has_norms=vision.flag("qk_normalization"),
        around=_around(vision, hidden_size, merged, (vision.count("image_size") // vision.count("patch_size")) ** 2),
    )
    items = _items(tiles, patches_of_tile // merged, text, with_video=text.text("model_type") in _WITH_VIDEO)
    return (replace(built, items=items, patches_per_token=merged),)


def internvl_hf_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return the tower in the format of transformers: its attention is whole on every rank, its blocks are cut."""
    vision = config.section("vision_config").over(_HF_DEFAULTS)
    sizes = vision.renamed({"image_size": "image_size", "patch_size": "patch_size"})  # height and width
    patches = (sizes.count("image_size") // sizes.count("patch_size")) ** 2
    merged = _merged_patches(config)
    masks = (vector("mask_token", vision.count("hidden_size")),) if vision.flag("use_mask_token") else ()
    positions = patches if vision.flag("use_absolute_position_embeddings", default=True) else -1
    built = _tower(
        vision,
        vision.count("num_hidden_layers"),
        bias=vision.flag("attention_bias"),
        has_norms=vision.flag("use_qk_norm"),
        around=(*masks, *_around(sizes, hidden_size, merged, positions)),
        whole_attention=True,
    )
    items = _items(_HF_MAX_TILES + 1, patches // merged, config.section("text_config"), with_video=True)
    return (replace(built, items=items, patches_per_token=merged),)


def _merged_patches(config: Fields) -> int:
    return max(1, int(1 / config.number("downsample_ratio", default=0.5))) ** 2


def _around(vision: Fields, hidden_size: int, merged: int, positions: int) -> tuple[Matrix, ...]:
    """Return what stands before and behind the layers; `positions` below 0 means that none are learnt."""
    width, patch = vision.count("hidden_size"), vision.count("patch_size")
    return (
        vector("class_embedding", width),
        patch_embedding(width, columns=3 * patch * patch, bias=True),
        *((replicated("position_embedding", positions + 1, columns=width),) if positions >= 0 else ()),
        layer_norm("mlp1.norm", width * merged),
        replicated("mlp1", hidden_size, columns=width * merged, bias=True),
        replicated("mlp1", hidden_size, columns=hidden_size, bias=True),
    )


def _tower(
    vision: Fields,
    num_layers: int,
    *,
    bias: bool,
    has_norms: bool,
    around: tuple[Matrix, ...],
    whole_attention: bool = False,
) -> Encoder:
    """Return layers with two learnt scales; queries and keys may be normed over all heads."""
    width = vision.count("hidden_size")
    norm = 1 if vision.text("norm_type") == "rms_norm" else 2
    layer = TowerLayer(
        hidden_size=width,
        intermediate_size=vision.count("intermediate_size"),
        num_heads=vision.count("num_attention_heads"),
        norm_vectors=2 * norm + 2 + (2 if has_norms else 0),
    )
    matrices = []
    for matrix in layer.matrices():
        is_attention = matrix.name in ("qkv_proj", "o_proj")
        has_bias = bias if matrix.name == "qkv_proj" else matrix.bias
        matrices.append(replace(whole(matrix) if is_attention and whole_attention else matrix, bias=has_bias))
    return Encoder(
        matrices=(*counted(num_layers, matrices), *counted(1, around)),
        hidden_size=width,
        intermediate_size=layer.intermediate_size,
        items=(),
        num_heads=0 if whole_attention else layer.num_heads,
        whole_with_heads=frozenset({"qkv_proj", "o_proj"}),
    )


def _items(tiles: int, tile_tokens: int, text: Fields, *, with_video: bool) -> tuple[MediaItem, ...]:
    """Return pictures, and videos of as many frames as the context has room for; each frame is one tile."""
    picture = MediaItem(modality="image", tokens=tiles * tile_tokens)
    if not with_video:
        return (picture,)
    frames = max(1, (text.optional_count("max_position_embeddings") or picture.tokens) // max(1, tile_tokens))
    return picture, MediaItem(modality="video", tokens=frames * tile_tokens, step_tokens=tile_tokens)
