"""Positions: the longest context that a model claims (vLLM 0.32, `_get_and_verify_max_len`), and the rotary tables for them."""

from collections.abc import Mapping
from typing import Any

from kvgate.budget.model_shape import MROPE_POSITIONS, RotaryCache
from kvgate.hf_config.family import Architecture
from kvgate.hf_config.fields import HEADS, Fields

_LENGTH_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
DEFAULT_MAX_MODEL_LEN = 2048
"""Length that vLLM takes where a config names none."""
MAX_FACTOR = 1_000_000
_UNSCALED = ("su", "longrope", "llama3", "mrope", "default", "proportional")
"""Kinds of rope scaling whose factor is already in max_position_embeddings."""


def rope_scaling(fields: Fields) -> tuple[Any, Mapping[str, Any]]:
    """Return (kind, settings) of the rope scaling; older configs call the kind `type`."""
    scaling = fields.mapping("rope_scaling", "rope_parameters")
    return scaling.get("rope_type", scaling.get("type")), scaling


def derived_max_model_len(fields: Fields, *, default: int = DEFAULT_MAX_MODEL_LEN) -> int:
    """Return the longest context in tokens; rope scaling multiplies where vLLM multiplies."""
    lengths = [length for key in _LENGTH_KEYS if (length := fields.optional_count(key))]
    length = min(lengths, default=default)
    kind, scaling = rope_scaling(fields)
    if not length or kind is None or kind in _UNSCALED or fields.text("model_type").startswith("gemma3"):
        return length
    return scaled_length(fields, length, str(kind), scaling)


def default_max_model_len(fields: Fields) -> int:
    """Return LongRoPE's length before scaling, which is better for short sequences; 0 where the derived length is the default."""
    kind, _ = rope_scaling(fields)
    return (fields.optional_count("original_max_position_embeddings") or 0) if kind in ("longrope", "su") else 0


def scaled_length(fields: Fields, length: int, kind: str, scaling: Mapping[str, Any]) -> int:
    """Return the scaled length: yarn starts from the length before scaling, the others multiply what the config states."""
    factor = scaling.get("factor", 1)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= MAX_FACTOR:
        fields.problems.append(f"the factor of rope scaling is {factor!r}; it must be a number above 0")
        return length
    scaled = Fields(scaling)
    original = scaled.optional_count("original_max_position_embeddings")
    fields.problems += scaled.problems
    if kind in ("yarn", "deepseek_yarn") and original:
        length = original
    return max(1, int(length * factor))


_SHARES = ("partial_rotary_factor", "rotary_pct")
_GEMMA3_POSITIONS = 131_072
"""Positions of Gemma 3's tables where its config states none: eight logged weights (0.8 to 0.19, 4B to 27B) then agree to 0.01 GiB."""
_WHOLE_HEADS = "proportional"
"""Gemma 4 keeps the whole head in its table although it turns a part of it."""


def rotary_tables(fields: Fields, known: Architecture, hidden_size: int) -> tuple[RotaryCache, ...]:
    """Return one cosine and sine table for the whole model, or one by kind of layer; models with other positions have none."""
    positions = fields.optional_count("max_position_embeddings", "n_positions", "seq_length")
    nope = fields.text("position_embedding_type") == "nope" or not known.positions
    if known.learned_positions is not None or nope or not positions:
        return ()
    is_gemma3 = fields.text("model_type").startswith("gemma3")
    if is_gemma3:
        positions = min(positions, _GEMMA3_POSITIONS)
    width = fields.optional_count("qk_rope_head_dim", "head_dim") or hidden_size // fields.count(*HEADS)
    by_layers = {kind: rope for kind, rope in fields.mapping("rope_parameters").items() if isinstance(rope, Mapping)}
    if by_layers:
        widths = {"full_attention": fields.optional_count("global_head_dim") or width}
        return tuple(_table(fields, known, by_layers[kind], positions, widths.get(kind, width)) for kind in by_layers)
    table = _table(fields, known, rope_scaling(fields)[1], positions, width)
    if is_gemma3:  # windows turn without scaling
        return (table, _table(fields, known, {}, positions, width))
    return (table,)


def _table(fields: Fields, known: Architecture, rope: Mapping[str, Any], positions: int, width: int) -> RotaryCache:
    kind = rope.get("rope_type", rope.get("type"))
    around = fields.share(*_SHARES, default=known.rotary_share)
    share = Fields(rope, name="rope_parameters", problems=fields.problems).share(*_SHARES, default=around)
    dimensions = width if kind == _WHOLE_HEADS else int(width * share)
    # Qwen3-VL's sections are interleaved also where a copy of its config leaves them out
    is_qwen3_vl = not rope and fields.text("model_type").startswith("qwen3_vl")
    is_interleaved = is_qwen3_vl or bool(rope.get("mrope_section") and rope.get("mrope_interleaved"))
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
