"""The judgement of an engine with one release of vLLM, and with the oldest and the newest that it may be, joined to one."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from kvgate.budget import Verdict, Workload, parse_patch
from kvgate.findings.finding import Severity, any_one, error_rules
from kvgate.findings.located import Located, Place, located
from kvgate.judge.assessment import Assessment
from kvgate.judge.judged import Judged, joined_worlds
from kvgate.judge.on_accelerators import AcceleratorVerdict, MemoryNeeded
from kvgate.judge.worlds import joined, refuse_apart, refusing_nothing
from kvgate.manifests.judging.engine_budget import EngineFacts, ask_budget, host_findings, is_partly_seen, version_path
from kvgate.manifests.judging.gpus import gpu_count_problems
from kvgate.manifests.judging.line_findings import line_findings, undecided_settings
from kvgate.manifests.judging.releases import taken_elsewhere
from kvgate.manifests.judging.surroundings import start_advice
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.rules.command_line import RELEASE_DECIDES, TOOL_CALL_PARSER_MISSING
from kvgate.vllm.contradictions import contradictions
from kvgate.vllm.images import Strength
from kvgate.vllm.options import newest_read, releases_read
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
    accelerators: tuple[AcceleratorVerdict, ...] = ()
    """Verdict on each GPU that it may run on, where nothing names one alone; empty where one is named, or nothing can be judged."""
    needed: MemoryNeeded | None = None
    """Memory that one GPU must have; None where a GPU is named, or nothing can be judged."""
    workload: Workload | None = None
    """Load that somebody declared for it."""
    judged_on: str | None = None
    """The GPU whose assessment it is, where nothing names one: the smallest on which it starts."""


def judged_with(facts: EngineFacts, version: str) -> JudgedEngine:
    """Judge with one release; findings stand in the order in which people mend them, and the verdict is Unknown where a setting is open."""
    engine = facts.engine
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
    told = {each.finding.rule for each in findings}
    for each in contradictions(line):
        # options that nobody sees may resolve one, and a program around vLLM need not check what its server does
        is_unsure = not is_whole or (engine.is_wrapped and each.finding.rule in _OF_THE_SERVER)
        if each.finding.rule not in told:
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
    told = error_rules(each.finding for each in findings)
    if told - error_rules(assessment.findings):
        return assessment.in_world(assessment.world.changed(lambda _: Verdict.DOES_NOT_FIT))
    return assessment if is_whole or told else assessment.in_world(assessment.world.changed(refusing_nothing))


def _weights_bytes(assessment: Assessment | None) -> int | None:
    """Return the weights of all ranks together; None where they are not known."""
    budget = assessment.budget if assessment else None
    ledgers = [stage.ledger for stage in budget.stages if stage.ledger] if budget else []
    if budget is None or not ledgers:
        return None
    return sum(ledger.weights.low for ledger in ledgers) * budget.request.settings.parallelism.tensor


def judged_at_ends(facts: EngineFacts) -> list[JudgedEngine]:
    """Judge with the newest of the possible releases, and with the oldest where there are several.

    Where both refuse, the newest other release that does not stands for the oldest: a refusal must hold for all that it may be.
    """
    releases = facts.releases
    high = judged_with(facts, releases.high)
    ends = [high] if releases.is_one else [high, judged_with(facts, releases.low)]
    if any(each.verdict is not Verdict.DOES_NOT_FIT for each in ends):
        return ends
    others = (judged_with(facts, each) for each in reversed(releases_read()) if releases.may_be(each))
    other = next((each for each in others if each.verdict is not Verdict.DOES_NOT_FIT), None)
    return [high, other] if other else ends


def joined_ends(ends: Sequence[JudgedEngine]) -> JudgedEngine:
    """Return one judgement of the possible releases: where the two ends differ nothing is certain."""
    high, low = ends[0], ends[-1]
    if len(ends) == 1:
        return high
    answer = joined_worlds(high, (low, high))
    findings = list(_joined_findings(low, high))
    if low.verdict is not high.verdict:
        message = (
            f"with vLLM {low.vllm_version} it is {low.verdict.value}, with {high.vllm_version} {high.verdict.value}"
        )
        remedy = any_one("name a release in the image's tag", "give --vllm-version")
        at = Place(name="vllm_version", path=version_path(high.engine))
        findings.append(located(RELEASE_DECIDES, at, message, remedy))
    return replace(answer, is_release_known=False, findings=tuple(findings))


def _joined_findings(low: JudgedEngine, high: JudgedEngine) -> Iterator[Located]:
    """Join the findings of two releases. A finding that only one of them has names its release, and is no error unless both refuse, each
    for another reason."""
    older, newer = {key_of(each): each for each in low.findings}, {key_of(each): each for each in high.findings}
    common = [each for key, each in newer.items() if key in older and older[key].finding.severity is Severity.ERROR]
    is_said = any(each.finding.severity is Severity.ERROR for each in common)  # what holds in both is the refusal
    both_refuse = refuse_apart(joined([low.world, high.world]).verdict, is_error_common=is_said)
    for key, each in newer.items():
        is_milder = key in older and older[key].finding.severity is not each.finding.severity
        yield each if key in older and not is_milder else _only_with(high.vllm_version, each, both_refuse=both_refuse)
    for key, each in older.items():
        if key not in newer and each.finding.severity is not Severity.INFO:
            yield _only_with(low.vllm_version, each, both_refuse=both_refuse)


def key_of(each: Located) -> tuple[str, str, str, int]:
    return each.finding.rule.id, each.finding.field, each.path, each.line


def _only_with(release: str, each: Located, *, both_refuse: bool) -> Located:
    """Soften a finding of one release, because nobody knows that it is this one."""
    if each.finding.severity is Severity.INFO:
        return each
    finding = each.finding if both_refuse else each.finding.softened()
    told = finding.with_words("with vLLM {release}: {message}", release=release)
    return replace(each, finding=told)
