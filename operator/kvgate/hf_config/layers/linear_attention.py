"""Linear attention in MiniMax-Text-01, MiniMax-M1 and Ling 2.5, short convolutions in LFM2, both beside attention.

Read in vLLM 0.32: `linear_attn.py`; `ShortConv`, `lfm2.py` and `lfm2_moe.py`.
"""

from kvgate.budget.ground.units import round_up
from kvgate.budget.model.matrix import Matrix, Units
from kvgate.budget.model.shape import DenseMlp, LayerShape, Mlp, RecurrentState, SparseMlp
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
from kvgate.hf_config.fields import HEADS, Fields
from kvgate.hf_config.layers.attention import attention_of
from kvgate.hf_config.layers.feed_forward import dense_of, sparse_of
from kvgate.hf_config.layers.layers import every, listed_kinds, mixed_stack, parts_by_layer, stack

_LINEAR, _SOFTMAX = "0", "1"
"""The names of both kinds in `attn_type_list`."""


def _heads(fields: Fields, hidden_size: int) -> Units:
    count = fields.count(*HEADS)
    return Units(count=count, width=fields.count("head_dim", default=max(1, hidden_size // count)))


def _state(heads: Units) -> RecurrentState:
    """The state is a square per head; its dtype follows --mamba-cache-dtype."""
    state = Units(count=heads.count, width=heads.width * heads.width)
    return RecurrentState(kind="linear attention", state=state, fixed_state_dtype=True)


def minimax_stack(model: LanguageModel) -> Stack:
    """Read MiniMax-Text-01 and M1: lightning attention, with softmax attention where `attn_type_list` has a 1."""
    fields, hidden_size = model.fields, model.hidden_size
    kinds = listed_kinds(fields, "attn_type_list", model.num_layers) or [_SOFTMAX] * model.num_layers
    heads = _heads(fields, hidden_size)
    lightning = (
        column_parallel("qkv_proj", heads, heads, heads, columns=hidden_size),
        column_parallel("output_gate", heads, columns=hidden_size),
        cut_vector("attention_norm", heads),
        row_parallel("out_proj", hidden_size, columns=heads.elements),
    )
    known = {_LINEAR: (_state(heads), lightning), _SOFTMAX: attention_of(fields, model.known, hidden_size)}
    mlp, block = _minimax_block(model)
    norms = vector("layernorm", 2 * hidden_size)
    layers = (
        LayerShape(mixers=(mixer,), mlps=(mlp,), matrices=(*own, *block, norms))
        for mixer, own in parts_by_layer(kinds, known)
    )
    return stack(model, (model.formats.stored(index, layer) for index, layer in enumerate(layers)))


def _minimax_block(model: LanguageModel) -> tuple[Mlp, tuple[Matrix, ...]]:
    """Experts have a float32 router; a shared block beside them has a float32 coefficient."""
    fields, hidden_size = model.fields, model.hidden_size
    num_experts, shared = fields.optional_count("num_local_experts"), fields.optional_count("shared_intermediate_size")
    if num_experts <= 1:
        dense = dense_of(fields, model.known)
        return dense, tuple(dense_mlp(dense, hidden_size))
    sparse = SparseMlp(
        num_experts=num_experts,
        num_experts_per_token=fields.count("num_experts_per_tok"),
        intermediate_size=fields.count("intermediate_size"),
        shared_intermediate_size=shared,
    )
    coefficient = (replicated("coefficient", 1, columns=hidden_size, element_bytes=4),) if shared else ()
    return sparse, (*sparse_mlp(sparse, hidden_size, Router(element_bytes=4)), *coefficient)


def bailing_stack(model: LanguageModel) -> Stack:
    """Read Ling 2.5: MLA in the last layer of every group, linear attention in the others."""
    fields, hidden_size = model.fields, model.hidden_size
    group = fields.count("layer_group_size", default=1)
    kinds = every(model.num_layers, group, group - 1, here=_SOFTMAX, elsewhere=_LINEAR)
    heads, bias = _heads(fields, hidden_size), fields.flag("use_bias")
    qk_norm = (vector("qk_norm", 2 * heads.width),) if fields.flag("use_qk_norm") else ()
    linear = (
        column_parallel("qkv_proj", heads, heads, heads, columns=hidden_size, bias=bias or fields.flag("use_qkv_bias")),
        *qk_norm,
        column_parallel("g_proj", heads, columns=hidden_size),
        cut_vector("g_norm", heads),
        row_parallel("dense", hidden_size, columns=heads.elements, bias=bias),
    )
    known = {_LINEAR: (_state(heads), linear), _SOFTMAX: attention_of(fields, model.known, hidden_size)}
    dense, sparse = dense_of(fields, model.known), _bailing_sparse(fields)
    prefix = fields.optional_count("first_k_dense_replace")
    router_bytes = 4 if fields.text("router_dtype", default="fp32") == "fp32" else None
    router = Router(bias=fields.flag("moe_router_enable_expert_bias"), element_bytes=router_bytes)
    norms = vector("layernorm", 2 * hidden_size)
    layers = []
    for index, (mixer, own) in enumerate(parts_by_layer(kinds, known)):
        mlp: Mlp = dense
        block = dense_mlp(dense, hidden_size, bias=bias)
        if sparse and index >= prefix:
            mlp, block = sparse, sparse_mlp(sparse, hidden_size, router)
        layer = LayerShape(mixers=(mixer,), mlps=(mlp,), matrices=(*own, *block, norms))
        layers.append(model.formats.stored(index, layer))
    return stack(model, layers)


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


_CONV, _ATTENTION = "conv", "full_attention"


def short_conv_stack(model: LanguageModel) -> Stack:
    """Read LFM2: a convolution or attention per layer; with experts the first layers stay dense."""
    fields, hidden_size, num_layers = model.fields, model.hidden_size, model.num_layers
    channels = Units(count=fields.count("conv_dim", default=hidden_size))
    taps, bias = fields.count("conv_L_cache"), fields.flag("conv_bias")
    convolution = RecurrentState(kind="short convolution", conv=(channels,), conv_taps=taps - 1)
    convolving = (
        column_parallel("in_proj", channels, channels, channels, columns=hidden_size, bias=bias),
        column_parallel("conv", channels, columns=taps, bias=bias),
        row_parallel("out_proj", hidden_size, columns=channels.count, bias=bias),
    )
    known = {_CONV: (convolution, convolving), _ATTENTION: attention_of(fields, model.known, hidden_size)}
    kinds = listed_kinds(fields, "layer_types", num_layers)
    if not kinds:  # older configs list the layers with attention; without a list all have it
        full = fields.layer_numbers("full_attn_idxs") if fields.has("full_attn_idxs") else range(num_layers)
        kinds = [_ATTENTION if index in full else _CONV for index in range(num_layers)]
    sparse = sparse_of(fields)
    num_dense = fields.optional_count("num_dense_layers") if sparse else num_layers
    dense = _lfm_dense(fields, adjusts=sparse is None) if num_dense else None
    mlps = [dense if dense and index < num_dense else sparse or dense for index in range(num_layers)]
    return mixed_stack(model, parts_by_layer(kinds, known), mlps)  # type: ignore[arg-type]


def _lfm_dense(fields: Fields, *, adjusts: bool) -> DenseMlp:
    """Dense models state the width before two thirds of it are rounded up to whole units."""
    size = fields.count("block_ff_dim", "intermediate_size")
    if not (adjusts and fields.flag("block_auto_adjust_ff_dim", default=True)):
        return DenseMlp(intermediate_size=size)
    size = 2 * size // 3
    if fields.has("block_ffn_dim_multiplier"):
        size = int(size * fields.number("block_ffn_dim_multiplier", most=1000))
    return DenseMlp(intermediate_size=round_up(size, fields.count("block_multiple_of", default=256)))
