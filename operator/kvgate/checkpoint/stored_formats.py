"""The tensors of a checkpoint decide how its weights are stored, where config.json says otherwise or says nothing that is known.

Three steps, which need no formula of their own:

1. For each module of each layer the format that config.json gives is kept if it explains the bytes of the module's tensors. Else
   the module is plain if its tensors are floats; else it takes another format of the checkpoint that explains the bytes; else it
   is stored *as stored*: in that many bytes, which ranks share as they share the plain matrix.
2. The head, and the embedding of a GGUF file, are read in the same way.
3. The bytes of all tensors that vLLM loads become `checkpoint_bytes`. Drafts, a tied head and saved rotary tables are not among
   them. Where the formulas still count other bytes, `checkpoint_ratio` scales them as it does for an index.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from math import prod
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.ground.hardware import SINGLE_GPU
from kvgate.budget.model.matrix import Matrix, Units, WeightFormat
from kvgate.budget.model.origin import Assumption
from kvgate.budget.model.shape import DTYPE_BYTES, FullAttention, LayerShape, ModelShape, UnmodelledLayer
from kvgate.budget.model.weights import rank_weights, whole_bytes
from kvgate.checkpoint.tensors import DTYPES, FLOATS, TensorGroup
from kvgate.hf_config import ModelConfigError, read_config
from kvgate.hf_config.formats.modules import MODULES
from kvgate.text.patterns import pattern

TOLERANCE = 100
"""Bytes that differ by less than one part in so many confirm a format. Formats differ by 3 % or more (groups of 64 or of 128)."""
_SMALL_BYTES = 2048
"""Bytes that a tensor may have beyond a format's formula: tables of quantisation levels (bitsandbytes), scalars of scales."""
_IN_LAYER = pattern(r"(?:(?P<before>[\w.]+)\.)?(?:layers|h|blocks)\.(?P<layer>\{\})\.(?P<tail>.+)")
_IN_DRAFT = pattern(r"(?:[\w.]+\.)?mtp\.layers\.\{\}\.(?P<tail>.+)")
"""The layer of a draft that is numbered by itself; most drafts count on behind the last layer."""
_TEXT_PARTS = frozenset({"model", "language_model", "text_model", "backbone", "transformer", "decoder", "llm"})
_EXPERTS = frozenset({"experts", "layer_experts"})
_NEVER_LOADED = ("inv_freq", "cos_cached", "sin_cached")
"""Tables of rotary positions that older checkpoints hold (vLLM 0.32, `AutoWeightsLoader`)."""
_HEAD = pattern(r"(?:language_model\.|model\.)?(?:lm_head|output|embed_out)\.(?P<suffix>\w+)")
_EMBEDDING = pattern(r"(?:[\w.]+\.)?(?:embed_tokens|tok_embeddings|word_embeddings|wte|embed_in|embeddings)\.weight")


class _Stored(Struct, frozen=True, kw_only=True):
    num_tensors: int
    size_bytes: int
    padding_bytes: int
    """Bytes among them that the checkpoint does not have."""
    is_plain: bool

    def is_explained_by(self, expected_bytes: int) -> bool:
        return (
            abs(self.size_bytes - expected_bytes) * TOLERANCE
            <= expected_bytes + _SMALL_BYTES * self.num_tensors * TOLERANCE
        )


def with_stored_formats(shape: ModelShape, groups: Sequence[TensorGroup], *, method: str = "") -> ModelShape:
    """Return the shape with the formats of the checkpoint's tensors.

    `method` names the quantisation in findings where config.json states one that has no formula. A shape whose layers have no
    formula comes back as it is.
    """
    if not groups or shape.has(UnmodelledLayer):
        return shape
    formats = [matrix.format for layer, _ in shape.distinct_layers for matrix in layer.matrices]
    known = tuple(dict.fromkeys(each for each in (shape.quantization, *formats) if each is not None))
    restored = _Restored(known=known, method=method or "as-stored", element_bytes=DTYPE_BYTES[shape.dtype])
    of_layers = _by_layer(groups, len(shape.layers))
    layers = tuple(restored.layer(layer, of_layers.get(index, ())) for index, layer in enumerate(shape.layers))
    padding_bytes = restored.padding_bytes
    drafts = tuple(
        restored.layer(layer, of_layers.get(len(layers) + index, ())) for index, layer in enumerate(shape.draft_layers)
    )
    head = [group for group in groups if _HEAD.fullmatch(group.name)]
    embedding = [group for group in groups if _EMBEDDING.fullmatch(group.name)]
    new = next((each for each in restored.made if each.format == "as-stored"), None)
    return replace(
        shape,
        layers=layers,
        draft_layers=drafts,
        head_format=shape.head_format if shape.tie_word_embeddings else restored.end(shape, head, shape.head_format),
        embedding_format=restored.end(shape, embedding, None) if _is_ggml(embedding) else None,
        quantization=shape.quantization or new,
        unmodelled=() if new is not None else shape.unmodelled,
        checkpoint_bytes=loaded_bytes(shape, groups) + padding_bytes,
    )


def loaded_bytes(shape: ModelShape, groups: Iterable[TensorGroup]) -> int:
    """Return the bytes of the tensors that vLLM loads without drafts, plain ones as elements of the model dtype."""
    element_bytes, num_layers = DTYPE_BYTES[shape.dtype], len(shape.layers)
    only_float32 = all(group.dtype == "F32" for group in groups if group.dtype in FLOATS)
    total = 0
    for group in groups:
        if group.name.endswith(_NEVER_LOADED) or (shape.tie_word_embeddings and _HEAD.fullmatch(group.name)):
            continue
        size = group.size_bytes
        if group.dtype == "F64" or (group.dtype == "F32" and only_float32):
            size = size * element_bytes * DTYPES[group.dtype][0] // DTYPES[group.dtype][1]
        total += size * _loaded_share(group, num_layers) // group.count
    return total


def _loaded_share(group: TensorGroup, num_layers: int) -> int:
    """Return how many tensors of a group are not a draft's: those of `mtp.` and of layers after the last one are."""
    if any(part.startswith("mtp") for part in group.name.split(".")):
        return 0
    if _in_layer(group.name) is None:
        return group.count
    numbers = list(group.at(0))
    return group.count // len(numbers) * sum(number < num_layers for number in numbers)


def _in_layer(name: str) -> re.Match[str] | None:
    """Match the tensor of a decoder layer; those of towers and drafts have other names before `layers`."""
    found = _IN_LAYER.fullmatch(name)
    is_text = found is not None and _TEXT_PARTS.issuperset((found["before"] or "model").split("."))
    return found if is_text else None


def _by_layer(groups: Iterable[TensorGroup], num_layers: int) -> dict[int, tuple[TensorGroup, ...]]:
    """Return the groups that have a tensor in each layer, named by what follows the layer and with their sizes in it."""
    of_layers: dict[int, list[TensorGroup]] = {}
    for group in groups:
        if found := _IN_DRAFT.fullmatch(group.name):
            first = num_layers
        elif found := _in_layer(group.name):
            first = 0
        else:
            continue
        numbers = list(group.at(0))
        count, size = group.count // len(numbers), group.size_bytes // len(numbers)
        here = replace(group, name=found["tail"], count=count, size_bytes=size, numbers=())
        for number in numbers:
            of_layers.setdefault(first + number, []).append(here)
    return {number: tuple(found) for number, found in of_layers.items()}


class _Restored:
    """Layers with the formats of their tensors; equal layers come back as one object, because they are counted by identity."""

    def __init__(self, *, known: tuple[WeightFormat, ...], method: str, element_bytes: int) -> None:
        self._known = known
        self._method = method
        self._element_bytes = element_bytes
        self._seen: dict[tuple[int, tuple[int, ...]], tuple[LayerShape, int]] = {}
        self._same: dict[LayerShape, LayerShape] = {}
        self.made: dict[WeightFormat, None] = {}
        """Formats that were found, in order of appearance."""
        self.padding_bytes = 0
        """Padding in all layers that were asked for."""

    def layer(self, layer: LayerShape, groups: tuple[TensorGroup, ...]) -> LayerShape:
        """Return the layer with the format of each module that has tensors."""
        key = (id(layer), tuple(map(id, groups)))
        if key not in self._seen:
            stored = {
                name: _stored(of, is_fused=name not in _EXPERTS) for name, of in _by_module(layer, groups).items()
            }
            formats = {
                name: self._fitting(tuple(matrix for matrix in layer.matrices if matrix.name == name), found)
                for name, found in stored.items()
            }
            matrices = tuple(
                replace(matrix, format=formats[matrix.name]) if matrix.name in formats else matrix
                for matrix in layer.matrices
            )
            changed = replace(layer, matrices=matrices)
            padding = sum(found.padding_bytes for found in stored.values())
            self._seen[key] = self._same.setdefault(changed, changed), padding
        found, padding = self._seen[key]
        self.padding_bytes += padding
        return found

    def end(self, shape: ModelShape, groups: Sequence[TensorGroup], given: WeightFormat | None) -> WeightFormat | None:
        """Return the format of embedding or head, which are one matrix over the vocabulary."""
        weights = [group for group in groups if not group.name.endswith("bias")]
        if not weights:
            return given
        whole = Matrix(name="", rows=(Units(count=shape.vocab_size),), columns=shape.hidden_size, format=given)
        return self._fitting((whole,), _stored(weights, is_fused=False))

    def _fitting(self, matrices: tuple[Matrix, ...], stored: _Stored) -> WeightFormat | None:
        """Return the format that explains the bytes: the given one, plain elements, another one of the checkpoint, the bytes themselves."""
        given = matrices[0].format
        if stored.is_plain:
            return given if given is not None and given.converts_while_loading else None
        for candidate in dict.fromkeys((given, *self._known)):
            if candidate is None or candidate.format == "as-stored":
                continue
            expected = whole_bytes((replace(matrix, format=candidate) for matrix in matrices), self._element_bytes)
            if stored.is_explained_by(expected):
                self.made[candidate] = None
                return candidate
        elements = sum(
            max(1, each.experts) * sum(part.elements for part in each.rows) * each.columns for each in matrices
        )
        made = WeightFormat(
            method=self._method, format="as-stored", stored_bytes=stored.size_bytes, stored_elements=elements
        )
        self.made[made] = None
        return made


def _by_module(layer: LayerShape, groups: Iterable[TensorGroup]) -> dict[str, list[TensorGroup]]:
    """Return the tensors of each module that a format may be about, without biases."""
    names = tuple(dict.fromkeys(matrix.name for matrix in layer.matrices if matrix.name in MODULES))
    found: dict[str, list[TensorGroup]] = {}
    for group in groups:
        name = None if group.name.endswith("bias") else _module_of(group.name, names)
        if name is not None:
            found.setdefault(name, []).append(group)
    return found


@lru_cache(maxsize=8192)
def _module_of(tail: str, names: tuple[str, ...]) -> str | None:
    """Return vLLM's name of the module that a tensor belongs to: the first whose names in checkpoints begin the tensor's."""
    if "experts" in tail.split("."):
        return next((name for name in names if name in _EXPERTS), None)
    beginnings: Iterator[str] = (
        name for name in names for known in MODULES[name] if f"{tail}.".startswith(f"{known}.")
    )
    return next(beginnings, None)


def _is_ggml(groups: Iterable[TensorGroup]) -> bool:
    return any(DTYPES[group.dtype][0] > 4 for group in groups)


def _stored(groups: Sequence[TensorGroup], *, is_fused: bool) -> _Stored:
    """Sum the tensors of a module.

    ggml's rows of fused matrices are padded to the widest (vLLM 0.22, `GGUFLinearMethod._create_padded_weight_param`).
    """
    stored_bytes = size_bytes = sum(group.size_bytes for group in groups)
    if is_fused and _is_ggml(groups):
        rows = [group.count * prod(group.shape[:-1]) for group in groups]
        widest = [group.size_bytes // count for group, count in zip(groups, rows, strict=True) if count]
        size_bytes = sum(rows) * max(widest, default=0)
    return _Stored(
        num_tensors=sum(group.count for group in groups),
        size_bytes=size_bytes,
        padding_bytes=size_bytes - stored_bytes,
        is_plain=all(group.dtype in FLOATS for group in groups),
    )


CLASSES = (
    "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "ArceeForCausalLM", "Olmo2ForCausalLM", "Gemma2ForCausalLM",
    "Glm4ForCausalLM", "Cohere2ForCausalLM", "GPTNeoXForCausalLM", "MixtralForCausalLM", "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM", "Glm4MoeForCausalLM",
)  # fmt: skip
"""Classes of plain decoders, one of each make: they differ in norms, biases, feed-forward blocks and experts."""
SHARE = 1000
"""Bytes that differ by less than one part in so many are equal. One KV head of Llama-3.1-8B more or less is 4 parts."""
_KEYS = pattern(r"(?:.*\.)?(?:k_proj|key)\.weight")
_FUSED = pattern(r"(?:.*\.)?(?:qkv_proj|query_key_value|Wqkv|qkv)\.weight")


def look_alike(
    config: Mapping[str, Any], groups: Sequence[TensorGroup], *, name: str, quantization: str | None, dtype: str | None
) -> ModelShape | None:
    """Return the shape of the first class that kvgate has read whose tensors these are, as assumed; None where there is none.

    vLLM runs many classes that nobody has read by its Transformers backend. They may compute in another way: the tensors prove the
    weights and the heads of keys and values, and nothing proves that a layer caches them as others do.
    """
    for architecture in CLASSES:
        try:
            shape = read_config(
                {**config, "architectures": [architecture]}, name=name, quantization=quantization, dtype=dtype
            )
        except ModelConfigError:
            continue
        if shape.unmodelled_kinds or not _has_heads(shape, groups):
            continue
        stored_bytes, stage = loaded_bytes(shape, groups), (0, len(shape.layers))
        weights = rank_weights(shape, SINGLE_GPU, stage, unsplit_large_blocks=False, compute_capability=None)
        if abs(weights.parameter_bytes - stored_bytes) * SHARE <= stored_bytes:
            words = f"its tensors, which are those of {architecture}"
            return replace(shape, architecture=str(config["architectures"][0]), assumed=Assumption(words=words))
    return None


def _has_heads(shape: ModelShape, groups: Sequence[TensorGroup]) -> bool:
    """Return True where every plain projection of keys is as wide as the shape's KV heads, and there is one."""
    heads = {mixer for mixer in shape.mixers if isinstance(mixer, FullAttention)}
    if len({(mixer.num_heads, mixer.num_kv_heads, mixer.head_dim) for mixer in heads}) != 1:
        return False
    mixer = heads.pop()
    keys = mixer.num_kv_heads * mixer.head_dim
    fused = 2 * keys + mixer.num_heads * mixer.head_dim
    found = [
        group.shape[0] == (keys if _KEYS.fullmatch(group.name) else fused)
        for group in groups
        if group.dtype in FLOATS and (_KEYS.fullmatch(group.name) or _FUSED.fullmatch(group.name))
    ]
    return bool(found) and all(found)
