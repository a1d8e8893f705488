"""The contract of readers of drafts, the decoder layer that most drafts have, and DFlash, DFlash 2 and DSpark, which propose all tokens
at once, from states of several layers of the target."""

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.ground.units import round_up
from kvgate.budget.model.matrix import Matrix, Units
from kvgate.budget.model.shape import LayerShape
from kvgate.budget.model.weights import VOCABULARY_MULTIPLE
from kvgate.hf_config.blocks import column_parallel, dense_mlp, replicated, vector
from kvgate.hf_config.family import Architecture
from kvgate.hf_config.fields import Fields
from kvgate.hf_config.formats.quantization import ModuleFormats
from kvgate.hf_config.layers.attention import attention_of, dense_of, full_attention


class DraftFacts(Struct, frozen=True, kw_only=True):
    fields: Fields
    known: Architecture
    hidden_size: int
    num_layers: int
    formats: ModuleFormats


class DraftParts(Struct, frozen=True, kw_only=True):
    """Parts that a reader returns: layers, weights beside them, and the states that the draft takes from its target."""

    layers: tuple[LayerShape, ...]
    beside: tuple[Matrix, ...] = ()
    target_hidden_size: int = 0
    target_states: int = 0
    embedding: bool = True
    head: bool = True
    buffers: tuple[Matrix, ...] = ()
    n_predict: int = 0


def vocabulary(name: str, rows: int, columns: int) -> Matrix:
    """Return an embedding or a head, padded as vLLM pads it, and cut by its rows."""
    return column_parallel(name, Units(count=round_up(rows, VOCABULARY_MULTIPLE)), columns=columns)


def decoder(facts: DraftFacts, index: int, *, norms: int = 2, first_columns: int = 0, window: int = 0) -> LayerShape:
    """Return a layer of attention and a dense block; the first one may read two states side by side."""
    fields, known, hidden_size = facts.fields, facts.known, facts.hidden_size
    mixer, own = attention_of(fields, known, hidden_size)
    if index == 0 and first_columns:
        reads = [
            matrix.name in _READS_INPUT or (matrix.name == "q_b_proj" and matrix.columns == first_columns // 2)
            for matrix in own
        ]
        own = tuple(replace(m, columns=first_columns) if is_read else m for m, is_read in zip(own, reads, strict=True))
    if window and hasattr(mixer, "sliding_window"):
        mixer = replace(mixer, sliding_window=window)
    mlp = dense_of(fields, known)
    bias = fields.flag(known.mlp_bias_key) if known.mlp_bias_key else False
    block = dense_mlp(mlp, hidden_size, bias=bias)
    layer = LayerShape(mixers=(mixer,), mlps=(mlp,), matrices=(*own, *block, vector("layernorm", norms * hidden_size)))
    return facts.formats.stored(index, layer)


_READS_INPUT = frozenset({"qkv_proj", "q_a_proj", "kv_a_proj"})


def dflash(facts: DraftFacts) -> DraftParts:
    """DFlash: all tokens at once, by layers whose context is written from the target's states (`qwen3_dflash.py`)."""
    fields, width, count = facts.fields, facts.hidden_size, facts.num_layers
    flash = fields.section("dflash_config")
    window = flash.optional_count("swa_window_size") or fields.optional_count("sliding_window")
    kinds = [str(kind) for kind in fields.per_layer("layer_types", count)]
    slides = ["sliding" in kind for kind in kinds] if kinds else [flash.flag("use_swa")] * count
    if flash.flag("use_swa") and not any(slides):
        slides = [True] * count
    layers = tuple(decoder(facts, index, window=window if slides[index] else 0) for index in range(count))
    listed = flash.sequence("target_layer_ids") or fields.sequence("aux_hidden_state_layer_ids")
    states = len(listed or fields.sequence("target_layer_ids")) or count
    target = fields.optional_count("target_hidden_size") or width
    beside = [vector("hidden_norm", width), vector("norm", width), vector("mask_embedding", width)]
    if flash.flag("use_aux_hidden_state", default=fields.flag("use_aux_hidden_state", default=True)):
        beside.append(replicated("fc", width, columns=states * target))
    mixer = full_attention(fields, width)
    keys = Units(count=mixer.num_kv_heads, width=mixer.head_dim)
    fused = tuple(column_parallel("fused_kv", keys, keys, columns=width) for _ in range(count))
    return DraftParts(
        layers=layers,
        beside=tuple(beside),
        target_hidden_size=target,
        target_states=states,
        buffers=() if facts.formats.quantization else fused,
    )


def dflash2(facts: DraftFacts) -> DraftParts:
    """DFlash 2: two grouped convolutions in each layer, and a selector of candidates behind them (`qwen3dflash2.py`)."""
    fields, width = facts.fields, facts.hidden_size
    flash, parts = fields.section("dflash_config"), dflash(facts)
    taps, group = (flash.count(key) for key in ("conv_kernel_size", "conv_group_size"))
    rank, vocab = flash.count("selector_rank"), fields.count("vocab_size")
    convolution = (
        vector("base_kernel", 2 * taps * width),
        replicated("kernel_projection", 2 * taps * (width // group), columns=width),
    )
    layers = tuple(replace(layer, matrices=(*layer.matrices, *convolution * 2)) for layer in parts.layers)
    selector = (
        *[replicated("codebook", vocab, columns=rank)] * 2,
        replicated("hidden_projection", rank, columns=width),
    )
    return replace(parts, layers=layers, beside=(*parts.beside, *selector))


def dspark(facts: DraftFacts) -> DraftParts:
    """DSpark: DFlash with a table of transitions between tokens, and a head that says how sure it is (`qwen3_dspark.py`)."""
    fields, parts = facts.fields, dflash(facts)
    vocab = fields.count("vocab_size")
    proposed, rank = fields.optional_count("draft_vocab_size") or vocab, fields.count("markov_rank")
    rows = round_up(proposed, VOCABULARY_MULTIPLE)
    heads = [replicated("markov_w1", vocab, columns=rank), replicated("markov_w2", rows, columns=rank)]
    if fields.flag("enable_confidence_head"):
        states = facts.hidden_size + (rank if fields.flag("confidence_head_with_markov") else 0)
        heads.append(vector("confidence_head", states + 1, element_bytes=4))
    return replace(
        parts, beside=(*parts.beside, *heads), n_predict=fields.optional_count("block_size", "dspark_block_size")
    )
