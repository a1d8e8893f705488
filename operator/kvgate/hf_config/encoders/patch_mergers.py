"""Vision towers that merge patches in a way of their own: GLM-4.1V, GLM-4.5V and GLM-OCR, MoonViT of Kimi-VL, K2.5 and K3, Step 3.7."""

from msgspec.structs import replace

from kvgate.budget.model.matrix import Units
from kvgate.budget.model.shape import DenseMlp, Encoder, MediaItem
from kvgate.hf_config.blocks import column_parallel, dense_mlp, replicated, vector
from kvgate.hf_config.encoders.parts import TowerLayer, layer_norm, patch_embedding, tower
from kvgate.hf_config.fields import Fields

_GLM4V_DEFAULTS = {
    "depth": 24, "hidden_size": 1536, "num_heads": 12, "in_channels": 3, "image_size": 336, "patch_size": 14,
    "temporal_patch_size": 2, "spatial_merge_size": 2, "intermediate_size": 13696,
}  # fmt: skip
"""Defaults of `Glm4vVisionConfig` in transformers 4.57."""
_GLM4V_MAX_PIXELS = 9_633_792
"""`size.longest_edge` of the checkpoints' preprocessor_config.json, over both frames of a patch."""

_MOONVIT_DEFAULTS = {
    "vt_hidden_size": 1152, "vt_intermediate_size": 4304, "vt_num_hidden_layers": 27, "vt_num_attention_heads": 16,
    "patch_size": 14, "init_pos_emb_height": 64, "init_pos_emb_width": 64, "merge_kernel_size": (2, 2), "attn_bias": True,
    "linear_bias": True, "patch_embed_proj_bias": True, "norm_type": "layernorm", "mm_projector_type": "patchmerger",
}  # fmt: skip
"""Defaults of `KimiK25VisionConfig` in vLLM 0.32; K3 has others for the last five."""
_MOONVIT_MAX_PATCHES = 16384
"""`in_patch_limit` of the checkpoints' preprocessor_config.json."""

_KIMI_VL_MAX_PATCHES = 4096
"""`in_token_limit` of Kimi-VL-A3B-Instruct's preprocessor_config.json."""

_STEP_PATCHES_PER_TOKEN = 16
_STEP_CROP_TOKENS, _STEP_MAX_CROPS = 81, 36
"""Crops of 504 pixels out of a picture of at most 3024 (vLLM 0.32, `Step3VLProcessor`)."""


def glm4v_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return GLM-4V's tower: patches of two frames, and a convolution and a gated block in front of the language model.

    The layers' own blocks are as wide as the language model; `intermediate_size` belongs to the merger.
    """
    vision = config.section("vision_config").over(_GLM4V_DEFAULTS)
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
    patch = vision.count("patch_size")
    pixels = vision.count("in_channels") * vision.count("temporal_patch_size") * patch * patch
    around = (
        patch_embedding(width, columns=pixels, bias=True),
        replicated("position_embedding", (vision.count("image_size") // patch) ** 2, columns=width),
        vector("norm", 2 * width),
        replicated("downsample", hidden_size, columns=width * merge * merge, bias=True),
        column_parallel("merger.proj", Units(count=hidden_size), columns=hidden_size),
        layer_norm("merger.norm", hidden_size),
        *dense_mlp(DenseMlp(intermediate_size=vision.count("intermediate_size")), hidden_size),
    )
    tokens = _GLM4V_MAX_PIXELS // (vision.count("temporal_patch_size") * (patch * merge) ** 2)
    items = (MediaItem(modality="image", tokens=tokens), MediaItem(modality="video", tokens=tokens))
    return (tower(layer, vision.count("depth"), around, *items, patches_per_token=merge * merge),)


def glm_ocr_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return GLM-OCR's tower: GLM-4V's without learnt positions, with biases, norms of queries and keys, and a width of its own."""
    vision = config.section("vision_config").over({**_GLM4V_DEFAULTS, "hidden_size": 1024, "num_heads": 16})
    vision = vision.over({"intermediate_size": 4096, "attention_bias": True, "out_hidden_size": hidden_size})
    width, outer, merge = (
        vision.count("hidden_size"),
        vision.count("out_hidden_size"),
        vision.count("spatial_merge_size"),
    )
    num_heads, bias = vision.count("num_heads"), vision.flag("attention_bias")
    layer = TowerLayer(
        hidden_size=width,
        intermediate_size=vision.count("intermediate_size"),
        num_heads=num_heads,
        gated=True,
        attention_bias=bias,
        mlp_bias=bias,
        norm_vectors=2,
    )
    patch = vision.count("patch_size")
    pixels = vision.count("in_channels") * vision.count("temporal_patch_size") * patch * patch
    around = (
        patch_embedding(width, columns=pixels, bias=True),
        vector("norm", width),
        replicated("downsample", outer, columns=width * merge * merge, bias=True),
        column_parallel("merger.proj", Units(count=outer), columns=outer),
        layer_norm("merger.norm", outer),
        *dense_mlp(DenseMlp(intermediate_size=config.section("text_config").count("intermediate_size")), outer),
    )
    tokens = _GLM4V_MAX_PIXELS // (vision.count("temporal_patch_size") * (patch * merge) ** 2)
    items = (MediaItem(modality="image", tokens=tokens), MediaItem(modality="video", tokens=tokens))
    built = tower(layer, vision.count("depth"), around, *items, patches_per_token=merge * merge)
    qk_norm = vector("qk_norm", 2 * (width // num_heads))
    return (replace(built, matrices=(*built.matrices, (qk_norm, vision.count("depth")))),)


def moonvit(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return MoonViT; its projector is whole on every rank. Pictures and pieces of videos are one modality, `vision_chunk`."""
    vision = config.section("vision_config").over(_MOONVIT_DEFAULTS)
    width, sizes, merged = vision.count("vt_hidden_size"), vision.sequence("merge_kernel_size"), 1
    if len(sizes) == 2 and all(isinstance(size, int) and 0 < size < 100 for size in sizes):
        merged = int(sizes[0] * sizes[1])
    else:
        vision.problems.append("vision_config.merge_kernel_size must be two whole numbers")
    norm_vectors = 1 if vision.text("norm_type") == "rmsnorm" else 2  # LayerNorm has a bias, RMSNorm none
    num_heads = vision.count("vt_num_attention_heads")
    layer = TowerLayer(
        hidden_size=width,
        intermediate_size=vision.count("vt_intermediate_size"),
        num_heads=num_heads,
        head_dim=(vision.optional_count("qkv_hidden_size") or width) // num_heads,
        attention_bias=vision.flag("attn_bias"),
        mlp_bias=vision.flag("linear_bias"),
        norm_vectors=2 * norm_vectors,
    )
    patch, rows = vision.count("patch_size"), vision.count("init_pos_emb_height") * vision.count("init_pos_emb_width")
    norms_outputs = (
        vision.text("mm_projector_type") == "patchmergerv2"
    )  # K3; K2.5 norms the patches before they are merged
    around = (
        patch_embedding(width, columns=3 * patch * patch, bias=vision.flag("patch_embed_proj_bias")),
        replicated("pos_emb", rows, columns=width),
        vector("final_layernorm", norm_vectors * width),
        vector("mm_projector.norm", hidden_size if norms_outputs else 2 * width),
        replicated("mm_projector", merged * width, columns=merged * width, bias=not norms_outputs),
        replicated("mm_projector", hidden_size, columns=merged * width, bias=not norms_outputs),
    )
    item = MediaItem(modality="vision_chunk", tokens=_MOONVIT_MAX_PATCHES // merged)
    built = tower(layer, vision.count("vt_num_hidden_layers"), around, item, patches_per_token=merged)
    return (replace(built, num_heads=num_heads),)


_KIMI_VL_NAMES = {
    "vt_hidden_size": "hidden_size", "vt_intermediate_size": "intermediate_size", "vt_num_hidden_layers": "num_hidden_layers",
    "vt_num_attention_heads": "num_attention_heads",
}  # fmt: skip


def kimi_vl_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return Kimi-VL's MoonViT, whose keys have other names; its processor takes at most 4096 patches of a picture.

    Unlike that of K2.5, its layers have no way out where the ranks do not divide its heads.
    """
    vision = config.section("vision_config").renamed(_KIMI_VL_NAMES)
    (tower,) = moonvit(Fields({**config.values, "vision_config": vision.values}, problems=config.problems), hidden_size)
    item = MediaItem(modality="image", tokens=_KIMI_VL_MAX_PATCHES // tower.patches_per_token)
    return (replace(tower, items=(item,), num_heads=0),)


def step_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return Step 3.7's perception encoder: layers with scales, and two convolutions that leave a sixteenth of the patches.

    It has a class token and absolute positions where the config says so; otherwise positions are rotary alone.
    """
    vision = config.section("vision_config")
    width, ratio = vision.count("width", "hidden_size"), vision.values.get("mlp_ratio", 4)
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio <= 100:
        vision.problems.append("vision_config.mlp_ratio must be a number above 0 and up to 100")
        ratio = 1
    layer = TowerLayer(
        hidden_size=width,
        intermediate_size=int(width * ratio),
        num_heads=vision.count("heads", "num_attention_heads"),
        norm_vectors=6 if vision.has("ls_init_value") else 4,
    )
    patch, has_class = vision.count("patch_size"), vision.flag("use_cls_token")
    patches = (vision.count("image_size") // patch) ** 2
    around = [
        patch_embedding(width, columns=3 * patch * patch),
        replicated("vit_downsampler1", 2 * width, columns=9 * width, bias=True),
        replicated("vit_downsampler2", 4 * width, columns=18 * width, bias=True),
    ]
    if has_class:
        around.append(vector("class_embedding", width))
    if vision.flag("use_abs_posemb", default=True):
        around.append(replicated("positional_embedding", patches + has_class, columns=width))
    for key, default in (("use_ln_pre", True), ("use_ln_post", False)):
        if vision.flag(key, default=default):
            around.append(layer_norm(key, width))
    bias = config.flag("projector_bias")
    around.append(column_parallel("vit_large_projector", Units(count=hidden_size), columns=4 * width, bias=bias))
    num_layers = vision.count("layers", "num_hidden_layers")
    item = MediaItem(modality="image", tokens=patches // _STEP_PATCHES_PER_TOKEN + _STEP_MAX_CROPS * _STEP_CROP_TOKENS)
    return (tower(layer, num_layers, around, item, patches_per_token=_STEP_PATCHES_PER_TOKEN),)
