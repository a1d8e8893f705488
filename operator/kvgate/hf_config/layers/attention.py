"""Attention and feed-forward blocks as config.json describes them (vLLM 0.32, `ModelConfig`): heads, widths, biases, windows, experts."""

from collections.abc import Callable, Iterator, Mapping
from itertools import chain

from kvgate.budget.model.matrix import Matrix, Units
from kvgate.budget.model.shape import DenseMlp, FullAttention, LatentAttention, Mixer, Mlp, SparseMlp
from kvgate.hf_config.blocks import (
    Router,
    attention,
    column_parallel,
    cut_vector,
    dense_mlp,
    latent_attention,
    sparse_mlp,
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
        q_lora_rank = fields.optional_count("q_lora_rank")
        latent = LatentAttention(
            num_heads=num_heads,
            kv_lora_rank=fields.count("kv_lora_rank"),
            qk_nope_head_dim=fields.count("qk_nope_head_dim"),
            qk_rope_head_dim=fields.count("qk_rope_head_dim"),
            v_head_dim=fields.count("v_head_dim", default=fields.count(*HIDDEN) // fields.count(*HEADS)),
        )
        matrices = tuple(latent_attention(latent, hidden_size, q_lora_rank=q_lora_rank))
        if fields.text("model_type") in _LATENT_MODEL_TYPES:
            return latent, matrices
        return _full(fields, num_heads, latent.qk_nope_head_dim + latent.qk_rope_head_dim), matrices
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


def mlps_of(fields: Fields, known: Architecture, num_layers: int) -> tuple[Mlp, ...]:
    """Return one block per layer; a width that no layer uses need not be in the config."""
    sparse = sparse_of(fields)
    if sparse is None:
        return (dense_of(fields, known),) * num_layers
    is_sparse = _sparse_layers(fields, num_layers)
    if all(is_sparse):
        return (sparse,) * num_layers
    dense = dense_of(fields, known)
    return tuple(sparse if here else dense for here in is_sparse)


def mlp_matrices(fields: Fields, known: Architecture, mlp: Mlp, hidden_size: int) -> Iterator[Matrix]:
    """Return the weights of a block, with the biases of the model class."""
    if isinstance(mlp, SparseMlp):
        router = Router(
            bias=known.router_bias and fields.text("topk_method", default="noaux_tc") == "noaux_tc",
            element_bytes=known.router_bytes_per_element,
            shared_gate=known.shared_gate,
            linear_bias=known.expert_bias,
            fused_shared=known.fused_mlp,
        )
        return sparse_mlp(mlp, hidden_size, router, bias=known.expert_bias)
    bias = fields.flag(known.mlp_bias_key, default=known.mlp_bias) if known.mlp_bias_key else known.mlp_bias
    own = [vector("activation", known.activation_weights)] if known.activation_weights else []
    return chain(dense_mlp(mlp, hidden_size, bias=bias, fused=known.fused_mlp), own)


def dense_of(fields: Fields, known: Architecture) -> DenseMlp:
    """Return the block of a layer without experts."""
    default = None if known.gated_mlp else 4 * fields.count(*HIDDEN)
    size = fields.count(
        "intermediate_size", "ffn_dim", "ffn_hidden_size", "n_inner", "ff_intermediate_size", default=default
    )
    if fields.text("model_type") == "qwen":
        size //= 2  # the config counts gate and up together
    return DenseMlp(intermediate_size=size, gated=known.gated_mlp)


def sparse_of(fields: Fields) -> SparseMlp | None:
    """Return the experts of a layer that has them; None in a dense model."""
    num_experts = fields.optional_count("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts")
    if num_experts <= 1:
        return None
    size = fields.count("moe_intermediate_size", "intermediate_size")
    # what FlashInfer's TRT-LLM kernels refuse (0.33, `get_routing_method_type`, `_supports_activation`)
    kind = fields.text("model_type")
    normalises = fields.flag("norm_topk_prob", default=kind not in _SHARES_AS_THEY_ARE)
    is_softmax = fields.text("scoring_func", default="softmax") == "softmax"
    return SparseMlp(
        num_experts=num_experts,
        num_experts_per_token=fields.count(
            "num_experts_per_tok", "moe_topk", "num_experts_per_token", "moe_k", default=1
        ),
        intermediate_size=size,
        shared_intermediate_size=fields.optional_count("shared_expert_intermediate_size", "shared_intermediate_size")
        or (fields.optional_count("moe_shared_expert_intermediate_size") or size)
        * fields.optional_count("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
        suits_trtllm=kind not in _OTHER_ACTIVATION and (normalises or not is_softmax),
    )


_OTHER_ACTIVATION = ("gpt_oss", "minimax_m3", "minimax_m3_vl")
"""Kinds of models whose experts compute OpenAI's form of SwiGLU (0.33, `gpt_oss.py`, `minimax_m3`)."""
_SHARES_AS_THEY_ARE = ("qwen2_moe", "olmoe", "deepseek_v2")
"""Kinds of models that do not normalise the shares of experts unless `norm_topk_prob` says so."""


def _sparse_layers(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Return True for each layer with experts.

    A list decides; else experts stand after the dense prefix, at the sparse step, and not where a list names the layer dense.
    """
    if kinds := fields.per_layer("mlp_layer_types", num_layers):
        return tuple(kind == "sparse" for kind in kinds)
    if isinstance(fields.values.get("moe_layer_freq"), list):
        return tuple(bool(here) for here in fields.per_layer("moe_layer_freq", num_layers))
    prefix = fields.optional_count("first_k_dense_replace", "num_dense_layers", "moe_layer_start_index")
    last = fields.optional_count("moe_layer_end_index") or num_layers
    frequency = fields.optional_count("moe_layer_freq") or 1
    step = fields.optional_count("decoder_sparse_step", "interleave_moe_layer_step", "moe_layer_interval") or 1
    dense = fields.layer_numbers("mlp_only_layers")
    return tuple(
        prefix <= i <= last and i % frequency == 0 and (i + 1) % step == 0 and i not in dense for i in range(num_layers)
    )
