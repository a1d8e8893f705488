"""The judgement of an engine that a reader found: with one release on one GPU, and joined over all that it may have."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import Verdict, Workload, parse_patch
from kvgate.documents.written import Written
from kvgate.findings.finding import Finding, Located, Place, Rule, Severity, any_one, error_rules, located, words
from kvgate.judgement.assessment import NOT_JUDGED, Assessment, Judged, OnGpus, refusing_nothing
from kvgate.judgement.possible_worlds import Worlds
from kvgate.manifests.judging.engine_budget import (
    Defaults,
    EngineFacts,
    ask_budget,
    host_findings,
    is_partly_seen,
    names_of,
    version_path,
)
from kvgate.manifests.judging.gpus import choose, gpu_count_problems, vendor_of, which_of_several, which_start
from kvgate.manifests.judging.line_findings import (
    length_by_config_path,
    line_findings,
    start_advice,
    undecided_settings,
)
from kvgate.manifests.judging.model_names import find_model
from kvgate.manifests.judging.releases import releases_of, taken_elsewhere
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.manifests.pods.which_engine import engine_in, sign_of_another
from kvgate.rules.command_line import OPTION_NOT_YET, OPTION_REMOVED, TOOL_CALL_PARSER_MISSING
from kvgate.rules.facts import UNKNOWN_ACCELERATOR, UNKNOWN_DRAFT, UNKNOWN_MODEL, UNKNOWN_VERSION
from kvgate.rules.host_memory import HOST_RULES, OVERSUBSCRIBED
from kvgate.rules.manifests import OTHER_ENGINE, TOO_FEW_GPUS
from kvgate.rules.support import UNMODELLED_KIND
from kvgate.vllm.arguments import shown
from kvgate.vllm.images import Strength
from kvgate.vllm.option_findings import contradictions
from kvgate.vllm.options import Kind, newest_read
from kvgate.vllm.parser import CommandLine, parse_arguments

_MISSING_FACTS = (UNKNOWN_MODEL, UNKNOWN_DRAFT, UNKNOWN_ACCELERATOR, UNKNOWN_VERSION, UNMODELLED_KIND)
"""Facts that nobody has to write into a manifest: nothing is wrong with one that lacks them."""
_SETTLED_BY: Mapping[Rule, str] = {
    UNKNOWN_MODEL: "name its config.json in .kvgate.yaml: `modelConfig: FILE`, for some engines in `mappings`",
    UNKNOWN_ACCELERATOR: "ask for its memory: kvgate explain --model MODEL --gpu-memory-bytes BYTES",
}
"""Actions that settle a fact which keeps an engine from being judged, beside those that the finding itself proposes."""
_OF_THE_SERVER = (TOOL_CALL_PARSER_MISSING,)
"""Contradictions that vLLM's API server refuses, not its engine."""
_OF_RELEASES = (OPTION_REMOVED, OPTION_NOT_YET)
"""Warnings that builds for other hardware deserve too: their releases have vLLM's options, and often values and options of their own."""


class Assumed(Struct, frozen=True, kw_only=True):
    """A fact that the manifest does not state."""

    fact: str
    """Name of the fact: `vllm_version`, `accelerator`, `model`, or `settings` for what a platform adds."""
    value: str | None
    why: str
    text: str
    """The same in words for people."""


class JudgedEngine(Judged, frozen=True, kw_only=True):
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
    model = facts.model.name if facts.model else ""
    is_sure = facts.releases.strength is Strength.STRONG
    elsewhere = [] if is_sure else taken_elsewhere(engine, line, model, facts.releases)
    told = line_findings(line, engine, is_beyond=is_beyond, is_stated=facts.releases.is_stated, elsewhere=elsewhere)
    findings = [*told, *facts.chosen.findings]
    undecided = undecided_settings(line, engine, knows_model=facts.model is not None)
    assessment, answered = (None, undecided) if undecided else ask_budget(facts, line, version)
    findings += answered if assessment else [*answered, *host_findings(engine, line, version)]
    is_whole = not is_partly_seen(engine, line)
    known_rules = {each.finding.rule for each in findings}
    for each in contradictions(line):
        # options that nobody sees may resolve one, and a program around vLLM need not check what its server does
        is_unsure = not is_whole or (engine.is_wrapped and each.finding.rule in _OF_THE_SERVER)
        if each.finding.rule not in known_rules:
            findings.append(each.softened() if is_unsure else each)
    if assessment is None or assessment.budget is None:
        findings += length_by_config_path(line, engine, version)
    findings += gpu_count_problems(engine, line)
    findings += start_advice(engine, model, _weights_bytes(assessment))
    if facts.chosen.is_unjudged:  # what concerns GPUs does not concern it
        findings = [*facts.chosen.findings, *(each for each in findings if _holds_anywhere(each))]
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


def _holds_anywhere(found: Located) -> bool:
    """Return whether a finding holds on hardware that kvgate does not judge: errors, and options that come and go with the releases."""
    return found.finding.severity is Severity.ERROR or found.finding.rule in _OF_RELEASES


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


def judge_engine(engine: FoundEngine, defaults: Defaults) -> JudgedEngine:
    """Judge by the guarantee, which usually is vLLM's own start condition; with both ends where the release is not known."""
    line = parse_arguments(engine.arguments, newest_read(), program=engine.program)
    if another := sign_of_another(engine):
        return _of_another(engine, another)
    named, models = list(_names(engine, line)), defaults.models
    # a folder is one of the lock file, unless the catalogue knows its name and goes first
    model = find_model(named) if models.catalogue_first else None
    if model is None or catalogue.find_model(model.name) is None:
        model = find_model(named, models.locked)
    releases = releases_of(engine, model.name if model else "", defaults.vllm_version)
    chosen = choose(engine, defaults.accelerator, defaults.pools, may_be_any=defaults.may_be_any)
    vendor, is_stated = vendor_of(engine)
    chosen = replace(chosen, vendor=vendor, is_vendor_stated=is_stated, part=engine.gpu_part)
    given = replace(
        defaults,
        workload=defaults.workload.shared_among(engine.replicas) if defaults.workload else None,
        models=models.without_fetched(model.name) if model and model.is_place else models,
    )
    facts = EngineFacts(engine=engine, model=model, chosen=chosen, releases=releases, given=given)
    worlds = Worlds(
        releases=releases, gpus=chosen, judged_in=partial(judged_with, facts), version_path=version_path(engine)
    )
    judged = worlds.judged()
    if judged.on_gpus and not chosen.is_open:
        judged = replace(judged, findings=(*judged.findings, *which_of_several(engine, chosen, judged.on_gpus)))
    elif judged.on_gpus and judged.verdict is not Verdict.DOES_NOT_FIT:  # a refusal says by itself that no GPU holds it
        judged = replace(judged, findings=(*judged.findings, *which_start(engine, judged.on_gpus)))
    judged = judged.softened() if engine.is_overridden else judged
    judged = _not_judged(judged) if chosen.is_unjudged else judged
    return _in_its_words(judged, facts, line, defaults.workload)


def _in_its_words(
    judged: JudgedEngine, facts: EngineFacts, line: CommandLine, workload: Workload | None
) -> JudgedEngine:
    """Return the judgement with all that is known about the engine, and with findings in the words of its manifest."""
    names, findings = names_of(facts.engine, line), judged.findings
    # where nothing names the GPU, it is the smallest on which the engine starts, which nobody chose
    quiet = [OVERSUBSCRIBED] if judged.judged_on else []
    if (
        judged.verdict is Verdict.UNKNOWN or not facts.given.models.missing
    ):  # whoever asked for a fetch learns that there was none
        quiet += _MISSING_FACTS
    if judged.verdict is Verdict.FITS:
        findings = tuple(replace(each, finding=each.finding.doubted()) for each in findings)
    if judged.verdict is Verdict.UNKNOWN:
        findings = tuple(replace(each, finding=_with_row(each.finding)) for each in findings)
    return replace(
        judged,
        model=facts.model.name if facts.model else None,
        accelerator=None if facts.chosen.is_open else judged.accelerator,
        is_release_known=facts.releases.is_one,
        stated_release=None if facts.releases.assumed else facts.releases.high,
        settings={name: option.value for name, option in line.given.items()},
        findings=tuple(
            (replace(each, finding=each.finding.noted()) if each.finding.rule in quiet else each).named(names)
            for each in findings
        ),
        assumed=tuple(_assumptions(facts, judged)),
        workload=workload,
    )


def _with_row(finding: Finding) -> Finding:
    """Return a finding about a missing fact with one more way to settle it."""
    row = _SETTLED_BY.get(finding.rule)
    return replace(finding, remedy=any_one(finding.remedy, row)) if row else finding


def _of_another(engine: FoundEngine, sign: Written) -> JudgedEngine:
    """Say once that an engine is not vLLM; nothing else that kvgate knows holds for it."""
    message = words("{text} is {engine}, not vLLM: not judged", text=shown(sign.text), engine=engine_in(sign.text))
    found = located(OTHER_ENGINE, Place(name="engine", path=sign.path), message)
    return JudgedEngine(
        engine=engine,
        assessment=None,
        verdict=NOT_JUDGED,
        accelerator=None,
        vllm_version="",
        is_release_known=False,
        findings=(found,),
    )


def _assumptions(facts: EngineFacts, judged: JudgedEngine) -> Iterator[Assumed]:
    """Yield what the platform adds, and what is assumed about the model, the release and the GPU."""
    model, releases, chosen = facts.model, facts.releases, facts.chosen
    budget = judged.assessment.budget if judged.assessment else None
    shape = budget.request.shape if budget else None
    for text in facts.engine.assumed:
        yield Assumed(fact="settings", value=None, why=text, text=text)
    if model and model.assumed:
        yield Assumed(fact="model", value=model.name, why=model.assumed, text=model.assumed)
    if shape and shape.assumed:
        text = f"{shape.name} is assumed from {shape.assumed.words}"
        yield Assumed(fact="model", value=shape.name, why=f"assumed from {shape.assumed.words}", text=text)
    if releases.assumed:
        span = releases.low if releases.is_one else f"{releases.low} to {releases.high}"
        yield Assumed(fact="vllm_version", value=span, why=releases.why, text=releases.assumed)
    for text in chosen.assumed:
        yield Assumed(fact="accelerator", value=chosen.name, why=text, text=text)


def _names(engine: FoundEngine, line: CommandLine) -> Iterator[Written]:
    """Return the possible names of the model, the surest first: vLLM 0.10+ puts --model where the word without an option stands."""
    yield engine.model
    # of several the last one counts, but `vllm serve` takes the first one out of the line (0.12 and later)
    first = line.repeated.get("model") if line.program.kind is Kind.SERVE else None
    if setting := first or line.given.get("model"):
        yield Written(value=setting.text, path=setting.path)
    yield from (Written(value=word.text, path=word.path) for word in line.positionals[:1])
    yield engine.model_name
    if served := line.given.get("served_model_name"):
        yield from (Written(value=str(name), path=served.path) for name in served.value or ())


def _not_judged(judged: JudgedEngine) -> JudgedEngine:
    """Keep what holds on hardware that kvgate does not judge."""
    findings = tuple(
        each
        for each in judged.findings
        if (each.finding.severity is Severity.INFO or _holds_anywhere(each))
        and each.finding.rule not in {*HOST_RULES, TOO_FEW_GPUS}
    )
    is_refused = any(each.finding.severity is Severity.ERROR for each in findings)
    if is_refused:
        return replace(judged, verdict=Verdict.DOES_NOT_FIT, findings=findings)
    return replace(judged, verdict=NOT_JUDGED, assessment=None, findings=findings)
