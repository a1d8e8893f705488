"""Layers as one stack: those that differ in little (`uniform_stack`, `attention_stack`), and those of several kinds (`mixed_stack`)."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from kvgate.budget.model.matrix import Matrix
from kvgate.budget.model.shape import DTYPE_BYTES, End, FullAttention, LayerShape, Mixer, Mlp, UnmodelledLayer
from kvgate.hf_config.blocks import replicated, vector
from kvgate.hf_config.family import LanguageModel, Stack
from kvgate.hf_config.fields import Fields
from kvgate.hf_config.layers.attention import (
    attention_matrices,
    attention_of,
    layer_windows,
    mlp_matrices,
    mlps_of,
    other_layer_types,
)

_UNMODELLED_KEYS = {
    "compress_ratios": "compressed MLA",
    "index_topk": "sparse MLA",
    "sparse_attention_config": "sparse MLA",
    "attention_chunk_size": "chunked-local attention",
    "linear_attn_config": "KDA (linear attention)",
    "linear_num_key_heads": "GDN (linear attention)",
    "hybrid_override_pattern": "Mamba hybrid",
    "mamba_d_state": "Mamba hybrid",
    "mamba_n_heads": "Mamba hybrid",
    "state_size": "Mamba",
    "conv_L_cache": "short convolution hybrid",
    "attn_type_list": "linear attention",
    "hybrid_layer_pattern": "sliding-window attention",
    "num_kv_shared_layers": "KV sharing across layers",
    "decoder_layers": "encoder-decoder cross attention",
    "cross_attention_layers": "encoder-decoder cross attention",
    "block_configs": "per-layer block configurations",
}
"""Keys that mean a kind of cache that layers of one kind do not have."""


def unmodelled_mixer(fields: Fields) -> str | None:
    """Name the attention or state that is neither attention with or without a window nor MLA; None where there is none."""
    for key, kind in _UNMODELLED_KEYS.items():
        value = fields.values.get(key)
        # MiniMax-M2 lists its layers as 1, which is softmax attention
        is_softmax = key == "attn_type_list" and isinstance(value, list) and all(entry == 1 for entry in value)
        if value and not is_softmax:
            return kind
    kinds = other_layer_types(fields)
    return f"{min(kinds).replace('_', ' ')} layers" if kinds else None


def uniform_stack(model: LanguageModel) -> Stack:
    """Read layers that all attend with the same heads; a first few may be dense where the others hold experts."""
    fields, known, hidden_size = model.fields, model.known, model.hidden_size
    mixer, attention = attention_of(fields, known, hidden_size)
    attentions = [
        (replace(mixer, sliding_window=window) if window and isinstance(mixer, FullAttention) else mixer, attention)
        for window in layer_windows(fields, known, model.num_layers)
    ]
    return _stack_of(model, attentions, mlps_of(fields, known, model.num_layers))


_LISTED_BY_HUNYUAN = {
    "num_experts": "num_experts",
    "moe_topk": "moe_topk",
    "moe_intermediate_size": "moe_intermediate_size",
    "num_shared_expert": "num_shared_experts",
}
"""HunYuan's keys that may hold one number per layer → the keys of other classes."""


def hunyuan_stack(model: LanguageModel) -> Stack:
    """Read HunYuan's experts; layers that differ from each other in them have no formula."""
    values = dict(model.fields.values)
    for key, usual in _LISTED_BY_HUNYUAN.items():
        value = values.get(key)
        if isinstance(value, list) and value and any(entry != value[0] for entry in value):
            return stack(model, [LayerShape(mixers=(UnmodelledLayer(kind=f"{key} by layer"),))] * model.num_layers)
        values[usual] = value[0] if isinstance(value, list) and value else value
    return uniform_stack(replace(model, fields=Fields(values, problems=model.fields.problems)))


def attention_stack(model: LanguageModel, mixers: Sequence[FullAttention], mlps: Sequence[Mlp] = ()) -> Stack:
    """Build layers that may attend with heads of their own; `mlps` where the class reads its blocks in its own way."""
    fields, known, hidden_size = model.fields, model.known, model.hidden_size
    matrices = {mixer: tuple(attention_matrices(fields, known, mixer, hidden_size)) for mixer in mixers}
    attentions = [(mixer, matrices[mixer]) for mixer in mixers]
    return _stack_of(model, attentions, mlps or mlps_of(fields, known, model.num_layers))


def _stack_of(
    model: LanguageModel, attentions: Sequence[tuple[Mixer, tuple[Matrix, ...]]], mlps: Sequence[Mlp]
) -> Stack:
    fields, known, hidden_size = model.fields, model.known, model.hidden_size
    # StableLM's parallel residual shares one norm between attention and feed-forward
    shares_norm = fields.text("model_type") == "stablelm" and fields.flag("use_parallel_residual")
    num_norms = (
        1 if shares_norm else known.norms + (2 if known.post_norm_key and fields.flag(known.post_norm_key) else 0)
    )
    norms = vector("layernorm", num_norms * hidden_size * (2 if known.norm_bias else 1))
    blocks = {mlp: tuple(mlp_matrices(fields, known, mlp, hidden_size)) for mlp in dict.fromkeys(mlps)}
    layers = [
        LayerShape(mixers=(mixer,), mlps=(mlp,), matrices=(*attention, norms, *blocks[mlp]))
        for (mixer, attention), mlp in zip(attentions, mlps, strict=True)
    ]
    first: tuple[Matrix, ...] = ()
    if known.learned_positions is not None:
        rows = fields.count("max_position_embeddings", "n_positions") + known.learned_positions
        first = (replicated("embed_positions", rows, columns=hidden_size),)
    # multi-token prediction: the last layer again behind a projection of two hidden states (vLLM 0.32, `glm4_moe_mtp.py`)
    more = (replicated("eh_proj", hidden_size, columns=2 * hidden_size), vector("mtp_norms", 3 * hidden_size))
    layer = replace(layers[-1], matrices=(*layers[-1].matrices, *more))
    count = min(model.fields.optional_count("num_nextn_predict_layers"), model.num_layers)
    drafts = tuple(model.formats.stored(model.num_layers + index, layer) for index in range(count))
    return stack(model, layers, first=first, drafts=drafts)


def stack(
    model: LanguageModel,
    layers: Iterable[LayerShape],
    *,
    first: tuple[Matrix, ...] = (),
    last: tuple[Matrix, ...] = (),
    drafts: tuple[LayerShape, ...] = (),
) -> Stack:
    """Return the layers as they are stored, with the norm before the head, on the stages where the class keeps it."""
    stored = tuple(model.formats.stored(index, layer) for index, layer in enumerate(layers))
    norm = (vector("norm", model.hidden_size * (2 if model.known.norm_bias else 1)),)
    ends = (last, norm) if End.NORM in model.known.ends_everywhere else ((*norm, *last), ())
    return Stack(layers=stored, first=first, last=ends[0], everywhere=ends[1], drafts=drafts)


Part = tuple[Mixer, tuple[Matrix, ...]]
"""The cache of a layer, and the weights that go with it."""


def mixed_stack(
    model: LanguageModel, parts: Sequence[Part], mlps: Sequence[Mlp], *, drafts: tuple[LayerShape, ...] = ()
) -> Stack:
    """Build layers that each have a mixer and a feed-forward block."""
    made = {pair: layer_of(model, *pair) for pair in set(zip(parts, mlps, strict=True))}
    return stack(model, (made[pair] for pair in zip(parts, mlps, strict=True)), drafts=drafts)


def layer_of(model: LanguageModel, part: Part, mlp: Mlp) -> LayerShape:
    """Return a mixer and a feed-forward block, a norm before each."""
    mixer, own = part
    block = mlp_matrices(model.fields, model.known, mlp, model.hidden_size)
    return LayerShape(mixers=(mixer,), mlps=(mlp,), matrices=(*own, *block, vector("layernorm", 2 * model.hidden_size)))


def parts_by_layer(kinds: Sequence[str], known: Mapping[str, Part]) -> list[Part]:
    """Return the part of every layer; a word that no class of 0.32 uses becomes a layer without a formula."""
    return [known.get(kind) or (UnmodelledLayer(kind=f"{kind.replace('_', ' ')} layers"), ()) for kind in kinds]


def listed_kinds(fields: Fields, key: str, num_layers: int) -> list[str]:
    """Return one word per decoder layer; empty where config.json lists none."""
    return [str(kind) for kind in fields.per_layer(key, num_layers)]


def every(num_layers: int, period: int, offset: int, *, here: str, elsewhere: str) -> list[str]:
    """Return the kinds of all layers, where one layer of each `period` is of another kind than the rest."""
    return [here if index % period == offset else elsewhere for index in range(num_layers)]


def count_or_auto(fields: Fields, *keys: str, auto: int) -> int:
    """Return the number, or `auto`: transformers' config class computes it where the key is `auto` or missing."""
    value: Any = next((fields.values[key] for key in keys if fields.has(key)), "auto")
    return auto if value == "auto" else fields.count(*keys)


def state_dtype(fields: Fields, key: str, *, default: str | None = None) -> str | None:
    """Return the dtype of the recurrent state that config.json requests; None: the model's."""
    name = fields.text(key, default=default or "auto")
    if name == "auto":
        return None
    if name not in DTYPE_BYTES:
        fields.problems.append(f"{key} is {name[:40]!r}; it must be one of {', '.join(DTYPE_BYTES)}")
        return None
    return name
