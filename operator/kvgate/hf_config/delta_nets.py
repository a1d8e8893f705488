"""Gated delta nets beside gated softmax attention: Qwen3-Next and Qwen3.5 (vLLM 0.32, `QwenGatedDeltaNetAttention`)."""

from collections.abc import Iterator
from dataclasses import replace

from kvgate.budget.matrix import Cut, Matrix, Units
from kvgate.budget.model_shape import LayerShape, Mlp, RecurrentState, SparseMlp
from kvgate.hf_config.attention import attention_of, full_attention
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
from kvgate.hf_config.feed_forward import dense_of, mlps_of
from kvgate.hf_config.fields import HEADS, Fields
from kvgate.hf_config.layers import Part, every, layer_of, listed_kinds, mixed_stack, parts_of, stack, state_dtype

_LINEAR, _FULL = "linear_attention", "full_attention"


def gdn_stack(model: LanguageModel) -> Stack:
    """Delta nets, and softmax attention in every fourth layer or where `layer_types` has it."""
    fields = model.fields
    kinds = listed_kinds(fields, "layer_types", model.num_layers) or _kinds_of_interval(fields, model.num_layers)
    known = {_LINEAR: _delta_net(fields, model.hidden_size), _FULL: gated_attention(fields, model.hidden_size)}
    mlps = mlps_of(fields, model.known, model.num_layers)
    return mixed_stack(model, parts_of(kinds, known), mlps, drafts=_drafts(model, known[_FULL], mlps[-1]))


def _drafts(model: LanguageModel, full: Part, mlp: Mlp) -> tuple[LayerShape, ...]:
    """Softmax layers that draft, behind one projection of embedding and hidden state (vLLM 0.32, `Qwen3NextMTP`, `Qwen3_5MTP`)."""
    hidden_size = model.hidden_size
    count = model.fields.count("mtp_num_hidden_layers", "num_nextn_predict_layers", default=1)
    layer = layer_of(model, full, mlp)
    fusion = (
        column_parallel("fc", Units(count=hidden_size), columns=2 * hidden_size),
        vector("mtp_norms", 3 * hidden_size),
    )
    first = replace(layer, matrices=(*fusion, *layer.matrices))
    layers = (first, *(layer,) * (min(count, model.num_layers) - 1))
    return tuple(model.formats.stored(f"mtp.layers.{index}", layer) for index, layer in enumerate(layers))


def _kinds_of_interval(fields: Fields, num_layers: int) -> list[str]:
    interval = fields.count("full_attention_interval", default=4)
    return every(num_layers, interval, interval - 1, here=_FULL, elsewhere=_LINEAR)


def _delta_net(fields: Fields, hidden_size: int) -> Part:
    keys = Units(count=fields.count("linear_num_key_heads"), width=fields.count("linear_key_head_dim"))
    values = Units(count=fields.count("linear_num_value_heads"), width=fields.count("linear_value_head_dim"))
    taps = fields.count("linear_conv_kernel_dim")
    mixer = RecurrentState(
        kind="GDN",
        conv=(keys, keys, values),
        conv_taps=taps - 1,
        state=Units(count=values.count, width=values.width * keys.width),
        state_dtype=state_dtype(fields, "mamba_ssm_dtype"),
    )
    return mixer, _delta_net_matrices(keys, values, taps, hidden_size)


def _delta_net_matrices(keys: Units, values: Units, taps: int, hidden_size: int) -> tuple[Matrix, ...]:
    """The gate z and the values are as wide as each other; beta and decay are one number per value head."""
    heads = Units(count=values.count)
    return (
        column_parallel("in_proj_qkvz", keys, keys, values, values, columns=hidden_size),
        column_parallel("in_proj_ba", heads, heads, columns=hidden_size),
        column_parallel("conv1d", keys, keys, values, columns=taps),
        cut_vector("dt_bias", heads),
        cut_vector("A_log", heads, element_bytes=4),
        vector("linear_attn_norm", values.width),
        row_parallel("out_proj", hidden_size, columns=values.elements),
    )


def gated_attention(fields: Fields, hidden_size: int) -> Part:
    """Softmax attention whose output gate is made by a query projection of twice the width."""
    mixer = full_attention(fields, hidden_size)
    gate = 2 if fields.flag("attn_output_gate", default=True) else 1
    projections = attention(mixer, hidden_size, qkv_bias=fields.flag("attention_bias"), query_parts=gate)
    return mixer, (*projections, vector("qk_norm", 2 * mixer.head_dim))


def kimi_stack(model: LanguageModel) -> Stack:
    """KDA except where `full_attn_layers` (counted from 1) has MLA; experts after the first dense layers."""
    fields, hidden_size = model.fields, model.hidden_size
    kda = fields.section("linear_attn_config")
    full = kda.layer_numbers("full_attn_layers")
    mixers = {True: _kimi_latent(model), False: _delta_attention(kda, hidden_size)}
    mlps = _kimi_mlps(model)
    around = (vector("layernorm", 2 * hidden_size), *_residual_attention(fields, hidden_size, 2))
    layers = []
    for index, mlp in enumerate(mlps):
        mixer, own = mixers[index + 1 in full]
        layer = LayerShape(
            mixers=(mixer,), mlps=(mlp,), matrices=(*own, *_kimi_block(fields, mlp, hidden_size), *around)
        )
        layers.append(model.formats.stored(index, layer))
    return stack(model, layers, last=tuple(_residual_attention(fields, hidden_size, 1)))


def _residual_attention(fields: Fields, hidden_size: int, count: int) -> Iterator[Matrix]:
    """Kimi-K3 attends over the residuals of earlier blocks: a norm and a query vector each time."""
    if fields.has("attn_res_block_size"):
        for _ in range(count):
            yield vector("res_norm", hidden_size)
            yield vector("res_proj", hidden_size)


def _kimi_latent(model: LanguageModel) -> Part:
    """MLA; in Kimi-K3 with a gate of the output."""
    fields, hidden_size = model.fields, model.hidden_size
    mixer, matrices = attention_of(fields, model.known, hidden_size)
    if not fields.flag("mla_use_output_gate"):
        return mixer, matrices
    heads = Units(count=fields.count(*HEADS), width=fields.count("v_head_dim"))
    return mixer, (*matrices, column_parallel("g_proj", heads, columns=hidden_size))


def _delta_attention(kda: Fields, hidden_size: int) -> Part:
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
    return mixer, tuple(_delta_matrices(heads, taps, hidden_size, full_rank=full_rank))


def _delta_matrices(heads: Units, taps: int, hidden_size: int, *, full_rank: bool) -> Iterator[Matrix]:
    """The decay gate f always, the output gate g where it is not of full rank, go through a bottleneck of one head."""
    yield column_parallel("qkv_proj", heads, heads, heads, columns=hidden_size)
    for gate in ("f",) if full_rank else ("f", "g"):
        yield replicated(f"{gate}_a_proj", heads.width, columns=hidden_size)
        yield column_parallel(f"{gate}_b_proj", heads, columns=heads.width)
    if full_rank:
        yield column_parallel("g_proj", heads, columns=hidden_size)
    yield column_parallel("b_proj", Units(count=heads.count), columns=hidden_size)
    yield Matrix(name="conv1d", rows=(heads, heads, heads), columns=taps, cut=Cut.ROWS, element_bytes=4)
    yield cut_vector("dt_bias", heads, element_bytes=4)
    yield cut_vector("A_log", Units(count=heads.count), element_bytes=4)
    yield vector("o_norm", heads.width)
    yield row_parallel("o_proj", hidden_size, columns=heads.elements)


def _kimi_mlps(model: LanguageModel) -> list[Mlp]:
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
