"""Whisper's encoder: thirty seconds of sound are always 1500 states."""

from kvgate.budget.model_shape import Encoder, MediaItem
from kvgate.hf_config.blocks import replicated
from kvgate.hf_config.encoders.parts import TowerLayer, counted, layer_norm
from kvgate.hf_config.fields import Fields


def whisper_audio(config: Fields, hidden_size: int) -> tuple[Encoder, ...]:
    """Two convolutions over the spectrum, positions, and plain layers."""
    layer = TowerLayer(
        hidden_size=hidden_size,
        intermediate_size=config.count("encoder_ffn_dim"),
        num_heads=config.count("encoder_attention_heads"),
    )
    positions = config.count("max_source_positions")
    around = (
        replicated("conv1", hidden_size, columns=3 * config.count("num_mel_bins"), bias=True),
        replicated("conv2", hidden_size, columns=3 * hidden_size, bias=True),
        replicated("embed_positions", positions, columns=hidden_size),
        layer_norm("layer_norm", hidden_size),
    )
    return (
        Encoder(
            matrices=(*counted(config.count("encoder_layers"), layer.matrices()), *counted(1, around)),
            hidden_size=hidden_size,
            intermediate_size=layer.intermediate_size,
            items=(MediaItem(modality="audio", tokens=positions),),
        ),
    )
