"""The model of a question → its shape: from the user's own text, a lock file, the catalogue, a fetch, or a sibling by name."""

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Literal

from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import ModelShape, accounting_of, parse_patch
from kvgate.budget.answers.contradictions import between
from kvgate.budget.model.origin import ModelOrigin
from kvgate.budget.model.shape import FullAttention
from kvgate.checkpoint.not_fetched import NotFetched
from kvgate.checkpoint.published import NO_MODELS, Published, PublishedModels, content_of, name_key, shape_of
from kvgate.findings.finding import Finding, Severity, any_one, do, words
from kvgate.hf_config import ModelConfigError, read_config
from kvgate.hf_config.fields import parse_config_text
from kvgate.rules.facts import (
    GGUF_NOT_IN_RELEASE,
    INVALID_MODEL_CONFIG,
    MODEL_ASSUMED,
    MODEL_CLASS_NOT_IN_RELEASE,
    UNKNOWN_MODEL,
)
from kvgate.statement.engine import is_known_release
from kvgate.vllm.given_settings import overridden

_OVERRIDDEN = "hf_overrides"
"""Place of a config in which an option of vLLM replaced values."""


def look_up_model(
    name: str,
    *,
    revision: str = "",
    quantization: str | None = None,
    dtype: str | None = None,
    models: PublishedModels = NO_MODELS,
) -> tuple[ModelShape | None, tuple[Finding, ...]]:
    """Return the shape of a model by its name, or findings with the nearest names.

    A lock file wins over the catalogue, unless the user says `--facts catalogue-first`; what was fetched is used where the catalogue
    does not have the model, and a sibling by name where nobody has it.
    """
    key = name_key(name, revision)
    shape = _catalogue_shape(name, quantization, dtype, is_revised=bool(revision))
    if (locked := models.locked.get(key)) and (shape is None or not models.catalogue_first):
        return _published_shape(locked, quantization, dtype, models.places.get(key, "the lock file"))
    if shape is not None:
        return shape, ()
    if fetched := models.fetched.get(key):
        return _published_shape(fetched, quantization, dtype)
    from kvgate.judgement.siblings import sibling_shape  # most models are known

    if (assumed := sibling_shape(name, quantization, dtype)) and assumed.assumed:
        message = words(
            "assumed from {sibling}: {name} is not in the catalogue", sibling=assumed.assumed.words, name=name
        )
        assumption = MODEL_ASSUMED.finding("model", message, do("give its config.json by {model_config}"))
        missing = models.missing.get(key)
        return assumed, (assumption, with_reason(_unknown(name, models), missing)) if missing else (assumption,)
    return None, (with_reason(_unknown(name, models), models.missing.get(key)),)


def _unknown(name: str, models: PublishedModels) -> Finding:
    nearest = catalogue.nearest_models(name)
    write = (f"write one of these names, if you mean it: {', '.join(nearest)}",) if nearest else ()
    remedy = any_one(*write, *ways_to_fetch(name, models), do("give its config.json by {model_config}"))
    return UNKNOWN_MODEL.finding("model", words("model {name} is not in the catalogue", name=name), remedy)


def look_up_overridden(
    name: str,
    overrides: Mapping[str, Any],
    *,
    revision: str = "",
    quantization: str | None = None,
    dtype: str | None = None,
    models: PublishedModels = NO_MODELS,
) -> tuple[ModelShape | None, tuple[Finding, ...]]:
    """Return the shape of a model by its name with other values in its config; one whose config is not at hand is not modelled."""
    key, entry = name_key(name, revision), catalogue.find_model(name)
    locked = None if entry and models.catalogue_first else models.locked.get(key)
    published = locked or (models.fetched.get(key) if entry is None else None)
    config = published.config if published else entry.config if entry else None
    if config:
        text = json.dumps(overridden(config, overrides))
        return shape_of_text(text, name=name, where=_OVERRIDDEN, quantization=quantization, dtype=dtype)
    shape, findings = look_up_model(name, revision=revision, quantization=quantization, dtype=dtype, models=models)
    unknown = "overrides of a config that is assumed"
    return (replace(shape, unmodelled=(*shape.unmodelled, unknown)) if shape else None), findings


def ways_to_fetch(name: str, models: PublishedModels) -> tuple[str, ...]:
    """Return the advice to fetch what is published under a name that a hub may have; none where nobody can ask for it."""
    is_published = "/" in name and not name.startswith((".", "/", "~")) and "://" not in name
    return (
        (f"fetch what its publisher published: {models.fetch_option}",) if models.fetch_option and is_published else ()
    )


def with_reason(unknown: Finding, missing: NotFetched | None) -> Finding:
    """Return the finding about a name with the reason why somebody's fetch of it found nothing."""
    if missing is None:
        return unknown
    reasoned = unknown.with_words("{message}, and it could not be fetched: {reason}", reason=missing.message)
    return replace(reasoned, remedy=any_one(*missing.remedies, unknown.remedy))


_READ_FROM_A_CONFIG = frozenset({"awq", "awq_marlin", "gptq", "gptq_marlin"})
"""Methods that convert no plain checkpoint: vLLM looks for their config in the checkpoint (0.6 to 0.33, `get_quant_config`)."""


@lru_cache(maxsize=1024)
def _catalogue_shape(
    name: str, quantization: str | None, dtype: str | None, *, is_revised: bool = False
) -> ModelShape | None:
    entry = catalogue.find_model(name)
    if entry is None:
        return None
    shape = read_config(entry.config, name=entry.name, quantization=quantization, dtype=dtype)
    # another revision, or a copy under another name, may have the config
    if quantization in _READ_FROM_A_CONFIG and name == entry.name and not is_revised:
        return replace(shape, lacks_requested_format=not read_config(entry.config, name=name).format_kinds)
    as_stored = quantization is None and dtype in (None, "auto")
    stored_bytes = (entry.safetensors_bytes or 0) if as_stored else 0
    return replace(
        shape, checkpoint_bytes=stored_bytes, checkpoint_source=f"the {_CATALOGUE}", origin=ModelOrigin(kind=_CATALOGUE)
    )


_CATALOGUE: Literal["catalogue"] = "catalogue"


def _published_shape(
    published: Published, quantization: str | None, dtype: str | None, place: str = ""
) -> tuple[ModelShape | None, tuple[Finding, ...]]:
    """Return the shape of a published checkpoint; `place` is that of its entry in a lock file, empty where it was fetched."""
    content = content_of(published)
    kind: Literal["lock file", "fetched"] = "lock file" if place else "fetched"
    commit = ", commit ".join(filter(None, (published.source, published.commit[:12])))
    origin = ModelOrigin(kind=kind, place=place or commit, digest=content.digest.hex()[:12])
    return _shape_or_findings(
        (content.digest, published.name, quantization, dtype, place),
        lambda: _beside_the_catalogue(
            shape_of(published, quantization=quantization, dtype=dtype),
            origin,
            (quantization, dtype),
            published.revision,
        ),
        size=content.num_characters,
        where=f"{published.name} of {published.source or 'the lock file'}",
    )


def shape_of_text(
    text: str, *, name: str, where: str, quantization: str | None = None, dtype: str | None = None
) -> tuple[ModelShape | None, tuple[Finding, ...]]:
    """Return the shape that the text of a config.json describes, or one finding for each problem."""
    from hashlib import sha256  # some milliseconds, which names of the catalogue do not need

    digest = sha256(text.encode(errors="surrogatepass")).digest()
    return _shape_or_findings(
        (digest, name, quantization, dtype, where == _OVERRIDDEN),
        lambda: _beside_the_catalogue(
            read_config(parse_config_text(text), name=name, quantization=quantization, dtype=dtype),
            ModelOrigin(
                kind="given",
                place=where if where == _OVERRIDDEN else "the config that is given",
                digest=digest.hex()[:12],
            ),
            (quantization, dtype),
        ),
        size=len(text),
        where=where,
    )


def _beside_the_catalogue(
    shape: ModelShape, origin: ModelOrigin, requested: tuple[str | None, str | None], revision: str = ""
) -> ModelShape:
    """Return the shape with its source, and with what it contradicts the catalogue in under exactly its name.

    A config that somebody gives may state a shorter context than the catalogue. Another revision may be stored otherwise.
    """
    shape = replace(shape, origin=origin)
    known = _catalogue_shape(shape.name, *requested) if origin.place != _OVERRIDDEN else None
    if known is None:
        return shape
    is_given, place = origin.kind == "given", origin.place or origin.kind
    differences = between(shape, known, sources=(place, "the catalogue"), length=not is_given)
    if revision:
        differences = tuple(each for each in differences if each.fact != "weights")
    longer = known.max_model_len if is_given and 0 < shape.max_model_len < known.max_model_len else 0
    return replace(
        shape,
        origin=replace(origin, differences=differences),
        contradictions=(*shape.contradictions, *differences),
        published_max_model_len=longer,
    )


def _shape_or_findings(
    key: object, read: Callable[[], ModelShape], *, size: int, where: str
) -> tuple[ModelShape | None, tuple[Finding, ...]]:
    """Return the shape that `read` gives, or its problems; each content is read once."""
    found = _SHAPES.get(key)
    if found is None:
        try:
            found = read()
        except ModelConfigError as error:
            found = error
        _SHAPES.put(key, found, size=size)
    if isinstance(found, ModelShape):
        if found.assumed is None:
            return found, ()
        message = f"assumed from {found.assumed.words}: kvgate does not know the model class {found.architecture}"
        return found, (MODEL_ASSUMED.finding("model", message, "start it once and measure"),)
    remedy = "give the config.json of the model as it is published"
    return None, tuple(
        INVALID_MODEL_CONFIG.finding("config", f"{where}: {problem}", remedy) for problem in found.problems
    )


class _ShapesByContent:
    """Shapes by their texts, without the texts: many objects may refer to one ConfigMap. The least recently used is dropped first."""

    def __init__(self, most_characters: int) -> None:
        self._most_characters = most_characters
        self._characters = 0
        self._found: OrderedDict[object, tuple[ModelShape | ModelConfigError, int]] = OrderedDict()

    def get(self, key: object) -> ModelShape | ModelConfigError | None:
        if key not in self._found:
            return None
        self._found.move_to_end(key)
        return self._found[key][0]

    def put(self, key: object, found: ModelShape | ModelConfigError, *, size: int) -> None:
        self._found[key] = found, size
        self._characters += size
        while self._characters > self._most_characters and len(self._found) > 1:
            _, (_, oldest) = self._found.popitem(last=False)
            self._characters -= oldest


_SHAPES = _ShapesByContent(16_000_000)
"""A shape takes about as much memory as its text; the largest published text has 2.4 million characters."""


def look_up_gguf(name: str, version: str) -> tuple[Finding, ...]:
    """Return the findings about a model name that means a GGUF file, and a release that may not load it."""
    if not name.endswith(".gguf") and ":" not in name:
        return ()
    from kvgate.checkpoint.gguf import split_names
    from kvgate.checkpoint.gguf_models import gguf_spelling

    spelling = gguf_spelling(name)
    if not spelling or not is_known_release(version):
        return ()
    accounting, message, remedy = accounting_of(version), "", ""
    if not accounting.loads_gguf:
        message = f"{name} is a GGUF file, which vLLM {version} loads only with the package vllm-gguf-plugin"
        remedy = "use an image that has the package, or vLLM 0.23 or older"
    elif spelling == "file" and len(split_names(name)) > 1 and not accounting.loads_split_gguf:
        message = f"{name} is one part of several, which vLLM loads from 0.20 on"
        remedy = "use vLLM 0.20 to 0.23, or merge the parts into one file"
    elif spelling == "type" and not accounting.names_gguf_by_type:
        message = f"{name} names a GGUF file by its type, which vLLM takes from 0.12 on"
        remedy = "use vLLM 0.12 or newer, or name the file itself"
    return (GGUF_NOT_IN_RELEASE.finding("model", message, remedy),) if message else ()


@lru_cache(maxsize=1024)
def look_up_model_class(shape: ModelShape, version: str) -> tuple[Finding, ...]:
    """Return the findings about a model class that the release does not have yet, or no longer has.

    Nothing is reported for a release between two that were read. A class of plain full attention may still run through the
    Transformers backend: that is a warning.
    """
    known = catalogue.find_model_class(shape.architecture)
    if known is None or not is_known_release(version) or _is_converted(shape.architecture, version):
        return ()
    release, severity = parse_patch(version), Severity.ERROR
    if known.removed_in and release >= parse_patch(known.removed_in):
        reason, remedy = f"was last in {known.until}", f"use vLLM {known.until} or older"
    elif known.absent_in and release <= parse_patch(known.absent_in):
        is_plain = all(isinstance(mixer, FullAttention) and mixer.sees_all_tokens for mixer in shape.mixers)
        severity = Severity.WARNING if is_plain and not shape.unmodelled_kinds else severity
        reason, remedy = f"came with {known.since}", f"use vLLM {known.since} or newer"
    else:
        return ()
    severity = Severity.WARNING if shape.assumed else severity
    may = "; the Transformers backend may serve it, with another budget" if severity is Severity.WARNING else ""
    message = f"vLLM {version} has no model class {shape.architecture}, which {reason}{may}"
    return (MODEL_CLASS_NOT_IN_RELEASE.finding("vllm_version", message, remedy, severity=severity),)


_CLASSIFIER = "ForSequenceClassification"


def _is_converted(architecture: str, version: str) -> bool:
    """True where vLLM makes the classifier from a class of the release."""
    base = catalogue.find_model_class(f"{architecture.removesuffix(_CLASSIFIER)}ForCausalLM")
    if base is None or not accounting_of(version).converts_classifiers or not architecture.endswith(_CLASSIFIER):
        return False
    release = parse_patch(version)
    is_early = base.absent_in and release <= parse_patch(base.absent_in)
    is_gone = base.removed_in and release >= parse_patch(base.removed_in)
    return not is_early and not is_gone
