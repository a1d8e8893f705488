"""gather(statement) → Facts: the model's shape, the accelerator, the draft, and findings about those that are missing."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import (
    NOTHING_OBSERVED,
    OLDEST,
    Accelerator,
    BudgetRequest,
    Calibration,
    Capacity,
    Draft,
    EngineSettings,
    ModelShape,
    Speculation,
    UnknownVersion,
    accounting_of,
)
from kvgate.budget.answers.sharing import part_of
from kvgate.checkpoint.published import NO_MODELS, ModelName, PublishedModels, name_key
from kvgate.findings.finding import Change, Finding, SettingName, any_one, change, leave_out, words
from kvgate.hf_config import ModelConfigError
from kvgate.hf_config.fields import parse_config_text
from kvgate.judgement.known_defects import known_defects
from kvgate.judgement.models import look_up_gguf, look_up_model, look_up_model_class, look_up_overridden, shape_of_text
from kvgate.rules.facts import ACCELERATOR_NOT_LISTED, INVALID_MODEL_CONFIG, UNKNOWN_ACCELERATOR, UNKNOWN_VERSION
from kvgate.rules.pinned import CAPACITY_CONFLICT
from kvgate.statement.deployment import statement_of
from kvgate.statement.engine import EngineStatement
from kvgate.text.patterns import pattern
from kvgate.vllm.given_settings import (
    circumstances_of,
    engine_settings,
    overridden,
    shape_overrides,
    stretches_length,
    unmodelled_kinds,
)

if TYPE_CHECKING:
    from kvgate.api.base import KeyRef
    from kvgate.api.v1alpha1 import InferenceDeploymentSpec


class ConfigMissing(Struct, frozen=True, kw_only=True):
    """Reason why there is no text behind configFrom."""

    message: str
    remediation: str


_NO_GPU = UNKNOWN_ACCELERATOR.finding(
    "gpu", words("neither {gpu} nor {gpu_memory_bytes} is given"), "give a name that `kvgate gpus` lists"
)
_NODES_DECIDE = UNKNOWN_ACCELERATOR.finding(
    "accelerator",
    "the nodes decide the GPU, and here it is not known which nodes there are",
    "name it in spec.accelerator.type, or let the controller watch nodes (`nodes.watch` of the chart)",
)
ConfigLookup = Callable[["KeyRef"], str | ConfigMissing]
"""A door's way to the text of a ConfigMap key: it asks the cluster, reads files beside the one that is checked, or finds nothing."""


class Facts(Struct, frozen=True, kw_only=True):
    """The facts of one engine; None means unknown, and a finding gives the reason."""

    shape: ModelShape | None
    accelerator: Accelerator | None
    draft: Draft | None = None
    """The model that drafts; None where there is none, or where it is not known."""
    knows_version: bool = True
    """True where the accounting of the release of vLLM is known."""
    calibration: Calibration = NOTHING_OBSERVED
    """Starts of vLLM that were observed elsewhere."""
    findings: tuple[Finding, ...] = ()

    @property
    def is_complete(self) -> bool:
        return self.shape is not None and self.accelerator is not None and self.knows_version


def no_config(_: KeyRef) -> ConfigMissing:
    """Stand for the look-up of a door that has no ConfigMaps."""
    return ConfigMissing(message="no ConfigMap is read here", remediation="give the model's config.json")


def gather(
    statement: EngineStatement,
    lookup: ConfigLookup = no_config,
    calibration: Calibration = NOTHING_OBSERVED,
    models: PublishedModels = NO_MODELS,
) -> Facts:
    """Look up everything that a verdict needs. Nothing here decides."""
    known, version = statement.known, statement.version
    version_findings, overrides, speculation = look_up_version(version), None, None
    if not version_findings:
        reaches_inside = accounting_of(version).overrides_inner_configs
        overrides = shape_overrides(statement.values.get("hf_overrides"), reaches_inside=reaches_inside)
        speculation = speculation_of(statement)
    shape, model_findings = _shape(statement, overrides or {}, lookup, models)
    if shape is not None and "checkpoint_bytes" in known:
        given = "checkpoint_bytes of the question"
        shape = replace(shape, checkpoint_bytes=known["checkpoint_bytes"], checkpoint_source=given)
    accelerator, accelerator_findings = _accelerator(known)
    draft, beside = _beside_the_model(statement, speculation, models)
    return Facts(
        shape=shape,
        accelerator=accelerator,
        draft=draft,
        knows_version=not version_findings,
        calibration=calibration,
        findings=(
            *model_findings,
            *look_up_gguf(statement.model, version),
            *accelerator_findings,
            *version_findings,
            *(look_up_model_class(shape, version) if shape else ()),
            *(() if version_findings else known_defects(statement, shape, accelerator)),
            *beside,
            *conflicts(statement.capacity, statement.values),
        ),
    )


def _beside_the_model(
    statement: EngineStatement, speculation: Speculation | None, models: PublishedModels
) -> tuple[Draft | None, list[Finding]]:
    """Return the model that drafts, and the findings about it and about adapters; the readers are imported for those who have one."""
    known, draft, findings = statement.known, None, list[Finding]()
    if speculation is not None:
        from kvgate.judgement.drafts import look_up_draft

        config = known.get("draft_config")
        draft, about_draft = look_up_draft(speculation, statement.version, config=config, models=models)
        findings += about_draft
    if modules := statement.values.get("lora_modules"):
        from kvgate.judgement.adapters import look_up_adapters

        rank = known.get("max_lora_rank")
        findings += look_up_adapters(
            modules, model=statement.model, max_lora_rank=rank, version=statement.version, models=models
        )
    return draft, findings


def _shape(
    statement: EngineStatement, overrides: Mapping[str, Any], lookup: ConfigLookup, models: PublishedModels
) -> tuple[ModelShape | None, tuple[Finding, ...]]:
    """Return the model's shape. A config is looked up by its text, so that many requests about one model read it once."""
    known, name, reference = statement.known, statement.model, statement.config
    revision, config = statement.values.get("revision"), known.get("model_config")
    requested: dict[str, Any] = {"quantization": known.get("quantization"), "dtype": known.get("dtype")}
    if reference is not None and not (models.catalogue_first and catalogue.find_model(name)):
        text = lookup(reference)
        if isinstance(text, ConfigMissing):
            return None, (INVALID_MODEL_CONFIG.finding("config", text.message, text.remediation),)
        if overrides:
            with suppress(ModelConfigError):  # a text that is no config is left to whoever reads it
                text = json.dumps(overridden(parse_config_text(text), overrides))
        return shape_of_text(text, name=name, where=f"ConfigMap {reference.name}, key {reference.key}", **requested)
    if config is not None:
        return shape_of_text(json.dumps(overridden(config, overrides)), name=name, where="model_config", **requested)
    look_up = partial(look_up_overridden, overrides=overrides) if overrides else look_up_model
    return look_up(name, revision=revision if isinstance(revision, str) else "", models=models, **requested)


def own_layers(speculation: Speculation | None, name: str) -> Speculation | None:
    """Return the same without the name of a draft that is the model itself: its own layers of multi-token prediction draft then."""
    is_itself = speculation is not None and speculation.is_mtp and name_key(speculation.model) == name_key(name)
    return replace(speculation, model="") if speculation is not None and is_itself else speculation


def speculation_of(statement: EngineStatement) -> Speculation | None:
    return own_layers(statement.known.get("speculative_config"), statement.model)


def _accelerator(known: Mapping[str, Any]) -> tuple[Accelerator | None, tuple[Finding, ...]]:
    """Return the catalogue's accelerator, with the memory that the request states; describe a GPU of which only the memory is known."""
    name, memory_bytes = known.get("gpu"), known.get("gpu_memory_bytes")
    accelerator, findings = (None, (_NO_GPU,)) if name is None else look_up_accelerator(name)
    if memory_bytes is None:
        return accelerator, findings
    if accelerator is None and name:
        meant = map(catalogue.find_accelerator, catalogue.accelerators_meant(name, every=True))
        alike = catalogue.with_memory(filter(None, meant), memory_bytes)
        if len(alike) == 1:
            accelerator, findings = alike[0], ()
    if accelerator is None:
        # nothing is refused because of a capability that is only likely
        listed_as = name or "this GPU"
        vendor, capability = catalogue.likely_kind(name or "", memory_bytes)
        accelerator = Accelerator(
            name=listed_as, product=listed_as, memory_bytes=0, memory_low_bytes=0, memory_high_bytes=0, compute_capability=None,
            vendor="unknown", likely_vendor=vendor, likely_capability=capability,
        )  # fmt: skip
        message = "{name} is not in the catalogue: {gpu_memory_bytes} is used and its capabilities are not judged"
        remedy = "`kvgate gpus` lists those that are known"
        findings = (ACCELERATOR_NOT_LISTED.finding("gpu", words(message, name=listed_as), remedy),)
    exact = {"memory_bytes": memory_bytes, "memory_low_bytes": memory_bytes, "memory_high_bytes": memory_bytes}
    return replace(accelerator, **exact), findings


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
    speculation = None if look_up_version(spec.vllm.version) else speculation_of(statement_of(spec))
    if speculation is not None:
        from kvgate.judgement.drafts import unlisted_draft

        names += unlisted_draft(speculation)
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
    """Return an accelerator of the catalogue, or a finding with the nearest names; an empty name is one that the nodes decide."""
    if not name:
        return None, (_NODES_DECIDE,)
    accelerator = catalogue.find_accelerator(name)
    if accelerator is not None:
        return accelerator, ()
    meant, nearest = catalogue.accelerators_meant(name), catalogue.nearest_accelerators(name)
    message = words("accelerator {name} is not in the catalogue", name=name)
    hint = f"did you mean {' or '.join(nearest)}?" if nearest else "`kvgate gpus` lists those that are"
    if len(meant) > 1:
        rest = len(meant) - _MAX_LISTED
        last = f"{rest} more" if rest > 0 else meant[-1]
        listed = f"{', '.join(meant[:-1][:_MAX_LISTED])} and {last}"
        message = words("accelerator {name} is one of {listed}", name=name, listed=listed)
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


def question(statement: EngineStatement, facts: Facts) -> BudgetRequest:
    """Return the question of a statement. Raise ValueError where the model or the accelerator is not known."""
    if facts.shape is None or facts.accelerator is None:
        raise ValueError("a budget needs a model and an accelerator")
    known, accelerator = statement.known, facts.accelerator
    shared_by = known.get("shared_by", 1)
    if statement.sees_part_alone:
        accelerator, shared_by = part_of(accelerator, shared_by), 1
    return BudgetRequest(
        shape=facts.shape,
        accelerator=accelerator,
        shared_by=shared_by,
        draft=facts.draft,
        vllm_version=statement.version,
        settings=_settings(statement, {}),
        alternatives=tuple(_settings(statement, each) for each in statement.doubt.combinations()),
        circumstances=circumstances_of(known),
        guarantee=statement.guarantee,
        workload=statement.workload,
        least_model_len=statement.least_model_len,
        capacity=statement.capacity,
        is_whole=statement.is_whole,
        is_one_pod=statement.is_one_pod,
        weights_bytes=known.get("weights_bytes"),
        unmodelled_settings=unmodelled_kinds(statement.values, accounting_of(statement.version)),
        unmodelled_variables=statement.unmodelled_variables,
        unmodelled_containers=statement.unmodelled_containers,
        is_stretched=stretches_length(statement.values),
        calibration=facts.calibration,
        image_digest=statement.image_digest if facts.calibration.starts else "",
        pod=statement.pod,
    )


def _settings(statement: EngineStatement, instead: dict[str, object]) -> EngineSettings:
    """Return the settings, with other values in place of those that are not known."""
    settings = engine_settings({**statement.known, **instead})
    drafts = own_layers(settings.speculation, statement.model)
    return settings if drafts is settings.speculation else replace(settings, speculation=drafts)


_TAKEN_BY = {
    "enable_sleep_mode": "an engine that sleeps gives its KV cache back, and nothing promises that it gets the memory again",
    "mm_ipc_gpu_memory_gb": "vLLM takes this memory out of the KV cache that it is given",
}
"""Options after which vLLM has less than it is given: `sleep` (0.7+), and `reserve_mm_ipc_gpu_memory` (0.25+)."""
_PROFILED = change(Change.SET, "capacity", Capacity.PROFILED.value)


def conflicts(capacity: Capacity, values: Mapping[str, Any]) -> Iterator[Finding]:
    """Find the options, by vLLM's names, that exclude a pinned capacity."""
    for name, why in _TAKEN_BY.items() if capacity is Capacity.PINNED else ():
        if values.get(name):
            setting = SettingName(name)
            message = words("{capacity} Pinned and {setting} exclude each other: {why}", setting=setting, why=why)
            yield CAPACITY_CONFLICT.finding("capacity", message, any_one(leave_out(name), _PROFILED))
