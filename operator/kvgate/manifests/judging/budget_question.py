"""One engine and one release → what the budget answers, every finding at the path that it is about."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from kvgate import catalogue
from kvgate.budget.interval import Verdict
from kvgate.budget.request import Guarantee, Workload
from kvgate.budget.units import MIB
from kvgate.hf_config import ModelConfigError
from kvgate.hf_config.fields import parse_config_text
from kvgate.judge.assess import Assessment, judge
from kvgate.judge.facts import without_spec
from kvgate.judge.what_if import BadRequest, assess_request
from kvgate.manifests.judging.chosen_accelerator import Chosen
from kvgate.manifests.judging.judged import Defaults, softened
from kvgate.manifests.judging.line_findings import undecided
from kvgate.manifests.judging.model_names import ModelFound
from kvgate.manifests.judging.releases import Releases
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.record import record
from kvgate.rules.finding import Finding, Severity
from kvgate.vllm.arguments import GivenOption, Located, Place, is_open, located
from kvgate.vllm.parser import CommandLine
from kvgate.vllm.variables import ALLOW_LONG


@record
class Question:
    """One engine, and all that is known about it but the release."""

    engine: FoundEngine
    model: ModelFound | None
    chosen: Chosen
    defaults: Defaults
    releases: Releases


def is_partly_seen(engine: FoundEngine, line: CommandLine) -> bool:
    """Options that the input does not hold may change everything."""
    return engine.is_partial or bool(line.open_words)


def ask_budget(asked: Question, line: CommandLine, version: str) -> tuple[Assessment | None, list[Located]]:
    """(the answer, what is said of it); None where nothing can be asked."""
    try:
        values = _values(asked, line, version)
        if values is None:
            return None, [_no_model(asked.engine)]
        assessment = assess_request(values, is_whole=True, calibration=asked.defaults.calibration)
        told = [*assessment.findings, *_oversubscription(assessment, asked.defaults.workload)]
    except BadRequest as error:
        return None, [_invalid(asked.engine, line, name, problem) for name, problem in error.problems.items()]
    except ModelConfigError as error:
        return None, [_invalid(asked.engine, line, "", str(error))]
    placed = [_placed(asked, line, _reworded(finding, asked)) for finding in told if _is_meant(finding, asked)]
    return assessment, [softened(each) for each in placed] if is_partly_seen(asked.engine, line) else placed


def _invalid(engine: FoundEngine, line: CommandLine, name: str, problem: str) -> Located:
    at = line.given.get(name) or Place(name=name, path=engine.path)
    return located("InvalidSetting", Severity.ERROR, at, problem, "give a value that vLLM takes")


def _is_meant(finding: Finding, asked: Question) -> bool:
    """True where a finding is for other platforms too; formulas and single nodes are for our own objects, CPUs have their own."""
    on_cpu = finding.rule == "UnknownAccelerator" and asked.chosen.findings and asked.chosen.name is None
    return finding.rule not in ("SettingNotUnderstood", "MoreGpusThanANode") and not on_cpu


def _reworded(finding: Finding, asked: Question) -> Finding:
    """Remedies that a manifest of another platform has."""
    if finding.rule == "UnknownAccelerator" and asked.chosen.name is None:
        remedy = (
            "select nodes by nvidia.com/gpu.product, or give --accelerator"
            if asked.engine.is_in_a_pod
            else "give --accelerator"
        )
        return replace(finding, message="no GPU is named where kvgate looks", remediation=remedy)
    return replace(finding, remediation=without_spec(finding.remediation))


def _no_model(engine: FoundEngine) -> Located:
    """A part of a manifest, as kustomize patches are, is worth less than a whole one without a model."""
    if is_open(engine.model.text):
        return undecided(GivenOption(name="model", value=None, text=engine.model.text, path=engine.model.path))
    severity = Severity.WARNING if engine.arguments else Severity.INFO
    message, remedy = "no model is named where kvgate looks", "give the model's Hugging Face id"
    return located("ModelNotNamed", severity, Place(name="model", path=engine.path), message, remedy)


def _values(asked: Question, line: CommandLine, version: str) -> dict[str, Any] | None:
    """The what-if; None where no model is named."""
    config = asked.defaults.model_config
    name = asked.model.name if asked.model else ""
    if not name and config is None:
        return None
    settings = {name: setting.value for name, setting in line.given.items()}
    values = {**settings, "model": name or "model", "gpu": asked.chosen.name, "vllm_version": version}
    if config is not None and catalogue.find_model(name) is None:
        values["model_config"] = parse_config_text(config)
    if asked.engine.takes_any_length:
        values[ALLOW_LONG] = True
    memory = asked.engine.gpu_memory.count
    return {**values, "gpu_memory_bytes": memory * MIB} if memory else values


def _placed(asked: Question, line: CommandLine, finding: Finding) -> Located:
    """At the option that sets the field, or at what told the model, the GPU or the release."""
    setting = line.given.get(finding.field)
    if setting and finding.field != "model":
        return Located(finding=finding, path=setting.path, line=setting.line)
    own = {
        "model": asked.model.path if asked.model else "",
        "gpu": asked.chosen.path,
        "accelerator": asked.chosen.path,
        "vllm_version": version_path(asked.engine),
    }
    return Located(finding=finding, path=own.get(finding.field) or asked.engine.path)


def version_path(engine: FoundEngine) -> str:
    """Return the path of the field that names the release."""
    return (engine.version.path if engine.version.text else engine.image.path) or engine.path


def _oversubscription(assessment: Assessment, workload: Workload | None) -> Iterator[Finding]:
    """The declared workload, or max_num_seqs whole requests, does not fit: preemptions under load, which is a warning."""
    if assessment.verdict not in (Verdict.FITS, Verdict.MAY_NOT_FIT) or assessment.budget is None:
        return
    guarantee = Guarantee.WORKLOAD if workload else Guarantee.FULL_CONTEXT
    asked = replace(assessment.budget.request, guarantee=guarantee, workload=workload)
    for finding in judge(asked).findings:
        if finding.rule == "GuaranteeNotMet":
            remedy = "requests that long and that many at once are preempted; lower max_num_seqs or max_model_len"
            yield replace(finding, rule="Oversubscribed", severity=Severity.WARNING, remediation=remedy)
        elif finding.rule in ("ConcurrencyAboveMaxNumSeqs", "RequestAboveMaxModelLen"):
            yield replace(finding, severity=Severity.WARNING)
