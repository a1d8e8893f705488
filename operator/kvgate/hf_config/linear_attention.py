"""Linear attention beside softmax attention or MLA: MiniMax-Text-01 and M1, Ling 2.5 (vLLM 0.32, `linear_attn.py`)."""

from kvgate.budget.matrix import Matrix, Units
from kvgate.budget.model_shape import DenseMlp, LayerShape, Mlp, RecurrentState, SparseMlp
from kvgate.budget.units import round_up
from kvgate.hf_config.attention import attention_of
from kvgate.hf_config.blocks import (
    Router,
    column_parallel,
    cut_vector,
    dense_mlp,
    replicated,
    row_parallel,
    sparse_mlp,
    vector,
)
from kvgate.hf_config.family import LanguageModel, Stack
from kvgate.hf_config.feed_forward import dense_of, sparse_of
from kvgate.hf_config.fields import HEADS, Fields
from kvgate.hf_config.layers import Part, every, listed_kinds, mixed_stack, parts_of, stack

_LIGHTNING, _SOFTMAX = "0", "1"
"""The names of both kinds in `attn_type_list`."""


def _state(heads: Units) -> RecurrentState:
    """A square per head; its dtype follows --mamba-cache-dtype."""
    return RecurrentState(kind="linear attention", state=Units(count=heads.count, width=heads.width * heads.width))


def _heads(fields: Fields, hidden_size: int) -> Units:
    count = fields.count(*HEADS)
    return Units(count=count, width=fields.count("head_dim", default=max(1, hidden_size // count)))


def minimax_stack(model: LanguageModel) -> Stack:
    """Lightning attention, with softmax attention where `attn_type_list` has a 1."""
    fields, hidden_size = model.fields, model.hidden_size
    kinds = listed_kinds(fields, "attn_type_list", model.num_layers) or [_SOFTMAX] * model.num_layers
    known = {_LIGHTNING: _lightning(fields, hidden_size), _SOFTMAX: attention_of(fields, model.known, hidden_size)}
    mlps, block = _minimax_block(model)
    norms = vector("layernorm", 2 * hidden_size)
    layers = (
        LayerShape(mixers=(mixer,), mlps=mlps, matrices=(*own, *block, norms)) for mixer, own in parts_of(kinds, known)
    )
    return stack(model, (model.formats.stored(index, layer) for index, layer in enumerate(layers)))


def _lightning(fields: Fields, hidden_size: int) -> Part:
    heads = _heads(fields, hidden_size)
    return _state(heads), (
        column_parallel("qkv_proj", heads, heads, heads, columns=hidden_size),
        column_parallel("output_gate", heads, columns=hidden_size),
        cut_vector("attention_norm", heads),
        row_parallel("out_proj", hidden_size, columns=heads.elements),
    )


def _minimax_block(model: LanguageModel) -> tuple[tuple[Mlp, ...], tuple[Matrix, ...]]:
    """Experts with a float32 router; a shared block beside them has a float32 coefficient."""
    fields, hidden_size = model.fields, model.hidden_size
    num_experts, shared = fields.optional_count("num_local_experts"), fields.optional_count("shared_intermediate_size")
    if num_experts <= 1:
        dense = dense_of(fields, model.known)
        return (dense,), tuple(dense_mlp(dense, hidden_size))
    sparse = SparseMlp(
        num_experts=num_experts,
        num_experts_per_token=fields.count("num_experts_per_tok"),
        intermediate_size=fields.count("intermediate_size"),
        shared_intermediate_size=shared,
    )
    coefficient = (replicated("coefficient", 1, columns=hidden_size, element_bytes=4),) if shared else ()
    return (sparse,), (*sparse_mlp(sparse, hidden_size, Router(element_bytes=4)), *coefficient)


def bailing_stack(model: LanguageModel) -> Stack:
    """Ling 2.5: MLA in the last layer of every group, linear attention in the others."""
    fields, hidden_size = model.fields, model.hidden_size
    group = fields.count("layer_group_size", default=1)
    kinds = every(model.num_layers, group, group - 1, here=_SOFTMAX, elsewhere=_LIGHTNING)
    known = {_LIGHTNING: _bailing_linear(fields, hidden_size), _SOFTMAX: attention_of(fields, model.known, hidden_size)}
    dense, sparse = dense_of(fields, model.known), _bailing_sparse(fields)
    prefix = fields.optional_count("first_k_dense_replace")
    norms = vector("layernorm", 2 * hidden_size)
    layers = []
    for index, (mixer, own) in enumerate(parts_of(kinds, known)):
        mlp = sparse if sparse and index >= prefix else dense
        block = _bailing_block(fields, mlp, hidden_size)
        layer = LayerShape(mixers=(mixer,), mlps=(mlp,), matrices=(*own, *block, norms))
        layers.append(model.formats.stored(index, layer))
    return stack(model, layers)


def _bailing_linear(fields: Fields, hidden_size: int) -> Part:
    heads, bias = _heads(fields, hidden_size), fields.flag("use_bias")
    norms = (vector("qk_norm", 2 * heads.width),) if fields.flag("use_qk_norm") else ()
    return _state(heads), (
        column_parallel("qkv_proj", heads, heads, heads, columns=hidden_size, bias=bias or fields.flag("use_qkv_bias")),
        *norms,
        column_parallel("g_proj", heads, columns=hidden_size),
        cut_vector("g_norm", heads),
        row_parallel("dense", hidden_size, columns=heads.elements, bias=bias),
    )


def _bailing_sparse(fields: Fields) -> SparseMlp | None:
    num_experts = fields.optional_count("num_experts")
    if num_experts <= 1:
        return None
    size = fields.count("moe_intermediate_size")
    shared = fields.count("moe_shared_expert_intermediate_size", default=size)
    return SparseMlp(
        num_experts=num_experts,
        num_experts_per_token=fields.count("num_experts_per_tok"),
        intermediate_size=size,
        shared_intermediate_size=shared * fields.optional_count("num_shared_experts"),
    )


def _bailing_block(fields: Fields, mlp: DenseMlp | SparseMlp, hidden_size: int) -> tuple[Matrix, ...]:
    if isinstance(mlp, DenseMlp):
        return tuple(dense_mlp(mlp, hidden_size, bias=fields.flag("use_bias")))
    wide = fields.text("router_dtype", default="fp32") == "fp32"
    router = Router(bias=fields.flag("moe_router_enable_expert_bias"), element_bytes=4 if wide else None)
    return tuple(sparse_mlp(mlp, hidden_size, router))


_CONV, _ATTENTION = "conv", "full_attention"


def short_conv_stack(model: LanguageModel) -> Stack:
    """A convolution or attention per layer; with experts the first layers stay dense."""
    fields, num_layers = model.fields, model.num_layers
    known = {
        _CONV: _short_conv(fields, model.hidden_size),
        _ATTENTION: attention_of(fields, model.known, model.hidden_size),
    }
    kinds = listed_kinds(fields, "layer_types", num_layers) or _kinds_of_indices(fields, num_layers)
    return mixed_stack(model, parts_of(kinds, known), _conv_mlps(fields, num_layers))


def _kinds_of_indices(fields: Fields, num_layers: int) -> list[str]:
    """Older configs list the layers with attention; without a list all have it."""
    if not fields.has("full_attn_idxs"):
        return [_ATTENTION] * num_layers
    full = fields.layer_numbers("full_attn_idxs")
    return [_ATTENTION if index in full else _CONV for index in range(num_layers)]


def _short_conv(fields: Fields, hidden_size: int) -> Part:
    channels = Units(count=fields.count("conv_dim", default=hidden_size))
    taps, bias = fields.count("conv_L_cache"), fields.flag("conv_bias")
    mixer = RecurrentState(kind="short convolution", conv=(channels,), conv_taps=taps - 1)
    return mixer, (
        column_parallel("in_proj", channels, channels, channels, columns=hidden_size, bias=bias),
        column_parallel("conv", channels, columns=taps, bias=bias),
        row_parallel("out_proj", hidden_size, columns=channels.count, bias=bias),
    )


def _conv_mlps(fields: Fields, num_layers: int) -> list[Mlp]:
    sparse = sparse_of(fields)
    num_dense = fields.optional_count("num_dense_layers") if sparse else num_layers
    dense = _conv_dense(fields, adjusts=sparse is None) if num_dense else None
    return [dense if dense and index < num_dense else sparse or dense for index in range(num_layers)]  # type: ignore[misc]


def _conv_dense(fields: Fields, *, adjusts: bool) -> DenseMlp:
    """Dense models give the width before two thirds of it are rounded up to whole units."""
    size = fields.count("block_ff_dim", "intermediate_size")
    if not (adjusts and fields.flag("block_auto_adjust_ff_dim", default=True)):
        return DenseMlp(intermediate_size=size)
    size = 2 * size // 3
    if fields.has("block_ffn_dim_multiplier"):
        size = int(size * fields.number("block_ffn_dim_multiplier", most=1000))
    return DenseMlp(intermediate_size=round_up(size, fields.count("block_multiple_of", default=256)))
