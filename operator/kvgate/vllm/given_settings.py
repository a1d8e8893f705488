"""Settings as they are given: typed values, the records of the budget that they become, features without a formula, and what becomes of
a model's config under `--hf-overrides`.

vLLM sets the keys on the config object (`ModelConfig.__post_init__`), so that what transformers derived from the old values stays. A key
is here only where nothing else is derived from it. Sub-configs are updated key by key since 0.12 (`_update_nested`).
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import islice, product
from typing import Any

from msgspec import Struct

from kvgate.budget import (
    AUTO_MAX_MODEL_LEN,
    NO_CIRCUMSTANCES,
    Accounting,
    Circumstances,
    EngineSettings,
    LoraSettings,
    OffloadSettings,
    Parallelism,
)
from kvgate.budget.host.settings import HostSettings
from kvgate.findings.finding import Finding, SettingName, Words, do, words
from kvgate.rules.command_line import VALUE_NOT_KNOWN
from kvgate.vllm.settings import PARTS_OF_SPECULATION, SETTINGS, WHAT_IFS, Setting
from kvgate.vllm.values import UnknownWord, UnusableValue
from kvgate.vllm.variables import ALLOW_LONG

ABOUT_LENGTH = frozenset({"rope_scaling", "rope_parameters", "rope_theta", "max_position_embeddings"})
"""Keys of a model's config that say how long a request may be, and move no bytes."""
_SHAPES = frozenset({
    "num_hidden_layers", "vocab_size", "intermediate_size", "moe_intermediate_size", "shared_expert_intermediate_size", "n_shared_experts",
    "num_experts", "n_routed_experts", "num_local_experts", "num_experts_per_tok", "first_k_dense_replace", "moe_layer_freq",
    "decoder_sparse_step", "mlp_only_layers", "num_key_value_heads", "head_dim", "layer_types", "tie_word_embeddings", "attention_bias",
    "num_nextn_predict_layers", "kv_lora_rank", "q_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "architectures",
})  # fmt: skip
"""Keys that decide the shape by themselves."""
_SHAPES_WITH_HEAD_DIM = frozenset({"hidden_size", "num_attention_heads"})
"""Keys from which transformers derives the width of a head, unless that is overridden too."""
_WITHOUT_BYTES = frozenset({
    "bos_token_id", "eos_token_id", "pad_token_id", "id2label", "label2id", "problem_type", "is_matryoshka", "matryoshka_dimensions",
    "use_cache", "initializer_range", "attention_dropout", "classifier_from_token", "is_original_qwen3_reranker",
})  # fmt: skip
_SUB_CONFIGS = frozenset({"text_config", "vision_config", "audio_config", "llm_config", "language_config"})
_MOST_KEYS, _DEEPEST = 200, 2


def shape_overrides(overrides: object, *, reaches_inside: bool, depth: int = 0) -> dict[str, Any] | None:
    """Return the keys that may change the shape, without those about length; None where the effect of a key is not known.

    `reaches_inside` is True for a release that overrides the configs inside a config.
    """
    if not isinstance(overrides, Mapping) or len(overrides) > _MOST_KEYS or depth > _DEEPEST:
        return None
    found: dict[str, Any] = {}
    for key, value in overrides.items():
        if key in _SUB_CONFIGS and isinstance(value, Mapping):
            inner = shape_overrides(value, reaches_inside=reaches_inside, depth=depth + 1)
            if inner is None or (inner and not reaches_inside):
                return None
            if inner:
                found[key] = inner
        elif key in _SHAPES or (key in _SHAPES_WITH_HEAD_DIM and overrides.get("head_dim")):
            found[key] = value
        elif key not in ABOUT_LENGTH and key not in _WITHOUT_BYTES:
            return None
    return found


def overridden(config: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with other values; the keys of a sub-config replace its own one by one."""
    changed = dict(config)
    for key, value in overrides.items():
        inner = changed.get(key)
        is_nested = key in _SUB_CONFIGS and isinstance(value, Mapping) and isinstance(inner, Mapping)
        changed[key] = overridden(inner, value) if is_nested and inner else value
    return changed


def changes_length(overrides: object, *, depth: int = 0) -> bool:
    """True where a key is about length, or nobody knows what the overrides are."""
    if not isinstance(overrides, Mapping) or depth > _DEEPEST:
        return bool(overrides)
    return any(
        key in ABOUT_LENGTH or (key in _SUB_CONFIGS and changes_length(value, depth=depth + 1))
        for key, value in overrides.items()
    )


_UNMODELLED = {setting.name: setting for setting in SETTINGS if setting.unmodelled}
_JOINED = {*PARTS_OF_SPECULATION, "eplb_config"}
_WHAT_IFS = {setting.name: setting for setting in WHAT_IFS}
_ROW = {setting.name: row for row, setting in enumerate(SETTINGS)}
_BUDGET = {setting.name: tuple(setting.budget.rpartition(".")[::2]) for setting in SETTINGS if setting.budget}
"""Name → the record in EngineSettings, empty for itself, and the field."""
_GROUPS: Mapping[str, type[Struct]] = {
    "parallelism": Parallelism,
    "lora": LoraSettings,
    "offload": OffloadSettings,
    "host": HostSettings,
}
"""Records inside EngineSettings, by the name before the dot."""
_CIRCUMSTANCES = {
    setting.name: setting.budget.partition(".")[2]
    for setting in SETTINGS
    if setting.budget.startswith("circumstances.")
}


def read_settings(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Words]]:
    """Return (typed values, problems), both by vLLM's names. None counts as not given, and other names are left out."""
    known, problems = {}, {}
    for setting in _in_order(given, _WHAT_IFS):
        value = given[setting.name]
        if value is None:
            continue
        try:
            known[setting.name] = setting.read(value)
        except UnusableValue as error:
            shown = repr(value)
            shown = shown if len(shown) <= 60 else f"{shown[:57]}…"
            message = "{setting} is {value}; {error}"
            problems[setting.name] = words(message, setting=SettingName(setting.name), value=shown, error=error)
    return known, problems


_MOST_COMBINATIONS = 24
"""Answers that are computed for values that nobody knows; no question has more than two or three such settings."""


class Doubt(Struct, frozen=True, kw_only=True):
    """Settings with values that kvgate does not know, and what stands for them."""

    words: Mapping[str, tuple[str, ...]] = {}
    """Known values by the name of the setting; none for a circumstance, whose interval holds all of them where nothing is told."""

    def without(self, names: Collection[str]) -> "Doubt":
        """Return the same without settings that are judged otherwise."""
        return Doubt(words={name: words for name, words in self.words.items() if name not in names})

    def combinations(self) -> Iterator[dict[str, Any]]:
        """Yield typed values, in place of those that are not known; nothing where every value is known."""
        names = [name for name, words in self.words.items() if words]
        for chosen in islice(product(*(self.words[name] for name in names)), _MOST_COMBINATIONS if names else 0):
            yield {name: _WHAT_IFS[name].read(word) for name, word in zip(names, chosen, strict=True)}

    def findings(self, problems: Mapping[str, Words]) -> Iterator[Finding]:
        for name in self.words:
            message = words("{problem}; the interval holds all of these", problem=problems[name])
            yield VALUE_NOT_KNOWN.finding(
                name, message, do("leave {setting} out, or give one of them", setting=SettingName(name))
            )


def doubt_of(given: Mapping[str, Any], problems: Mapping[str, Words]) -> Doubt:
    """Return the settings among `problems` whose value costs its own term only: unknown words, and all that tells a circumstance."""
    found: dict[str, tuple[str, ...]] = {}
    for name in problems:
        if name in _CIRCUMSTANCES:
            found[name] = ()
            continue
        try:
            _WHAT_IFS[name].read(given[name])
        except UnknownWord as error:
            found[name] = error.names
        except UnusableValue:
            continue
    return Doubt(words=found)


def _in_order(given: Mapping[str, Any], among: Mapping[str, Setting]) -> list[Setting]:
    """Return the settings of a table that are given, in the order of the table: of its hundred rows a what-if gives few."""
    return [among[name] for name in sorted(among.keys() & given.keys(), key=_ROW.__getitem__)]


def with_whole_configs(given: Mapping[str, Any]) -> dict[str, Any]:
    """Join the options that each give one key of the speculative config; a config that is given itself wins over them. Take redundant
    experts out of `--eplb-config`, which has replaced an option of its own (0.10.2)."""
    if given.keys().isdisjoint(_JOINED):
        return dict(given)
    parts = {key: given[name] for name, key in PARTS_OF_SPECULATION.items() if given.get(name) is not None}
    rest = {name: value for name, value in given.items() if name not in PARTS_OF_SPECULATION}
    if parts and not rest.get("speculative_config"):
        rest["speculative_config"] = parts
    balancing = rest.pop("eplb_config", None)
    if isinstance(balancing, Mapping) and rest.get("num_redundant_experts") is None:
        rest["num_redundant_experts"] = balancing.get("num_redundant_experts")
    return rest


def engine_settings(known: Mapping[str, Any]) -> EngineSettings:
    """Return the budget's settings from typed values by vLLM's names."""
    own: dict[str, Any] = {}
    grouped: dict[str, dict[str, Any]] = {}
    for name, value in known.items():
        group, field = _BUDGET.get(name, ("", ""))
        if group in _GROUPS:
            grouped.setdefault(group, {})[field] = value
        elif field and not group:
            own[field] = value
    own |= {group: _GROUPS[group](**fields) for group, fields in grouped.items()}
    return EngineSettings(**own)


def circumstances_of(known: Mapping[str, Any]) -> Circumstances:
    """Return the circumstances that typed values by vLLM's names, or kvgate's own, tell."""
    found = {field: known[name] for name, field in _CIRCUMSTANCES.items() if name in known}
    return Circumstances(**found) if found else NO_CIRCUMSTANCES


def unmodelled_kinds(given: Mapping[str, Any], accounting: Accounting) -> tuple[str, ...]:
    """Name each feature without a formula that the values switch on."""
    kinds = {
        setting.name: setting.unmodelled
        for setting in _in_order(given, _UNMODELLED)
        if (value := given[setting.name]) and value not in setting.harmless
    }
    if not kinds:
        return ()
    overrides = given.get("hf_overrides")
    gives_length = given.get("max_model_len") not in (None, AUTO_MAX_MODEL_LEN, "auto", "-1")
    if gives_length:
        kinds.pop("rope_scaling", None)
    if given.get("load_format") == given.get("quantization") == "bitsandbytes":
        kinds.pop("load_format", None)  # vLLM sets one with the other
    known = shape_overrides(overrides, reaches_inside=accounting.overrides_inner_configs)
    if known is not None and (gives_length or not changes_length(overrides)):
        kinds.pop("hf_overrides", None)
    return tuple(dict.fromkeys(kinds.values()))


def stretches_length(given: Mapping[str, Any]) -> bool:
    """True where the model's own longest request need not bind, because its config or the environment is overridden."""
    return any(given.get(name) for name in ("rope_scaling", ALLOW_LONG)) or changes_length(given.get("hf_overrides"))
