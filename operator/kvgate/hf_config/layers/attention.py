"""Attention as config.json describes it: heads, widths, biases and windows (vLLM 0.32, `ModelConfig`), and what a layer of it caches."""

from collections.abc import Callable, Iterator, Mapping

from kvgate.budget.model.matrix import Matrix, Units
from kvgate.budget.model.shape import FullAttention, Mixer
from kvgate.hf_config.blocks import (
    LatentRanks,
    attention,
    column_parallel,
    cut_vector,
    latent_attention,
    latent_mixer,
    vector,
)
from kvgate.hf_config.family import Architecture
from kvgate.hf_config.fields import HEADS, HIDDEN, Fields

_LATENT_MODEL_TYPES = frozenset({
    "deepseek_v2", "deepseek_v3", "deepseek_v32", "kimi_k2", "glm4_moe_lite", "pangu_ultra_moe", "longcat_flash",
    "glm_moe_dsa", "kimi_linear", "deepseek_mtp", "bailing_hybrid", "mistral4",
})  # fmt: skip
"""Model types that vLLM serves with MLA where kv_lora_rank is set (0.32, `is_deepseek_mla`); MiniCPM3 is not one of them."""


def attention_of(fields: Fields, known: Architecture, hidden_size: int) -> tuple[Mixer, tuple[Matrix, ...]]:
    """Return the cache of every layer's attention, and its weights."""
    num_heads = fields.count(*HEADS)
    if fields.has("kv_lora_rank"):
        ranks = LatentRanks(
            q_lora_rank=fields.optional_count("q_lora_rank") or None,
            kv_lora_rank=fields.count("kv_lora_rank"),
            qk_nope_head_dim=fields.count("qk_nope_head_dim"),
            qk_rope_head_dim=fields.count("qk_rope_head_dim"),
            v_head_dim=fields.count("v_head_dim", default=fields.count(*HIDDEN) // fields.count(*HEADS)),
        )
        matrices = tuple(latent_attention(ranks, num_heads, hidden_size))
        if fields.text("model_type") in _LATENT_MODEL_TYPES:
            return latent_mixer(ranks, num_heads), matrices
        return _full(fields, num_heads, ranks.qk_nope_head_dim + ranks.qk_rope_head_dim), matrices
    mixer = full_attention(fields, hidden_size)
    return mixer, tuple(attention_matrices(fields, known, mixer, hidden_size))


def full_attention(fields: Fields, hidden_size: int) -> FullAttention:
    """Return attention over everything before a token, with the heads that the config counts."""
    num_heads = fields.count(*HEADS)
    head_dim = fields.optional_count("head_dim", "hidden_size_per_head", "kv_channels") or hidden_size // num_heads
    if head_dim == 0 and not fields.problems:
        fields.problems.append(f"{HEADS[0]} is {num_heads}, more than hidden_size {hidden_size}; one of them is wrong")
    return _full(fields, num_heads, head_dim)


def _full(fields: Fields, num_heads: int, head_dim: int) -> FullAttention:
    """Return attention; KV heads are the first key that is set (vLLM 0.32, `get_total_num_kv_heads`), one with Falcon's multi_query."""
    if fields.text("model_type") == "falcon" and not fields.flag("new_decoder_architecture"):
        num_kv_heads = 1 if fields.flag("multi_query") else num_heads
    else:
        keys = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")
        num_kv_heads = fields.count(*keys, default=num_heads)
    return FullAttention(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)


def attention_matrices(fields: Fields, known: Architecture, mixer: FullAttention, hidden_size: int) -> Iterator[Matrix]:
    """Yield the projections, and the norms of queries and keys."""
    bias = fields.flag(known.bias_key, default=known.qkv_bias) if known.bias_key else known.qkv_bias
    output_bias = (bias and known.output_bias_follows) if known.bias_key else known.output_bias
    yield from attention(mixer, hidden_size, qkv_bias=bias, output_bias=output_bias)
    if mixer.has_sinks:
        yield cut_vector("sinks", Units(count=mixer.num_heads))
    if known.attention_gate:
        width = 1 if known.attention_gate == "head" else mixer.head_dim
        yield column_parallel("g_proj", Units(count=mixer.num_heads, width=width), columns=hidden_size)
    if known.head_norms and (not known.head_norm_key or fields.flag(known.head_norm_key)):
        all_heads = (mixer.num_heads + mixer.num_kv_heads) * mixer.head_dim
        if known.head_norms == "heads":
            yield cut_vector("qk_norm", Units(count=all_heads))
        else:
            yield vector("qk_norm", all_heads if known.head_norms == "whole" else 2 * mixer.head_dim)


TESTS_OF_CLASSES: Mapping[str, Mapping[str, Callable[[Fields], bool]]] = {
    "BaiChuanForCausalLM": {"self.position_embedding == 'ALIBI'": lambda _: False},
    "BaichuanForCausalLM": {"self.position_embedding == 'ALIBI'": lambda fields: fields.count(*HIDDEN) != _BAICHUAN_7B},
    "FalconForCausalLM": {
        "self.use_rotary": lambda fields: not fields.flag("alibi"),
        "not self.use_rotary and self.use_alibi": lambda fields: fields.flag("alibi"),
    },
}
"""By class: tests in its source that choose how its attention is built (vLLM 0.24, `baichuan.py`; 0.33, `falcon.py`)."""
_BAICHUAN_7B = 4096


def source_tests(fields: Fields, architecture: str) -> frozenset[str]:
    """Return the tests in the source of the class that hold for this config."""
    return frozenset(test for test, holds in TESTS_OF_CLASSES.get(architecture, {}).items() if holds(fields))


SLIDING = "sliding_attention"
_FULL = frozenset({"full_attention", "attention"})


def layer_windows(fields: Fields, known: Architecture, num_layers: int) -> tuple[int, ...]:
    """Return the tokens that each layer looks back, 0 for all of them; `use_sliding_window: false` switches windows off."""
    window = fields.optional_count("sliding_window")
    if not window or not fields.flag("use_sliding_window", default=True):
        return (0,) * num_layers
    window += known.window_surplus
    return tuple(window if sliding else 0 for sliding in sliding_layers(fields, known, num_layers))


def sliding_layers(fields: Fields, known: Architecture, num_layers: int) -> tuple[bool, ...]:
    """Return True for each layer with a window, whatever its width: as `layer_types` lists them, else by the pattern of the class."""
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
    """Return the words of `layer_types` that mean neither windowed nor full attention."""
    return {str(kind) for kind in fields.sequence("layer_types")} - _FULL - {SLIDING}
