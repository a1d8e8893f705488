"""Gated delta nets beside gated softmax attention: Qwen3-Next and Qwen3.5 (vLLM 0.32, `QwenGatedDeltaNetAttention`)."""

from dataclasses import replace

from kvgate.budget.matrix import Matrix, Units
from kvgate.budget.model_shape import LayerShape, Mlp, RecurrentState
from kvgate.hf_config.attention import full_attention
from kvgate.hf_config.blocks import attention, column_parallel, cut_vector, row_parallel, vector
from kvgate.hf_config.family import LanguageModel, Stack
from kvgate.hf_config.feed_forward import mlps_of
from kvgate.hf_config.fields import Fields
from kvgate.hf_config.mixed import Part, every, layer_of, listed_kinds, mixed_stack, parts_of, state_dtype

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
