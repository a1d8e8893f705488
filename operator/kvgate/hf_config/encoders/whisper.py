"""Whisper's encoder: thirty seconds of sound are always 1500 states."""

from dataclasses import replace

from kvgate.budget.model_shape import Encoder, MediaItem
from kvgate.hf_config.blocks import replicated
from kvgate.hf_config.encoders.parts import TowerLayer, counted, layer_norm
from kvgate.hf_config.fields import Fields

DOWNSAMPLED_STATES = 4
"""Voxtral's language model hears one embedding for so many states."""


def whisper_audio(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Its decoder is as wide, and attends to every state."""
    item = MediaItem(modality="audio", tokens=config.count("max_source_positions"))
    return (_encoder(config, hidden_size, item),)


def voxtral_audio(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Whisper's encoder with an adapter; sounds are cut into pieces of thirty seconds, as many as the context has room for."""
    audio = config.section("audio_config")
    width = audio.count("d_model", "hidden_size")
    piece = max(1, audio.count("max_source_positions") // DOWNSAMPLED_STATES)
    longest = config.section("text_config").count("max_position_embeddings", default=piece)
    item = MediaItem(modality="audio", tokens=max(piece, longest // piece * piece), step_tokens=piece)
    adapter = (
        replicated("audio_language_adapter", hidden_size, columns=DOWNSAMPLED_STATES * width),
        replicated("audio_language_adapter", hidden_size, columns=hidden_size),
    )
    encoder = _encoder(audio, width, item)
    matrices = (*encoder.matrices, *counted(1, adapter))
    return (replace(encoder, matrices=matrices, patches_per_token=DOWNSAMPLED_STATES),)


def _encoder(audio: Fields, width: int, item: MediaItem) -> Encoder:
    """Two convolutions over the spectrum, positions, and plain layers."""
    layer = TowerLayer(
        hidden_size=width,
        intermediate_size=audio.count("encoder_ffn_dim", "intermediate_size"),
        num_heads=audio.count("encoder_attention_heads", "num_attention_heads"),
    )
    around = (
        replicated("conv1", width, columns=3 * audio.count("num_mel_bins"), bias=True),
        replicated("conv2", width, columns=3 * width, bias=True),
        replicated("embed_positions", audio.count("max_source_positions"), columns=width),
        layer_norm("layer_norm", width),
    )
    return Encoder(
        matrices=(*counted(audio.count("encoder_layers", "num_hidden_layers"), layer.matrices()), *counted(1, around)),
        hidden_size=width,
        intermediate_size=layer.intermediate_size,
        items=(item,),
    )
