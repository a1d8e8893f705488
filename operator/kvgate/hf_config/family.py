"""The contract of readers of model classes: the facts that a reader gets, and the parts that it returns."""

from collections.abc import Callable

from kvgate.budget.matrix import Matrix
from kvgate.budget.model_shape import Encoder, LayerShape, RotaryCache
from kvgate.hf_config.architectures import PLAIN, Architecture
from kvgate.hf_config.fields import Fields
from kvgate.hf_config.quantization import ModuleFormats
from kvgate.record import record


@record
class LanguageModel:
    """Facts of a language model that are known before its layers are read."""

    fields: Fields
    """config.json, with the text part's keys before those around it."""
    known: Architecture
    hidden_size: int
    num_layers: int
    formats: ModuleFormats


@record
class Stack:
    """The decoder layers, and the weights that stand around them."""

    layers: tuple[LayerShape, ...]
    """One per layer; equal ones are one object."""
    first: tuple[Matrix, ...] = ()
    """On the first pipeline stage, beside the token embedding."""
    last: tuple[Matrix, ...] = ()
    """On the last one, beside the final norm and the head."""
    everywhere: tuple[Matrix, ...] = ()
    """On every stage."""
    drafts: tuple[LayerShape, ...] = ()
    """Layers of multi-token prediction, which only speculative decoding loads."""
    rotary: tuple[RotaryCache, ...] | None = None
    """Rotary tables where they differ from the one that the whole config describes."""


StackReader = Callable[[LanguageModel], Stack]
EncoderReader = Callable[[Fields, int], tuple[Encoder, ...]]
"""(config.json as it is, the language model's hidden size) → towers with their projectors."""


@record
class Family:
    """A model class whose layers are not all alike, or not built as the others' are."""

    layers: StackReader
    known: Architecture = PLAIN
    supports_pipeline: bool = True
    own_ends: bool = False
    """The stack holds embedding and head itself, because they are unlike the others', or missing."""
