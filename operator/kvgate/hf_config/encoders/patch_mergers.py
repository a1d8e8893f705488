"""Towers that merge patches before the language model: Qwen2-VL to Qwen3.5, Qwen2.5-Omni and Qwen3-Omni (2 × 2 of two frames),
GLM-4.1V, GLM-4.5V and GLM-OCR, MoonViT of Kimi-VL, K2.5 and K3, and Step 3.7.
"""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from kvgate.budget.model.matrix import Matrix, Units
from kvgate.budget.model.shape import DenseMlp, Encoder, MediaItem, TowerBlock
from kvgate.hf_config.blocks import column_parallel, dense_mlp, replicated, vector
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

_SHARED_DEFAULTS = {"num_heads": 16, "in_channels": 3, "temporal_patch_size": 2, "spatial_merge_size": 2}
_QWEN2_DEFAULTS = {**_SHARED_DEFAULTS, "depth": 32, "embed_dim": 1280, "mlp_ratio": 4, "patch_size": 14}
_QWEN2_5_DEFAULTS = {**_SHARED_DEFAULTS, "depth": 32, "hidden_size": 3584, "intermediate_size": 3420, "patch_size": 14}
_QWEN3_DEFAULTS = {
    **_SHARED_DEFAULTS, "depth": 27, "hidden_size": 1152, "intermediate_size": 4304, "patch_size": 16,
    "num_position_embeddings": 2304, "deepstack_visual_indexes": (8, 16, 24),
}  # fmt: skip
"""Defaults of the vision configs in transformers 4.57 (`Qwen2VLVisionConfig` and its successors)."""

_QWEN2_MAX_PIXELS = 12_845_056
"""`max_pixels` of Qwen2-VL's and Qwen2.5-VL's preprocessor_config.json; every pair of frames may have as many."""
_QWEN3_MAX_PIXELS = 16_777_216
"""`size.longest_edge` of Qwen3-VL's and Qwen3.5's preprocessor_config.json."""
_QWEN3_MAX_VIDEO_PIXELS = 25_165_824
"""The same of video_preprocessor_config.json, over all frames of a video."""
_QWEN3_RECKONED_TOKENS = 153_600
"""24,576 frames in pairs, 12.5 tokens each with their timestamps (0.11 to 0.13, `get_max_video_tokens` in qwen3_vl.py)."""
_MAX_FRAME_PAIRS = 7
"""vLLM profiles at most 14 frames of a video (0.32, `_MAX_FRAMES_PER_VIDEO` in qwen2_vl.py)."""

_OMNI_AUDIO_DEFAULTS = {
    "d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "num_mel_bins": 128,
    "downsample_hidden_size": 480,
}  # fmt: skip
"""Defaults of `Qwen3OmniMoeAudioEncoderConfig` in transformers 4.57."""
_QWEN2_5_AUDIO_TOKENS = 750
"""30 seconds, 25 tokens each."""
_OMNI_AUDIO_TOKENS = 390
"""30 seconds, 13 tokens each."""


def qwen2_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return Qwen2-VL's tower: its `hidden_size` is the language model's, its own width is `embed_dim`."""
    vision = config.section("vision_config").over(_QWEN2_DEFAULTS)
    width = vision.count("embed_dim")
    layer = TowerLayer(
        hidden_size=width, intermediate_size=width * vision.count("mlp_ratio"), num_heads=vision.count("num_heads")
    )
    merger = _merger(vision, width, hidden_size, norm=layer_norm("merger.ln_q", width))
    block = TowerBlock(feed_forward="quick_gelu", hidden=3, attention_cut=8, attention_whole=3, gathered=3)
    return (_encoder(vision, layer, merger, _images_and_videos(vision, _QWEN2_MAX_PIXELS), block),)


def qwen2_5_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return Qwen2.5-VL's tower: gated feed-forward blocks, norms without bias; in EXAONE 4.5 heads share keys and values."""
    vision = config.section("vision_config").over(_QWEN2_5_DEFAULTS)
    layer = TowerLayer(
        hidden_size=vision.count("hidden_size"),
        intermediate_size=vision.count("intermediate_size"),
        num_heads=vision.count("num_heads"),
        num_kv_heads=vision.optional_count("num_key_value_heads"),
        gated=True,
        norm_vectors=2,
    )
    merger = _merger(vision, layer.hidden_size, hidden_size, norm=vector("merger.ln_q", layer.hidden_size))
    block = TowerBlock(feed_forward="gated", attention_cut=8, attention_whole=3)
    return (_encoder(vision, layer, merger, _images_and_videos(vision, _QWEN2_MAX_PIXELS), block),)


def qwen3_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return Qwen3-VL's tower: the language model's first layers read the output of inner layers of the tower."""
    vision = config.section("vision_config").over(_QWEN3_DEFAULTS)
    return (_qwen3_tower(vision, hidden_size, _qwen3_items(vision)),)


def qwen3_5_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return Qwen3.5's tower: Qwen3-VL's, of which only the last output is read."""
    vision = config.section("vision_config").over({**_QWEN3_DEFAULTS, "deepstack_visual_indexes": ()})
    return (_qwen3_tower(vision, hidden_size, _qwen3_items(vision)),)


def _qwen3_items(vision: Fields) -> tuple[MediaItem, ...]:
    video = replace(
        _image(vision, _QWEN3_MAX_VIDEO_PIXELS // vision.count("temporal_patch_size")),
        modality="video",
        reckoned_tokens=_QWEN3_RECKONED_TOKENS,
    )
    return _image(vision, _QWEN3_MAX_PIXELS), video


def _qwen3_tower(vision: Fields, hidden_size: int, items: tuple[MediaItem, ...]) -> Encoder:
    """Return a tower with learned positions, and one more merger for every inner layer whose output the language model reads."""
    width = vision.count("hidden_size")
    layer = TowerLayer(
        hidden_size=width,
        intermediate_size=vision.count("intermediate_size"),
        num_heads=vision.count("num_heads"),
    )
    deep_norm = layer_norm("deepstack_merger_list.norm", width * _merged_patches(vision))
    depth = len(vision.sequence("deepstack_visual_indexes"))
    deep = counted(depth, _merger(vision, width, hidden_size, norm=deep_norm))
    around = (
        vector("patch_embed.bias", width),
        replicated("pos_embed", vision.count("num_position_embeddings"), columns=width),
        *_merger(vision, width, hidden_size, norm=layer_norm("merger.norm", width)),
    )
    encoder = _encoder(vision, layer, around, items, TowerBlock(attention_cut=8, attention_whole=4))
    return replace(encoder, matrices=(*encoder.matrices, *deep), embedding_parts=1 + depth)


def _image(vision: Fields, max_pixels: int) -> MediaItem:
    """Return the largest picture that the processor accepts."""
    patch = vision.count("patch_size")
    return MediaItem(modality="image", tokens=max_pixels // (patch * patch * _merged_patches(vision)))


def _images_and_videos(vision: Fields, max_pixels: int) -> tuple[MediaItem, ...]:
    """Return pictures and videos; frames may be as large as pictures, and a video has as many as the context has room for."""
    picture = _image(vision, max_pixels)
    return picture, MediaItem(modality="video", tokens=_MAX_FRAME_PAIRS * picture.tokens, step_tokens=picture.tokens)


def _encoder(
    vision: Fields, layer: TowerLayer, around: Iterable[Matrix], items: tuple[MediaItem, ...], block: TowerBlock
) -> Encoder:
    pixels = vision.count("in_channels", "in_chans") * vision.count("patch_size") ** 2
    patches = patch_embedding(layer.hidden_size, columns=pixels * vision.count("temporal_patch_size"))
    return Encoder(
        matrices=(*counted(1, (patches, *around)), *counted(vision.count("depth"), layer.matrices())),
        hidden_size=layer.hidden_size,
        intermediate_size=layer.intermediate_size,
        items=items,
        patches_per_token=_merged_patches(vision),
        block=block,
    )


def _merger(vision: Fields, width: int, hidden_size: int, *, norm: Matrix) -> Iterator[Matrix]:
    """Yield the norm and the projector that turn four patches into one embedding of the language model."""
    merged = width * _merged_patches(vision)
    yield norm
    yield from two_linears("merger", columns=merged, inner=merged, rows=hidden_size)


def _merged_patches(vision: Fields) -> int:
    return vision.count("spatial_merge_size") ** 2


def qwen_omni_towers(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return the towers of Qwen3-Omni's thinker: Qwen3-VL's for pictures, one of its own for sound. vLLM does not serve the talker.

    Pictures have as many pixels as Qwen2.5-VL's, in patches of Qwen3-VL's size.
    """
    thinker = config.section("thinker_config")
    vision = thinker.section("vision_config").over(_QWEN3_DEFAULTS)
    audio = thinker.section("audio_config").over(_OMNI_AUDIO_DEFAULTS)
    seeing = _qwen3_tower(vision, hidden_size, _images_and_videos(vision, _QWEN2_MAX_PIXELS))
    layer = TowerLayer(
        hidden_size=audio.count("d_model"),
        intermediate_size=audio.count("encoder_ffn_dim"),
        num_heads=audio.count("encoder_attention_heads"),
    )
    width, channels = layer.hidden_size, audio.count("downsample_hidden_size")
    frequencies = audio.count("num_mel_bins")
    for _ in range(3):  # each convolution of 3 × 3 halves them
        frequencies = (frequencies + 1) // 2
    around = (
        replicated("conv2d1", channels, columns=9, bias=True),
        replicated("conv2d2", channels, columns=9 * channels, bias=True),
        replicated("conv2d3", channels, columns=9 * channels, bias=True),
        patch_embedding(width, columns=channels * frequencies),
        layer_norm("ln_post", width),
        replicated("proj1", width, columns=width, bias=True),
        replicated("proj2", hidden_size, columns=width, bias=True),
    )
    item = MediaItem(modality="audio", tokens=_OMNI_AUDIO_TOKENS)
    return seeing, tower(layer, audio.count("encoder_layers"), around, item)


def qwen2_5_omni_towers(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return the towers of Qwen2.5-Omni's thinker: Qwen2.5-VL's for pictures, Qwen2-Audio's layers for sound, whole on every rank."""
    thinker = config.section("thinker_config")
    audio = thinker.section("audio_config").over({**_OMNI_AUDIO_DEFAULTS, "output_dim": 3584})
    width, outer = audio.count("d_model"), audio.count("output_dim")
    inner = audio.count("encoder_ffn_dim")
    layer = (
        replicated("q_proj", width, columns=width, bias=True),
        replicated("k_proj", width, columns=width),
        replicated("v_proj", width, columns=width, bias=True),
        replicated("out_proj", width, columns=width, bias=True),
        replicated("fc1", inner, columns=width, bias=True),
        replicated("fc2", width, columns=inner, bias=True),
        layer_norm("norm", 2 * width),
    )
    around = (
        replicated("conv1", width, columns=3 * audio.count("num_mel_bins"), bias=True),
        replicated("conv2", width, columns=3 * width, bias=True),
        replicated("audio_bos_eos_token", 2, columns=outer),
        layer_norm("ln_post", width),
        replicated("proj", outer, columns=width, bias=True),
    )
    hearing = Encoder(
        matrices=(*counted(audio.count("encoder_layers"), layer), *counted(1, around)),
        hidden_size=width,
        intermediate_size=inner,
        items=(MediaItem(modality="audio", tokens=_QWEN2_5_AUDIO_TOKENS),),
        patches_per_token=2,
    )
    return (*qwen2_5_vision(thinker, hidden_size), hearing)


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

_ROTATIONS = 512 * 512
"""Positions of the table of MoonViT (0.17 to 0.30, `Rope2DPosEmb`)."""
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
    # complex numbers of 8 bytes, half as many as elements of a head
    table_bytes = _ROTATIONS * 4 * (width // num_heads)
    return (replace(built, num_heads=num_heads, block=replace(COMPLEX_ROTATION, table_bytes=table_bytes)),)


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
