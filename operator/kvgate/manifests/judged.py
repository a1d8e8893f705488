"""An engine that a reader found → what the engine of kvgate says of it, every finding at the path that it is about."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvgate.budget.interval import Verdict
from kvgate.budget.request import Guarantee
from kvgate.budget.versions import DEFAULT_VERSION, parse_patch
from kvgate.engine import Assessment
from kvgate.manifests.accelerator_hints import AcceleratorFound, accelerators_of
from kvgate.manifests.engine_found import FoundEngine
from kvgate.manifests.images import version_of
from kvgate.manifests.models import model_id
from kvgate.manifests.vllm_args import CommandLine, parse_arguments
from kvgate.rules.finding import Finding, Severity
from kvgate.what_if import BadRequest, assess_request


@dataclass(frozen=True, kw_only=True, slots=True)
class Defaults:
    """What is taken where a manifest does not say: from the command line or `.kvgate.yaml`."""

    accelerator: str | None = None
    vllm_version: str | None = None
    model_config: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Located:
    """A finding and the path in the document that it is about."""

    finding: Finding
    path: str
    line: int = 0
    """Lines below the first one, where the field is a text of several."""


@dataclass(frozen=True, kw_only=True)
class JudgedEngine:
    """What became of one engine."""

    engine: FoundEngine
    assessment: Assessment | None
    """None where nothing could be asked."""
    accelerator: str | None
    vllm_version: str
    findings: tuple[Located, ...] = ()
    assumed: tuple[str, ...] = field(default=())
    """What was taken because the manifest does not say."""

    @property
    def verdict(self) -> Verdict:
        """Errors of the command line refuse the start as surely as memory does."""
        if any(located.finding.severity is Severity.ERROR for located in self.findings):
            return Verdict.DOES_NOT_FIT
        return self.assessment.verdict if self.assessment else Verdict.UNKNOWN


@dataclass(slots=True)
class _Reading:
    """What is gathered on the way."""

    engine: FoundEngine
    line: CommandLine
    findings: list[Located] = field(default_factory=list)
    assumed: list[str] = field(default_factory=list)

    def add(
        self, rule: str, severity: Severity, name: str, path: str, message: str, remediation: str, line: int = 0
    ) -> None:
        finding = Finding(rule=rule, severity=severity, field=name, message=message, remediation=remediation)
        self.findings.append(Located(finding=finding, path=path, line=line))


def judge_engine(engine: FoundEngine, defaults: Defaults) -> JudgedEngine:
    """The Startup verdict, with oversubscription as a warning."""
    version, reason = _version(engine, defaults)
    reading = _Reading(engine=engine, line=parse_arguments(engine.arguments, parse_patch(version)))
    if reason:
        reading.assumed.append(reason)
    _read_problems(reading)
    accelerator = _accelerator(reading, defaults)
    values = _values(reading, defaults, accelerator, version)
    assessment = _asked(reading, values) if values else None
    _check_gpus(reading)
    return JudgedEngine(
        engine=engine,
        assessment=assessment,
        accelerator=accelerator,
        vllm_version=version,
        findings=tuple(reading.findings),
        assumed=tuple(reading.assumed),
    )


def _version(engine: FoundEngine, defaults: Defaults) -> tuple[str, str]:
    """(release, why it is assumed; empty where the manifest says it)."""
    tag = engine.version.text
    for image in (tag if ":" in tag else f"vllm/vllm-openai:{tag}", engine.image.text):
        if image.rstrip(":") and (found := version_of(image)).version:
            return found.version, ""
    if defaults.vllm_version:
        return defaults.vllm_version, f"vLLM {defaults.vllm_version}, as configured"
    image = engine.image.text
    why = version_of(image).reason if image else "no image is written"
    return DEFAULT_VERSION, f"vLLM {DEFAULT_VERSION}, because {why}"


def _read_problems(reading: _Reading) -> None:
    """What vLLM's parser says of the command line; options of a wrapper that vLLM does not know are told, not refused."""
    for problem in reading.line.problems:
        wrapped = reading.engine.is_wrapped and problem.rule in ("OptionUnknown", "OptionAmbiguous")
        quiet = wrapped or problem.rule == "OptionDeprecated"
        severity = Severity.INFO if wrapped else Severity.WARNING if quiet else Severity.ERROR
        reading.add(
            problem.rule, severity, "arguments", problem.at.path, problem.message, problem.remediation, problem.at.line
        )
    for setting in reading.line.repeated:
        message = f"{setting.name} is set to {setting.text} here and again later; the later one counts"
        reading.add(
            "OptionRepeated", Severity.WARNING, setting.name, setting.path, message, "keep one of them", setting.line
        )
    for path, remark in reading.engine.remarks:
        reading.add("NotUnderstood", Severity.INFO, "", path, remark, "")


def _accelerator(reading: _Reading, defaults: Defaults) -> str | None:
    found = accelerators_of(reading.engine.hints)
    if not found:
        if defaults.accelerator:
            reading.assumed.append(f"accelerator {defaults.accelerator}, as configured")
        return defaults.accelerator
    if len(found) > 1:
        _say_several(reading, found)
    return min(found, key=lambda each: each.accelerator.memory_bytes).accelerator.name


def _say_several(reading: _Reading, found: tuple[AcceleratorFound, ...]) -> None:
    names = ", ".join(each.accelerator.name for each in found)
    message = f"the pod may run on any of {names}; the one with the least memory is judged"
    reading.add(
        "SeveralAccelerators",
        Severity.INFO,
        "accelerator",
        found[0].hint.path,
        message,
        "select one, or size for the least",
    )


def _values(reading: _Reading, defaults: Defaults, accelerator: str | None, version: str) -> dict[str, Any] | None:
    """The what-if; None where no model is named."""
    settings = {name: setting.value for name, setting in reading.line.settings.items()}
    model = _model(reading)
    if not model:
        reading.add(
            "ModelNotNamed", Severity.WARNING, "model", reading.engine.path, "no model is named where kvgate looks",
            "give the model's Hugging Face id",
        )  # fmt: skip
        return None
    values = {**settings, "model": model, "gpu": accelerator, "vllm_version": version}
    if defaults.model_config is not None:
        values["model_config"] = defaults.model_config
    return values


def _model(reading: _Reading) -> str:
    """The platform's field, `--model`, or the first word after `vllm serve`."""
    if reading.engine.model.text:
        return model_id(reading.engine.model.text)
    setting = reading.line.settings.get("model") or reading.line.settings.get("model_tag")
    if setting:
        return model_id(setting.text)
    return model_id(reading.line.positionals[0].text) if reading.line.positionals else ""


def _asked(reading: _Reading, values: Mapping[str, Any]) -> Assessment | None:
    try:
        assessment = assess_request(values, is_whole=True)
    except BadRequest as error:
        reading.add(
            "InvalidSetting", Severity.ERROR, "", reading.engine.path, str(error), "give a value that vLLM takes"
        )
        return None
    reading.findings += [
        _located(reading, finding) for finding in assessment.findings if finding.rule != "SettingNotUnderstood"
    ]
    reading.findings += list(_oversubscription(reading, values, assessment))
    return assessment


def _located(reading: _Reading, finding: Finding) -> Located:
    setting = reading.line.settings.get(finding.field)
    if setting:
        return Located(finding=finding, path=setting.path, line=setting.line)
    own = {"model": reading.engine.model.path, "gpu": reading.engine.hints[0].path if reading.engine.hints else "",
           "vllm_version": reading.engine.image.path}  # fmt: skip
    return Located(finding=finding, path=own.get(finding.field) or reading.engine.path)


def _oversubscription(reading: _Reading, values: Mapping[str, Any], assessment: Assessment) -> Iterator[Located]:
    """max_num_seqs full-length requests do not fit: preemptions under load. A warning, because the default is nobody's choice."""
    if assessment.verdict not in (Verdict.FITS, Verdict.MAY_NOT_FIT):
        return
    whole = assess_request(values, guarantee=Guarantee.FULL_CONTEXT, is_whole=True)
    for finding in whole.findings:
        if finding.rule == "GuaranteeNotMet":
            softened = Finding(
                rule="Oversubscribed", severity=Severity.WARNING, field=finding.field, message=finding.message,
                remediation="requests that long and that many at once are preempted; lower max_num_seqs or max_model_len",
            )  # fmt: skip
            yield _located(reading, softened)


def _check_gpus(reading: _Reading) -> None:
    """GPUs of the pods against tensor × pipeline × data."""
    gpus = reading.engine.num_gpus
    if gpus.count is None:
        return
    sizes = [reading.line.settings.get(f"{kind}_parallel_size") for kind in ("tensor", "pipeline", "data")]
    needed = 1
    for setting in sizes:
        needed *= setting.value if setting and isinstance(setting.value, int) else 1
    there = gpus.count * reading.engine.num_pods
    if there < needed:
        message = (
            f"tensor × pipeline × data parallel size is {needed} and the pod has {there} GPUs: vLLM does not start"
        )
        reading.add("TooFewGpus", Severity.ERROR, "tensor_parallel_size", gpus.path, message, f"ask for {needed} GPUs")
    elif there > needed:
        message = f"the pod has {there} GPUs and vLLM uses {needed}: {there - needed} idle"
        remedy = f"set --tensor-parallel-size to {there}, or ask for {needed}"
        reading.add("IdleGpus", Severity.WARNING, "tensor_parallel_size", gpus.path, message, remedy)
