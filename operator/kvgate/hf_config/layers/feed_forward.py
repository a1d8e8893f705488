"""Feed-forward blocks as config.json describes them: which layers are dense, which hold experts, and their weights."""

from collections.abc import Iterator
from itertools import chain

from kvgate.budget.model.matrix import Matrix
from kvgate.budget.model.shape import DenseMlp, Mlp, SparseMlp
from kvgate.hf_config.blocks import Router, dense_mlp, sparse_mlp, vector
from kvgate.hf_config.family import Architecture
from kvgate.hf_config.fields import HIDDEN, Fields


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
    return SparseMlp(
        num_experts=num_experts,
        num_experts_per_token=fields.count(
            "num_experts_per_tok", "moe_topk", "num_experts_per_token", "moe_k", default=1
        ),
        intermediate_size=size,
        shared_intermediate_size=fields.optional_count("shared_expert_intermediate_size", "shared_intermediate_size")
        or (fields.optional_count("moe_shared_expert_intermediate_size") or size)
        * fields.optional_count("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"),
        suits_trtllm=_suits_trtllm(fields),
    )


_OTHER_ACTIVATION = ("gpt_oss", "minimax_m3", "minimax_m3_vl")
"""Kinds of models whose experts compute OpenAI's form of SwiGLU (0.33, `gpt_oss.py`, `minimax_m3`)."""
_SHARES_AS_THEY_ARE = ("qwen2_moe", "olmoe", "deepseek_v2")
"""Kinds of models that do not normalise the shares of experts unless `norm_topk_prob` says so."""


def _suits_trtllm(fields: Fields) -> bool:
    """Return False for experts that FlashInfer's TRT-LLM kernels refuse (0.33, `get_routing_method_type`, `_supports_activation`)."""
    kind = fields.text("model_type")
    normalises = fields.flag("norm_topk_prob", default=kind not in _SHARES_AS_THEY_ARE)
    is_softmax = fields.text("scoring_func", default="softmax") == "softmax"
    return kind not in _OTHER_ACTIVATION and (normalises or not is_softmax)


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
