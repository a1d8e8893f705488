"""Mamba mixers (vLLM 0.32: `MambaMixer`, `MambaMixer2`) and the classes that have them.

Alone in Mamba and Codestral; with attention in Jamba, Granite 4, Bamba, Falcon-H1 and Zamba2.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from kvgate.budget.model.matrix import Cut, Matrix, Units
from kvgate.budget.model.shape import DenseMlp, FullAttention, LayerShape, Mlp, RecurrentState, RotaryCache, SparseMlp
from kvgate.hf_config.blocks import (
    column_parallel,
    cut_vector,
    dense_mlp,
    replicated,
    row_parallel,
    vector,
)
from kvgate.hf_config.family import LanguageModel, Stack
from kvgate.hf_config.fields import Fields
from kvgate.hf_config.layers.attention import attention_of, dense_of, sparse_of
from kvgate.hf_config.layers.layers import Part, count_or_auto, every, listed_kinds, mixed_stack, parts_by_layer, stack


def mamba1(
    hidden_size: int, *, inner_size: int, state_size: int, dt_rank: int, conv_kernel: int, conv_bias: bool, bias: bool,
    norms: bool = False,
) -> Part:  # fmt: skip
    """Return the mixer, whose state has `state_size` numbers per channel, and its weights.

    `norms` are learned ones of the step size and of B and C (Jamba).
    """
    channels = Units(count=inner_size)
    mixer = RecurrentState(
        kind="Mamba1",
        conv=(channels,),
        conv_taps=conv_kernel - 1,
        state=Units(count=inner_size, width=state_size),
    )
    projected = dt_rank + 2 * state_size
    return mixer, (
        column_parallel("in_proj", channels, channels, columns=hidden_size, bias=bias),
        column_parallel("conv1d", channels, columns=conv_kernel, bias=conv_bias),
        row_parallel("x_proj", projected, columns=inner_size),
        column_parallel("dt_proj", channels, columns=dt_rank, bias=True),
        Matrix(name="A", rows=(channels,), columns=state_size, cut=Cut.ROWS, element_bytes=4),
        cut_vector("D", channels),
        *((vector("mixer_norms", projected),) if norms else ()),
        row_parallel("out_proj", hidden_size, columns=inner_size, bias=bias),
    )


def mamba2(
    hidden_size: int, *, num_heads: int, head_dim: int, n_groups: int, state_size: int, conv_kernel: int, conv_bias: bool, bias: bool,
    has_norm: bool = True, state_dtype: str | None = None,
) -> Part:  # fmt: skip
    """Return the mixer, whose state has head_dim × state_size numbers per head, and its weights.

    The heads of a group share B and C; `has_norm` is a gated norm before the output projection.
    """
    inner = Units(count=num_heads, width=head_dim)
    groups = Units(count=n_groups, width=state_size)
    mixer = RecurrentState(
        kind="Mamba2",
        conv=(inner, groups, groups),
        conv_taps=conv_kernel - 1,
        state=Units(count=num_heads, width=head_dim * state_size),
        state_dtype=state_dtype,
        keeps_checkpoint=True,
    )
    heads = Units(count=num_heads)
    return mixer, (
        column_parallel("in_proj", inner, inner, groups, groups, heads, columns=hidden_size, bias=bias),
        column_parallel("conv1d", inner, groups, groups, columns=conv_kernel, bias=conv_bias),
        cut_vector("A", heads, element_bytes=4),
        cut_vector("D", heads),
        cut_vector("dt_bias", heads),
        *((cut_vector("mixer_norm", inner),) if has_norm else ()),
        row_parallel("out_proj", hidden_size, columns=inner.elements, bias=bias),
    )


_MAMBA, _ATTENTION = "mamba", "attention"


def mamba_stack(model: LanguageModel) -> Stack:
    """Read Mamba and Falcon-Mamba: a mixer and one norm per layer, no feed-forward blocks."""
    fields = model.fields
    part = mamba1(
        model.hidden_size,
        inner_size=fields.optional_count("intermediate_size") or fields.count("expand", default=2) * model.hidden_size,
        state_size=fields.count("state_size", default=16),
        dt_rank=_dt_rank(fields, "time_step_rank", model.hidden_size),
        conv_kernel=fields.count("conv_kernel", default=4),
        conv_bias=fields.flag("use_conv_bias", default=True),
        bias=fields.flag("use_bias"),
    )
    return _mixers_only(model, part)


def mamba2_stack(model: LanguageModel) -> Stack:
    """Read Mamba2 and Codestral-Mamba: a mixer and one norm per layer."""
    fields = model.fields
    part = mamba2(
        model.hidden_size,
        num_heads=fields.count("num_heads"),
        head_dim=fields.count("head_dim"),
        n_groups=fields.count("n_groups", default=8),
        state_size=fields.count("state_size", default=128),
        conv_kernel=fields.count("conv_kernel", default=4),
        conv_bias=fields.flag("use_conv_bias", default=True),
        bias=fields.flag("use_bias"),
    )
    return _mixers_only(model, part)


def _mixers_only(model: LanguageModel, part: Part) -> Stack:
    mixer, own = part
    layer = LayerShape(mixers=(mixer,), matrices=(*own, vector("norm", model.hidden_size)))
    return stack(model, [layer] * model.num_layers)


def _dt_rank(fields: Fields, key: str, hidden_size: int) -> int:
    return count_or_auto(fields, key, auto=-(-hidden_size // 16))


def jamba_stack(model: LanguageModel) -> Stack:
    """Read Jamba: one attention layer per period, experts in every second layer; the offsets are config.json's."""
    fields, hidden_size = model.fields, model.hidden_size
    mixer = mamba1(
        hidden_size,
        inner_size=fields.count("mamba_expand", default=2) * hidden_size,
        state_size=fields.count("mamba_d_state", default=16),
        dt_rank=_dt_rank(fields, "mamba_dt_rank", hidden_size),
        conv_kernel=fields.count("mamba_d_conv", default=4),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
        bias=fields.flag("mamba_proj_bias"),
        norms=True,
    )
    known = {_MAMBA: mixer, _ATTENTION: attention_of(fields, model.known, hidden_size)}
    kinds = _periodic(fields, "attn_layer", model.num_layers, defaults=(8, 4), here=_ATTENTION, elsewhere=_MAMBA)
    dense = dense_of(fields, model.known)
    sparse = sparse_of(fields) or dense
    holders = _periodic(fields, "expert_layer", model.num_layers, defaults=(2, 1), here="experts", elsewhere="dense")
    return mixed_stack(
        model, parts_by_layer(kinds, known), [sparse if kind == "experts" else dense for kind in holders]
    )


def _periodic(
    fields: Fields, key: str, num_layers: int, *, defaults: tuple[int, int], here: str, elsewhere: str
) -> list[str]:
    offset = fields.optional_count(f"{key}_offset") if fields.has(f"{key}_offset") else defaults[1]
    return every(num_layers, fields.count(f"{key}_period", default=defaults[0]), offset, here=here, elsewhere=elsewhere)


def _mamba2_of(fields: Fields, hidden_size: int, *, has_norm: bool = True) -> Part:
    """Read the keys that Granite 4, Bamba and Falcon-H1 have in common."""
    num_heads = fields.count("mamba_n_heads", default=128)
    inner = fields.optional_count("mamba_d_ssm") or fields.count("mamba_expand", default=2) * hidden_size
    return mamba2(
        hidden_size,
        num_heads=num_heads,
        head_dim=count_or_auto(fields, "mamba_d_head", auto=max(1, inner // num_heads)),
        n_groups=fields.count("mamba_n_groups", default=1),
        state_size=fields.count("mamba_d_state", default=256),
        conv_kernel=fields.count("mamba_d_conv", default=4),
        conv_bias=fields.flag("mamba_conv_bias", default=True),
        bias=fields.flag("mamba_proj_bias"),
        has_norm=has_norm,
    )


def granite_hybrid_stack(model: LanguageModel) -> Stack:
    """Read Granite 4: experts and a shared block beside them in every layer; the small ones have the shared block only."""
    fields, hidden_size = model.fields, model.hidden_size
    known = {_MAMBA: _mamba2_of(fields, hidden_size), _ATTENTION: attention_of(fields, model.known, hidden_size)}
    kinds = listed_kinds(fields, "layer_types", model.num_layers) or [_MAMBA] * model.num_layers
    shared, num_experts = fields.optional_count("shared_intermediate_size"), fields.optional_count("num_local_experts")
    mlp: Mlp = DenseMlp(intermediate_size=shared)
    if num_experts:
        mlp = SparseMlp(
            num_experts=num_experts,
            num_experts_per_token=fields.count("num_experts_per_tok", default=1),
            intermediate_size=fields.count("intermediate_size"),
            shared_intermediate_size=shared,
        )
    return mixed_stack(model, parts_by_layer(kinds, known), [mlp] * model.num_layers)


def bamba_stack(model: LanguageModel) -> Stack:
    """Read Bamba: Mamba2, with attention at the indices that config.json lists."""
    fields, hidden_size = model.fields, model.hidden_size
    known = {_MAMBA: _mamba2_of(fields, hidden_size), _ATTENTION: attention_of(fields, model.known, hidden_size)}
    here: Iterable[Any] = fields.sequence("attn_layer_indices")
    kinds = [_ATTENTION if index in here else _MAMBA for index in range(model.num_layers)]
    dense: Mlp = dense_of(fields, model.known)
    return mixed_stack(model, parts_by_layer(kinds, known), [dense] * model.num_layers)


def falcon_h1_stack(model: LanguageModel) -> Stack:
    """Read Falcon-H1: attention and Mamba2 side by side in every layer."""
    fields, hidden_size = model.fields, model.hidden_size
    mixer, own = _mamba2_of(fields, hidden_size, has_norm=fields.flag("mamba_rms_norm"))
    attention, attention_matrices = attention_of(fields, model.known, hidden_size)
    dense = dense_of(fields, model.known)
    block = dense_mlp(dense, hidden_size, bias=fields.flag("mlp_bias"))
    norms = vector("layernorm", 2 * hidden_size)
    layer = LayerShape(mixers=(attention, mixer), mlps=(dense,), matrices=(*attention_matrices, *own, *block, norms))
    return stack(model, [layer] * model.num_layers)


def zamba2_stack(model: LanguageModel) -> Stack:
    """Read Zamba2: Mamba2 in every layer; hybrid layers also attend, with a few blocks of weights that they share in turn.

    A shared block reads the hidden state beside the embedding, so it is twice as wide. What a hybrid layer has of its own are
    its cache, adapters of the shared weights, and a projection back (vLLM 0.32, `zamba2.py`).
    """
    fields, hidden_size = model.fields, model.hidden_size
    wide = fields.count("attention_hidden_size", default=2 * hidden_size)
    num_heads = fields.count("num_attention_heads")
    head_dim = fields.count("attention_head_dim", default=max(1, wide // num_heads))
    attention_of_block = FullAttention(num_heads=num_heads, num_kv_heads=num_heads, head_dim=head_dim)
    mlp = DenseMlp(intermediate_size=fields.count("intermediate_size"))
    inner = fields.count("mamba_expand", default=2) * hidden_size
    mamba_heads = fields.count("n_mamba_heads", default=8)
    state, own = mamba2(
        hidden_size,
        num_heads=mamba_heads,
        head_dim=fields.count("mamba_headdim", default=max(1, inner // mamba_heads)),
        n_groups=fields.count("mamba_ngroups", default=1),
        state_size=fields.count("mamba_d_state", default=64),
        conv_kernel=fields.count("mamba_d_conv", default=4),
        conv_bias=fields.flag("use_conv_bias", default=True),
        bias=fields.flag("add_bias_linear"),
    )
    plain = LayerShape(mixers=(state,), matrices=(*own, vector("layernorm", hidden_size)))
    adapters = tuple(_zamba2_adapters(fields, hidden_size, wide, mlp))
    hybrid = LayerShape(
        mixers=(attention_of_block, state),
        mlps=(mlp,),
        matrices=(*plain.matrices, *adapters, replicated("linear", hidden_size, columns=hidden_size)),
    )
    kinds = listed_kinds(fields, "layers_block_type", model.num_layers)
    built = stack(model, [hybrid if kind == "hybrid" else plain for kind in kinds])
    queries = Units(count=num_heads, width=head_dim)
    block = (
        column_parallel("qkv_proj", queries, queries, queries, columns=wide),
        row_parallel("o_proj", hidden_size, columns=wide),
        *dense_mlp(mlp, hidden_size),
        vector("layernorm", wide + hidden_size),
    )
    table = RotaryCache(max_position=fields.count("max_position_embeddings"), rotary_dim=head_dim)
    return replace(
        built,
        everywhere=(*built.everywhere, *block * fields.count("num_mem_blocks", default=1)),
        rotary=(table,) if fields.flag("use_mem_rope") else (),
    )


def _zamba2_adapters(fields: Fields, hidden_size: int, wide: int, mlp: DenseMlp) -> Iterator[Matrix]:
    rank = fields.count("adapter_rank", default=128)
    gate = Units(count=mlp.intermediate_size)
    yield column_parallel("adapter", Units(count=rank), columns=hidden_size)
    yield column_parallel("adapter", gate, gate, columns=rank)
    if fields.flag("use_shared_attention_adapter"):
        for _ in range(3):
            yield column_parallel("adapter", Units(count=rank), columns=wide)
            yield column_parallel("adapter", Units(count=wide), columns=rank)
