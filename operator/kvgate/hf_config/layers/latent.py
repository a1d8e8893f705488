"""Attention that caches a latent vector, or picks tokens by an indexer: DeepSeek-V2 to V3.2 and their kin, GLM-5, MiniMax-M3."""

from msgspec.structs import replace

from kvgate.budget.model.matrix import Matrix, Units
from kvgate.budget.model.shape import DenseMlp, LatentAttention, LayerShape, Mlp, RotaryCache
from kvgate.hf_config.blocks import Router, column_parallel, dense_mlp, replicated, sparse_mlp, vector
from kvgate.hf_config.family import LanguageModel, Stack
from kvgate.hf_config.fields import Fields
from kvgate.hf_config.layers.attention import attention_matrices, attention_of, full_attention
from kvgate.hf_config.layers.feed_forward import mlp_matrices, mlps_of
from kvgate.hf_config.layers.layers import stack
from kvgate.hf_config.layers.positions import rope_scaling, yarn_positions

_SKIP_OFFSET = 2
"""Default of `index_skip_topk_offset` (vLLM 0.24 to 0.33)."""


def latent_stack(model: LanguageModel) -> Stack:
    """Read DeepSeek-V2 to V3.2 and GLM-5: one latent vector per token; some layers keep the keys of an indexer beside it."""
    fields, hidden_size, num_layers = model.fields, model.hidden_size, model.num_layers
    mlps, indexed = mlps_of(fields, model.known, num_layers), _indexed_layers(fields, num_layers)
    layers = tuple(_layer(model, index, mlp, is_indexed=indexed[index]) for index, mlp in enumerate(mlps))
    # a layer of multi-token prediction stands behind a projection of two hidden states (vLLM 0.32, `DeepSeekMTP`)
    more = (replicated("eh_proj", hidden_size, columns=2 * hidden_size), vector("mtp_norms", 3 * hidden_size))
    drafts = tuple(
        _layer(model, num_layers + i, mlps[-1], is_indexed=True, more=more)
        for i in range(min(fields.optional_count("num_nextn_predict_layers"), num_layers))
    )
    built = stack(model, layers, drafts=drafts)
    if not fields.has("index_topk") or rope_scaling(fields)[0] not in ("yarn", "deepseek_yarn"):
        return built
    # scaled by yarn, attention and indexer keep a table each, in float32 (V3.2); else they share the model's (GLM-5)
    positions, width = yarn_positions(fields), fields.count("qk_rope_head_dim")
    return replace(built, rotary=(RotaryCache(max_position=positions, rotary_dim=width, element_bytes=4),) * 2)


def _layer(
    model: LanguageModel, index: int, mlp: Mlp, *, is_indexed: bool, more: tuple[Matrix, ...] = ()
) -> LayerShape:
    fields, hidden_size = model.fields, model.hidden_size
    mixer, attention = attention_of(fields, model.known, hidden_size)
    indexer: tuple[Matrix, ...] = ()
    if isinstance(mixer, LatentAttention) and fields.has("index_topk"):
        width = fields.count("index_head_dim")
        mixer = replace(mixer, is_sparse=True, index_head_dim=width if is_indexed else 0)
        if (
            is_indexed
        ):  # whole on every rank; its keys and head weights are one matrix, never quantised (vLLM 0.32, `Indexer`)
            heads = fields.count("index_n_heads")
            indexer = (
                replicated("indexer_wq_b", heads * width, columns=fields.count("q_lora_rank")),
                replicated("indexer_wk_weights_proj", width + heads, columns=hidden_size),
                vector("indexer_k_norm", 2 * width, element_bytes=4),
            )
    norms = vector("layernorm", 2 * hidden_size)
    matrices = (*attention, *indexer, norms, *mlp_matrices(fields, model.known, mlp, hidden_size), *more)
    return model.formats.stored(index, LayerShape(mixers=(mixer,), mlps=(mlp,), matrices=matrices))


def _indexed_layers(fields: Fields, num_layers: int) -> tuple[bool, ...]:
    """Return True for each layer that picks tokens for itself; the others take the choice of the one before (GLM-5.2).

    vLLM 0.24 to 0.33, `DeepseekV2MLAAttention` and `DeepseekV32Attention`: a letter for each layer, or every `index_topk_freq`-th from an
    offset on. Neither reads `indexer_types`.
    """
    if pattern := fields.text("index_topk_pattern"):
        return tuple(pattern[i : i + 1] != "S" for i in range(num_layers))
    frequency = fields.optional_count("index_topk_freq") or 1
    offset = fields.optional_count("index_skip_topk_offset") or _SKIP_OFFSET
    return tuple(max(i - offset + 1, 0) % frequency == 0 for i in range(num_layers))


def minimax_m3_stack(model: LanguageModel) -> Stack:
    """Read MiniMax-M3: an indexer picks blocks of tokens, in all layers but the first few (vLLM 0.32, `minimax_m3.py`)."""
    fields, num_layers = model.fields, model.num_layers
    indexer = fields.section("sparse_attention_config")
    picks = indexer.per_layer("sparse_attention_freq", num_layers) or [0] * num_layers
    mlps = mlps_of(fields, model.known, num_layers)
    layers = (_m3_layer(model, mlp, indexer if picks[index] else None) for index, mlp in enumerate(mlps))
    return stack(model, (model.formats.stored(index, layer) for index, layer in enumerate(layers)))


def _m3_layer(model: LanguageModel, mlp: Mlp, indexer: Fields | None) -> LayerShape:
    fields, hidden_size = model.fields, model.hidden_size
    mixer = full_attention(fields, hidden_size)
    matrices = [*attention_matrices(fields, model.known, mixer, hidden_size)]
    if indexer is not None:  # its queries are cut with the KV heads, its one key is whole
        width = indexer.count("sparse_index_dim")
        mixer = replace(mixer, index_head_dim=width)
        queries = Units(count=indexer.count("sparse_num_index_heads"), width=width)
        matrices += [
            column_parallel("index_q_proj", queries, columns=hidden_size),
            replicated("index_k_proj", width, columns=hidden_size),
            vector("index_qk_norm", 2 * width),
        ]
    matrices.append(vector("layernorm", 2 * hidden_size))
    if isinstance(mlp, DenseMlp):
        mlp = replace(mlp, intermediate_size=fields.count("dense_intermediate_size", "intermediate_size"))
        matrices += dense_mlp(mlp, hidden_size)
    else:
        matrices += sparse_mlp(mlp, hidden_size, Router(bias=fields.flag("use_routing_bias"), element_bytes=4))
    return LayerShape(mixers=(mixer,), mlps=(mlp,), matrices=tuple(matrices))
