"""The contract of readers of model classes: the facts that a reader gets, and the parts that it returns."""

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from msgspec import Struct

from kvgate.budget.model.matrix import Matrix
from kvgate.budget.model.shape import End, LayerShape, RotaryCache
from kvgate.hf_config.fields import Fields
from kvgate.hf_config.formats.quantization import ModuleFormats

Gate = Literal["", "head", "element"]


class Architecture(Struct, frozen=True, kw_only=True):
    """Facts of one model class; a `*_key` names the config.json key that decides where the class does not."""

    qkv_bias: bool = False
    output_bias: bool = False
    bias_key: str = ""
    """Key that switches the biases of attention on; those of q, k and v alone where `output_bias_follows` is False."""
    output_bias_follows: bool = True
    mlp_bias: bool = False
    mlp_bias_key: str = ""
    gated_mlp: bool = True
    activation_weights: int = 0
    """Learned numbers of the activation function of a feed-forward block (Apertus's xIELU)."""
    fused_mlp: bool = True
    """True where gate and up are one matrix."""
    norms: int = 2
    """Norms over the hidden size per layer."""
    post_norm_key: str = ""
    """Key that adds a norm behind attention and behind the feed-forward block."""
    norm_bias: bool = False
    head_norms: Literal["", "head", "heads", "whole"] = ""
    """Norms of queries and keys: over one head, over a rank's heads, or over all heads, whole on every rank."""
    head_norm_key: str = ""
    tied: bool = False
    """Default of tie_word_embeddings."""
    learned_positions: int | None = None
    """Rows of the position embedding beyond max_position_embeddings; None: rotary positions."""
    positions: bool = True
    """False where no table of rotary positions is kept: there are none, or transformers' own code runs the model."""
    rotary_share: float = 1
    """Default of partial_rotary_factor."""
    rotary_bytes: int | None = None
    """Bytes of an element of the rotary table, where its dtype is not the model's."""
    lm_head_bias: bool = False
    router_bias: bool = False
    router_bytes_per_element: int | None = None
    shared_gate: bool = False
    expert_bias: bool = False
    """Experts and their router have biases (gpt-oss)."""
    ends_everywhere: frozenset[End] = frozenset()
    """Ends that every pipeline stage holds, because the class makes them whichever stage it is on."""
    attention_gate: Gate = ""
    """A projection that gates the output of attention: one value per head, or one per element."""
    full_attention_every: int = 0
    """Number of layers of which one has no window, where config.json does not state it; 0: every layer has one."""
    window_surplus: int = 0
    """Tokens that the class adds to config.json's window."""


PLAIN = Architecture()
"""Two norms, a gated feed-forward block, rotary positions, no biases."""


class LanguageModel(Struct, frozen=True, kw_only=True):
    """Facts of a language model that are known before its layers are read."""

    fields: Fields
    """config.json, with the text part's keys before those around it."""
    known: Architecture
    hidden_size: int
    num_layers: int
    formats: ModuleFormats


class Stack(Struct, frozen=True, kw_only=True):
    """The decoder layers, and the weights that stand around them."""

    layers: tuple[LayerShape, ...]
    """One entry per layer; equal ones are one object."""
    first: tuple[Matrix, ...] = ()
    """Weights on the first pipeline stage, beside the token embedding."""
    last: tuple[Matrix, ...] = ()
    """Weights on the last stage, the final norm included where only that stage has it; the head stands elsewhere."""
    everywhere: tuple[Matrix, ...] = ()
    """Weights on every stage."""
    drafts: tuple[LayerShape, ...] = ()
    """Layers of multi-token prediction, which only speculative decoding loads."""
    rotary: tuple[RotaryCache, ...] | None = None
    """Rotary tables where they differ from the one that the whole config describes."""


StackReader = Callable[[LanguageModel], Stack]
Head = Callable[[LanguageModel], Iterable[Matrix]]


class Family(Struct, frozen=True, kw_only=True):
    """The way in which the layers of a model class are read, and the facts that its class name settles."""

    layers: StackReader
    known: Architecture = PLAIN
    supports_pipeline: bool = True
    own_ends: bool = False
    """True where the stack holds embedding and head itself, because they differ from other classes'."""
    renamed: Mapping[str, str] = {}
    """Usual key → the key, or the path with dots, that this class has instead."""
    heads: tuple[Head, ...] = ()
    """Weights behind the last norm that every stage holds, such as a classifier."""
    both_ways: bool = False
    """True where the layers attend to the whole input and keep no cache."""
    pools: bool = False
    """True for a class that returns vectors or scores, and has no output head."""
