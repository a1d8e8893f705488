"""Layers with multi-head latent attention: DeepSeek-V2 and V3 and their kin, with or without an indexer (V3.2, GLM-5)."""

from collections.abc import Iterator
from dataclasses import replace

from kvgate.budget.matrix import Matrix, Units
from kvgate.budget.model_shape import DenseMlp, LatentAttention, LayerShape, Mlp, RotaryCache, SparseMlp
from kvgate.hf_config.attention import attention_matrices, attention_of, full_attention
from kvgate.hf_config.blocks import Router, column_parallel, dense_mlp, replicated, sparse_mlp, vector
from kvgate.hf_config.family import LanguageModel, Stack
from kvgate.hf_config.feed_forward import mlp_matrices, mlps_of
from kvgate.hf_config.fields import Fields
from kvgate.hf_config.layers import stack
from kvgate.hf_config.positions import derived_max_model_len, rope_scaling


def latent_stack(model: LanguageModel) -> Stack:
    """Every layer keeps one latent vector per token; some keep the keys of an indexer beside it."""
    mlps, indexed = (
        mlps_of(model.fields, model.known, model.num_layers),
        _indexed_layers(model.fields, model.num_layers),
    )
    layers = (_layer(model, index, mlp, is_indexed=indexed[index]) for index, mlp in enumerate(mlps))
    built = stack(model, layers, drafts=_drafts(model, mlps[-1]))
    return replace(built, rotary=_yarn_tables(model.fields)) if model.fields.has("index_topk") else built


def _yarn_tables(fields: Fields) -> tuple[RotaryCache, ...] | None:
    """Scaled by yarn, attention and indexer keep one each, in float32 (V3.2); else they share the model's (GLM-5)."""
    if rope_scaling(fields)[0] not in ("yarn", "deepseek_yarn"):
        return None
    positions = derived_max_model_len(fields)
    return (RotaryCache(max_position=positions, rotary_dim=fields.count("qk_rope_head_dim"), element_bytes=4),) * 2


def _layer(
    model: LanguageModel, index: int, mlp: Mlp, *, is_indexed: bool, more: tuple[Matrix, ...] = ()
) -> LayerShape:
    fields, hidden_size = model.fields, model.hidden_size
    mixer, attention = attention_of(fields, model.known, hidden_size)
    indexer: tuple[Matrix, ...] = ()
    if isinstance(mixer, LatentAttention) and fields.has("index_topk"):
        width = fields.count("index_head_dim")
        mixer = replace(mixer, is_sparse=True, index_head_dim=width if is_indexed else 0)
        indexer = tuple(_indexer(fields, width, hidden_size)) if is_indexed else ()
    norms = vector("layernorm", 2 * hidden_size)
    matrices = (*attention, *indexer, norms, *mlp_matrices(fields, model.known, mlp, hidden_size), *more)
    return model.formats.stored(index, LayerShape(mixers=(mixer,), mlps=(mlp,), matrices=matrices))


def _indexer(fields: Fields, width: int, hidden_size: int) -> Iterator[Matrix]:
    """Whole on every rank; its keys and the weights of its heads are one matrix that is never quantised (vLLM 0.32, `Indexer`)."""
    heads = fields.count("index_n_heads")
    yield replicated("indexer_wq_b", heads * width, columns=fields.count("q_lora_rank"))
    yield replicated("indexer_wk_weights_proj", width + heads, columns=hidden_size)
    yield vector("indexer_k_norm", 2 * width, element_bytes=4)


def _indexed_layers(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Return the layers that pick tokens for themselves; the others take the choice of the one before (GLM-5.2).

    vLLM 0.32: `indexer_types`, or a letter for each layer, or every `index_topk_freq`-th from an offset on.
    """
    if kinds := fields.per_layer("indexer_types", num_layers):
        return tuple(kind == "full" for kind in kinds)
    pattern = fields.text("index_topk_pattern")
    if len(pattern) >= num_layers:
        return tuple(letter != "S" for letter in pattern[:num_layers])
    frequency = fields.optional_count("index_topk_freq") or 1
    offset = fields.optional_count("index_skip_topk_offset") or 1
    return tuple(max(i - offset + 1, 0) % frequency == 0 for i in range(num_layers))


def _drafts(model: LanguageModel, mlp: Mlp) -> tuple[LayerShape, ...]:
    """Layers of multi-token prediction: a decoder layer behind a projection of two hidden states (vLLM 0.32, `DeepSeekMTP`)."""
    hidden_size = model.hidden_size
    more = (replicated("eh_proj", hidden_size, columns=2 * hidden_size), vector("mtp_norms", 3 * hidden_size))
    return tuple(
        _layer(model, model.num_layers + i, mlp, is_indexed=True, more=more)
        for i in range(min(model.fields.optional_count("num_nextn_predict_layers"), model.num_layers))
    )


def minimax_m3_stack(model: LanguageModel) -> Stack:
    """Layers differ in their feed-forward block and in whether they have an indexer."""
    fields = model.fields
    indexer = fields.section("sparse_attention_config")
    picks = indexer.per_layer("sparse_attention_freq", model.num_layers) or [0] * model.num_layers
    mlps = mlps_of(fields, model.known, model.num_layers)
    return stack(
        model, (_m3_layer(model, index, mlp, indexer if picks[index] else None) for index, mlp in enumerate(mlps))
    )


def _m3_layer(model: LanguageModel, index: int, mlp: Mlp, indexer: Fields | None) -> LayerShape:
    fields, hidden_size = model.fields, model.hidden_size
    mixer = full_attention(fields, hidden_size)
    attention = tuple(attention_matrices(fields, model.known, mixer, hidden_size))
    if indexer is not None:
        mixer = replace(mixer, index_head_dim=indexer.count("sparse_index_dim"))
        attention += tuple(_block_indexer(indexer, mixer.index_head_dim, hidden_size))
    if isinstance(mlp, DenseMlp):
        mlp = replace(mlp, intermediate_size=fields.count("dense_intermediate_size", "intermediate_size"))
    matrices = (*attention, vector("layernorm", 2 * hidden_size), *_m3_feed_forward(fields, mlp, hidden_size))
    return model.formats.stored(index, LayerShape(mixers=(mixer,), mlps=(mlp,), matrices=matrices))


def _block_indexer(fields: Fields, width: int, hidden_size: int) -> Iterator[Matrix]:
    """Its queries are cut with the KV heads, its one key is whole."""
    yield column_parallel(
        "index_q_proj", Units(count=fields.count("sparse_num_index_heads"), width=width), columns=hidden_size
    )
    yield replicated("index_k_proj", width, columns=hidden_size)
    yield vector("index_qk_norm", 2 * width)


def _m3_feed_forward(fields: Fields, mlp: Mlp, hidden_size: int) -> Iterator[Matrix]:
    if isinstance(mlp, SparseMlp):
        return sparse_mlp(mlp, hidden_size, Router(bias=fields.flag("use_routing_bias"), element_bytes=4))
    return dense_mlp(mlp, hidden_size)
