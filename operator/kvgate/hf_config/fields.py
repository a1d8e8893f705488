"""config.json: its text with limits, the keys of its language model, and typed access that collects every problem and stops at none."""

import json
from collections.abc import Mapping
from math import inf, nan
from typing import Any

from kvgate.text.json_values import MAX_DEPTH, NOT_UNICODE, is_nested_beyond, parsed_has_lone_surrogate

HEADS = ("num_attention_heads", "n_head", "num_heads", "decoder_attention_heads")
HIDDEN = ("hidden_size", "n_embd", "d_model")
LARGEST = 10**12
"""No count in a config.json is larger; a larger one is a mistake or an attack."""


class ModelConfigError(ValueError):
    """A config.json that cannot be read as a model; `problems` has one sentence per key, each saying what to do."""

    def __init__(self, problems: tuple[str, ...]) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


MAX_CHARACTERS = 4_000_000
"""The longest published config.json (MiniMax-M3-NVFP4: 22,422 modules by name) has 2.4 million."""

_FLOAT = "__float__"
"""Key by which transformers writes numbers that JSON does not have: {"__float__": "Infinity"} (`PreTrainedConfig`)."""
_SPECIAL = {"Infinity": inf, "-Infinity": -inf, "NaN": nan}


def parse_config_text(text: str) -> dict[str, Any]:
    """Return the object as Python reads JSON: with `Infinity`, `-Infinity` and `NaN`, which published configs hold.

    Raises ModelConfigError for what is too long, not JSON, not an object, nested too deeply, or not Unicode.
    """
    if len(text) > MAX_CHARACTERS:
        raise ModelConfigError((f"it has {len(text)} characters; a config.json has less than {MAX_CHARACTERS}",))
    try:
        config = json.loads(text.removeprefix("\ufeff"), object_hook=_special_float if f'"{_FLOAT}"' in text else None)
        is_too_deep = is_nested_beyond(config, MAX_DEPTH)
        is_unicode = is_too_deep or not parsed_has_lone_surrogate(text, config)
    except (ValueError, RecursionError) as error:
        raise ModelConfigError((f"it is not JSON ({error})",)) from None
    if not isinstance(config, dict):
        raise ModelConfigError((f"it is JSON of type {type(config).__name__}, not an object",))
    if is_too_deep:
        raise ModelConfigError((f"it is nested deeper than {MAX_DEPTH} levels; a config.json has less than ten",))
    if not is_unicode:
        raise ModelConfigError((NOT_UNICODE,))
    return config


def _special_float(found: dict[str, Any]) -> Any:
    return _SPECIAL.get(str(found[_FLOAT]), found) if found.keys() == {_FLOAT} else found


_PATHS = (("text_config",), ("thinker_config", "text_config"), ("llm_config",), ("language_config",))
"""Most classes, Qwen3-Omni, InternVL and Step, DeepSeek-VL."""

_TEXT_DEFAULTS: dict[str, Mapping[str, Any]] = {
    "gemma3_text": {
        "vocab_size": 262144, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
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
_LENGTH_DEFAULTS = {
    "cohere": 8192,
    "cohere2": 8192,
    "deepseek_v2": 2048,
    "ernie4_5": 131072,
    "gemma": 8192,
    "gemma2": 8192,
    "gemma3n_text": 32768,
    "gemma4_text": 131072,
    "glm4": 131072,
    "glm4_moe": 131072,
    "glm4v_moe_text": 65536,
    "glm4v_text": 32768,
    "granite": 2048,
    "llama4_text": 131072,
    "mixtral": 131072,
    "mllama_text_model": 131072,
    "olmo2": 2048,
    "phi3": 4096,
    "qwen2": 32768,
    "qwen2_5_omni_text": 32768,
    "qwen2_5_vl_text": 32768,
    "qwen2_moe": 32768,
    "qwen2_vl_text": 32768,
    "qwen3": 32768,
    "qwen3_moe": 32768,
    "qwen3_omni_moe_text": 32768,
    "qwen3_vl_moe_text": 128000,
    "qwen3_vl_text": 128000,
    "smollm3": 32768,
}
"""Their max_position_embeddings, for classes whose other values stand in published configs (transformers 4.57 and 5.20 agree)."""


def language_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json with the keys of its language model before those around it; where one is null inside, the outer key counts."""
    nested: Mapping[str, Any] = {}
    for path in _PATHS:
        here: Any = config
        for key in path:
            here = here.get(key) if isinstance(here, Mapping) else None
        if isinstance(here, Mapping) and here:
            nested = here
            break
    model_type = nested.get("model_type")
    defaults: dict[str, Any] = {}
    if isinstance(model_type, str):
        if model_type in _LENGTH_DEFAULTS and "max_position_embeddings" not in config:
            defaults["max_position_embeddings"] = _LENGTH_DEFAULTS[model_type]
        defaults |= _TEXT_DEFAULTS.get(model_type, {})
    inner = {**defaults, **nested}
    return {**config, **{key: value for key, value in inner.items() if value is not None or key not in config}}


class Fields:
    """A view of one mapping that remembers what was wrong with it."""

    def __init__(self, values: Mapping[str, Any], *, name: str = "", problems: list[str] | None = None) -> None:
        self.values = values
        self.problems: list[str] = [] if problems is None else problems
        self._prefix = f"{name}." if name else ""

    def section(self, key: str) -> "Fields":
        """Return the object under a key, empty where there is none; its problems are collected here, with the key before them."""
        return Fields(self.mapping(key), name=f"{self._prefix}{key}", problems=self.problems)

    def over(self, defaults: Mapping[str, Any]) -> "Fields":
        """Return the same with these values where nothing is set, as a config class of transformers fills in."""
        known = {key: value for key, value in self.values.items() if value is not None}
        return Fields({**defaults, **known}, name=self._prefix[:-1], problems=self.problems)

    def renamed(self, names: Mapping[str, str]) -> "Fields":
        """Return the same with usual keys where a class has its own; a list with an equal entry for every layer is one value."""
        found: dict[str, Any] = {}
        for usual, own in names.items():
            value: Any = self.values
            for part in own.split("."):
                value = value.get(part) if isinstance(value, Mapping) else None
            if isinstance(value, list | tuple) and value:
                if any(entry != value[0] for entry in value):
                    self.problems.append(
                        f"{self._prefix}{own} differs from layer to layer, and kvgate knows no such model"
                    )
                value = value[0]
            if value is not None:
                found[usual] = value
        return Fields({**self.values, **found}, name=self._prefix[:-1], problems=self.problems) if found else self

    def count(self, *keys: str, default: int | None = None) -> int:
        """Return the first of `keys` that is set, as a whole number above 0; where none is, collect a problem and return 1."""
        key, value = self._first(keys)
        if value is None:
            if default is not None:
                return default
            self.problems.append(f"{self._prefix}{' or '.join(keys)} is missing; copy the model's whole config.json")
            return 1
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= LARGEST:
            self.problems.append(f"{self._prefix}{key} is {_shown(value)}; it must be a whole number above 0")
            return 1
        return value

    def optional_count(self, *keys: str) -> int:
        """Return a count, or 0 where nothing is set: null, 0 and absence mean the same here."""
        key, value = self._first(keys)
        if not value:
            return 0
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= LARGEST:
            self.problems.append(f"{self._prefix}{key} is {_shown(value)}; it must be a whole number or null")
            return 0
        return value

    def number(self, *keys: str, most: float = 1, default: float | None = None) -> float:
        """Return the first of `keys` that is set, as a number above 0 and up to `most`; else collect a problem and return 1."""
        key, value = self._first(keys)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
            self.problems.append(
                f"{self._prefix}{key} is {_shown(value)}; it must be a number above 0 and up to {most:g}"
            )
            return 1
        return value

    def flag(self, *keys: str, default: bool = False) -> bool:
        """Return the first of `keys` that is set, as a truth value."""
        _, value = self._first(keys)
        return default if value is None else bool(value)

    def mapping(self, *keys: str) -> Mapping[str, Any]:
        return next((self.values[key] for key in keys if isinstance(self.values.get(key), Mapping)), {})

    def sequence(self, key: str) -> list[Any]:
        value = self.values.get(key)
        return list(value) if isinstance(value, list | tuple) else []

    def per_layer(self, key: str, num_layers: int) -> list[Any]:
        """Return a list with one entry per decoder layer; empty where there is none. Entries beyond the last layer are for drafts."""
        entries = self.sequence(key)
        if entries and len(entries) < num_layers:
            self.problems.append(
                f"{self._prefix}{key} has {len(entries)} entries for {num_layers} layers; each layer needs one"
            )
            return []
        return entries[:num_layers]

    def counts_per_layer(self, key: str, num_layers: int, *, default: int) -> tuple[int, ...]:
        """Return a whole number above 0 for each layer; without a list every layer gets the default."""
        entries = self.per_layer(key, num_layers) or [default] * num_layers
        for entry in entries:
            if isinstance(entry, bool) or not isinstance(entry, int) or not 0 < entry <= LARGEST:
                self.problems.append(
                    f"{self._prefix}{key} has {_shown(entry)}; every entry must be a whole number above 0"
                )
                return (default,) * num_layers
        return tuple(entries)

    def layer_numbers(self, key: str) -> frozenset[int]:
        """Return the numbers of the layers in a list; empty where there is none."""
        entries = self.sequence(key)
        wrong = [entry for entry in entries if isinstance(entry, bool) or not isinstance(entry, int)]
        if wrong:
            self.problems.append(
                f"{self._prefix}{key} has {_shown(wrong[0])}; every entry must be the number of a layer"
            )
            return frozenset()
        return frozenset(entries)

    def text(self, *keys: str, default: str = "") -> str:
        _, value = self._first(keys)
        return default if value is None else str(value)

    def has(self, key: str) -> bool:
        return self.values.get(key) is not None

    def _first(self, keys: tuple[str, ...]) -> tuple[str, Any]:
        return next(((key, self.values[key]) for key in keys if self.values.get(key) is not None), (keys[0], None))


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) <= LARGEST else "a number beyond 10^12"
    return text if len(text) <= 60 else f"{text[:57]}…"
