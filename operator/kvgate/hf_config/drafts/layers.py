"""The contract of readers of drafts, and the decoder layer that most drafts have."""

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.ground.units import round_up
from kvgate.budget.model.matrix import Matrix, Units
from kvgate.budget.model.shape import LayerShape
from kvgate.budget.model.weights import VOCABULARY_MULTIPLE
from kvgate.hf_config.blocks import column_parallel, dense_mlp, vector
from kvgate.hf_config.family import Architecture
from kvgate.hf_config.fields import Fields
from kvgate.hf_config.formats.quantization import ModuleFormats
from kvgate.hf_config.layers.attention import attention_of
from kvgate.hf_config.layers.feed_forward import dense_of


class DraftFacts(Struct, frozen=True, kw_only=True):
    """Facts that every reader of a draft gets."""

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
