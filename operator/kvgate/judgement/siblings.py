"""A model that the catalogue does not know → the facts of its sibling by name; they are assumed, and nothing is refused on them."""

import re
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import SINGLE_GPU, ModelShape, accounting_of
from kvgate.budget.model.origin import Assumption, ModelOrigin
from kvgate.budget.model.weights import rank_weights
from kvgate.hf_config import ModelConfigError, read_config
from kvgate.hf_config.formats.assumed_formats import (
    Converts,
    can_be_assumed,
    likely_quantization_config,
    smallest_and_largest,
)
from kvgate.hf_config.names import (
    MAX_NAME,
    PLAIN,
    StatedFormat,
    converts_all,
    stated_format,
    usual_quantization_config,
)
from kvgate.statement.engine import newest_understood

_UPLOADERS = frozenset({"unsloth", "redhatai", "neuralmagic", "nvidia", "sgl-project", "hugging-quants"})
"""Owners who publish other people's models too; where a model stands twice in the catalogue, its maker's entry counts."""
_OTHER_RUNTIMES = frozenset({"mlx-community"})
"""Owners whose quantised files are for another program: vLLM reads no MLX format."""


_TRAININGS = frozenset({"instruct", "it", "chat", "base", "pt", "hf"})
"""Words of names about what a model was trained for, which leaves its shape as it is."""
_DATE, _SIZE = re.compile(r"2[3-9](?:0[1-9]|1[0-2])"), re.compile(r"(?:\d+x)?\d+(?:[.]\d+)?[bm]")
_FAMILY = re.compile(r"[a-z]+-?[0-9]+(?:-[0-9])?-")
"""A family with its version, as `llama-3-1-` and `qwen3-`: `Qwen-7B` and `Llama-7B` are not enough at the end of a name."""
_OTHER_SHAPES = frozenset({
    "eagle", "eagle2", "eagle3", "medusa", "dflash", "dspark", "draft", "drafter", "mtp", "speculator", "llava", "vl", "vision", "omni",
    "audio", "ultravox", "moe", "reap", "pruned", "sheared", "tiny", "nano", "mini", "small", "lite",
})  # fmt: skip
"""Words before the name of a model that make it a draft of it, a part of it, or more than it."""
_DIMENSIONS = (
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "vocab_size",
)


class Sibling(Struct, frozen=True, kw_only=True):
    """A model of the catalogue that a name leads to."""

    model: str
    """Its name in the catalogue."""
    stated: StatedFormat | None
    """Format that the unknown name states, where it states one."""

    @property
    def words(self) -> str:
        """The assumption as a clause after "assumed from"."""
        if self.stated is None:
            return f"{self.model} by its name"
        if PLAIN in self.stated.formats:
            return f"{self.model} by its name, not quantised"
        return f"{self.model}, quantised as {self.stated.text} by its name"


def sibling_of(name: str) -> Sibling | None:
    """Return the one model of the catalogue that is called like the last part of a name or path, with or without its format.

    Only what cannot change the shape is left out: the owner, the format, `Meta-` before Llama, `-hf`; and if that finds nothing, the
    training (`-Instruct`, `-it`, `-chat`, `-Base`), a date (`-2512`) and the hyphen before a version (`qwen-2.5`); then a fine-tuner's own
    words before the model's name (`Hermes-3-Llama-3.1-8B`). `-abliterated`, `-REAP` or `-speculator` make another name, and a name without
    a sibling stays unknown.
    """
    if len(name) > MAX_NAME:
        return None
    model = name.strip().rstrip("/").rpartition("/")[2]
    stated = stated_format(model)
    if stated is None:
        found = _called(model)  # not X-BF16: it is published because X is something else
        return Sibling(model=found, stated=None) if found else None
    if not can_be_assumed(stated) or name.partition("/")[0].lower() in _OTHER_RUNTIMES:
        return None
    base = _key(stated.base)
    found = _by_name().get(_key(model)) or _by_name().get(base) or _by_base().get(base) or _called(stated.base)
    return Sibling(model=found, stated=stated) if found else None


def _key(model: str) -> str:
    """Return the words of a name, however they are separated: `Llama-3_3` and `llama-3.3` are one, `Qwen2.5-7B` is not `Qwen2-57B`."""
    return re.sub(r"[-_.]+", "-", model).lower().removeprefix("meta-").removesuffix("-hf")


def _called(model: str) -> str | None:
    """Return the model of this name, else its kin, else that of a fine-tune: as its publisher says, or as the end of its name does."""
    if known := _by_name().get(_key(model)) or _kin_of(model) or _by_fine_tune().get(_key(model)):
        return known
    words = _key(model).split("-")
    for start in range(1, len(words) - 1):
        rest = "-".join(words[start:])
        if not _OTHER_SHAPES.isdisjoint(words[:start]):
            return None
        if _FAMILY.match(rest) and (found := _by_name().get(rest) or _kin_of(rest)):
            return found
    return None


def _kin_of(model: str) -> str | None:
    """Return the model of the catalogue that differs from a name only by its training or its date; all such models have one shape."""
    kin = _by_kin().get(_kin_key(model), ())
    shapes = set[tuple[Any, ...]]()
    for each in kin:
        config = catalogue.load_model(each).config
        text = config.get("text_config")
        inner = text if isinstance(text, Mapping) else config
        shapes.add((str(config.get("architectures")), *(inner.get(name) for name in _DIMENSIONS)))
    training = _TRAININGS.intersection(_key(model).split("-"))
    alike = [each for each in kin if training & set(_key(each).split("-"))]
    return (alike or kin)[0] if len(shapes) == 1 else None


def _kin_key(model: str) -> str:
    """Return the words of a name without training and date; empty where no size is left, as in `mistral-large-2411`."""
    words = _key(model).split("-")
    if len(words) > 1 and words[0].isalpha() and words[1][:1].isdigit():
        words[:2] = [words[0] + words[1]]  # qwen-2.5 is qwen2.5
    if len(words) > 1 and words[0][-1:].isdigit() and len(words[1]) == 1 and words[1].isdigit():
        words[:2] = [words[0] + words[1]]  # llama-31 is llama-3.1
    if len(words) > 1 and _DATE.fullmatch(words[-1]):
        words = words[:-1]
    words = [word for word in words if word not in _TRAININGS]
    return "-".join(words) if any(map(_SIZE.fullmatch, words)) else ""


@lru_cache(maxsize=1)
def _by_kin() -> Mapping[str, Sequence[str]]:
    """Return the models by the key of their kin, makers' own entries where there are any; quantised ones are no kin of a plain name."""
    found: dict[str, list[str]] = {}
    for name, model in catalogue.names_and_aliases().items():
        key = "" if stated_format(name) else _kin_key(name.rpartition("/")[2])
        if key and model not in found.setdefault(key, []):
            found[key].append(model)
    own = {key: [model for model in models if not _by_owner(model)[0]] for key, models in found.items()}
    return {key: sorted(own[key] or models, key=_by_owner) for key, models in found.items()}


@lru_cache(maxsize=1)
def _by_fine_tune() -> Mapping[str, str]:
    return {_key(name): model for name, model in catalogue.fine_tunes().items()}


@lru_cache(maxsize=1)
def _by_name() -> Mapping[str, str]:
    names = catalogue.names_and_aliases().items()
    return _unique((_key(name.rpartition("/")[2]), model) for name, model in names)


@lru_cache(maxsize=1)
def _by_base() -> Mapping[str, str]:
    """Return the models whose own name states a format, by the key of the rest."""
    stated = ((model, stated_format(name)) for name, model in catalogue.names_and_aliases().items())
    return _unique((_key(form.base.rpartition("/")[2]), model) for model, form in stated if form and form.formats)


def _unique(pairs: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return key → model; a maker's own entry goes before those of others."""
    found: dict[str, list[str]] = {}
    for key, model in pairs:
        found.setdefault(key, []).append(model)
    return {key: min(models, key=_by_owner) for key, models in found.items()}


def _by_owner(model: str) -> tuple[bool, str]:
    return model.partition("/")[0].lower() in _UPLOADERS, model


@lru_cache(maxsize=256)
def sibling_shape(name: str, quantization: str | None, dtype: str | None) -> ModelShape | None:
    """Return the shape of a sibling, stored in the format that the name states; `quantization` and `dtype` are vLLM's arguments."""
    sibling = sibling_of(name)
    if sibling is None:
        return None
    entry, stated = catalogue.load_model(sibling.model), sibling.stated
    try:
        config = entry.config if stated is None else _stored(name, entry, stated)
        shape = read_config(config, name=name, quantization=quantization, dtype=dtype)
        low, high = _range(shape, stated)
    except ModelConfigError:
        return None
    is_same = stated is None and quantization is None and dtype in (None, "auto")
    return replace(
        shape,
        dtype="float16"
        if dtype in (None, "auto") and stated and _is_written_in_float16(shape, stated)
        else shape.dtype,
        checkpoint_bytes=(entry.safetensors_bytes or 0) if is_same else 0,
        assumed=Assumption(words=sibling.words, weights_low=low, weights_high=high),
        origin=ModelOrigin(kind="assumed", place=sibling.words),
    )


def _stored(name: str, entry: catalogue.ModelEntry, stated: StatedFormat) -> Mapping[str, Any]:
    """Return the config with the likeliest quantisation: the model's own where it goes with the name, else that of the usual tool."""
    own = read_config(entry.config, name=entry.name).quantization if catalogue.is_quantised(entry.config) else None
    if own is not None and own.format in stated.formats:
        return entry.config
    return catalogue.with_quantization(entry.config, likely_quantization_config(name, stated))


_BEFORE_GPTQ_MODEL = frozenset({"0.6.6", "0.8.5"})
"""First releases of classes whose models AutoGPTQ quantised, too; it was archived in April 2025, and GPTQModel keeps the config's type."""


def _is_written_in_float16(shape: ModelShape, stated: StatedFormat) -> bool:
    """Return whether the tool that the name states writes float16: AutoAWQ does, and AutoGPTQ, whatever the type of the plain model is.

    Where vLLM refuses float16 for the class, it takes bfloat16 instead whatever the config states (0.10 to 0.33, `_resolve_auto_dtype`).
    """
    is_refused = shape.architecture in accounting_of(newest_understood()).float16_refused
    usual = usual_quantization_config(shape.name) or {"quant_method": stated.kinds[0].lower()}
    if is_refused or usual["quant_method"] not in ("awq", "gptq"):
        return False
    known = catalogue.find_model_class(shape.architecture)
    return stated.kinds[0] == "AWQ" or known is None or known.since in _BEFORE_GPTQ_MODEL


def _range(shape: ModelShape, stated: StatedFormat | None) -> tuple[Fraction, Fraction]:
    """Return the lowest and the highest weights that the stated format allows, as shares of those of `shape`.

    Publishers whose tool is known convert all of a dense text model; any other may leave out attention, recurrent layers and encoders.
    """
    is_usual = converts_all(shape.name) and shape.is_dense and not shape.encoders
    converts = Converts.ALL if is_usual else Converts.EXPERTS if shape.is_sparse else Converts.FEED_FORWARD
    bounds = smallest_and_largest(shape, stated, converts) if stated is not None else None
    if bounds is None:
        return Fraction(1), Fraction(1)
    likely, (smallest, largest) = plain_bytes(shape), map(plain_bytes, bounds)
    return min(Fraction(1), Fraction(smallest, likely)), max(Fraction(1), Fraction(largest, likely))


def in_other_formats(name: str) -> tuple[str, ...]:
    """Return the catalogue's checkpoints of a model whose names state fewer bits, one of 8 and one of 4 where there are any.

    Of `Qwen3-32B` these are `Qwen3-32B-FP8` and `Qwen3-32B-AWQ`; the owner of the model goes before others.
    """
    own = stated_format(name)
    base = _key((own.base if own else name).rpartition("/")[2])
    keys = ((other, _key(other.rpartition("/")[2])) for other in catalogue.model_names() if other != name)
    alike = ((other, stated_format(other)) for other, key in keys if key.startswith(base))
    found: dict[bool, list[str]] = {False: [], True: []}
    for other, form in alike:
        if form and form.formats and _key(form.base.rpartition("/")[2]) == base:
            found[any(each.startswith(_FOUR_BITS) for each in form.formats)].append(other)
    owner = name.partition("/")[0]
    return tuple(
        min(names, key=lambda each: (each.partition("/")[0] != owner, each)) for names in found.values() if names
    )


_FOUR_BITS = ("int4", "nvfp4", "mxfp4", "nf4")
"""First letters of formats of 4 bits a weight."""


def plain_bytes(shape: ModelShape) -> int:
    """Return the bytes of all parameters on one GPU."""
    weights = rank_weights(shape, SINGLE_GPU, (0, len(shape.layers)), unsplit_large_blocks=False)
    return max(1, weights.parameter_bytes)
