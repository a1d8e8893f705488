"""Facts about a spec before it is judged: the model's shape, the accelerator, and findings about missing facts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import (
    NOTHING_OBSERVED,
    OLDEST,
    Accelerator,
    Calibration,
    ModelShape,
    UnknownVersion,
    accounting_of,
    parse_patch,
)
from kvgate.budget.model_shape import FullAttention
from kvgate.hf_config import ModelConfigError, read_config
from kvgate.hf_config.fields import parse_config_text
from kvgate.rules.finding import Finding, Rule, Scope, Severity, any_one, do

if TYPE_CHECKING:
    from kvgate.api.base import KeyRef
    from kvgate.api.v1alpha1 import InferenceDeploymentSpec


class ConfigMissing(Struct, frozen=True, kw_only=True):
    """Reason why there is no text behind configFrom."""

    message: str
    remediation: str


UNKNOWN_MODEL = Rule(
    id="UnknownModel",
    severities=(Severity.WARNING,),
    scope=Scope.FACTS,
    title="The model is not in the catalogue.",
    explanation="Nothing can be decided without its config.json.",
)
INVALID_MODEL_CONFIG = Rule(
    id="InvalidModelConfig",
    severities=(Severity.WARNING,),
    scope=Scope.FACTS,
    title="The config.json that is given for the model cannot be read.",
    explanation="Nothing can be decided without it.",
)
UNKNOWN_ACCELERATOR = Rule(
    id="UnknownAccelerator",
    severities=(Severity.WARNING,),
    scope=Scope.FACTS,
    title="The accelerator is not named, its name means several (A100 is one of four), or it is not in the catalogue.",
    explanation="Nothing can be decided without it.",
)
UNKNOWN_VERSION = Rule(
    id="UnknownVersion",
    severities=(Severity.WARNING,),
    scope=Scope.FACTS,
    title="The release of vLLM is too old, or does not exist.",
    explanation="Nothing can be decided, because it is not known how the release accounts for memory.",
)
MODEL_CLASS_NOT_IN_RELEASE = Rule(
    id="ModelClassNotInRelease",
    severities=(Severity.ERROR, Severity.WARNING),
    scope=Scope.FACTS,
    title="The release of vLLM does not have the model's class yet, or no longer has it.",
    explanation="It is a warning where the Transformers backend may serve the model.",
)
ConfigLookup = Callable[["KeyRef"], str | ConfigMissing]
"""A door's way to the text of a ConfigMap key: it asks the cluster, reads files beside the one that is checked, or finds nothing."""


class Facts(Struct, frozen=True, kw_only=True):
    """The facts of one spec; None means unknown, and a finding gives the reason."""

    shape: ModelShape | None
    accelerator: Accelerator | None
    knows_version: bool = True
    """True where the accounting of the release of vLLM is known."""
    calibration: Calibration = NOTHING_OBSERVED
    """Starts of vLLM that were observed elsewhere."""
    findings: tuple[Finding, ...] = ()


def gather(spec: InferenceDeploymentSpec, lookup: ConfigLookup, calibration: Calibration = NOTHING_OBSERVED) -> Facts:
    """Look up everything that a verdict needs. Nothing here decides."""
    reference = spec.model.config_from.config_map_key_ref if spec.model.config_from else None
    name, quantization, dtype = spec.model.name, spec.vllm.quantization, spec.vllm.dtype
    shape: ModelShape | None = None
    model_findings: tuple[Finding, ...]
    if reference is None:
        shape, model_findings = look_up_model(name, quantization=quantization, dtype=dtype)
    elif isinstance(text := lookup(reference), ConfigMissing):
        model_findings = (INVALID_MODEL_CONFIG.finding("config", text.message, text.remediation),)
    else:
        where = f"ConfigMap {reference.name}, key {reference.key}"
        shape, model_findings = shape_of_text(text, name=name, where=where, quantization=quantization, dtype=dtype)
    accelerator, accelerator_findings = look_up_accelerator(spec.accelerator.type)
    version_findings = look_up_version(spec.vllm.version)
    class_findings = look_up_model_class(shape, spec.vllm.version) if shape else ()
    return Facts(
        shape=shape,
        accelerator=accelerator,
        knows_version=not version_findings,
        calibration=calibration,
        findings=(*model_findings, *accelerator_findings, *version_findings, *class_findings),
    )


def text_of_key(reference: KeyRef, data: Mapping[str, Any], *, names_keys: bool = True) -> str | ConfigMissing:
    """Return the text under the key, from the data of the ConfigMap that is referred to.

    `names_keys` lists the keys in the message. It is for readers who have the ConfigMap before them: whoever reads a status may
    not be allowed to see its keys.
    """
    text = data.get(reference.key)
    if isinstance(text, str):
        return text
    keys = f"; its keys: {', '.join(sorted(map(str, data))) or 'none'}" if names_keys else ""
    return ConfigMissing(
        message=f"ConfigMap {reference.name} has no text under key {reference.key}{keys}",
        remediation="name the key that holds the model's config.json",
    )


def look_up_model(
    name: str, *, quantization: str | None = None, dtype: str | None = None
) -> tuple[ModelShape | None, tuple[Finding, ...]]:
    """Return the shape of a model of the catalogue, or a finding with the nearest names."""
    shape = _catalogue_shape(name, quantization, dtype)
    if shape is not None:
        return shape, ()
    nearest = catalogue.nearest_models(name)
    give = do("give its config.json by {model_config}")
    remedy = any_one(f"write one of these names, if you mean it: {', '.join(nearest)}", give) if nearest else give
    return None, (UNKNOWN_MODEL.finding("model", f"model {name} is not in the catalogue", remedy),)


@lru_cache(maxsize=1024)
def _catalogue_shape(name: str, quantization: str | None, dtype: str | None) -> ModelShape | None:
    entry = catalogue.find_model(name)
    if entry is None:
        return None
    shape = read_config(entry.config, name=entry.name, quantization=quantization, dtype=dtype)
    as_stored = quantization is None and dtype in (None, "auto")
    return replace(shape, checkpoint_bytes=entry.safetensors_bytes or 0) if as_stored else shape


def shape_of_text(
    text: str, *, name: str, where: str, quantization: str | None = None, dtype: str | None = None
) -> tuple[ModelShape | None, tuple[Finding, ...]]:
    """Return the shape that the text of a config.json describes, or one finding for each problem."""
    digest = sha256(text.encode(errors="surrogatepass")).digest()
    found = _SHAPES.get((digest, name, quantization, dtype))
    if found is None:
        try:
            found = read_config(parse_config_text(text), name=name, quantization=quantization, dtype=dtype)
        except ModelConfigError as error:
            found = error
        _SHAPES.put((digest, name, quantization, dtype), found, size=len(text))
    if isinstance(found, ModelShape):
        return found, ()
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


_MAX_LISTED = 6
"""Accelerators that a message names at most; the rest is counted."""


def look_up_accelerator(name: str) -> tuple[Accelerator | None, tuple[Finding, ...]]:
    """Return an accelerator of the catalogue, or a finding with the nearest names."""
    accelerator = catalogue.find_accelerator(name)
    if accelerator is not None:
        return accelerator, ()
    meant, nearest = catalogue.accelerators_meant(name), catalogue.nearest_accelerators(name)
    message = f"accelerator {name} is not in the catalogue"
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else "`kvgate gpus` lists those that are"
    if len(meant) > 1:
        rest = len(meant) - _MAX_LISTED
        last = f"{rest} more" if rest > 0 else meant[-1]
        message = f"accelerator {name} is one of {', '.join(meant[:-1][:_MAX_LISTED])} and {last}"
        hint = "name the one that it is; `kvgate gpus` lists them with their memory"
    return None, (UNKNOWN_ACCELERATOR.finding("accelerator", message, hint),)


def look_up_version(version: str) -> tuple[Finding, ...]:
    """Return the findings that keep a release of vLLM from being judged; empty where its accounting is known."""
    try:
        accounting_of(version)
    except UnknownVersion as error:
        remediation = f"use a release from {OLDEST[0]}.{OLDEST[1]} on"
        return (UNKNOWN_VERSION.finding("vllm_version", str(error), remediation),)
    return ()


def look_up_model_class(shape: ModelShape, version: str) -> tuple[Finding, ...]:
    """Return the findings about a model class that the release does not have yet, or no longer has.

    Nothing is reported for a release between two that were read. A class of plain full attention may still run through the
    Transformers backend: that is a warning.
    """
    known = catalogue.find_model_class(shape.architecture)
    if known is None or look_up_version(version):
        return ()
    release = parse_patch(version)
    if known.removed_in and release >= parse_patch(known.removed_in):
        reason, remedy = f"was last in {known.until}", f"use vLLM {known.until} or older"
        return (_not_in_release(shape, version, reason, remedy, Severity.ERROR),)
    if known.absent_in and release <= parse_patch(known.absent_in):
        plain = not shape.unmodelled_kinds and all(
            isinstance(mixer, FullAttention) and mixer.sees_all_tokens for mixer in shape.mixers
        )
        reason, remedy = f"came with {known.since}", f"use vLLM {known.since} or newer"
        return (_not_in_release(shape, version, reason, remedy, Severity.WARNING if plain else Severity.ERROR),)
    return ()


def _not_in_release(shape: ModelShape, version: str, reason: str, remedy: str, severity: Severity) -> Finding:
    may = "; the Transformers backend may serve it, with another budget" if severity is Severity.WARNING else ""
    message = f"vLLM {version} has no model class {shape.architecture}, which {reason}{may}"
    return MODEL_CLASS_NOT_IN_RELEASE.finding("vllm_version", message, remedy, severity=severity)
