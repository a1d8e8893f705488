"""DeepSeek-V4: compressed latent attention, hyper-connections and experts that some layers pick by token (vLLM 0.32, `deepseek_v4.py`)."""

from collections.abc import Iterator

from kvgate.budget.model.matrix import Matrix, Units
from kvgate.budget.model.shape import CompressedAttention, LayerShape, RotaryCache, SparseMlp
from kvgate.hf_config.blocks import Router, column_parallel, cut_vector, replicated, row_parallel, sparse_mlp, vector
from kvgate.hf_config.family import LanguageModel, Stack
from kvgate.hf_config.fields import HEADS, LARGEST, Fields
from kvgate.hf_config.layers.feed_forward import sparse_of
from kvgate.hf_config.layers.positions import yarn_positions

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
    layers = tuple(_layer(model, index, ratio) for index, ratio in enumerate(ratios or [0] * model.num_layers))
    hc_head = _mixing("hc_head", fields, hidden_size, outputs=fields.count("hc_mult"), scales=1)
    # layers of multi-token prediction attend to a window only, behind two projections (vLLM 0.32, `deepseek_v4_mtp.py`)
    more = (
        replicated("e_proj", hidden_size, columns=hidden_size),
        replicated("h_proj", hidden_size, columns=hidden_size),
        vector("mtp_norms", 3 * hidden_size),
        hc_head,
    )
    count = min(fields.optional_count("num_nextn_predict_layers"), model.num_layers)
    drafts = tuple(_layer(model, model.num_layers + i, 0, more=more) for i in range(count))
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


def _layer(model: LanguageModel, index: int, ratio: int, *, more: tuple[Matrix, ...] = ()) -> LayerShape:
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
