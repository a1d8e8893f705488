"""An engine that a reader found → what the engine of kvgate says of it, every finding at the path that it is about."""

from collections.abc import Iterator
from dataclasses import field, replace
from typing import Any

from kvgate import catalogue
from kvgate.budget.calibration import NOTHING_OBSERVED, Calibration
from kvgate.budget.interval import Verdict
from kvgate.budget.request import Guarantee, Workload
from kvgate.budget.units import MIB
from kvgate.budget.versions import DEFAULT_VERSION, parse_patch
from kvgate.command_line.arguments import Setting, is_open
from kvgate.command_line.contradictions import contradictions
from kvgate.command_line.located import Located, Place, located
from kvgate.command_line.options import newest_read
from kvgate.command_line.parser import CommandLine, parse_arguments
from kvgate.engine import Assessment, judge
from kvgate.facts import without_spec
from kvgate.hf_config import ModelConfigError
from kvgate.hf_config.text import parse_config_text
from kvgate.manifests.chosen_accelerator import Chosen, choose
from kvgate.manifests.engine_found import FoundEngine
from kvgate.manifests.gpu_count import gpu_count_problems
from kvgate.manifests.line_findings import line_findings, undecided, undecided_settings
from kvgate.manifests.models import ModelFound, Named, find_model
from kvgate.manifests.releases import Releases, releases_of
from kvgate.manifests.start_advice import start_advice
from kvgate.manifests.two_releases import joined_findings, joined_verdict, verdicts_differ
from kvgate.memory_settings import ALLOW_LONG
from kvgate.record import record
from kvgate.rules.finding import Finding, Severity
from kvgate.what_if import BadRequest, assess_request

_OF_THE_SERVER = ("ToolCallParserMissing",)
"""Contradictions that vLLM's API server refuses, not its engine."""


@record
class Defaults:
    """What is taken where a manifest does not say: from the command line or `.kvgate.yaml`."""

    accelerator: str | None = None
    vllm_version: str | None = None
    model_config: str | None = None
    """Text of a config.json, for models that the catalogue does not know."""
    workload: Workload | None = None
    """What the engine is expected to serve; asked instead of max_num_seqs whole requests."""
    calibration: Calibration = NOTHING_OBSERVED


@record
class JudgedEngine:
    """What became of one engine."""

    engine: FoundEngine
    assessment: Assessment | None
    """None where nothing could be asked."""
    verdict: Verdict
    accelerator: str | None
    vllm_version: str
    """The newest that it may be."""
    is_release_known: bool = True
    options_set: frozenset[str] | None = None
    """Of its command line, by vLLM's names of the settings; None where the input does not hold all of it."""
    findings: tuple[Located, ...] = ()
    assumed: tuple[str, ...] = field(default=())
    """What was taken because the manifest does not say."""


@record
class _Asked:
    """Everything but the release."""

    engine: FoundEngine
    model: ModelFound | None
    chosen: Chosen
    defaults: Defaults
    releases: Releases


def judge_engine(engine: FoundEngine, defaults: Defaults) -> JudgedEngine:
    """The Startup verdict, with oversubscription as a warning; of both ends where the release is not known."""
    model = find_model(list(_names(engine)))
    releases = releases_of(engine, model.name if model else "", defaults.vllm_version)
    chosen = choose(engine, defaults.accelerator)
    asked = _Asked(engine=engine, model=model, chosen=chosen, defaults=defaults, releases=releases)
    judged = _judged_within(asked, releases)
    for other in chosen.others:
        if judged.verdict is Verdict.DOES_NOT_FIT:
            judged = _unless_with(other, judged, asked, releases)
    if judged.verdict is Verdict.DOES_NOT_FIT and engine.is_overridden:
        judged = _doubtful(judged)
    notes = (*engine.assumed, model.assumed if model else "", releases.assumed, *chosen.assumed)
    return replace(judged, assumed=tuple(note for note in notes if note))


def _names(engine: FoundEngine) -> Iterator[Named]:
    """What may name the model, the surest first: vLLM 0.10+ puts --model where the word without an option stands."""
    line = parse_arguments(engine.arguments, parse_patch(DEFAULT_VERSION))
    yield Named(text=engine.model.text, path=engine.model.path)
    if setting := line.settings.get("model"):
        yield Named(text=setting.text, path=setting.path)
    yield from (Named(text=word.text, path=word.path) for word in line.positionals[:1])
    yield Named(text=engine.model_name.text, path=engine.model_name.path)
    if served := line.settings.get("served_model_name"):
        yield from (Named(text=str(name), path=served.path) for name in served.value or ())


def _judged_within(asked: _Asked, releases: Releases) -> JudgedEngine:
    high = _judged_with(asked, releases.high)
    return high if releases.is_one else _joined(_judged_with(asked, releases.low), high)


def _unless_with(other: str | None, judged: JudgedEngine, asked: _Asked, releases: Releases) -> JudgedEngine:
    """Where another possible GPU may hold it, what refuses the smallest is no refusal."""
    with_other = replace(asked, chosen=replace(asked.chosen, name=other))
    if _judged_within(with_other, releases).verdict is Verdict.DOES_NOT_FIT:
        return judged
    return _doubtful(judged)


def _doubtful(judged: JudgedEngine) -> JudgedEngine:
    """Something else may make it start."""
    findings = tuple(replace(each, finding=_as_warning(each.finding)) for each in judged.findings)
    return replace(judged, verdict=Verdict.MAY_NOT_FIT, findings=findings)


def _as_warning(finding: Finding) -> Finding:
    return replace(finding, severity=Severity.WARNING) if finding.severity is Severity.ERROR else finding


def _joined(low: JudgedEngine, high: JudgedEngine) -> JudgedEngine:
    releases = (low.vllm_version, high.vllm_version)
    findings = list(joined_findings(low.findings, high.findings, *releases))
    if low.verdict is not high.verdict:
        findings.append(verdicts_differ(_version_path(high.engine), low.verdict, high.verdict, *releases))
    verdict = joined_verdict(low.verdict, high.verdict)
    return replace(high, verdict=verdict, is_release_known=False, findings=tuple(findings))


def _judged_with(asked: _Asked, version: str) -> JudgedEngine:
    engine = asked.engine
    line = parse_arguments(engine.arguments, parse_patch(version))
    is_beyond = asked.releases.is_ahead or parse_patch(version) > newest_read()
    findings = [*line_findings(line, engine, is_beyond=is_beyond, is_stated=asked.releases.is_stated)]
    findings += asked.chosen.findings
    undecided = undecided_settings(line, knows_model=asked.model is not None)
    findings += undecided
    assessment = None if undecided else _assessment(asked, line, version, findings)
    told = {each.finding.rule for each in findings}
    is_partly_seen = _is_partly_seen(engine, line)
    findings += [_unless_unseen(each, engine, line) for each in contradictions(line) if each.finding.rule not in told]
    findings += gpu_count_problems(engine, line)
    name = asked.model.name if asked.model else ""
    findings += start_advice(engine, line, name, _weights_bytes(assessment))
    return JudgedEngine(
        engine=engine,
        assessment=assessment,
        verdict=_verdict(assessment, findings, is_partly_seen=is_partly_seen),
        accelerator=asked.chosen.name,
        vllm_version=version,
        options_set=None if is_partly_seen else line.names,
        findings=tuple(findings),
    )


def _unless_unseen(each: Located, engine: FoundEngine, line: CommandLine) -> Located:
    """Options that nobody sees may resolve a contradiction, and a program around vLLM need not check what its server does."""
    is_unsure = _is_partly_seen(engine, line) or (engine.is_wrapped and each.finding.rule in _OF_THE_SERVER)
    return replace(each, finding=_as_warning(each.finding)) if is_unsure else each


def _verdict(assessment: Assessment | None, findings: list[Located], *, is_partly_seen: bool) -> Verdict:
    """Errors of the command line refuse the start as surely as memory does."""
    if any(each.finding.severity is Severity.ERROR for each in findings):
        return Verdict.DOES_NOT_FIT
    verdict = assessment.verdict if assessment else Verdict.UNKNOWN
    return Verdict.MAY_NOT_FIT if verdict is Verdict.DOES_NOT_FIT and is_partly_seen else verdict


def _assessment(asked: _Asked, line: CommandLine, version: str, findings: list[Located]) -> Assessment | None:
    """None where nothing can be asked; what is said goes to the findings."""
    try:
        values = _values(asked, line, version)
        if values is None:
            findings.append(_no_model(asked.engine))
            return None
        assessment = assess_request(values, is_whole=True, calibration=asked.defaults.calibration)
        told = [*assessment.findings, *_oversubscription(assessment, asked.defaults.workload)]
    except BadRequest as error:
        findings += [_invalid(asked.engine, line, name, problem) for name, problem in error.problems.items()]
        return None
    except ModelConfigError as error:
        findings.append(_invalid(asked.engine, line, "", str(error)))
        return None
    findings += [
        _placed(asked, line, _doubted(_reworded(finding, asked), asked, line))
        for finding in told
        if _is_meant(finding, asked)
    ]
    return assessment


def _invalid(engine: FoundEngine, line: CommandLine, name: str, problem: str) -> Located:
    at = line.settings.get(name) or Place(name=name, path=engine.path)
    return located("InvalidSetting", Severity.ERROR, at, problem, "give a value that vLLM takes")


def _is_meant(finding: Finding, asked: _Asked) -> bool:
    """What is said of our own objects only: settings without a formula, and pods of one node; CPUs have been told."""
    on_cpu = finding.rule == "UnknownAccelerator" and asked.chosen.findings and asked.chosen.name is None
    return finding.rule not in ("SettingNotUnderstood", "MoreGpusThanANode") and not on_cpu


def _doubted(finding: Finding, asked: _Asked, line: CommandLine) -> Finding:
    """Options that nobody sees here may be the very ones that make it fit."""
    return _as_warning(finding) if _is_partly_seen(asked.engine, line) else finding


def _is_partly_seen(engine: FoundEngine, line: CommandLine) -> bool:
    return engine.is_partial or bool(line.open_words)


def _reworded(finding: Finding, asked: _Asked) -> Finding:
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
        return undecided(Setting(name="model", value=None, text=engine.model.text, path=engine.model.path))
    severity = Severity.WARNING if engine.arguments else Severity.INFO
    message, remedy = "no model is named where kvgate looks", "give the model's Hugging Face id"
    return located("ModelNotNamed", severity, Place(name="model", path=engine.path), message, remedy)


def _values(asked: _Asked, line: CommandLine, version: str) -> dict[str, Any] | None:
    """The what-if; None where no model is named."""
    config = asked.defaults.model_config
    name = asked.model.name if asked.model else ""
    if not name and config is None:
        return None
    settings = {name: setting.value for name, setting in line.settings.items()}
    values = {**settings, "model": name or "model", "gpu": asked.chosen.name, "vllm_version": version}
    if config is not None and catalogue.find_model(name) is None:
        values["model_config"] = parse_config_text(config)
    if asked.engine.takes_any_length:
        values[ALLOW_LONG] = True
    memory = asked.engine.gpu_memory.count
    return {**values, "gpu_memory_bytes": memory * MIB} if memory else values


def _placed(asked: _Asked, line: CommandLine, finding: Finding) -> Located:
    """At the option that sets the field, or at what told the model, the GPU or the release."""
    setting = line.settings.get(finding.field)
    if setting and finding.field != "model":
        return Located(finding=finding, path=setting.path, line=setting.line)
    own = {
        "model": asked.model.path if asked.model else "",
        "gpu": asked.chosen.path,
        "accelerator": asked.chosen.path,
        "vllm_version": _version_path(asked.engine),
    }
    return Located(finding=finding, path=own.get(finding.field) or asked.engine.path)


def _version_path(engine: FoundEngine) -> str:
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


def _weights_bytes(assessment: Assessment | None) -> int | None:
    """Of all ranks together; None where they are not known."""
    budget = assessment.budget if assessment else None
    ledgers = [stage.ledger for stage in budget.stages if stage.ledger] if budget else []
    if budget is None or not ledgers:
        return None
    return sum(ledger.weights.low for ledger in ledgers) * budget.request.settings.parallelism.tensor
