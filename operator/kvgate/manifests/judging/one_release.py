"""One engine judged with one release: its command line, its budget, its GPUs and what is around it."""

from collections.abc import Container, Iterator

from kvgate.budget.interval import Verdict
from kvgate.budget.versions import parse_patch
from kvgate.judge.assess import Assessment
from kvgate.manifests.judging.budget_question import Question, ask_budget, is_partly_seen
from kvgate.manifests.judging.gpu_count import gpu_count_problems
from kvgate.manifests.judging.judged import JudgedEngine, softened
from kvgate.manifests.judging.line_findings import line_findings, undecided_settings
from kvgate.manifests.judging.start_advice import start_advice
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.rules.finding import Severity
from kvgate.vllm.arguments import Located
from kvgate.vllm.contradictions import contradictions
from kvgate.vllm.options import newest_read
from kvgate.vllm.parser import CommandLine, parse_arguments

_OF_THE_SERVER = ("ToolCallParserMissing",)
"""Contradictions that vLLM's API server refuses, not its engine."""


def judged_with(asked: Question, version: str) -> JudgedEngine:
    """Judge with one release; findings stand in the order in which people mend them, and the verdict is Unknown where a setting is open."""
    engine = asked.engine
    line = parse_arguments(engine.arguments, parse_patch(version))
    is_beyond = asked.releases.is_ahead or parse_patch(version) > newest_read()
    findings = [*line_findings(line, engine, is_beyond=is_beyond, is_stated=asked.releases.is_stated)]
    findings += asked.chosen.findings
    undecided = undecided_settings(line, knows_model=asked.model is not None)
    assessment, answered = (None, undecided) if undecided else ask_budget(asked, line, version)
    findings += answered
    is_whole = not is_partly_seen(engine, line)
    findings += _contradictions(engine, line, {each.finding.rule for each in findings})
    findings += gpu_count_problems(engine, line)
    name = asked.model.name if asked.model else ""
    findings += start_advice(engine, line, name, _weights_bytes(assessment))
    return JudgedEngine(
        engine=engine,
        assessment=assessment,
        verdict=_verdict(assessment, findings, is_whole=is_whole),
        accelerator=asked.chosen.name,
        vllm_version=version,
        options_set=line.names if is_whole else None,
        findings=tuple(findings),
    )


def _contradictions(engine: FoundEngine, line: CommandLine, told: Container[str]) -> Iterator[Located]:
    """Options that nobody sees may resolve one, and a program around vLLM need not check what its server does."""
    for each in contradictions(line):
        is_unsure = is_partly_seen(engine, line) or (engine.is_wrapped and each.finding.rule in _OF_THE_SERVER)
        if each.finding.rule not in told:
            yield softened(each) if is_unsure else each


def _verdict(assessment: Assessment | None, findings: list[Located], *, is_whole: bool) -> Verdict:
    """Errors of the command line refuse the start as surely as memory does."""
    if any(each.finding.severity is Severity.ERROR for each in findings):
        return Verdict.DOES_NOT_FIT
    verdict = assessment.verdict if assessment else Verdict.UNKNOWN
    return verdict if is_whole or verdict is not Verdict.DOES_NOT_FIT else Verdict.MAY_NOT_FIT


def _weights_bytes(assessment: Assessment | None) -> int | None:
    """Return the weights of all ranks together; None where they are not known."""
    budget = assessment.budget if assessment else None
    ledgers = [stage.ledger for stage in budget.stages if stage.ledger] if budget else []
    if budget is None or not ledgers:
        return None
    return sum(ledger.weights.low for ledger in ledgers) * budget.request.settings.parallelism.tensor
