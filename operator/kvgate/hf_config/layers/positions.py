"""Positions: the longest context that a model claims, by release, and the rotary tables for them."""

from collections.abc import Mapping
from typing import Any

from kvgate.budget.model.shape import MROPE_POSITIONS, RotaryCache
from kvgate.hf_config.family import Architecture
from kvgate.hf_config.fields import HEADS, Fields

_LENGTH_KEYS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_target_positions",
    "max_sequence_length", "max_seq_length", "seq_len",
)  # fmt: skip
MAX_FACTOR = 1_000_000
_STATED = ("su", "longrope", "llama3")
"""Kinds of rope scaling whose factor is already in max_position_embeddings."""
_YARN = ("yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Kinds whose factor releases before 0.30 multiply; 0.30 takes max_position_embeddings as it stands."""


def rope_scaling(fields: Fields) -> tuple[Any, Mapping[str, Any]]:
    """Return (kind, settings) of the rope scaling; older configs call the kind `type`."""
    scaling = fields.mapping("rope_scaling", "rope_parameters")
    return _kind(scaling), scaling


def _kind(rope: Mapping[str, Any]) -> str | None:
    kind = rope.get("rope_type", rope.get("type"))
    return None if kind is None else str(kind)


def lengths_by_rule(fields: Fields) -> dict[str, int]:
    """Return the longest context in tokens by the rule of a release (`Accounting.length_rule`); 0 where the config names none.

    Source: `_get_and_verify_max_len` of 0.8.5 to 0.33.0. `patch_rope_parameters` takes `rope_scaling` for `rope_parameters` since 0.12.
    """
    named = [length for key in _LENGTH_KEYS if (length := fields.optional_count(key))]
    stated = fields.optional_count("model_max_length") or min(named, default=0)  # the former wins (Command-R)
    ropes = _ropes(rope_scaling(fields)[1])
    return {
        "rope_scaling": _scaled(fields, stated, _ropes(fields.mapping("rope_scaling")), multiplies_yarn=True),
        "rope_parameters": _scaled(fields, stated, ropes, multiplies_yarn=True),
        "yarn_stated": _scaled(fields, stated, ropes, multiplies_yarn=False),
    }


def yarn_positions(fields: Fields) -> int:
    """Return the rows of a rotary table that yarn scales."""
    return lengths_by_rule(fields)["rope_parameters"] or 1


def _ropes(scaling: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the settings of each kind of layer, where they are nested, or the only ones."""
    return [each for each in scaling.values() if isinstance(each, Mapping)] or [scaling]


def _scaled(fields: Fields, length: int, ropes: list[Mapping[str, Any]], *, multiplies_yarn: bool) -> int:
    """Return the length times the factor of the last kind of layer that has one; Gemma 3's length is already scaled."""
    if not length or "gemma3" in fields.text("model_type"):
        return length
    factor: float = 1
    for rope in ropes:
        kind = _kind(rope)
        if kind is None or kind in _STATED or (kind in _YARN and not multiplies_yarn):
            continue
        factor = _factor(fields, rope) if rope.get("factor") is not None else factor
        length = _original(fields, rope) or length if kind == "yarn" else length
    return max(1, int(length * factor))


def default_max_model_len(fields: Fields) -> int:
    """Return LongRoPE's length before scaling, which is better for short sequences; 0 where the derived length is the default."""
    kinds = {_kind(rope) for rope in _ropes(rope_scaling(fields)[1])}
    return fields.optional_count("original_max_position_embeddings") if kinds & {"longrope", "su"} else 0


def _factor(fields: Fields, scaling: Mapping[str, Any]) -> float:
    factor = scaling.get("factor", 1)
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= MAX_FACTOR:
        fields.problems.append(f"the factor of rope scaling is {factor!r}; it must be a number above 0")
        return 1
    return factor


def _original(fields: Fields, scaling: Mapping[str, Any]) -> int:
    """Return the length before scaling. vLLM copies the config's own key into the scaling (`patch_rope_parameters`)."""
    scaled = Fields(scaling, problems=fields.problems).optional_count("original_max_position_embeddings")
    return scaled or fields.optional_count("original_max_position_embeddings")


def scaled_length(fields: Fields, length: int, kind: str, scaling: Mapping[str, Any]) -> int:
    """Return the rows of a rotary table: yarn starts from the length before scaling, the others multiply what the config states."""
    original = _original(fields, scaling) if kind in ("yarn", "deepseek_yarn") else 0
    return max(1, int((original or length) * _factor(fields, scaling)))


_SHARES = ("partial_rotary_factor", "rotary_pct")
_WHOLE_HEADS = "proportional"
"""Gemma 4 keeps the whole head in its table although it turns a part of it."""


def rotary_tables(fields: Fields, known: Architecture, hidden_size: int) -> tuple[RotaryCache, ...]:
    """Return one cosine and sine table for the whole model, or one by kind of layer; models with other positions have none."""
    positions = fields.optional_count("max_position_embeddings", "n_positions", "seq_length")
    nope = fields.text("position_embedding_type") == "nope" or not known.positions
    if known.learned_positions is not None or nope or not positions:
        return ()
    is_gemma3 = fields.text("model_type").startswith("gemma3")
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
    around = fields.number(*_SHARES, default=known.rotary_share)
    share = Fields(rope, name="rope_parameters", problems=fields.problems).number(*_SHARES, default=around)
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
