"""Cosine and sine tables of rotary positions: one for every way in which a model's layers turn their heads."""

from collections.abc import Iterator, Mapping
from typing import Any

from kvgate.budget.model_shape import MROPE_POSITIONS, RotaryCache
from kvgate.hf_config.architectures import Architecture
from kvgate.hf_config.context import rope_scaling, scaled_length
from kvgate.hf_config.fields import HEADS, Fields

_SHARES = ("partial_rotary_factor", "rotary_pct")
_WHOLE_HEADS = "proportional"
"""Gemma 4 keeps the whole head in its table although it turns a part of it."""


def rotary_tables(fields: Fields, known: Architecture, hidden_size: int) -> tuple[RotaryCache, ...]:
    """One for the whole model, or one by kind of layer; models with other positions have none."""
    positions = fields.optional_count("max_position_embeddings", "n_positions", "seq_length")
    nope = fields.text("position_embedding_type") == "nope" or not known.positions
    if known.learned_positions is not None or nope or not positions:
        return ()
    width = fields.optional_count("qk_rope_head_dim", "head_dim") or hidden_size // fields.count(*HEADS)
    return tuple(_tables(fields, known, positions, width))


def _tables(fields: Fields, known: Architecture, positions: int, width: int) -> Iterator[RotaryCache]:
    by_layers = {kind: rope for kind, rope in fields.mapping("rope_parameters").items() if isinstance(rope, Mapping)}
    for kind, rope in by_layers.items():
        full_width = fields.optional_count("global_head_dim") if kind == "full_attention" else 0
        yield _table(fields, known, rope, positions, full_width or width)
    if by_layers:
        return
    rope = rope_scaling(fields)[1]
    yield _table(fields, known, rope, positions, width)
    if fields.text("model_type").startswith("gemma3"):  # windows turn without scaling
        yield _table(fields, known, {}, positions, width)


def _table(fields: Fields, known: Architecture, rope: Mapping[str, Any], positions: int, width: int) -> RotaryCache:
    kind = rope.get("rope_type", rope.get("type"))
    around = fields.share(*_SHARES, default=known.rotary_share)
    share = Fields(rope, name="rope_parameters", problems=fields.problems).share(*_SHARES, default=around)
    dimensions = width if kind == _WHOLE_HEADS else int(width * share)
    is_interleaved = bool(rope.get("mrope_section") and rope.get("mrope_interleaved"))
    if rope.get("mrope_section") and not is_interleaved:
        positions *= MROPE_POSITIONS
    if kind in ("yarn", "deepseek_yarn", "dynamic", "linear"):
        positions = scaled_length(fields, positions, str(kind), rope)
    if kind in ("longrope", "su"):  # one part for short sequences, one for long ones
        positions += fields.over(rope).optional_count("original_max_position_embeddings")
    return RotaryCache(
        max_position=positions,
        rotary_dim=dimensions,
        element_bytes=known.rotary_bytes,
        is_interleaved=is_interleaved,
    )
