"""Qwen3-Omni's thinker: it sees with Qwen3-VL's tower, and hears with one of its own. The talker is not served."""

from collections.abc import Iterator

from kvgate.budget.matrix import Matrix
from kvgate.budget.model_shape import Encoder, MediaItem
from kvgate.hf_config.blocks import replicated
from kvgate.hf_config.encoders.parts import TowerLayer, counted, layer_norm, patch_embedding
from kvgate.hf_config.encoders.qwen_vision import QWEN2_MAX_PIXELS, QWEN3_DEFAULTS, images_and_videos, qwen3_tower
from kvgate.hf_config.fields import Fields

AUDIO_DEFAULTS = {
    "d_model": 1280, "encoder_layers": 32, "encoder_attention_heads": 20, "encoder_ffn_dim": 5120, "num_mel_bins": 128,
    "downsample_hidden_size": 480,
}  # fmt: skip
"""Defaults of `Qwen3OmniMoeAudioEncoderConfig` in transformers 4.57."""
AUDIO_TOKENS = 390
"""30 seconds, 13 tokens each."""


def qwen_omni_towers(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Pictures have as many pixels as Qwen2.5-VL's, in patches of Qwen3-VL's size."""
    thinker = config.section("thinker_config")
    vision = thinker.section("vision_config").over(QWEN3_DEFAULTS)
    audio = thinker.section("audio_config").over(AUDIO_DEFAULTS)
    return qwen3_tower(vision, hidden_size, images_and_videos(vision, QWEN2_MAX_PIXELS)), _audio(audio, hidden_size)


def _audio(audio: Fields, hidden_size: int) -> Encoder:
    layer = TowerLayer(
        hidden_size=audio.count("d_model"),
        intermediate_size=audio.count("encoder_ffn_dim"),
        num_heads=audio.count("encoder_attention_heads"),
    )
    around = tuple(_around(audio, layer.hidden_size, hidden_size))
    return Encoder(
        matrices=(*counted(audio.count("encoder_layers"), layer.matrices()), *counted(1, around)),
        hidden_size=layer.hidden_size,
        intermediate_size=layer.intermediate_size,
        items=(MediaItem(modality="audio", tokens=AUDIO_TOKENS),),
    )


def _around(audio: Fields, width: int, hidden_size: int) -> Iterator[Matrix]:
    """Three convolutions of 3 × 3 that halve the frequencies, and two projections."""
    channels, frequencies = audio.count("downsample_hidden_size"), audio.count("num_mel_bins")
    for _ in range(3):
        frequencies = (frequencies + 1) // 2
    yield replicated("conv2d1", channels, columns=9, bias=True)
    for name in ("conv2d2", "conv2d3"):
        yield replicated(name, channels, columns=9 * channels, bias=True)
    yield patch_embedding(width, columns=channels * frequencies)
    yield layer_norm("ln_post", width)
    yield replicated("proj1", width, columns=width, bias=True)
    yield replicated("proj2", hidden_size, columns=width, bias=True)
