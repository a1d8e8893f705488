"""MiniMax-M3: attention over blocks of tokens that an indexer picks, in all layers but the first few (vLLM 0.32, `minimax_m3.py`)."""

from collections.abc import Iterator
from dataclasses import replace

from kvgate.budget.matrix import Matrix, Units
from kvgate.budget.model_shape import DenseMlp, LayerShape, Mlp, SparseMlp
from kvgate.hf_config.attention import attention_matrices, full_attention
from kvgate.hf_config.blocks import Router, column_parallel, dense_mlp, replicated, sparse_mlp, vector
from kvgate.hf_config.family import LanguageModel, Stack
from kvgate.hf_config.feed_forward import mlps_of
from kvgate.hf_config.fields import Fields
from kvgate.hf_config.layers import stack


def minimax_m3_stack(model: LanguageModel) -> Stack:
    """Layers differ in their feed-forward block and in whether they have an indexer."""
    fields = model.fields
    indexer = fields.section("sparse_attention_config")
    picks = indexer.per_layer("sparse_attention_freq", model.num_layers) or [0] * model.num_layers
    mlps = mlps_of(fields, model.known, model.num_layers)
    return stack(
        model, (_layer(model, index, mlp, indexer if picks[index] else None) for index, mlp in enumerate(mlps))
    )


def _layer(model: LanguageModel, index: int, mlp: Mlp, indexer: Fields | None) -> LayerShape:
    fields, hidden_size = model.fields, model.hidden_size
    mixer = full_attention(fields, hidden_size)
    attention = tuple(attention_matrices(fields, model.known, mixer, hidden_size))
    if indexer is not None:
        mixer = replace(mixer, index_head_dim=indexer.count("sparse_index_dim"))
        attention += tuple(_indexer(indexer, mixer.index_head_dim, hidden_size))
    if isinstance(mlp, DenseMlp):
        mlp = replace(mlp, intermediate_size=fields.count("dense_intermediate_size", "intermediate_size"))
    matrices = (*attention, vector("layernorm", 2 * hidden_size), *_feed_forward(fields, mlp, hidden_size))
    return model.formats.stored(index, LayerShape(mixers=(mixer,), mlps=(mlp,), matrices=matrices))


def _indexer(fields: Fields, width: int, hidden_size: int) -> Iterator[Matrix]:
    """Its queries are cut with the KV heads, its one key is whole."""
    yield column_parallel(
        "index_q_proj", Units(count=fields.count("sparse_num_index_heads"), width=width), columns=hidden_size
    )
    yield replicated("index_k_proj", width, columns=hidden_size)
    yield vector("index_qk_norm", 2 * width)


def _feed_forward(fields: Fields, mlp: Mlp, hidden_size: int) -> Iterator[Matrix]:
    if isinstance(mlp, SparseMlp):
        return sparse_mlp(mlp, hidden_size, Router(bias=fields.flag("use_routing_bias"), element_bytes=4))
    return dense_mlp(mlp, hidden_size)
