"""The longest context a model claims (vLLM 0.32, `_get_and_verify_max_len`)."""

from collections.abc import Mapping
from typing import Any

from kvgate.hf_config.fields import Fields

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
    """(kind, settings) of the rope scaling; older configs call the kind `type`."""
    scaling = fields.mapping("rope_scaling", "rope_parameters")
    return scaling.get("rope_type", scaling.get("type")), scaling


def derived_max_model_len(fields: Fields, *, default: int = DEFAULT_MAX_MODEL_LEN) -> int:
    """Tokens; rope scaling multiplies where vLLM multiplies."""
    lengths = [length for key in _LENGTH_KEYS if (length := fields.optional_count(key))]
    length = min(lengths, default=default)
    kind, scaling = rope_scaling(fields)
    if not length or kind is None or kind in _UNSCALED or fields.text("model_type").startswith("gemma3"):
        return length
    return scaled_length(fields, length, str(kind), scaling)


def default_max_model_len(fields: Fields) -> int:
    """LongRoPE: the length before scaling, lest short sequences suffer; 0 where the derived length is the default."""
    kind, _ = rope_scaling(fields)
    return (fields.optional_count("original_max_position_embeddings") or 0) if kind in ("longrope", "su") else 0


def scaled_length(fields: Fields, length: int, kind: str, scaling: Mapping[str, Any]) -> int:
    """yarn starts from the length before scaling; the others multiply what the config says."""
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
