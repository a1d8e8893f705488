"""Short convolutions beside softmax attention: LFM2 (vLLM 0.32, `ShortConv`, `lfm2.py`, `lfm2_moe.py`)."""

from kvgate.budget.matrix import Units
from kvgate.budget.model_shape import DenseMlp, Mlp, RecurrentState
from kvgate.budget.units import round_up
from kvgate.hf_config.attention import attention_of
from kvgate.hf_config.blocks import column_parallel, row_parallel
from kvgate.hf_config.family import LanguageModel, Stack
from kvgate.hf_config.feed_forward import sparse_of
from kvgate.hf_config.fields import Fields
from kvgate.hf_config.mixed import Part, listed_kinds, mixed_stack, parts_of

_CONV, _FULL = "conv", "full_attention"


def short_conv_stack(model: LanguageModel) -> Stack:
    """A convolution or attention per layer; with experts the first layers stay dense."""
    fields, num_layers = model.fields, model.num_layers
    known = {
        _CONV: _short_conv(fields, model.hidden_size),
        _FULL: attention_of(fields, model.known, model.hidden_size),
    }
    kinds = listed_kinds(fields, "layer_types", num_layers) or _kinds_of_indices(fields, num_layers)
    return mixed_stack(model, parts_of(kinds, known), _mlps(fields, num_layers))


def _kinds_of_indices(fields: Fields, num_layers: int) -> list[str]:
    """Older configs list the layers with attention; without a list all have it."""
    if not fields.has("full_attn_idxs"):
        return [_FULL] * num_layers
    full = fields.layer_numbers("full_attn_idxs")
    return [_FULL if index in full else _CONV for index in range(num_layers)]


def _short_conv(fields: Fields, hidden_size: int) -> Part:
    channels = Units(count=fields.count("conv_dim", default=hidden_size))
    taps, bias = fields.count("conv_L_cache"), fields.flag("conv_bias")
    mixer = RecurrentState(kind="short convolution", conv=(channels,), conv_taps=taps - 1)
    return mixer, (
        column_parallel("in_proj", channels, channels, channels, columns=hidden_size, bias=bias),
        column_parallel("conv", channels, columns=taps, bias=bias),
        row_parallel("out_proj", hidden_size, columns=channels.count, bias=bias),
    )


def _mlps(fields: Fields, num_layers: int) -> list[Mlp]:
    sparse = sparse_of(fields)
    num_dense = fields.optional_count("num_dense_layers") if sparse else num_layers
    dense = _dense(fields, adjusts=sparse is None) if num_dense else None
    return [dense if dense and index < num_dense else sparse or dense for index in range(num_layers)]  # type: ignore[misc]


def _dense(fields: Fields, *, adjusts: bool) -> DenseMlp:
    """Dense models give the width before two thirds of it are rounded up to whole units."""
    size = fields.count("block_ff_dim", "intermediate_size")
    if not (adjusts and fields.flag("block_auto_adjust_ff_dim", default=True)):
        return DenseMlp(intermediate_size=size)
    size = 2 * size // 3
    if fields.has("block_ffn_dim_multiplier"):
        size = int(size * fields.number("block_ffn_dim_multiplier", most=1000))
    return DenseMlp(intermediate_size=round_up(size, fields.count("block_multiple_of", default=256)))
