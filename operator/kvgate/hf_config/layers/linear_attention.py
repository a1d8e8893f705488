"""Linear attention, delta nets and short convolutions beside attention.

MiniMax-Text-01, MiniMax-M1, Ling 2.5 and LFM2; gated delta nets (GDN) in Qwen3-Next and Qwen3.5, Kimi's (KDA) beside MLA in Kimi-Linear
and Kimi-K3. Read in vLLM 0.32: `linear_attn.py`; `ShortConv`, `lfm2.py`, `lfm2_moe.py`; `QwenGatedDeltaNetAttention`, `kimi_linear.py`,
`models/kimi_k3`.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from kvgate.budget.ground.units import round_up
from kvgate.budget.model.matrix import Cut, Matrix, Units
from kvgate.budget.model.shape import DenseMlp, LayerShape, Mlp, RecurrentState, SparseMlp
from kvgate.hf_config.blocks import (
    Router,
    attention,
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
from kvgate.hf_config.layers.attention import attention_of, dense_of, full_attention, mlps_of, sparse_of
from kvgate.hf_config.layers.layers import (
    Part,
    every,
    layer_of,
    listed_kinds,
    mixed_stack,
    parts_by_layer,
    stack,
    state_dtype,
)

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
    return stack(model, layers)


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
        layers.append(LayerShape(mixers=(mixer,), mlps=(mlp,), matrices=(*own, *block, norms)))
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


_DELTA_NET, _FULL = "linear_attention", "full_attention"


def gdn_stack(model: LanguageModel) -> Stack:
    """Read Qwen3-Next and Qwen3.5: softmax attention in every fourth layer, or where `layer_types` has it; GDN in the others."""
    fields, hidden_size, num_layers = model.fields, model.hidden_size, model.num_layers
    kinds = listed_kinds(fields, "layer_types", num_layers)
    if not kinds:
        interval = fields.count("full_attention_interval", default=4)
        kinds = every(num_layers, interval, interval - 1, here=_FULL, elsewhere=_DELTA_NET)
    linear = _gated_delta_net(fields, hidden_size)
    attending = full_attention(fields, hidden_size)
    # a query projection of twice the width makes the gate of the output too
    query_parts = 2 if fields.flag("attn_output_gate", default=True) else 1
    projections = attention(attending, hidden_size, qkv_bias=fields.flag("attention_bias"), query_parts=query_parts)
    full: Part = (attending, (*projections, vector("qk_norm", 2 * attending.head_dim)))
    known = {_DELTA_NET: linear, _FULL: full}
    mlps = mlps_of(fields, model.known, num_layers)
    return mixed_stack(model, parts_by_layer(kinds, known), mlps, drafts=_qwen_drafts(model, full, mlps[-1]))


def _qwen_drafts(model: LanguageModel, full: Part, mlp: Mlp) -> tuple[LayerShape, ...]:
    """Return the softmax layers that draft, behind one projection of embedding and hidden state.

    vLLM 0.32: `Qwen3NextMTP`, `Qwen3_5MTP`.
    """
    hidden_size = model.hidden_size
    count = model.fields.count("mtp_num_hidden_layers", "num_nextn_predict_layers", default=1)
    layer = layer_of(model, full, mlp)
    fusion = (
        column_parallel("fc", Units(count=hidden_size), columns=2 * hidden_size),
        vector("mtp_norms", 3 * hidden_size),
    )
    layers = (replace(layer, matrices=(*fusion, *layer.matrices)), *(layer,) * (min(count, model.num_layers) - 1))
    return tuple(model.formats.stored(f"mtp.layers.{index}", layer) for index, layer in enumerate(layers))


def _gated_delta_net(fields: Fields, hidden_size: int) -> Part:
    """The gate z is as wide as the values; beta and decay are one number per value head."""
    keys = Units(count=fields.count("linear_num_key_heads"), width=fields.count("linear_key_head_dim"))
    values = Units(count=fields.count("linear_num_value_heads"), width=fields.count("linear_value_head_dim"))
    taps, heads = fields.count("linear_conv_kernel_dim"), Units(count=values.count)
    mixer = RecurrentState(
        kind="GDN",
        conv=(keys, keys, values),
        conv_taps=taps - 1,
        state=Units(count=values.count, width=values.width * keys.width),
        state_dtype=state_dtype(fields, "mamba_ssm_dtype"),
    )
    return mixer, (
        column_parallel("in_proj_qkvz", keys, keys, values, values, columns=hidden_size),
        column_parallel("in_proj_ba", heads, heads, columns=hidden_size),
        column_parallel("conv1d", keys, keys, values, columns=taps),
        cut_vector("dt_bias", heads),
        cut_vector("A_log", heads, element_bytes=4),
        vector("linear_attn_norm", values.width),
        row_parallel("out_proj", hidden_size, columns=values.elements),
    )


def kimi_stack(model: LanguageModel) -> Stack:
    """Read Kimi-Linear and Kimi-K3: MLA without positions where `full_attn_layers` (counted from 1) names the layer, else KDA."""
    fields, hidden_size = model.fields, model.hidden_size
    kda = fields.section("linear_attn_config")
    full = kda.layer_numbers("full_attn_layers")
    latent, latent_matrices = attention_of(fields, model.known, hidden_size)
    if fields.flag("mla_use_output_gate"):  # Kimi-K3
        heads = Units(count=fields.count(*HEADS), width=fields.count("v_head_dim"))
        latent_matrices = (*latent_matrices, column_parallel("g_proj", heads, columns=hidden_size))
    mixers = {True: (latent, latent_matrices), False: _kimi_delta_attention(kda, hidden_size)}
    residual: tuple[Matrix, ...] = ()
    if fields.has(
        "attn_res_block_size"
    ):  # Kimi-K3 attends over the residuals of earlier blocks: a norm and a query vector each time
        residual = (vector("res_norm", hidden_size), vector("res_proj", hidden_size))
    layers = []
    for index, mlp in enumerate(_kimi_mlps(model)):
        mixer, own = mixers[index + 1 in full]
        norms = (vector("layernorm", 2 * hidden_size), *residual, *residual)
        matrices = (*own, *_kimi_block(fields, mlp, hidden_size), *norms)
        layers.append(LayerShape(mixers=(mixer,), mlps=(mlp,), matrices=matrices))
    return stack(model, layers, last=residual)


def _kimi_delta_attention(kda: Fields, hidden_size: int) -> Part:
    """The decay gate f always, the output gate g where it is not of full rank, go through a bottleneck of one head."""
    head_dim = kda.count("head_dim")
    heads = Units(count=kda.count("num_heads"), width=head_dim)
    taps, full_rank = kda.count("short_conv_kernel_size"), kda.flag("use_full_rank_gate")
    mixer = RecurrentState(
        kind="KDA",
        conv=(Units(count=heads.count, width=3 * head_dim),),
        conv_taps=taps - 1,
        state=Units(count=heads.count, width=head_dim * head_dim),
        state_dtype="float32",
        fixed_state_dtype=True,
        keeps_checkpoint=full_rank and kda.has("gate_lower_bound"),  # FlashKDA, whose gate is bounded
    )
    gates = []
    for gate in ("f",) if full_rank else ("f", "g"):
        gates += [
            replicated(f"{gate}_a_proj", head_dim, columns=hidden_size),
            column_parallel(f"{gate}_b_proj", heads, columns=head_dim),
        ]
    if full_rank:
        gates.append(column_parallel("g_proj", heads, columns=hidden_size))
    return mixer, (
        column_parallel("qkv_proj", heads, heads, heads, columns=hidden_size),
        *gates,
        column_parallel("b_proj", Units(count=heads.count), columns=hidden_size),
        Matrix(name="conv1d", rows=(heads, heads, heads), columns=taps, cut=Cut.ROWS, element_bytes=4),
        cut_vector("dt_bias", heads, element_bytes=4),
        cut_vector("A_log", Units(count=heads.count), element_bytes=4),
        vector("o_norm", head_dim),
        row_parallel("o_proj", hidden_size, columns=heads.elements),
    )


def _kimi_mlps(model: LanguageModel) -> list[Mlp]:
    """Experts stand in every layer after the first dense ones, or in every n-th."""
    fields, known = model.fields, model.known
    dense, num_experts = dense_of(fields, known), fields.optional_count("num_experts")
    if not num_experts:
        return [dense] * model.num_layers
    size = fields.count("moe_intermediate_size")
    sparse = SparseMlp(
        num_experts=num_experts,
        num_experts_per_token=fields.count("num_experts_per_token"),
        intermediate_size=size,
        shared_intermediate_size=size * fields.optional_count("num_shared_experts"),
        hidden_size=fields.optional_count("routed_expert_hidden_size"),
    )
    prefix, step = fields.optional_count("first_k_dense_replace"), fields.optional_count("moe_layer_freq") or 1
    return [sparse if index >= prefix and index % step == 0 else dense for index in range(model.num_layers)]


def _kimi_block(fields: Fields, mlp: Mlp, hidden_size: int) -> Iterator[Matrix]:
    if not isinstance(mlp, SparseMlp):
        yield from dense_mlp(mlp, hidden_size)
        return
    least_width = fields.count("min_moe_intermediate_per_partition", default=256)
    yield from sparse_mlp(mlp, hidden_size, Router(bias=True), least_width=least_width)
    if mlp.hidden_size:
        yield replicated("routed_expert_down_proj", mlp.hidden_size, columns=hidden_size)
        yield replicated("routed_expert_up_proj", hidden_size, columns=mlp.hidden_size)
        if fields.flag("latent_moe_use_norm"):
            yield vector("routed_expert_norm", mlp.hidden_size)
