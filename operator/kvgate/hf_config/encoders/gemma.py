"""The towers of Gemma: SigLIP for Gemma 3, Gemma 4's own, and the embedders of its unified variant.

Gemma 4's towers are transformers' classes, which vLLM cuts nowhere.
"""

from collections.abc import Iterator

from kvgate.budget.matrix import Matrix, Units, whole
from kvgate.budget.model_shape import Encoder, MediaItem
from kvgate.hf_config.blocks import column_parallel, replicated, vector
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

_VIDEO_TOKENS = 32 * (70 + 2 + 6)
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
    pooled = max(1, patches // tokens)
    return (tower(layer, vision.count("num_hidden_layers"), around, item, patches_per_token=pooled),)


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
    )
    if not config.has("audio_config"):
        return (seeing,)
    return seeing, _audio(config.section("audio_config").over(_AUDIO_DEFAULTS), hidden_size)


def _pictures_and_videos(image_tokens: int) -> tuple[MediaItem, ...]:
    return MediaItem(modality="image", tokens=image_tokens), MediaItem(modality="video", tokens=_VIDEO_TOKENS)


def _audio(audio: Fields, hidden_size: int) -> Encoder:
    width, outer = audio.count("hidden_size"), audio.count("output_proj_dims")
    layers = _conformer(width, width // audio.count("num_attention_heads"), audio.count("conv_kernel_size"))
    around = [
        replicated("output_proj", outer, columns=width, bias=True),
        replicated("embed_audio", hidden_size, columns=outer),
    ]
    # in front, two convolutions of 3 × 3, each with a norm, leave a quarter of the frequencies
    channels = [size for size in audio.sequence("subsampling_conv_channels") if isinstance(size, int) and size > 0]
    if len(channels) == 2:
        first, second = channels
        around[:0] = [
            replicated("subsample_conv", first, columns=9),
            replicated("subsample_conv", second, columns=9 * first),
            vector("subsample_norm", first + second),
            patch_embedding(width, columns=first // 4 * second),
        ]
    else:
        audio.problems.append("audio_config.subsampling_conv_channels must be two whole numbers")
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
