"""The towers of Gemma: SigLIP for Gemma 3, MobileNet and USM for Gemma 3n, Gemma 4's own, and the embedders of its unified variant.

The towers of Gemma 3n and 4 are transformers' classes, which vLLM cuts nowhere.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from kvgate.budget.ground.units import round_up
from kvgate.budget.model.matrix import Matrix, Units, whole
from kvgate.budget.model.shape import Encoder, MediaItem, TowerBlock
from kvgate.hf_config.blocks import column_parallel, replicated, row_parallel, vector
from kvgate.hf_config.encoders.parts import TowerLayer, counted, layer_norm, patch_embedding, tower
from kvgate.hf_config.fields import Fields

_SIGLIP_DEFAULTS = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12, "image_size": 224,
    "patch_size": 16, "num_channels": 3,
}  # fmt: skip
"""Defaults of `SiglipVisionConfig` in transformers 4.57."""
_VISION_DEFAULTS = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "num_attention_heads": 12, "head_dim": 64,
    "patch_size": 16, "pooling_kernel_size": 3, "position_embedding_size": 10240, "default_output_length": 280,
}  # fmt: skip
_AUDIO_DEFAULTS = {
    "hidden_size": 1024, "num_hidden_layers": 12, "num_attention_heads": 8, "conv_kernel_size": 5, "output_proj_dims": 1536,
    "subsampling_conv_channels": (128, 32),
}  # fmt: skip
"""Defaults of `Gemma4VisionConfig` and `Gemma4AudioConfig` in transformers 5."""

_FRAME_TOKENS = 32 * 70
_VIDEO_TOKENS = _FRAME_TOKENS + 32 * (2 + 6)
"""32 frames of 70 tokens, with their borders and timestamps (vLLM 0.32, gemma4_mm.py)."""
_AUDIO_TOKENS = 750
"""30 seconds, 25 tokens each (`audio_seq_length` of the processor)."""


def gemma3_vision(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return Gemma 3's tower: patches are pooled to `mm_tokens_per_image`.

    The projection is a parameter of its own and no linear layer, so every rank holds all of it.
    """
    vision = config.section("vision_config").over(_SIGLIP_DEFAULTS)
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
    item = MediaItem(modality="image", tokens=tokens)
    return (
        tower(
            layer,
            vision.count("num_hidden_layers"),
            around,
            item,
            patches_per_token=max(1, patches // tokens),
            block=TowerBlock(),
        ),
    )


def gemma4_towers(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return the tower of pictures and videos, and that of sounds, which only the E models have."""
    vision = config.section("vision_config").over(_VISION_DEFAULTS)
    width, patch = vision.count("hidden_size"), vision.count("patch_size")
    layer = TowerLayer(
        hidden_size=width,
        intermediate_size=vision.count("intermediate_size"),
        num_heads=vision.count("num_attention_heads"),
        num_kv_heads=vision.optional_count("num_key_value_heads"),
        head_dim=vision.count("head_dim"),
        gated=True,
        attention_bias=False,
        mlp_bias=False,
    )
    layers = (*map(whole, layer.matrices()), vector("qk_norm", 2 * layer.head_dim))
    around = (
        patch_embedding(width, columns=3 * patch * patch),
        replicated("position_embedding_table", 2 * vision.count("position_embedding_size"), columns=width),
        replicated("embed_vision", hidden_size, columns=width),
    )
    seeing = Encoder(
        matrices=(*counted(vision.count("num_hidden_layers"), layers), *counted(1, around)),
        hidden_size=width,
        intermediate_size=layer.intermediate_size,
        items=_pictures_and_videos(vision.count("default_output_length")),
        patches_per_token=vision.count("pooling_kernel_size") ** 2,
        chunk_patch_bytes=4 * 8 * vision.count("position_embedding_size"),
        block=TowerBlock(feed_forward="two_gates", copies_inputs=True),
        max_picture_patches=vision.count("default_output_length") * vision.count("pooling_kernel_size") ** 2,
    )
    hearing = _audio(config.section("audio_config").over(_AUDIO_DEFAULTS), hidden_size)
    if config.has("audio_config"):
        return seeing, hearing
    # copies of the E models' config in other projects leave the tower out; five logged starts (0.19 to 0.27) loaded it
    is_e_model = bool(config.section("text_config").optional_count("hidden_size_per_layer_input"))
    return (seeing, replace(hearing, is_unlisted=True)) if is_e_model else (seeing,)


def _pictures_and_videos(image_tokens: int) -> tuple[MediaItem, ...]:
    video = MediaItem(modality="video", tokens=_VIDEO_TOKENS, encoded_tokens=_FRAME_TOKENS)
    return MediaItem(modality="image", tokens=image_tokens), video


def _audio(audio: Fields, hidden_size: int) -> Encoder:
    width, outer = audio.count("hidden_size"), audio.count("output_proj_dims")
    layers = _conformer(width, width // audio.count("num_attention_heads"), audio.count("conv_kernel_size"))
    channels = audio.sequence("subsampling_conv_channels")
    frequencies = channels[0] if channels and isinstance(channels[0], int) else 0
    around = [
        *_subsampling(audio, "subsampling_conv_channels", width, frequencies),
        replicated("output_proj", outer, columns=width, bias=True),
        replicated("embed_audio", hidden_size, columns=outer),
    ]
    return Encoder(
        matrices=(*counted(audio.count("num_hidden_layers"), layers), *counted(1, around)),
        hidden_size=width,
        intermediate_size=4 * width,
        items=(MediaItem(modality="audio", tokens=_AUDIO_TOKENS),),
    )


def _conformer(width: int, head_dim: int, kernel: int) -> Iterator[Matrix]:
    """Yield the weights of one layer: two halves of a feed-forward block around relative attention and a convolution."""
    for _ in range(2):
        yield replicated("ffw_layer_1", 4 * width, columns=width)
        yield replicated("ffw_layer_2", width, columns=4 * width)
    for name in ("q_proj", "k_proj", "v_proj", "post", "relative_k_proj", "linear_end"):
        yield replicated(name, width, columns=width)
    yield replicated("linear_start", 2 * width, columns=width)
    yield replicated("depthwise_conv1d", width, columns=kernel)
    yield vector("per_dim_scale", head_dim)
    yield vector("norm", 9 * width)


def gemma4_unified(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return the embedders of a model without towers: patches and frames are projected straight into the language model."""
    embedders = []
    if config.has("vision_config"):
        vision = config.section("vision_config")
        width, pixels = vision.count("mm_embed_dim"), 3 * vision.count("model_patch_size") ** 2
        dense = column_parallel("patch_embed", Units(count=width), columns=pixels, bias=True)
        positions = replicated("pos_embedding", 2 * vision.count("mm_posemb_size"), columns=width)
        norms = layer_norm("norm", pixels + 2 * width)
        projection = replicated("embed_vision", hidden_size, columns=vision.count("output_proj_dims", default=width))
        items = _pictures_and_videos(vision.count("num_soft_tokens", default=280))
        embedders.append(_embedder((dense, positions, norms, projection), width, items))
    if config.has("audio_config"):
        width = config.section("audio_config").count("output_proj_dims", "hidden_size")
        projection = replicated("embed_audio", hidden_size, columns=width)
        embedders.append(_embedder((projection,), width, (MediaItem(modality="audio", tokens=_AUDIO_TOKENS),)))
    return tuple(embedders)


def _embedder(matrices: tuple[Matrix, ...], width: int, items: tuple[MediaItem, ...]) -> Encoder:
    return Encoder(matrices=tuple(counted(1, matrices)), hidden_size=width, intermediate_size=0, items=items)


_MOBILENET_PARAMETERS = 294_126_912
"""Parameters of `mobilenetv5_300m_enc` in timm 1.0.31, which is the only tower of Gemma 3n; config.json names no sizes."""
_MOBILENET_STEM, _MOBILENET_POSITIONS_PER_TOKEN = 64, 576
"""Channels of the first layer, and its positions behind one embedding: 768 × 768 pixels, halved in both directions, give 256."""
_3N_AUDIO_DEFAULTS = {
    "hidden_size": 1536, "conf_num_hidden_layers": 12, "conf_num_attention_heads": 8, "conf_conv_kernel_size": 5,
    "input_feat_size": 128, "sscp_conv_channel_size": (128, 32), "vocab_size": 128,
}  # fmt: skip
"""Defaults of `Gemma3nAudioConfig` in transformers 5."""


def gemma3n_towers(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Return Gemma 3n's towers, MobileNetV5 for pictures and USM's conformers for sound; every rank holds them whole.

    Embedders with a small vocabulary of their own stand behind them (vLLM 0.32, `Gemma3nMultimodalEmbedder`).
    """
    vision = config.section("vision_config").over({"hidden_size": 2048, "vocab_size": 128})
    stem = patch_embedding(_MOBILENET_STEM, columns=27)
    rest = vector("mobilenet", _MOBILENET_PARAMETERS - 27 * _MOBILENET_STEM)
    seeing = Encoder(
        matrices=tuple(counted(1, (stem, rest, *_3n_embedder(vision, hidden_size)))),
        hidden_size=_MOBILENET_STEM,
        intermediate_size=0,
        items=(MediaItem(modality="image", tokens=config.count("vision_soft_tokens_per_image", default=256)),),
        patches_per_token=_MOBILENET_POSITIONS_PER_TOKEN,
    )
    audio = config.section("audio_config").over(_3N_AUDIO_DEFAULTS)
    width = audio.count("hidden_size")
    head_dim = max(1, width // audio.count("conf_num_attention_heads"))
    layers = _conformer(width, head_dim, audio.count("conf_conv_kernel_size"))
    around = (
        *_subsampling(audio, "sscp_conv_channel_size", width, audio.count("input_feat_size")),
        *_3n_embedder(audio, hidden_size),
    )
    hearing = Encoder(
        matrices=(*counted(audio.count("conf_num_hidden_layers"), layers), *counted(1, around)),
        hidden_size=width,
        intermediate_size=4 * width,
        items=(MediaItem(modality="audio", tokens=config.count("audio_soft_tokens_per_image", default=188)),),
    )
    return seeing, hearing


def _3n_embedder(tower_config: Fields, hidden_size: int) -> Iterator[Matrix]:
    width = tower_config.count("hidden_size")
    yield column_parallel("embedding", Units(count=round_up(tower_config.count("vocab_size"), 64)), columns=width)
    yield vector("embedding_norm", 2 * width)
    yield row_parallel("embedding_projection", hidden_size, columns=width)


def _subsampling(audio: Fields, key: str, width: int, frequencies: int) -> Iterator[Matrix]:
    """Yield two convolutions of 3 × 3, each with a norm, which leave a quarter of the frequencies."""
    channels = [size for size in audio.sequence(key) if isinstance(size, int) and size > 0]
    if len(channels) != 2:
        audio.problems.append(f"audio_config.{key} must be two whole numbers")
        return
    first, second = channels
    yield replicated("subsample_conv", first, columns=9)
    yield replicated("subsample_conv", second, columns=9 * first)
    yield vector("subsample_norm", first + second)
    yield patch_embedding(width, columns=frequencies // 4 * second)
