"""The weights of a rank, part by part: each part is what a model with nothing else would load."""

from collections.abc import Callable
from dataclasses import replace

from kvgate.budget.matrix import Matrix
from kvgate.budget.model_shape import End, LayerShape, ModelShape, RecurrentState
from kvgate.budget.weights import Weights, checkpoint_ratio
from kvgate.record import record

EXPERTS = "experts and routers"
FEED_FORWARD = "feed-forward"
NORMS = "norms"
RECURRENT = "recurrent layers"
ATTENTION = "attention"
_OF_LAYERS = (ATTENTION, RECURRENT, FEED_FORWARD, EXPERTS, NORMS)
_ATTENTION_NAMES = frozenset({"qkv_proj", "qk_norm", "o_proj"})
"""Names that matter only in layers that attend and also keep a recurrent state (Falcon-H1)."""


@record
class WeightPart:
    """One row of the table."""

    name: str
    size_bytes: int


Weigh = Callable[[ModelShape], Weights]
"""Weights of a rank for a shape from which parts may have been removed."""


def weight_parts(shape: ModelShape, stage: tuple[int, int], weigh: Weigh) -> tuple[WeightPart, ...]:
    """Every part that is there, in the order of the model; they sum to the loaded bytes."""
    loaded = weigh(shape).loaded_bytes
    beyond = int(loaded * checkpoint_ratio(shape)) - loaded
    sizes = {**_parameters(shape, stage, weigh), **_loading(shape, weigh), "beyond what the config describes": beyond}
    return tuple(WeightPart(name=name, size_bytes=size) for name, size in sizes.items() if size)


def _parameters(shape: ModelShape, stage: tuple[int, int], weigh: Weigh) -> dict[str, int]:
    def plain(part: ModelShape) -> int:
        return weigh(part).parameter_bytes

    bare = _bare(shape)
    ends = replace(bare, vocab_size=shape.vocab_size)
    has_embedding = stage[0] == 0 or End.EMBEDDING in shape.ends_everywhere
    embedding = plain(replace(ends, tie_word_embeddings=True, lm_head_bias=False)) if has_embedding else 0
    sizes = {
        "encoders": plain(replace(bare, encoders=shape.encoders)),
        "embedding": embedding + plain(replace(bare, first=shape.first)),
        **{name: plain(_only(shape, bare, name)) for name in _OF_LAYERS},
        "head": plain(ends) - embedding,
    }
    return {**sizes, "draft layers": plain(shape) - sum(sizes.values())}


def _loading(shape: ModelShape, weigh: Weigh) -> dict[str, int]:
    """Return the bytes that loading adds to the parameters."""
    weights = weigh(shape)
    unabsorbed = replace(shape, layers=_mapped(shape.layers, lambda layer: replace(layer, mixers=())))
    rotary = weights.loaded_bytes - weigh(replace(shape, rotary=())).loaded_bytes
    absorbed = weights.loaded_bytes - weigh(unabsorbed).loaded_bytes
    rounding = weights.loaded_bytes - weights.parameter_bytes - rotary - absorbed
    return {"rotary tables": rotary, "MLA's absorbed copies": absorbed, "padding, allocator rounding": rounding}


def _bare(shape: ModelShape) -> ModelShape:
    """The same layers with no weights."""
    return replace(
        shape, vocab_size=0, first=(), last=(), everywhere=(), encoders=(), rotary=(), draft_layers=(),
        layers=_mapped(shape.layers, lambda _: LayerShape()),
    )  # fmt: skip


def _only(shape: ModelShape, bare: ModelShape, part: str) -> ModelShape:
    """The layers' share of one part, and that of what stands beside them."""

    def kept(layer: LayerShape) -> LayerShape:
        return LayerShape(matrices=tuple(matrix for matrix in layer.matrices if _part(matrix, layer) == part))

    last, everywhere = (kept(LayerShape(matrices=matrices)).matrices for matrices in (shape.last, shape.everywhere))
    return replace(bare, layers=_mapped(shape.layers, kept), last=last, everywhere=everywhere)


def _mapped(layers: tuple[LayerShape, ...], change: Callable[[LayerShape], LayerShape]) -> tuple[LayerShape, ...]:
    """Equal layers stay one object: that is how they are counted."""
    changed = {key: change(layer) for key, layer in {id(layer): layer for layer in layers}.items()}
    return tuple(changed[id(layer)] for layer in layers)


def _part(matrix: Matrix, layer: LayerShape) -> str:
    """Name the part of a matrix by vLLM's names of modules."""
    name = matrix.name
    if matrix.experts or name.startswith(("experts", "router", "shared_expert")):
        return EXPERTS
    if name in ("gate_up_proj", "down_proj"):
        return FEED_FORWARD
    if matrix.columns == 1 and "norm" in name:
        return NORMS
    recurrent = [isinstance(mixer, RecurrentState) for mixer in layer.mixers]
    if any(recurrent) and (all(recurrent) or name not in _ATTENTION_NAMES):
        return RECURRENT
    return ATTENTION
