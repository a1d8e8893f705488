"""The keys of the language model in config.json, and the defaults of transformers for those that are missing."""

from collections.abc import Mapping
from typing import Any

_PATHS = (("text_config",), ("thinker_config", "text_config"), ("llm_config",), ("language_config",))
"""Most classes, Qwen3-Omni, InternVL and Step, DeepSeek-VL."""

_TEXT_DEFAULTS: dict[str, Mapping[str, Any]] = {
    "gemma3_text": {
        "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 163840,
        "sliding_window": 4096,
    },
    "llama": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "max_position_embeddings": 2048,
    },
    "mistral": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "sliding_window": 4096,
    },
}  # fmt: skip
"""Defaults of transformers' config classes by model_type; a nested config leaves out the values that equal them."""


def language_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """config.json with the keys of its language model before those around it; null inside means that the outer key counts."""
    nested = next((part for path in _PATHS if (part := _at(config, path))), {})
    model_type = nested.get("model_type")
    defaults = _TEXT_DEFAULTS.get(model_type, {}) if isinstance(model_type, str) else {}
    inner = {**defaults, **nested}
    return {**config, **{key: value for key, value in inner.items() if value is not None or key not in config}}


def _at(config: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    """The object at the end of a path; empty where there is none."""
    here: Any = config
    for key in path:
        here = here.get(key) if isinstance(here, Mapping) else None
    return here if isinstance(here, Mapping) else {}
