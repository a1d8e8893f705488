"""The judgement of an engine that a reader found: with its release, or with the oldest and the newest that it may be."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from kvgate.budget import (
    AUTO_MAX_MODEL_LEN,
    NOTHING_OBSERVED,
    Accelerator,
    Calibration,
    Guarantee,
    ModelShape,
    Verdict,
    Workload,
    parse_patch,
)
from kvgate.checkpoint.published import NO_MODELS, PublishedModels
from kvgate.judge.assess import Assessment
from kvgate.judge.drafts import UNKNOWN_DRAFT
from kvgate.judge.facts import UNKNOWN_ACCELERATOR, UNKNOWN_VERSION
from kvgate.judge.models import UNKNOWN_MODEL
from kvgate.judge.on_accelerators import (
    WORST_FIRST,
    AcceleratorVerdict,
    MemoryNeeded,
    joined,
    memory_needed,
    verdicts_on,
)
from kvgate.manifests.judging.engine_budget import (
    OVERSUBSCRIBED,
    EngineFacts,
    ask_budget,
    host_findings,
    host_names,
    is_partly_seen,
    version_path,
)
from kvgate.manifests.judging.gpus import TOO_FEW_GPUS, Pools, choose, gpu_count_problems
from kvgate.manifests.judging.line_findings import line_findings, undecided_settings
from kvgate.manifests.judging.model_names import Named, find_model
from kvgate.manifests.judging.releases import releases_of
from kvgate.manifests.judging.surroundings import start_advice
from kvgate.manifests.judging.which_gpus import (
    largest_board,
    named_gpus,
    possible_gpus,
    smallest_that_starts,
    vendor_of,
    which_of_several,
    which_start,
)
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.rules.checks import BUDGET_RULES
from kvgate.rules.finding import Rule, Scope, Severity, any_one
from kvgate.rules.host_memory import HOST_RULES
from kvgate.rules.support import UNMODELLED_KIND
from kvgate.vllm.arguments import Located, Place, located, option_name
from kvgate.vllm.contradictions import TOOL_CALL_PARSER_MISSING, contradictions
from kvgate.vllm.options import newest_read, releases_read
from kvgate.vllm.parser import CommandLine, parse_arguments
from kvgate.vllm.programs import Kind

_OF_THE_SERVER = (TOOL_CALL_PARSER_MISSING,)
"""Contradictions that vLLM's API server refuses, not its engine."""


_MISSING_FACTS = (UNKNOWN_MODEL, UNKNOWN_DRAFT, UNKNOWN_ACCELERATOR, UNKNOWN_VERSION, UNMODELLED_KIND)
"""Facts that nobody has to write into a manifest: the verdict is Unknown without them, and nothing is wrong with the manifest."""


class Defaults(Struct, frozen=True, kw_only=True):
    """Facts that a manifest does not state, from the command line or `.kvgate.yaml`."""

    accelerator: str | None = None
    """A name of the catalogue, or several with commas between them: the engine must start on each."""
    pools: Pools = field(default_factory=dict)
    vllm_version: str | None = None
    model_config: str | None = None
    """Text of a config.json, for models that the catalogue does not know."""
    guarantee: Guarantee = Guarantee.STARTUP
    """Guarantee that the verdict is about."""
    workload: Workload | None = None
    """Load that the engine is expected to serve; it replaces max_num_seqs whole requests."""
    calibration: Calibration = NOTHING_OBSERVED
    models: PublishedModels = NO_MODELS
    """Checkpoints that are known beside the catalogue."""


class Assumed(Struct, frozen=True, kw_only=True):
    """A fact that the manifest does not state."""

    fact: str
    """Name of the fact: `vllm_version`, `accelerator`, `model`, or `settings` for what a platform adds."""
    value: str | None
    why: str
    text: str
    """The same in words for people."""


class JudgedEngine(Struct, frozen=True, kw_only=True):
    """Judgement of one engine."""

    engine: FoundEngine
    assessment: Assessment | None
    """None where the engine could not be assessed."""
    verdict: Verdict
    model: str | None = None
    """The model by the name that the catalogue may know; None where none is named."""
    accelerator: str | None
    vllm_version: str
    """The newest that it may be."""
    stated_release: str | None = None
    """Release that the manifest states; None where it is assumed."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Values that its command line gives, by vLLM's names."""
    is_release_known: bool = True
    options_set: frozenset[str] | None = None
    """Options of its command line by vLLM's names; None where the input does not hold all of it."""
    findings: tuple[Located, ...] = ()
    assumed: tuple[Assumed, ...] = ()
    accelerators: tuple[AcceleratorVerdict, ...] = ()
    """Verdict on each GPU that it may run on, where nothing names one alone; empty where one is named, or nothing can be judged."""
    needed: MemoryNeeded | None = None
    """Memory that one GPU must have; None where a GPU is named, or nothing can be judged."""
    workload: Workload | None = None
    """Load that somebody declared for it."""
    judged_on: str | None = None
    """The GPU whose assessment it is, where nothing names one: the smallest on which it starts."""


class EngineNames(Struct, frozen=True, kw_only=True):
    """The naming of an engine's manifest: the path of a platform's own field, else the option."""

    paths: tuple[tuple[str, str], ...]

    def __call__(self, setting: str) -> str:
        return dict(self.paths).get(setting) or option_name(setting)


def names_of(engine: FoundEngine, line: CommandLine) -> EngineNames:
    """Return the naming of settings for this engine's manifest."""
    given = [*line.unknown.values(), *line.given.values()]
    written = {option.name: option.path if option.is_field else "" for option in given}
    return EngineNames(paths=tuple({**engine.option_paths, **host_names(engine), **written}.items()))


def judge_engine(engine: FoundEngine, defaults: Defaults) -> JudgedEngine:
    """Judge by the guarantee, which usually is vLLM's own start condition; with both ends where the release is not known."""
    line = parse_arguments(engine.arguments, newest_read(), program=engine.program)
    model = find_model(list(_names(engine, line)), defaults.models.locked)
    releases = releases_of(engine, model.name if model else "", defaults.vllm_version)
    chosen = choose(engine, defaults.accelerator, defaults.pools)
    facts = EngineFacts(
        engine=engine,
        model=model,
        chosen=chosen,
        releases=releases,
        model_config=defaults.model_config,
        guarantee=defaults.guarantee,
        workload=defaults.workload,
        calibration=defaults.calibration,
        models=defaults.models.without_fetched(model.name) if model and model.is_place else defaults.models,
    )
    if chosen.name is None and not chosen.is_open:
        judged = _not_judged(_joined(_ends(facts)))
    elif chosen.is_open:
        judged = _judged_on_any(facts)
    else:
        judged = _judged_on_several(facts) if chosen.others or chosen.may_be_unnamed else _joined(_ends(facts))
        judged = _softened(judged) if engine.is_overridden else judged
    shape = judged.assessment.budget.request.shape if judged.assessment and judged.assessment.budget else None
    names, is_unknown = names_of(engine, line), judged.verdict is Verdict.UNKNOWN
    # where nothing names the GPU, it is the smallest on which the engine starts, which nobody chose
    quiet = [*(_MISSING_FACTS if is_unknown else ()), *([OVERSUBSCRIBED] if judged.judged_on else ())]
    return replace(
        judged,
        model=model.name if model else None,
        stated_release=None if releases.assumed else releases.high,
        settings={name: option.value for name, option in line.given.items()},
        findings=tuple(_noted(each, quiet).named(names) for each in judged.findings),
        assumed=tuple(_assumptions(facts, shape)),
        workload=defaults.workload,
    )


def _assumptions(facts: EngineFacts, shape: ModelShape | None) -> Iterator[Assumed]:
    """Yield what the platform adds, and what is assumed about the model, the release and the GPU."""
    model, releases, chosen = facts.model, facts.releases, facts.chosen
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


def _noted(each: Located, quiet: Sequence[Rule]) -> Located:
    return replace(each, finding=each.finding.noted()) if each.finding.rule in quiet else each


def _names(engine: FoundEngine, line: CommandLine) -> Iterator[Named]:
    """Return the possible names of the model, the surest first: vLLM 0.10+ puts --model where the word without an option stands."""
    yield Named(text=engine.model.text, path=engine.model.path)
    # of several the last one counts, but `vllm serve` takes the first one out of the line (0.12 and later)
    first = line.repeated.get("model") if line.program.kind is Kind.SERVE else None
    if setting := first or line.given.get("model"):
        yield Named(text=setting.text, path=setting.path)
    yield from (Named(text=word.text, path=word.path) for word in line.positionals[:1])
    yield Named(text=engine.model_name.text, path=engine.model_name.path)
    if served := line.given.get("served_model_name"):
        yield from (Named(text=str(name), path=served.path) for name in served.value or ())


def judged_with(facts: EngineFacts, version: str) -> JudgedEngine:
    """Judge with one release; findings stand in the order in which people mend them, and the verdict is Unknown where a setting is open."""
    engine = facts.engine
    line = parse_arguments(engine.arguments, parse_patch(version), program=engine.program)
    is_beyond = facts.releases.is_ahead or parse_patch(version) > newest_read()
    findings = [*line_findings(line, engine, is_beyond=is_beyond, is_stated=facts.releases.is_stated)]
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
    return JudgedEngine(
        engine=engine,
        assessment=assessment,
        verdict=_verdict(assessment, findings, is_whole=is_whole),
        accelerator=facts.chosen.name,
        vllm_version=version,
        options_set=line.names if is_whole else None,
        findings=tuple(findings),
    )


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


RELEASE_DECIDES = Rule(
    id="ReleaseDecides",
    severities=(Severity.WARNING,),
    scope=Scope.COMMAND_LINE,
    title="The image does not state its release, and the verdicts of the oldest and the newest that it may be differ.",
)


def _ends(facts: EngineFacts) -> list[JudgedEngine]:
    """Judge with the newest of the possible releases, and with the oldest where there are several.

    Where both refuse, the newest release between them that does not stands for the oldest: a refusal must hold for all.
    """
    releases = facts.releases
    high = judged_with(facts, releases.high)
    if releases.is_one:
        return [high]
    low = judged_with(facts, releases.low)
    if not high.verdict is low.verdict is Verdict.DOES_NOT_FIT:
        return [high, low]
    oldest, newest = parse_patch(releases.low), parse_patch(releases.high)
    between = (each for each in reversed(releases_read()) if oldest < parse_patch(each) < newest)
    others = (judged_with(facts, each) for each in between)
    return [high, next((each for each in others if each.verdict is not Verdict.DOES_NOT_FIT), low)]


def _joined(ends: Sequence[JudgedEngine]) -> JudgedEngine:
    """Return one judgement of the possible releases: where the two ends differ nothing is certain."""
    high, low = ends[0], ends[-1]
    if len(ends) == 1:
        return high
    findings, verdict = list(_joined_findings(low, high)), high.verdict
    if low.verdict is not high.verdict:
        verdict = Verdict.UNKNOWN if Verdict.UNKNOWN in (low.verdict, high.verdict) else Verdict.MAY_NOT_FIT
        message = (
            f"with vLLM {low.vllm_version} it is {low.verdict.value}, with {high.vllm_version} {high.verdict.value}"
        )
        remedy = any_one("name a release in the image's tag", "give --vllm-version")
        at = Place(name="vllm_version", path=version_path(high.engine))
        findings.append(located(RELEASE_DECIDES, at, message, remedy))
    return replace(high, verdict=verdict, is_release_known=False, findings=tuple(findings))


def _not_judged(judged: JudgedEngine) -> JudgedEngine:
    """Keep what is certain on hardware that kvgate does not judge: options that vLLM refuses."""
    certain = (each for each in judged.findings if each.finding.severity is not Severity.WARNING)
    findings = tuple(each for each in certain if each.finding.rule not in {*HOST_RULES, TOO_FEW_GPUS})
    is_refused = any(each.finding.severity is Severity.ERROR for each in findings)
    return replace(judged, verdict=Verdict.DOES_NOT_FIT if is_refused else Verdict.UNKNOWN, findings=findings)


def _on(facts: EngineFacts, name: str) -> JudgedEngine:
    """Judge with one of the possible GPUs."""
    return _joined(_ends(replace(facts, chosen=replace(facts.chosen, name=name))))


def _verdicts_on(ends: Sequence[JudgedEngine], gpus: Sequence[Accelerator]) -> tuple[AcceleratorVerdict, ...]:
    """Return the verdict on each GPU; nothing where the model or a setting is not known."""
    requests = [end.assessment.budget.request for end in ends if end.assessment and end.assessment.budget]
    if len(requests) < len(ends):
        return ()
    if ends[0].settings.get("max_model_len") in (AUTO_MAX_MODEL_LEN, "auto"):
        # a budget has the length that fits its own GPU
        requests = [request.with_settings(max_model_len=AUTO_MAX_MODEL_LEN) for request in requests]
    tables = [verdicts_on(request, gpus) for request in requests]
    return tuple(joined(tables[-1], tables[0])) if len(tables) > 1 else tables[0]


def _judged_on_any(facts: EngineFacts) -> JudgedEngine:
    """Judge an engine whose GPU nothing names: it fits where it starts on any, and its findings hold on the smallest and the largest."""
    vendor, is_stated = vendor_of(facts.engine)
    gpus, largest = possible_gpus(vendor, facts.engine.gpu_part), largest_board(vendor)
    ends = _ends(replace(facts, chosen=replace(facts.chosen, name=largest)))
    judged, verdicts = _joined(ends), _verdicts_on(ends, gpus)
    if not verdicts:
        return replace(judged, accelerator=None)
    name = smallest_that_starts(verdicts) or largest
    if name != largest:
        on_largest = {_key(each): each for each in judged.findings}
        judged = _on(facts, name)
        common = [(each, on_largest[_key(each)]) for each in judged.findings if _key(each) in on_largest]
        kept = (each if each.finding.words == other.finding.words else _only_on(name, each) for each, other in common)
        judged = replace(judged, findings=tuple(kept))
    elif judged.verdict is Verdict.DOES_NOT_FIT:
        judged = replace(judged, findings=tuple(_on_none(each, largest) for each in judged.findings))
        other = "amd" if vendor == "nvidia" else "nvidia"
        if not is_stated and smallest_that_starts(_verdicts_on(ends, possible_gpus(other, facts.engine.gpu_part))):
            judged = _softened(judged)
    budget = judged.assessment.budget if judged.assessment else None
    needed = memory_needed(budget) if budget else None
    told = which_start(facts.engine, verdicts, needed) if judged.verdict is not Verdict.DOES_NOT_FIT else ()
    findings = (*judged.findings, *told)
    return replace(judged, accelerator=None, findings=findings, accelerators=verdicts, needed=needed, judged_on=name)


def _on_none(each: Located, gpu: str) -> Located:
    """Say of a want of memory that no GPU has it."""
    if each.finding.rule not in BUDGET_RULES:
        return each
    message = "no GPU of the catalogue holds it; on {gpu}, the largest, {message}"
    return replace(each, finding=each.finding.with_words(message, gpu=gpu))


def _softened(judged: JudgedEngine) -> JudgedEngine:
    """Return a judgement that refuses nothing."""
    findings = tuple(each.softened() for each in judged.findings)
    verdict = Verdict.MAY_NOT_FIT if judged.verdict is Verdict.DOES_NOT_FIT else judged.verdict
    return replace(judged, verdict=verdict, findings=findings)


def _judged_on_several(facts: EngineFacts) -> JudgedEngine:
    """Judge an engine that may run on several GPUs: the worst counts, and its findings name it.

    It refuses only where the user stated the list: a manifest's own list need not be what the cluster has.
    """
    chosen, ends = facts.chosen, _ends(facts)
    judged = _joined(ends)
    gpus = named_gpus((chosen.name, *chosen.others), facts.engine.gpu_part)
    verdicts = _verdicts_on(ends, gpus)
    if not verdicts:
        return judged
    by_verdict = sorted(verdicts, key=lambda each: WORST_FIRST.index(each.verdict))
    worst, best = by_verdict[0], by_verdict[-1]
    if worst.verdict is not best.verdict:
        of_best = _on(facts, best.name)
        common = set(map(_key, of_best.findings))
        judged = _on(facts, worst.name)
        told = (each if _key(each) in common else _only_on(worst.name, each) for each in judged.findings)
        judged = replace(judged, findings=tuple(told))
        if of_best.verdict is not Verdict.DOES_NOT_FIT and not chosen.must_start_on_all:
            judged = _softened(judged)
    elif chosen.may_be_unnamed and _judged_on_any(facts).verdict is not Verdict.DOES_NOT_FIT:
        judged = _softened(judged)
    told_of_gpus = which_of_several(facts.engine, chosen, verdicts)
    return replace(judged, findings=(*judged.findings, *told_of_gpus), accelerators=verdicts)


def _only_on(gpu: str, each: Located) -> Located:
    return replace(each, finding=each.finding.with_words("on {gpu}: {message}", gpu=gpu))


def _joined_findings(low: JudgedEngine, high: JudgedEngine) -> Iterator[Located]:
    """Join the findings of two releases. A finding that only one of them has names its release, and is no error unless both refuse, each
    for another reason."""
    older, newer = {_key(each): each for each in low.findings}, {_key(each): each for each in high.findings}
    common = [each for key, each in newer.items() if key in older and older[key].finding.severity is Severity.ERROR]
    is_said = any(each.finding.severity is Severity.ERROR for each in common)  # what holds in both is the refusal
    both_refuse = low.verdict is high.verdict is Verdict.DOES_NOT_FIT and not is_said
    for key, each in newer.items():
        is_milder = key in older and older[key].finding.severity is not each.finding.severity
        yield each if key in older and not is_milder else _only_with(high.vllm_version, each, both_refuse=both_refuse)
    for key, each in older.items():
        if key not in newer and each.finding.severity is not Severity.INFO:
            yield _only_with(low.vllm_version, each, both_refuse=both_refuse)


def _key(each: Located) -> tuple[str, str, str, int]:
    return each.finding.rule.id, each.finding.field, each.path, each.line


def _only_with(release: str, each: Located, *, both_refuse: bool) -> Located:
    """Soften a finding of one release, because nobody knows that it is this one."""
    if each.finding.severity is Severity.INFO:
        return each
    finding = each.finding if both_refuse else each.finding.softened()
    told = finding.with_words("with vLLM {release}: {message}", release=release)
    return replace(each, finding=told)
