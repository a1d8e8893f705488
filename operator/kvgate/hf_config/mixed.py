"""Layers of several kinds in one model: which kind stands where, and how their parts become layers."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvgate.budget.matrix import Matrix
from kvgate.budget.model_shape import DTYPE_BYTES, LayerShape, Mixer, Mlp, UnmodelledLayer
from kvgate.hf_config.blocks import vector
from kvgate.hf_config.family import LanguageModel, Stack
from kvgate.hf_config.feed_forward import mlp_matrices
from kvgate.hf_config.fields import Fields
from kvgate.hf_config.layers import stack

Part = tuple[Mixer, tuple[Matrix, ...]]
"""The cache of a layer, and the weights that go with it."""


def mixed_stack(
    model: LanguageModel, parts: Sequence[Part], mlps: Sequence[Mlp], *, drafts: tuple[LayerShape, ...] = ()
) -> Stack:
    """A mixer and a feed-forward block in every layer."""
    made = {pair: layer_of(model, *pair) for pair in set(zip(parts, mlps, strict=True))}
    layers = (made[pair] for pair in zip(parts, mlps, strict=True))
    return stack(model, (model.formats.stored(index, layer) for index, layer in enumerate(layers)), drafts=drafts)


def layer_of(model: LanguageModel, part: Part, mlp: Mlp) -> LayerShape:
    """A mixer and a feed-forward block, a norm before each."""
    mixer, own = part
    block = mlp_matrices(model.fields, model.known, mlp, model.hidden_size)
    return LayerShape(mixers=(mixer,), mlps=(mlp,), matrices=(*own, *block, vector("layernorm", 2 * model.hidden_size)))


def parts_of(kinds: Sequence[str], known: Mapping[str, Part]) -> list[Part]:
    """The part of every layer; a word that no class of 0.32 uses becomes a layer without a formula."""
    return [known.get(kind) or (UnmodelledLayer(kind=f"{kind.replace('_', ' ')} layers"), ()) for kind in kinds]


def listed_kinds(fields: Fields, key: str, num_layers: int) -> list[str]:
    """One word per decoder layer; empty where config.json lists none."""
    return [str(kind) for kind in fields.per_layer(key, num_layers)]


def every(num_layers: int, period: int, offset: int, *, here: str, elsewhere: str) -> list[str]:
    """One layer of each `period` is of another kind than the rest."""
    return [here if index % period == offset else elsewhere for index in range(num_layers)]


def count_or_auto(fields: Fields, *keys: str, auto: int) -> int:
    """A number, or the one that transformers' config class computes for `auto` and for silence."""
    value: Any = next((fields.values[key] for key in keys if fields.has(key)), "auto")
    return auto if value == "auto" else fields.count(*keys)


def state_dtype(fields: Fields, key: str, *, default: str | None = None) -> str | None:
    """The dtype of the recurrent state that config.json asks for; None: the model's."""
    name = fields.text(key, default=default or "auto")
    if name == "auto":
        return None
    if name not in DTYPE_BYTES:
        fields.problems.append(f"{key} is {name[:40]!r}; it must be one of {', '.join(DTYPE_BYTES)}")
        return None
    return name
