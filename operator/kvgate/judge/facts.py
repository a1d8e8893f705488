"""Facts about a spec before it is judged: the model's shape, the accelerator, and findings about missing facts."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import (
    NOTHING_OBSERVED,
    OLDEST,
    Accelerator,
    Calibration,
    Draft,
    ModelShape,
    Speculation,
    UnknownVersion,
    accounting_of,
    parse_release,
)
from kvgate.checkpoint.published import NO_MODELS, ModelName, PublishedModels
from kvgate.hf_config import ModelConfigError
from kvgate.hf_config.fields import parse_config_text
from kvgate.judge.adapters import look_up_adapters
from kvgate.judge.drafts import look_up_draft, own_layers, unlisted_draft
from kvgate.judge.models import (
    INVALID_MODEL_CONFIG,
    look_up_gguf,
    look_up_model,
    look_up_model_class,
    look_up_overridden,
    shape_of_text,
)
from kvgate.rules.finding import Finding, Rule, Scope, Severity
from kvgate.text.patterns import pattern
from kvgate.vllm.overrides import overridden, shape_overrides

if TYPE_CHECKING:
    from kvgate.api.base import KeyRef
    from kvgate.api.v1alpha1 import InferenceDeploymentSpec


class ConfigMissing(Struct, frozen=True, kw_only=True):
    """Reason why there is no text behind configFrom."""

    message: str
    remediation: str


UNKNOWN_ACCELERATOR = Rule(
    id="UnknownAccelerator",
    severities=(Severity.WARNING, Severity.INFO),
    scope=Scope.FACTS,
    title="The accelerator is not named, its name means several (A100 is one of four), or it is not in the catalogue.",
    explanation="Nothing can be decided without it. It is an info for an engine of another platform whose verdict is Unknown.",
)
UNKNOWN_VERSION = Rule(
    id="UnknownVersion",
    severities=(Severity.WARNING, Severity.INFO),
    scope=Scope.FACTS,
    title="The release of vLLM is too old, or does not exist.",
    explanation=(
        "Nothing can be decided, because it is not known how the release accounts for memory. It is an info for an engine of another "
        "platform whose verdict is Unknown."
    ),
)
ConfigLookup = Callable[["KeyRef"], str | ConfigMissing]
"""A door's way to the text of a ConfigMap key: it asks the cluster, reads files beside the one that is checked, or finds nothing."""


class Facts(Struct, frozen=True, kw_only=True):
    """The facts of one spec; None means unknown, and a finding gives the reason."""

    shape: ModelShape | None
    accelerator: Accelerator | None
    draft: Draft | None = None
    """The model that drafts; None where there is none, or where it is not known."""
    knows_version: bool = True
    """True where the accounting of the release of vLLM is known."""
    calibration: Calibration = NOTHING_OBSERVED
    """Starts of vLLM that were observed elsewhere."""
    findings: tuple[Finding, ...] = ()


def gather(
    spec: InferenceDeploymentSpec,
    lookup: ConfigLookup,
    calibration: Calibration = NOTHING_OBSERVED,
    models: PublishedModels = NO_MODELS,
) -> Facts:
    """Look up everything that a verdict needs. Nothing here decides."""
    reference = spec.model.config_from.config_map_key_ref if spec.model.config_from else None
    name, quantization, dtype = spec.model.name, spec.vllm.quantization, spec.vllm.dtype
    overrides = _overrides(spec)
    shape: ModelShape | None = None
    model_findings: tuple[Finding, ...]
    if reference is not None and models.catalogue_first and catalogue.find_model(name):
        reference = None
    if reference is None:
        revision = spec.model.revision or ""
        look_up = partial(look_up_overridden, overrides=overrides) if overrides else look_up_model
        shape, model_findings = look_up(name, revision=revision, quantization=quantization, dtype=dtype, models=models)
    elif isinstance(text := lookup(reference), ConfigMissing):
        model_findings = (INVALID_MODEL_CONFIG.finding("config", text.message, text.remediation),)
    else:
        where = f"ConfigMap {reference.name}, key {reference.key}"
        text = _with_overrides(text, overrides)
        shape, model_findings = shape_of_text(text, name=name, where=where, quantization=quantization, dtype=dtype)
    accelerator, accelerator_findings = look_up_accelerator(spec.accelerator.type)
    version_findings = look_up_version(spec.vllm.version)
    class_findings = look_up_model_class(shape, spec.vllm.version) if shape else ()
    speculation = None if version_findings else _speculation(spec)
    draft, draft_findings = look_up_draft(speculation, spec.vllm.version, models=models)
    return Facts(
        shape=shape,
        accelerator=accelerator,
        draft=draft,
        knows_version=not version_findings,
        calibration=calibration,
        findings=(
            *model_findings,
            *look_up_gguf(name, spec.vllm.version),
            *accelerator_findings,
            *version_findings,
            *class_findings,
            *draft_findings,
            *(() if version_findings else _adapter_findings(spec, models)),
        ),
    )


def _adapter_findings(spec: InferenceDeploymentSpec, models: PublishedModels) -> Iterator[Finding]:
    """Report adapters that extraArgs start vLLM with; the spec has no field for them."""
    if not any("lora" in text for text in spec.vllm.extra_args):
        return
    from kvgate.judge.passed_through import read_extra_args

    extra = read_extra_args(spec.vllm)
    rank, version = extra.known.get("max_lora_rank"), spec.vllm.version
    for finding in look_up_adapters(
        extra.values.get("lora_modules"), model=spec.model.name, max_lora_rank=rank, version=version, models=models
    ):
        yield replace(finding, field="extra_args")


def _overrides(spec: InferenceDeploymentSpec) -> dict[str, Any]:
    """Return the keys of the model's config that extraArgs override; the spec has no field for them."""
    if not any("hf" in text for text in spec.vllm.extra_args) or look_up_version(spec.vllm.version):
        return {}
    from kvgate.judge.passed_through import read_extra_args

    given = read_extra_args(spec.vllm).values.get("hf_overrides")
    return shape_overrides(given, parse_release(spec.vllm.version)) or {}


def _with_overrides(text: str, overrides: Mapping[str, Any]) -> str:
    """Return the text of a config with other values; a text that is no config is left to whoever reads it."""
    if not overrides:
        return text
    try:
        return json.dumps(overridden(parse_config_text(text), overrides))
    except ModelConfigError:
        return text


def _speculation(spec: InferenceDeploymentSpec) -> Speculation | None:
    """Return the speculative decoding that extraArgs ask for; the spec has no field for it."""
    if not any("spec" in text for text in spec.vllm.extra_args):
        return None
    from kvgate.judge.passed_through import read_extra_args

    found = read_extra_args(spec.vllm).known.get("speculative_config")
    return own_layers(found, spec.model.name) if isinstance(found, Speculation) else None


_HUB_NAME = pattern(
    r"(?!.*(?:--|\.\.))(?!.*\.git\Z)[A-Za-z0-9_][-._A-Za-z0-9]{0,95}(?:/[A-Za-z0-9_][-._A-Za-z0-9]{0,95})?"
)
"""Names that the hub gives (huggingface_hub, `validate_repo_id`); every other one is a path or a mistake."""
_HUB_REVISION = pattern(r"(?!.*\.\.)[A-Za-z0-9_][-._/A-Za-z0-9]{0,127}")


def names_to_fetch(spec: InferenceDeploymentSpec) -> tuple[ModelName, ...]:
    """Return the names that a fetch from the hub can make known: those that are loaded from there and that the catalogue lacks.

    Weights from a volume or an image have a name too, but what the hub has under that name need not be the same.
    """
    model, names = spec.model, list[ModelName]()
    if model.source is None and model.config_from is None and catalogue.find_model(model.name) is None:
        names.append(ModelName(model.name, model.revision or ""))
    speculation = None if look_up_version(spec.vllm.version) else _speculation(spec)
    if (drafting := unlisted_draft(speculation)) is not None:
        names.append(drafting)
    fetchable = (
        each
        for each in names
        if _HUB_NAME.fullmatch(each.name) and (not each.revision or _HUB_REVISION.fullmatch(each.revision))
    )
    return tuple(dict.fromkeys(fetchable))


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


def unknown_accelerators(text: str, pools: Collection[str]) -> Iterator[Finding]:
    """Yield a finding for each name of a list that is neither a GPU of the catalogue nor, alone, a pool."""
    for name in () if text in pools else text.split(","):
        yield from look_up_accelerator(name.strip())[1]


def look_up_version(version: str) -> tuple[Finding, ...]:
    """Return the findings that keep a release of vLLM from being judged; empty where its accounting is known."""
    try:
        accounting_of(version)
    except UnknownVersion as error:
        remediation = f"use a release from {OLDEST[0]}.{OLDEST[1]} on"
        return (UNKNOWN_VERSION.finding("vllm_version", str(error), remediation),)
    return ()
