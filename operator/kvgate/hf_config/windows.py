"""Attention windows of the layers (vLLM 0.32, `ModelConfig.get_sliding_window`, and transformers' config classes)."""

from kvgate.hf_config.architectures import Architecture
from kvgate.hf_config.fields import Fields

SLIDING = "sliding_attention"
_FULL = frozenset({"full_attention", "attention"})


def layer_windows(fields: Fields, known: Architecture, num_layers: int) -> tuple[int, ...]:
    """Tokens that each layer looks back, 0 for all of them; `use_sliding_window: false` switches windows off."""
    window = fields.optional_count("sliding_window")
    if not window or not fields.flag("use_sliding_window", default=True):
        return (0,) * num_layers
    window += known.window_surplus
    return tuple(window if sliding else 0 for sliding in sliding_layers(fields, known, num_layers))


def sliding_layers(fields: Fields, known: Architecture, num_layers: int) -> tuple[bool, ...]:
    """Return the layers that have a window, whatever its width: as `layer_types` lists them, else by the pattern of the class."""
    if kinds := fields.per_layer("layer_types", num_layers):
        return tuple(kind == SLIDING for kind in kinds)
    first = fields.optional_count("max_window_layers")
    if 0 < first < num_layers:
        return tuple(index >= first for index in range(num_layers))
    letters = fields.values.get("sliding_window_pattern")
    if isinstance(letters, str) and letters:
        return tuple(letters[index % len(letters)] == "L" for index in range(num_layers))
    every = fields.optional_count("sliding_window_pattern", "_sliding_window_pattern") or known.full_attention_every
    return tuple(not every or (index + 1) % every != 0 for index in range(num_layers))


def other_layer_types(fields: Fields) -> set[str]:
    """Kinds of layers that are neither windowed nor full attention."""
    return {str(kind) for kind in fields.sequence("layer_types")} - _FULL - {SLIDING}
