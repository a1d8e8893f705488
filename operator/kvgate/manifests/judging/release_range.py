"""The judgement of an engine with one release of vLLM, and with the oldest and the newest that it may be, joined to one."""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from kvgate.budget import Verdict, Workload, parse_patch
from kvgate.findings.finding import Severity, error_rules
from kvgate.findings.located import Located
from kvgate.judge.assessment import Assessment, Judged, OnGpus, refusing_nothing
from kvgate.manifests.judging.engine_budget import EngineFacts, ask_budget, host_findings, is_partly_seen
from kvgate.manifests.judging.gpus import gpu_count_problems
from kvgate.manifests.judging.line_findings import line_findings, undecided_settings
from kvgate.manifests.judging.releases import taken_elsewhere
from kvgate.manifests.judging.surroundings import start_advice
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.rules.command_line import TOOL_CALL_PARSER_MISSING
from kvgate.vllm.contradictions import contradictions
from kvgate.vllm.images import Strength
from kvgate.vllm.options import newest_read
from kvgate.vllm.parser import parse_arguments

_OF_THE_SERVER = (TOOL_CALL_PARSER_MISSING,)
"""Contradictions that vLLM's API server refuses, not its engine."""


class Assumed(Struct, frozen=True, kw_only=True):
    """A fact that the manifest does not state."""

    fact: str
    """Name of the fact: `vllm_version`, `accelerator`, `model`, or `settings` for what a platform adds."""
    value: str | None
    why: str
    text: str
    """The same in words for people."""


class JudgedEngine(Judged, frozen=True, kw_only=True):
    """Judgement of one engine."""

    engine: FoundEngine
    model: str | None = None
    """The model by the name that the catalogue may know; None where none is named."""
    accelerator: str | None
    stated_release: str | None = None
    """Release that the manifest states; None where it is assumed."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Values that its command line gives, by vLLM's names."""
    is_release_known: bool = True
    options_set: frozenset[str] | None = None
    """Options of its command line by vLLM's names; None where the input does not hold all of it."""
    assumed: tuple[Assumed, ...] = ()
    workload: Workload | None = None
    """Load that somebody declared for it."""

    @property
    def on_gpus(self) -> OnGpus | None:
        """The answer on each GPU that it may run on; None where one alone is named, or nothing can be judged."""
        return self.assessment.on_gpus if self.assessment else None

    @property
    def judged_on(self) -> str | None:
        """The GPU whose assessment it is, where nothing names one: the smallest on which it starts."""
        return self.on_gpus.judged_on if self.on_gpus else None


def judged_with(facts: EngineFacts, version: str, gpu: str | None) -> JudgedEngine:
    """Judge with one release; findings stand in the order in which people mend them, and the verdict is Unknown where a setting is open."""
    engine, facts = facts.engine, replace(facts, chosen=replace(facts.chosen, name=gpu))
    line = parse_arguments(engine.arguments, parse_patch(version), program=engine.program)
    is_beyond = facts.releases.is_ahead or parse_patch(version) > newest_read()
    elsewhere = [] if facts.releases.strength is Strength.STRONG else taken_elsewhere(engine, line)
    findings = [
        *line_findings(line, engine, is_beyond=is_beyond, is_stated=facts.releases.is_stated, elsewhere=elsewhere)
    ]
    findings += facts.chosen.findings
    undecided = undecided_settings(line, knows_model=facts.model is not None)
    assessment, answered = (None, undecided) if undecided else ask_budget(facts, line, version)
    findings += answered if assessment else [*answered, *host_findings(engine, line, version)]
    is_whole = not is_partly_seen(engine, line)
    known_rules = {each.finding.rule for each in findings}
    for each in contradictions(line):
        # options that nobody sees may resolve one, and a program around vLLM need not check what its server does
        is_unsure = not is_whole or (engine.is_wrapped and each.finding.rule in _OF_THE_SERVER)
        if each.finding.rule not in known_rules:
            findings.append(each.softened() if is_unsure else each)
    findings += gpu_count_problems(engine, line)
    name = facts.model.name if facts.model else ""
    findings += start_advice(engine, line, name, _weights_bytes(assessment))
    if facts.chosen.is_unjudged:  # what concerns GPUs does not concern it
        errors = (each for each in findings if each.finding.severity is Severity.ERROR)
        findings = [*facts.chosen.findings, *errors]
    assessment = _with_errors(assessment, findings, is_whole=is_whole) if assessment else None
    is_refused = any(each.finding.severity is Severity.ERROR for each in findings)
    unassessed = Verdict.DOES_NOT_FIT if is_refused else Verdict.UNKNOWN
    return JudgedEngine(
        engine=engine,
        assessment=assessment,
        verdict=assessment.verdict if assessment else unassessed,
        accelerator=facts.chosen.name,
        vllm_version=version,
        options_set=line.names if is_whole else None,
        findings=tuple(findings),
    )


def _with_errors(assessment: Assessment, findings: Sequence[Located], *, is_whole: bool) -> Assessment:
    """Errors of the command line refuse the start as surely as memory does."""
    refusing = error_rules(each.finding for each in findings)
    if refusing - error_rules(assessment.findings):
        return assessment.in_world(assessment.world.changed(lambda _: Verdict.DOES_NOT_FIT))
    return assessment if is_whole or refusing else assessment.in_world(assessment.world.changed(refusing_nothing))


def _weights_bytes(assessment: Assessment | None) -> int | None:
    """Return the weights of all ranks together; None where they are not known."""
    budget = assessment.budget if assessment else None
    ledgers = [stage.ledger for stage in budget.stages if stage.ledger] if budget else []
    if budget is None or not ledgers:
        return None
    return sum(ledger.weights.low for ledger in ledgers) * budget.request.settings.parallelism.tensor
