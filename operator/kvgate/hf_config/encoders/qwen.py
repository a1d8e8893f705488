"""The towers of Qwen2-VL to Qwen3.5 and of Qwen2.5-Omni and Qwen3-Omni: patches of two frames, merged 2 × 2 before the language model."""

from collections.abc import Iterable, Iterator

from msgspec.structs import replace

from kvgate.budget.model.matrix import Matrix
from kvgate.budget.model.shape import Encoder, MediaItem
from kvgate.hf_config.blocks import replicated, vector
from kvgate.hf_config.encoders.parts import TowerLayer, counted, layer_norm, patch_embedding, tower, two_linears
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
    return (_encoder(vision, layer, merger, _images_and_videos(vision, _QWEN2_MAX_PIXELS)),)


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
    return (_encoder(vision, layer, merger, _images_and_videos(vision, _QWEN2_MAX_PIXELS)),)


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
    encoder = _encoder(vision, layer, around, items)
    return replace(encoder, matrices=(*encoder.matrices, *deep), embedding_parts=1 + depth)


def _image(vision: Fields, max_pixels: int) -> MediaItem:
    """Return the largest picture that the processor accepts."""
    patch = vision.count("patch_size")
    return MediaItem(modality="image", tokens=max_pixels // (patch * patch * _merged_patches(vision)))


def _images_and_videos(vision: Fields, max_pixels: int) -> tuple[MediaItem, ...]:
    """Return pictures and videos; frames may be as large as pictures, and a video has as many as the context has room for."""
    picture = _image(vision, max_pixels)
    return picture, MediaItem(modality="video", tokens=_MAX_FRAME_PAIRS * picture.tokens, step_tokens=picture.tokens)


def _encoder(vision: Fields, layer: TowerLayer, around: Iterable[Matrix], items: tuple[MediaItem, ...]) -> Encoder:
    pixels = vision.count("in_channels", "in_chans") * vision.count("patch_size") ** 2
    patches = patch_embedding(layer.hidden_size, columns=pixels * vision.count("temporal_patch_size"))
    return Encoder(
        matrices=(*counted(1, (patches, *around)), *counted(vision.count("depth"), layer.matrices())),
        hidden_size=layer.hidden_size,
        intermediate_size=layer.intermediate_size,
        items=items,
        patches_per_token=_merged_patches(vision),
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
