"""A what-if in vLLM's own words → Assessment. `kvgate explain`, `size` and `sweep` ask it, and manifests of other platforms."""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import (
    DEFAULT_VERSION,
    NOTHING_OBSERVED,
    Accelerator,
    BudgetRequest,
    Calibration,
    Capacity,
    Guarantee,
    ModelShape,
    Verdict,
    Workload,
    parse_release,
)
from kvgate.budget.host_settings import UNKNOWN_POD, PodMemory
from kvgate.budget.pod_ledger import pod_ledger_without_model
from kvgate.checkpoint.published import NO_MODELS, PublishedModels
from kvgate.judge import assess, facts
from kvgate.judge.adapters import look_up_adapters
from kvgate.judge.assess import Assessment
from kvgate.judge.drafts import look_up_draft, own_layers
from kvgate.judge.models import look_up_gguf, look_up_model, look_up_model_class, look_up_overridden, shape_of_text
from kvgate.judge.pinning import SIZES, conflicts
from kvgate.rules.finding import (
    Finding,
    Naming,
    Rule,
    Scope,
    SettingName,
    Severity,
    Words,
    do,
    error_rules,
    named,
    words,
)
from kvgate.rules.host_memory import judge_pod
from kvgate.vllm.arguments import option_name
from kvgate.vllm.given_settings import (
    Doubt,
    circumstances_of,
    doubt_of,
    engine_settings,
    read_settings,
    stretches_length,
    unmodelled_kinds,
    with_whole_configs,
)
from kvgate.vllm.overrides import overridden, shape_overrides
from kvgate.vllm.parser_problems import OPTION_NOT_YET, OPTION_REMOVED, OPTION_VALUE
from kvgate.vllm.settings import DECIDING, WHAT_IFS
from kvgate.vllm.values import UnusableValue
from kvgate.vllm.variables import ALLOW_LONG

_KEYS = DECIDING | {setting.name for setting in WHAT_IFS} | {"id", "revision", ALLOW_LONG}


REFUSED_VALUES = (OPTION_VALUE, OPTION_NOT_YET, OPTION_REMOVED)
ACCELERATOR_NOT_LISTED = Rule(
    id="AcceleratorNotListed",
    severities=(Severity.INFO,),
    scope=Scope.FACTS,
    title="The accelerator is not in the catalogue.",
    explanation="gpu_memory_bytes is used, and its capabilities are not judged.",
)
VERSION_ASSUMED = Rule(
    id="VersionAssumed",
    severities=(Severity.INFO,),
    scope=Scope.FACTS,
    title="No release of vLLM is given, and the newest that kvgate knows is assumed.",
)
SETTING_NOT_UNDERSTOOD = Rule(
    id="SettingNotUnderstood",
    severities=(Severity.INFO,),
    scope=Scope.FACTS,
    title="A setting of a what-if is not one of vLLM's that change memory.",
    explanation="It changes no number.",
)
_NO_GPU = facts.UNKNOWN_ACCELERATOR.finding(
    "gpu", words("neither {gpu} nor {gpu_memory_bytes} is given"), "give a name that `kvgate gpus` lists"
)


class BadRequest(UnusableValue):
    """A question that has no answer because of the values in it; the message names every problem."""

    def __init__(self, message: str, problems: Mapping[str, Words] = MappingProxyType({})) -> None:
        super().__init__(message)
        self.problems = problems
        """Each problem by the name of its setting."""


class UnknownFacts(ValueError):
    """A model, GPU or release is not known, so that nothing can be judged."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        super().__init__(
            "; ".join(f"{f.rule}: {f.message}; {f.remediation}" for f in findings if f.severity is not Severity.INFO)
        )


def assess_request(
    values: Mapping[str, Any],
    *,
    guarantee: Guarantee = Guarantee.STARTUP,
    workload: Workload | None = None,
    is_whole: bool = False,
    calibration: Calibration = NOTHING_OBSERVED,
    naming: Naming = option_name,
    models: PublishedModels = NO_MODELS,
    pod: PodMemory | None = None,
    is_parsed: bool = False,
) -> Assessment:
    """Judge one what-if. Raise BadRequest with all problems at once.

    `is_whole`: vLLM is started with these values alone, so that the rest is its defaults. `naming` names the settings in findings.
    `models`: checkpoints that are known beside the catalogue. `pod`: memory of the host, where the values do not state it.
    `is_parsed`: the values were read from a command line, so that vLLM's parser takes them.
    """
    request, findings = read_request(
        values, guarantee=guarantee, workload=workload, is_whole=is_whole, naming=naming, models=models, pod=pod, is_parsed=is_parsed
    )  # fmt: skip
    if request is None:
        of_pod = tuple(named(pod_findings(values, pod), naming))
        is_refused = any(each.rule in REFUSED_VALUES and each.severity is Severity.ERROR for each in findings)
        verdict = Verdict.DOES_NOT_FIT if is_refused or error_rules(of_pod) else Verdict.UNKNOWN
        return Assessment(verdict=verdict, guarantee=guarantee, findings=(*findings, *of_pod))
    return assess.judge(replace(request, calibration=calibration), extra=findings, naming=naming)


def read_request(
    values: Mapping[str, Any],
    *,
    guarantee: Guarantee = Guarantee.STARTUP,
    workload: Workload | None = None,
    is_whole: bool = False,
    naming: Naming = option_name,
    models: PublishedModels = NO_MODELS,
    pod: PodMemory | None = None,
    is_parsed: bool = False,
) -> tuple[BudgetRequest | None, tuple[Finding, ...]]:
    """Return the question that the values ask, and the findings about it. The question is None where a fact is missing."""
    values = with_whole_configs(values)
    known, doubt, about_values = _understood(values, naming, is_parsed=is_parsed)
    version = known.get("vllm_version", DEFAULT_VERSION)
    version_findings = facts.look_up_version(version)
    overrides = None if version_findings else shape_overrides(values.get("hf_overrides"), parse_release(version))
    shape, model_findings = _shape(known, values.get("revision"), models, overrides or {})
    if shape is not None and "checkpoint_bytes" in known:
        given = "checkpoint_bytes of the question"
        shape = replace(shape, checkpoint_bytes=known["checkpoint_bytes"], checkpoint_source=given)
    accelerator, accelerator_findings = _accelerator(known)
    class_findings = look_up_model_class(shape, version) if shape else ()
    gguf_findings = look_up_gguf(str(known.get("model", "")), version)
    if speculation := own_layers(known.get("speculative_config"), str(known.get("model", ""))):
        known["speculative_config"] = speculation
    speculation = None if version_findings else speculation
    draft, draft_findings = look_up_draft(speculation, version, config=known.get("draft_config"), models=models)
    adapter_findings = look_up_adapters(
        values.get("lora_modules"),
        model=str(known.get("model", "")),
        max_lora_rank=known.get("max_lora_rank"),
        version=version,
        models=models,
    )
    about_model = (*model_findings, *gguf_findings, *class_findings, *draft_findings, *adapter_findings)
    about_capacity = conflicts(known.get("capacity", Capacity.PROFILED), values)
    facts_found = (*about_model, *accelerator_findings, *version_findings, *about_capacity)
    findings = tuple(named((*about_values, *facts_found, *_remarks(values, known)), naming))
    if shape is None or accelerator is None or version_findings:
        return None, findings
    request = BudgetRequest(
        shape=shape,
        accelerator=accelerator,
        draft=draft,
        vllm_version=version,
        settings=engine_settings(known),
        alternatives=tuple(engine_settings({**known, **each}) for each in doubt.combinations()),
        circumstances=circumstances_of(known),
        guarantee=guarantee,
        workload=workload,
        capacity=known.get("capacity", Capacity.PROFILED),
        is_whole=is_whole,
        shared_by=known.get("shared_by", 1),
        weights_bytes=known.get("weights_bytes"),
        unmodelled_settings=unmodelled_kinds(values, parse_release(version)),
        is_stretched=stretches_length(values),
        pod=pod or _stated_pod(known),
    )
    return request, findings


def _understood(
    values: Mapping[str, Any], naming: Naming, *, is_parsed: bool
) -> tuple[dict[str, Any], Doubt, tuple[Finding, ...]]:
    """Return the settings, those whose words nobody knows, and the findings about them. Raises BadRequest with every problem."""
    known, found = read_settings(values)
    doubt = doubt_of(values, found)
    problems = {name: problem for name, problem in found.items() if name not in doubt.words}
    refused = {} if is_parsed or problems else _refused(values)
    certain = {name for name, finding in refused.items() if finding.severity is Severity.ERROR}
    known = {name: value for name, value in known.items() if name not in certain}
    doubt = doubt.without(certain)
    if not problems and "model" not in known and "model_config" not in known:
        missing = "{model} and {model_config} are missing; give a Hugging Face id, or the model's config.json"
        problems["model"] = words(missing)
    if known.get("capacity") is Capacity.PINNED:
        message = "{capacity} Pinned and {size} both set the size of the KV cache; leave one of them out"
        problems |= {name: words(message, size=SettingName(name)) for name in SIZES if name in known}
    if problems:
        raise BadRequest("; ".join(problem.worded(naming) for problem in problems.values()), problems)
    told = (finding for name, finding in refused.items() if name not in doubt.words)
    return known, doubt, (*told, *doubt.findings(found))


def _refused(values: Mapping[str, Any]) -> dict[str, Finding]:
    """Return what vLLM's parser refuses of values that nobody has read from a command line; nothing where the release is not known."""
    version = values.get("vllm_version") or DEFAULT_VERSION
    if not isinstance(version, str) or facts.look_up_version(version):
        return {}
    from kvgate.vllm.option_findings import refused_values

    return refused_values(values, version, is_stated=bool(values.get("vllm_version")))


def _stated_pod(known: Mapping[str, Any]) -> PodMemory:
    limit, shm, node = (known.get(name) for name in ("host_memory_limit_bytes", "shm_bytes", "node_memory_bytes"))
    return PodMemory(limit_bytes=limit, shm_bytes=shm, node_bytes=node) if limit or shm or node else UNKNOWN_POD


def pod_findings(values: Mapping[str, Any], pod: PodMemory | None) -> Iterable[Finding]:
    """Judge the pod where the model, the GPU or the release is not known: what its settings take is certain without them."""
    known, _ = read_settings(with_whole_configs(values))
    pod, version = pod or _stated_pod(known), known.get("vllm_version", DEFAULT_VERSION)
    if pod == UNKNOWN_POD or facts.look_up_version(version):
        return ()
    accelerator = facts.look_up_accelerator(known["gpu"])[0] if known.get("gpu") else None
    vendor = accelerator.vendor if accelerator else ""
    return judge_pod(pod_ledger_without_model(engine_settings(known), version, pod, vendor=vendor), pod)


def _shape(
    known: Mapping[str, Any], given_revision: object, models: PublishedModels, overrides: Mapping[str, Any]
) -> tuple[ModelShape | None, tuple[Finding, ...]]:
    """Return the model's shape. A config is looked up by its text, so that many requests about one model read it once."""
    name, config = known.get("model", ""), known.get("model_config")
    revision = given_revision if isinstance(given_revision, str) else ""
    quantization, dtype = known.get("quantization"), known.get("dtype")
    if config is None and overrides:
        return look_up_overridden(
            name, overrides, revision=revision, quantization=quantization, dtype=dtype, models=models
        )
    if config is None:
        return look_up_model(name, revision=revision, quantization=quantization, dtype=dtype, models=models)
    changed = json.dumps(overridden(config, overrides))
    return shape_of_text(changed, name=name, where="model_config", quantization=quantization, dtype=dtype)


def _accelerator(known: Mapping[str, Any]) -> tuple[Accelerator | None, tuple[Finding, ...]]:
    """Return the catalogue's accelerator, with the memory that the request states; describe a GPU of which only the memory is known."""
    name, memory_bytes = known.get("gpu"), known.get("gpu_memory_bytes")
    accelerator, findings = facts.look_up_accelerator(name) if name else (None, (_NO_GPU,))
    if memory_bytes is None:
        return accelerator, findings
    if accelerator is None:
        # Vendor and capabilities are not known: the interval is wide, and nothing is refused because of them.
        listed_as = name or "this GPU"
        accelerator = Accelerator(
            name=listed_as, product=listed_as, memory_bytes=0, memory_low_bytes=0, memory_high_bytes=0, compute_capability=None,
            vendor="unknown", **({} if name else _likely(memory_bytes)),
        )  # fmt: skip
        message = "{name} is not in the catalogue: {gpu_memory_bytes} is used and its capabilities are not judged"
        remedy = "`kvgate gpus` lists those that are known"
        findings = (ACCELERATOR_NOT_LISTED.finding("gpu", words(message, name=listed_as), remedy),)
    exact = {"memory_bytes": memory_bytes, "memory_low_bytes": memory_bytes, "memory_high_bytes": memory_bytes}
    return replace(accelerator, **exact), findings


@lru_cache(maxsize=64)
def _likely(memory_bytes: int) -> dict[str, Any]:
    """Return what all GPUs of the catalogue with so much memory have in common; drivers report up to 0.5 % more or less."""
    alike = [
        each
        for each in catalogue.accelerators()
        if each.memory_low_bytes * 199 <= memory_bytes * 200 <= each.memory_high_bytes * 201
    ]
    vendors, capabilities = {each.vendor for each in alike}, {each.compute_capability for each in alike}
    return {
        "likely_vendor": vendors.pop() if len(vendors) == 1 else "",
        "likely_capability": capabilities.pop() if len(capabilities) == 1 else None,
    }


def _remarks(values: Mapping[str, Any], known: Mapping[str, Any]) -> Iterator[Finding]:
    """Report the assumptions, and the settings that kvgate does not know."""
    if "vllm_version" not in known:
        message = words("no {vllm_version} is given: {release} is assumed", release=DEFAULT_VERSION)
        yield VERSION_ASSUMED.finding("vllm_version", message, do("give {vllm_version}"))
    for key, value in values.items():
        if key not in _KEYS and value is not None:
            yield SETTING_NOT_UNDERSTOOD.finding(key, f"{key} is not understood here and changes no number")
