"""Nemotron-NAS: every layer has a block of its own in `block_configs`, or none (`no_op`)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from kvgate.budget.matrix import Matrix
from kvgate.budget.model_shape import DenseMlp, FullAttention, LayerShape, Mixer, Mlp, UnmodelledLayer
from kvgate.budget.units import round_up
from kvgate.hf_config.attention import attention_matrices, full_attention
from kvgate.hf_config.blocks import vector
from kvgate.hf_config.family import LanguageModel, Stack
from kvgate.hf_config.feed_forward import mlp_matrices
from kvgate.hf_config.fields import Fields
from kvgate.hf_config.layers import stack, uniform_stack


def nemotron_nas_stack(model: LanguageModel) -> Stack:
    """Heads by `n_heads_in_group`, feed-forward width by `ffn_mult`; a part that does nothing has no norm either."""
    blocks = model.fields.per_layer("block_configs", model.num_layers)
    if not blocks:
        return uniform_stack(model)
    base = full_attention(model.fields, model.hidden_size)
    layers = (
        model.formats.stored(index, _layer(model, base, _section(model, block, index)))
        for index, block in enumerate(blocks)
    )
    return stack(model, tuple(layers))


def _section(model: LanguageModel, block: object, index: int) -> Fields:
    values = block if isinstance(block, Mapping) else {}
    return Fields(values, name=f"block_configs[{index}]", problems=model.fields.problems)


def _layer(model: LanguageModel, base: FullAttention, block: Fields) -> LayerShape:
    attention, ffn = block.section("attention"), block.section("ffn")
    mixers = _mixers(attention, base)
    mlps = () if ffn.flag("no_op") else (_mlp(ffn, model.hidden_size),)
    return LayerShape(mixers=mixers, mlps=mlps, matrices=tuple(_matrices(model, mixers, mlps)))


def _mixers(attention: Fields, base: FullAttention) -> tuple[Mixer, ...]:
    if attention.flag("no_op"):
        return ()
    if attention.flag("replace_with_linear"):
        return (UnmodelledLayer(kind="attention replaced by a linear layer"),)
    num_kv_heads = max(1, base.num_heads // attention.count("n_heads_in_group"))
    return (replace(base, num_kv_heads=num_kv_heads),)


def _mlp(ffn: Fields, hidden_size: int) -> DenseMlp:
    """vLLM 0.32, `_ffn_mult_to_intermediate_size`: two thirds of the multiple, rounded up to 256."""
    if not ffn.has("ffn_mult"):
        return DenseMlp(intermediate_size=ffn.count("intermediate_size"))
    width = int(2 * ffn.number("ffn_mult", most=1000) * hidden_size / 3)
    return DenseMlp(intermediate_size=round_up(max(1, width), 256))


def _matrices(model: LanguageModel, mixers: tuple[Mixer, ...], mlps: tuple[Mlp, ...]) -> Iterator[Matrix]:
    fields, known, hidden_size = model.fields, model.known, model.hidden_size
    for mixer in mixers:
        if isinstance(mixer, FullAttention):
            yield from attention_matrices(fields, known, mixer, hidden_size)
            yield vector("layernorm", hidden_size)
    for mlp in mlps:
        yield from mlp_matrices(fields, known, mlp, hidden_size)
        yield vector("layernorm", hidden_size)
