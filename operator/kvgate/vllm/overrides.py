"""`--hf-overrides`: the keys of a model's config that vLLM replaces after it has read the file, and what becomes of the config.

vLLM sets the keys on the config object (`ModelConfig.__post_init__`), so that what transformers derived from the old values stays. A key
is here only where nothing else is derived from it. Sub-configs are updated key by key since 0.12 (`_update_nested`).
"""

from collections.abc import Mapping
from typing import Any

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
