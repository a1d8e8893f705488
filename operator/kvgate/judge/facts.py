"""Facts about a spec before it is judged: the model's shape, the accelerator, and findings about missing facts."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from kvgate import catalogue
from kvgate.budget.calibration import NOTHING_OBSERVED, Calibration
from kvgate.budget.errors import UnknownVersion
from kvgate.budget.hardware import Accelerator
from kvgate.budget.model_shape import ModelShape
from kvgate.budget.versions import OLDEST, accounting_of, parse_patch
from kvgate.hf_config import ModelConfigError, read_config
from kvgate.hf_config.fields import parse_config_text
from kvgate.record import record
from kvgate.rules.finding import Finding, Rule, Scope, Severity, any_one, do

if TYPE_CHECKING:
    from kvgate.api.base import KeyRef
    from kvgate.api.v1alpha1 import InferenceDeploymentSpec


@record
class ConfigMissing:
    """Reason why the text behind configFrom is missing."""

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
"""Way in which a door finds the text of a ConfigMap key: the cluster, files beside the one checked, or nowhere."""


@record
class Facts:
    """The facts of one spec; None means unknown, and a finding says why."""

    shape: ModelShape | None
    accelerator: Accelerator | None
    knows_version: bool = True
    """True where the accounting of the release of vLLM is known."""
    calibration: Calibration = NOTHING_OBSERVED
    """Starts that were observed elsewhere."""
    findings: tuple[Finding, ...] = ()


def gather(spec: InferenceDeploymentSpec, lookup: ConfigLookup, calibration: Calibration = NOTHING_OBSERVED) -> Facts:
    """Look everything up; nothing here decides."""
    shape, model_findings = _shape(spec, lookup)
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


def _shape(spec: InferenceDeploymentSpec, lookup: ConfigLookup) -> tuple[ModelShape | None, tuple[Finding, ...]]:
    reference = spec.model.config_from.config_map_key_ref if spec.model.config_from else None
    options = {"quantization": spec.vllm.quantization, "dtype": spec.vllm.dtype}
    if reference is None:
        return look_up_model(spec.model.name, **options)
    text = lookup(reference)
    if isinstance(text, ConfigMissing):
        return None, (INVALID_MODEL_CONFIG.finding("config", text.message, text.remediation),)
    return shape_of_text(
        text, name=spec.model.name, where=f"ConfigMap {reference.name}, key {reference.key}", **options
    )


def text_of_key(reference: KeyRef, data: Mapping[str, Any], *, names_keys: bool = True) -> str | ConfigMissing:
    """The text under the key, in the data of the ConfigMap that is referred to.

    `names_keys` is for readers who have the ConfigMap before them: whoever reads a status may not be allowed to see it.
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
    """A model of the catalogue; a finding with the nearest names where there is none."""
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
    """The shape that a config.json's text describes; one finding per problem."""
    digest = sha256(text.encode(errors="surrogatepass")).digest()
    found = _SHAPES.get((digest, name, quantization, dtype))
    if found is None:
        try:
            found = read_config(parse_config_text(text), name=name, quantization=quantization, dtype=dtype)
        except ModelConfigError as error:
            found = error
        _SHAPES.put((digest, name, quantization, dtype), found, size=len(text))
    return (found, ()) if isinstance(found, ModelShape) else (None, _config_findings(found, where))


class _ShapesByContent:
    """Shapes of texts, without the texts: many objects may refer to one ConfigMap. The least recently used goes first."""

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


def _config_findings(error: ModelConfigError, where: str) -> tuple[Finding, ...]:
    """Return the findings about a config.json, one for each problem."""
    return tuple(
        INVALID_MODEL_CONFIG.finding(
            "config", f"{where}: {problem}", "give the config.json of the model as it is published"
        )
        for problem in error.problems
    )


def look_up_accelerator(name: str) -> tuple[Accelerator | None, tuple[Finding, ...]]:
    """An accelerator of the catalogue; a finding with the nearest names where there is none."""
    accelerator = catalogue.find_accelerator(name)
    if accelerator is not None:
        return accelerator, ()
    meant, nearest = catalogue.accelerators_meant(name), catalogue.nearest_accelerators(name)
    message = f"accelerator {name} is not in the catalogue"
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else "`kvgate gpus` lists those that are"
    if len(meant) > 1:
        message = f"accelerator {name} is one of {_listed(meant)}"
        hint = "name the one that it is; `kvgate gpus` lists them with their memory"
    return None, (UNKNOWN_ACCELERATOR.finding("accelerator", message, hint),)


_MAX_LISTED = 6
"""Accelerators that a message names; the rest is counted."""


def _listed(names: tuple[str, ...]) -> str:
    shown, rest = names[:_MAX_LISTED], len(names) - _MAX_LISTED
    return f"{', '.join(shown)} and {rest} more" if rest > 0 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def look_up_version(version: str) -> tuple[Finding, ...]:
    """Return the findings that keep a release of vLLM from being judged; empty where its accounting is known."""
    try:
        accounting_of(version)
    except UnknownVersion as error:
        remediation = f"use a release from {OLDEST[0]}.{OLDEST[1]} on"
        return (UNKNOWN_VERSION.finding("vllm_version", str(error), remediation),)
    return ()


def look_up_model_class(shape: ModelShape, version: str) -> tuple[Finding, ...]:
    """Return the findings about a class that the release lacks, or lacks by now; empty between two releases that were read.

    A class of plain full attention may still run through the Transformers backend: that is a warning.
    """
    known = catalogue.find_model_class(shape.architecture)
    if known is None or look_up_version(version):
        return ()
    release = parse_patch(version)
    if known.removed_in and release >= parse_patch(known.removed_in):
        reason, remedy = f"was last in {known.until}", f"use vLLM {known.until} or older"
        return (_not_in_release(shape, version, reason, remedy, Severity.ERROR),)
    if known.absent_in and release <= parse_patch(known.absent_in):
        plain = not shape.unmodelled_kinds and all(mixer.kind == "full attention" for mixer in shape.mixers)
        reason, remedy = f"came with {known.since}", f"use vLLM {known.since} or newer"
        return (_not_in_release(shape, version, reason, remedy, Severity.WARNING if plain else Severity.ERROR),)
    return ()


def _not_in_release(shape: ModelShape, version: str, reason: str, remedy: str, severity: Severity) -> Finding:
    may = "; the Transformers backend may serve it, with another budget" if severity is Severity.WARNING else ""
    message = f"vLLM {version} has no model class {shape.architecture}, which {reason}{may}"
    return MODEL_CLASS_NOT_IN_RELEASE.finding("vllm_version", message, remedy, severity=severity)
