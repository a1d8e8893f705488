"""The judgement of an engine that a reader found, on the GPU that it is given or on those that it may run on."""

from collections.abc import Iterator, Sequence
from functools import partial

from msgspec import Struct, field
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import (
    NOTHING_OBSERVED,
    Calibration,
    Guarantee,
    ModelShape,
    Verdict,
    Workload,
)
from kvgate.checkpoint.published import NO_MODELS, PublishedModels
from kvgate.documents.written import Written
from kvgate.findings.finding import Severity
from kvgate.findings.located import Located, Place, located
from kvgate.judge.assessment import NOT_JUDGED
from kvgate.judge.possible_worlds import Worlds
from kvgate.manifests.judging.engine_budget import EngineFacts, host_names, version_path
from kvgate.manifests.judging.gpus import Chosen, Pools, choose
from kvgate.manifests.judging.model_names import ModelFound, Named, find_model
from kvgate.manifests.judging.release_range import Assumed, JudgedEngine, judged_with
from kvgate.manifests.judging.releases import releases_of
from kvgate.manifests.judging.which_gpus import vendor_of, which_of_several, which_start
from kvgate.manifests.pods.containers import is_vllm_image
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.manifests.pods.other_engines import VLLM, engine_in, server_in
from kvgate.rules.facts import UNKNOWN_ACCELERATOR, UNKNOWN_DRAFT, UNKNOWN_MODEL, UNKNOWN_VERSION
from kvgate.rules.host_memory import HOST_RULES, OVERSUBSCRIBED
from kvgate.rules.manifests import OTHER_ENGINE, TOO_FEW_GPUS
from kvgate.rules.support import UNMODELLED_KIND
from kvgate.vllm.arguments import option_name, shown
from kvgate.vllm.options import newest_read
from kvgate.vllm.parser import CommandLine, parse_arguments
from kvgate.vllm.programs import Kind

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
    if another := _sign_of_another(engine):
        return _of_another(engine, another)
    model = _model(list(_names(engine, line)), defaults.models)
    releases = releases_of(engine, model.name if model else "", defaults.vllm_version)
    chosen = choose(engine, defaults.accelerator, defaults.pools)
    vendor, is_stated = vendor_of(engine)
    chosen = replace(chosen, vendor=vendor, is_vendor_stated=is_stated, part=engine.gpu_part)
    facts = EngineFacts(
        engine=engine,
        model=model,
        chosen=chosen,
        releases=releases,
        model_config=defaults.model_config,
        guarantee=defaults.guarantee,
        workload=defaults.workload.shared_among(engine.replicas) if defaults.workload else None,
        calibration=defaults.calibration,
        models=defaults.models.without_fetched(model.name) if model and model.is_place else defaults.models,
    )
    worlds = Worlds(
        releases=releases, gpus=chosen, judged_in=partial(judged_with, facts), version_path=version_path(engine)
    )
    judged = worlds.judged()
    judged = replace(judged, findings=(*judged.findings, *_which_gpus(judged, chosen)))
    judged = judged.softened() if engine.is_overridden else judged
    judged = _not_judged(judged) if chosen.is_unjudged else judged
    shape = judged.assessment.budget.request.shape if judged.assessment and judged.assessment.budget else None
    names, is_unknown = names_of(engine, line), judged.verdict is Verdict.UNKNOWN
    # where nothing names the GPU, it is the smallest on which the engine starts, which nobody chose
    quiet = [*(_MISSING_FACTS if is_unknown else ()), *([OVERSUBSCRIBED] if judged.judged_on else ())]
    findings = judged.findings
    if judged.verdict is Verdict.FITS:
        findings = tuple(replace(each, finding=each.finding.doubted()) for each in findings)
    return replace(
        judged,
        model=model.name if model else None,
        accelerator=None if chosen.is_open else judged.accelerator,
        is_release_known=releases.is_one,
        stated_release=None if releases.assumed else releases.high,
        settings={name: option.value for name, option in line.given.items()},
        findings=tuple(
            (replace(each, finding=each.finding.noted()) if each.finding.rule in quiet else each).named(names)
            for each in findings
        ),
        assumed=tuple(_assumptions(facts, shape)),
        workload=defaults.workload,
    )


def _model(named: Sequence[Named], models: PublishedModels) -> ModelFound | None:
    """Return the model that is named; a folder is one of the lock file, unless the catalogue knows its name and goes first."""
    by_name = find_model(named) if models.catalogue_first else None
    return by_name if by_name and catalogue.find_model(by_name.name) else find_model(named, models.locked)


def _sign_of_another(engine: FoundEngine) -> Written | None:
    """Return the field that names another engine than vLLM; None where vLLM's own program gets the words, or nothing names another."""
    if engine.program.kind is not Kind.OTHER or engine.program.own_options:
        return None
    if engine_in(engine.stated.text) not in ("", VLLM):
        # a short name in a field may be of something else, and an image of vLLM is none of another engine
        is_sure = server_in(engine.stated.text) or not is_vllm_image(engine.image.text)
        return engine.stated if is_sure else None
    images = () if engine.is_wrapped else (engine.image, engine.version)
    return next((each for each in images if server_in(each.text) and not is_vllm_image(each.text)), None)


def _of_another(engine: FoundEngine, sign: Written) -> JudgedEngine:
    """Say once that an engine is not vLLM; nothing else that kvgate knows holds for it."""
    message = f"{shown(sign.text)} is {engine_in(sign.text)}, not vLLM: not judged"
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


def _not_judged(judged: JudgedEngine) -> JudgedEngine:
    """Keep what is certain on hardware that kvgate does not judge: options that vLLM refuses."""
    certain = (each for each in judged.findings if each.finding.severity is not Severity.WARNING)
    findings = tuple(each for each in certain if each.finding.rule not in {*HOST_RULES, TOO_FEW_GPUS})
    is_refused = any(each.finding.severity is Severity.ERROR for each in findings)
    if is_refused:
        return replace(judged, verdict=Verdict.DOES_NOT_FIT, findings=findings)
    return replace(judged, verdict=NOT_JUDGED, assessment=None, findings=findings)


def _which_gpus(judged: JudgedEngine, chosen: Chosen) -> Iterator[Located]:
    """Say on which of the GPUs it starts, where nothing names one or a list does; a refusal says by itself that no GPU holds it."""
    found = judged.on_gpus
    if found and not chosen.is_open:
        yield from which_of_several(judged.engine, chosen, found)
    elif found and judged.verdict is not Verdict.DOES_NOT_FIT:
        yield from which_start(judged.engine, found)
