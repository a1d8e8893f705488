"""Attention that caches latent vectors, or picks tokens by an indexer: DeepSeek-V2 to V4 and their kin, GLM-5, MiniMax-M3.

DeepSeek-V4 also has hyper-connections, and experts that some layers pick by token (vLLM 0.32, `deepseek_v4.py`).
"""

from collections.abc import Iterator

from msgspec.structs import replace

from kvgate.budget.model.matrix import Matrix, Units
from kvgate.budget.model.shape import (
    CompressedAttention,
    DenseMlp,
    LatentAttention,
    LayerShape,
    Mlp,
    RotaryCache,
    SparseMlp,
)
from kvgate.hf_config.blocks import (
    Router,
    column_parallel,
    cut_vector,
    dense_mlp,
    replicated,
    row_parallel,
    sparse_mlp,
    vector,
)
from kvgate.hf_config.family import LanguageModel, Stack
from kvgate.hf_config.fields import HEADS, LARGEST, Fields
from kvgate.hf_config.layers.attention import (
    attention_matrices,
    attention_of,
    full_attention,
    mlp_matrices,
    mlps_of,
    sparse_of,
)
from kvgate.hf_config.layers.layers import stack
from kvgate.hf_config.layers.positions import rope_scaling, yarn_positions

_SKIP_OFFSET = 2
"""Default of `index_skip_topk_offset` (vLLM 0.24 to 0.33)."""


def latent_stack(model: LanguageModel) -> Stack:
    """Read DeepSeek-V2 to V3.2 and GLM-5: one latent vector per token; some layers keep the keys of an indexer beside it."""
    fields, hidden_size, num_layers = model.fields, model.hidden_size, model.num_layers
    mlps, indexed = mlps_of(fields, model.known, num_layers), _indexed_layers(fields, num_layers)
    layers = [_latent_layer(model, mlp, is_indexed=indexed[index]) for index, mlp in enumerate(mlps)]
    # a layer of multi-token prediction stands behind a projection of two hidden states (vLLM 0.32, `DeepSeekMTP`)
    more = (replicated("eh_proj", hidden_size, columns=2 * hidden_size), vector("mtp_norms", 3 * hidden_size))
    drafts = tuple(
        model.formats.stored(num_layers + i, _latent_layer(model, mlps[-1], is_indexed=True, more=more))
        for i in range(min(fields.optional_count("num_nextn_predict_layers"), num_layers))
    )
    built = stack(model, layers, drafts=drafts)
    if not fields.has("index_topk") or rope_scaling(fields)[0] not in ("yarn", "deepseek_yarn"):
        return built
    # scaled by yarn, attention and indexer keep a table each, in float32 (V3.2); else they share the model's (GLM-5)
    positions, width = yarn_positions(fields), fields.count("qk_rope_head_dim")
    return replace(built, rotary=(RotaryCache(max_position=positions, rotary_dim=width, element_bytes=4),) * 2)


def _latent_layer(model: LanguageModel, mlp: Mlp, *, is_indexed: bool, more: tuple[Matrix, ...] = ()) -> LayerShape:
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
    return LayerShape(mixers=(mixer,), mlps=(mlp,), matrices=matrices)


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
    return stack(model, [_m3_layer(model, mlp, indexer if picks[index] else None) for index, mlp in enumerate(mlps)])


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


_INDEXED_RATIO = 4
"""Layers that keep a state for every 4 tokens choose among them; their windows overlap, so that compression is twice as wide."""
_SINK_HEADS = 64
"""Sinks are padded to the fewest heads that the kernel takes."""


def deepseek_v4_stack(model: LanguageModel) -> Stack:
    """Read DeepSeek-V4: every layer attends to a window, most of them to compressed states before it."""
    fields, hidden_size = model.fields, model.hidden_size
    ratios = fields.per_layer("compress_ratios", model.num_layers)
    if not all(isinstance(ratio, int) and 0 <= ratio <= LARGEST for ratio in ratios):
        fields.problems.append("compress_ratios holds something else than whole numbers")
        ratios = []
    layers = tuple(
        _compressed_layer(model, index, ratio) for index, ratio in enumerate(ratios or [0] * model.num_layers)
    )
    hc_head = _mixing("hc_head", fields, hidden_size, outputs=fields.count("hc_mult"), scales=1)
    # layers of multi-token prediction attend to a window only, behind two projections (vLLM 0.32, `deepseek_v4_mtp.py`)
    more = (
        replicated("e_proj", hidden_size, columns=hidden_size),
        replicated("h_proj", hidden_size, columns=hidden_size),
        vector("mtp_norms", 3 * hidden_size),
        hc_head,
    )
    count = min(fields.optional_count("num_nextn_predict_layers"), model.num_layers)
    drafts = tuple(_compressed_layer(model, model.num_layers + i, 0, more=more) for i in range(count))
    # one table for windows and one, of another base, for compressed states; in float32
    positions, width = yarn_positions(fields), fields.count("qk_rope_head_dim")
    table = RotaryCache(max_position=positions, rotary_dim=width, element_bytes=4)
    return Stack(
        layers=layers,
        last=(vector("norm", hidden_size),),
        everywhere=(hc_head,),
        drafts=drafts,
        rotary=(table,) * len(set(map(bool, ratios or [0]))),
    )


def _compressed_layer(model: LanguageModel, index: int, ratio: int, *, more: tuple[Matrix, ...] = ()) -> LayerShape:
    fields, hidden_size = model.fields, model.hidden_size
    mixer = CompressedAttention(
        num_heads=fields.count(*HEADS),
        head_dim=fields.count("head_dim"),
        sliding_window=fields.count("sliding_window"),
        ratio=ratio,
        index_head_dim=fields.count("index_head_dim"),
        index_topk=fields.optional_count("index_topk"),
        residual_streams=fields.count("hc_mult"),
    )
    mlp = sparse_of(fields) or SparseMlp(num_experts=1, num_experts_per_token=1, intermediate_size=1)
    matrices = [*_attention(fields, mixer, hidden_size), *_compressors(fields, mixer, hidden_size)]
    # the first layers look a token's experts up in a table; the others route, with a corrected score
    looks_up = index < fields.optional_count("num_hash_layers")
    matrices += sparse_mlp(mlp, hidden_size, Router(bias=not looks_up))
    if looks_up:
        rows, columns = fields.count("vocab_size"), mlp.num_experts_per_token
        matrices.append(replicated("tid2eid", rows, columns=columns, element_bytes=4))
    # two norms, and what mixes the parallel residual streams before and after each block
    streams = fields.count("hc_mult")
    matrices.append(vector("layernorm", 2 * hidden_size))
    for block in ("hc_attn", "hc_ffn"):
        matrices.append(_mixing(block, fields, hidden_size, outputs=(2 + streams) * streams, scales=3))
    return model.formats.stored(index, LayerShape(mixers=(mixer,), mlps=(mlp,), matrices=(*matrices, *more)))


def _attention(fields: Fields, mixer: CompressedAttention, hidden_size: int) -> Iterator[Matrix]:
    """Yield the projections: one latent vector serves as key and value; the output goes through low-rank projections by group."""
    rank, groups = fields.count("q_lora_rank"), fields.count("o_groups")
    heads, width = mixer.num_heads, mixer.head_dim
    yield cut_vector("attn_sink", Units(count=heads, least=_SINK_HEADS), element_bytes=4)
    yield replicated("fused_wqa_wkv", rank + width, columns=hidden_size)
    yield vector("q_kv_norm", rank + width)
    yield column_parallel("wq_b", Units(count=heads, width=width), columns=rank)
    inner = Units(count=groups, width=fields.count("o_lora_rank"))
    yield column_parallel("wo_a", inner, columns=heads * width // groups)
    yield row_parallel("wo_b", hidden_size, columns=inner.elements)


def _compressors(fields: Fields, mixer: CompressedAttention, hidden_size: int) -> Iterator[Matrix]:
    """Yield the compressors of the layer's states, and of the keys by which an indexer chooses among them."""
    if mixer.ratio:
        yield from _compressor(mixer.ratio, mixer.head_dim, hidden_size)
    if mixer.ratio == _INDEXED_RATIO:
        heads = fields.count("index_n_heads")
        yield replicated("indexer_wq_b", heads * mixer.index_head_dim, columns=fields.count("q_lora_rank"))
        yield replicated("indexer_weights_proj", heads, columns=hidden_size)
        yield from _compressor(mixer.ratio, mixer.index_head_dim, hidden_size)


def _compressor(ratio: int, width: int, hidden_size: int) -> Iterator[Matrix]:
    """Yield the projections to values and gates, with a bias for each position in a window, and their norm."""
    overlapping = 2 if ratio == _INDEXED_RATIO else 1
    yield vector("compressor_ape", ratio * overlapping * width, element_bytes=4)
    yield replicated("compressor_wkv_wgate", 2 * overlapping * width, columns=hidden_size)
    yield vector("compressor_norm", width)


def _mixing(name: str, fields: Fields, hidden_size: int, *, outputs: int, scales: int) -> Matrix:
    """Return the function, base and scales of one hyper-connection as one float32 vector."""
    return vector(name, outputs * (fields.count("hc_mult") * hidden_size) + outputs + scales, element_bytes=4)
