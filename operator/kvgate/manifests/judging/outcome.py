"""An engine that a reader found → what becomes of it, whichever release and GPU it may mean."""

from collections.abc import Iterator
from dataclasses import replace

from kvgate.budget.interval import Verdict
from kvgate.manifests.judging.budget_question import Question, version_path
from kvgate.manifests.judging.chosen_accelerator import choose
from kvgate.manifests.judging.judged import Defaults, JudgedEngine, softened
from kvgate.manifests.judging.model_names import Named, find_model
from kvgate.manifests.judging.one_release import judged_with
from kvgate.manifests.judging.releases import releases_of
from kvgate.manifests.judging.two_releases import joined_findings, joined_verdict, verdicts_differ
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.vllm.options import newest_read
from kvgate.vllm.parser import parse_arguments


def judge_engine(engine: FoundEngine, defaults: Defaults) -> JudgedEngine:
    """The Startup verdict, with oversubscription as a warning; of both ends where the release is not known."""
    model = find_model(list(_names(engine)))
    releases = releases_of(engine, model.name if model else "", defaults.vllm_version)
    chosen = choose(engine, defaults.accelerator)
    asked = Question(engine=engine, model=model, chosen=chosen, defaults=defaults, releases=releases)
    judged = _judged_at_both_ends(asked)
    if judged.verdict is Verdict.DOES_NOT_FIT and (engine.is_overridden or _another_may_hold_it(asked)):
        judged = _in_doubt(judged)
    notes = (*engine.assumed, model.assumed if model else "", releases.assumed, *chosen.assumed)
    return replace(judged, assumed=tuple(note for note in notes if note))


def _names(engine: FoundEngine) -> Iterator[Named]:
    """Return the possible names of the model, the surest first: vLLM 0.10+ puts --model where the word without an option stands."""
    line = parse_arguments(engine.arguments, newest_read())
    yield Named(text=engine.model.text, path=engine.model.path)
    if setting := line.given.get("model"):
        yield Named(text=setting.text, path=setting.path)
    yield from (Named(text=word.text, path=word.path) for word in line.positionals[:1])
    yield Named(text=engine.model_name.text, path=engine.model_name.path)
    if served := line.given.get("served_model_name"):
        yield from (Named(text=str(name), path=served.path) for name in served.value or ())


def _judged_at_both_ends(asked: Question) -> JudgedEngine:
    high = judged_with(asked, asked.releases.high)
    return high if asked.releases.is_one else _joined(judged_with(asked, asked.releases.low), high)


def _another_may_hold_it(asked: Question) -> bool:
    """True where another of the possible GPUs may hold it; the smallest one is judged."""
    others = (replace(asked, chosen=replace(asked.chosen, name=name)) for name in asked.chosen.others)
    return any(_judged_at_both_ends(other).verdict is not Verdict.DOES_NOT_FIT for other in others)


def _in_doubt(judged: JudgedEngine) -> JudgedEngine:
    """Something else may make it start."""
    return replace(judged, verdict=Verdict.MAY_NOT_FIT, findings=tuple(map(softened, judged.findings)))


def _joined(low: JudgedEngine, high: JudgedEngine) -> JudgedEngine:
    releases = (low.vllm_version, high.vllm_version)
    findings = list(joined_findings(low.findings, high.findings, *releases))
    if low.verdict is not high.verdict:
        findings.append(verdicts_differ(version_path(high.engine), low.verdict, high.verdict, *releases))
    verdict = joined_verdict(low.verdict, high.verdict)
    return replace(high, verdict=verdict, is_release_known=False, findings=tuple(findings))
