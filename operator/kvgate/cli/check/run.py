"""Manifests → the report: what `kvgate check` and `kvgate diff` do before they write."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from kvgate.api import KIND, field_path
from kvgate.budget import Calibration, Guarantee, Workload
from kvgate.checkpoint.published import NO_MODELS, PublishedModels
from kvgate.cli.check.given_facts import CheckOptions, GivenFacts, given_facts
from kvgate.cli.check.ignoring import (
    by_baseline,
    by_comments,
    by_configuration,
    commented_workloads,
    read_baseline,
    with_findings,
)
from kvgate.cli.check.provenance import sources_of, sources_of_report
from kvgate.cli.exits import BadInput
from kvgate.cli.known_models import ModelConfig, judged_with_fetched
from kvgate.cli.reports.placed import NO_FILES, Placed, placed_broken, placed_in
from kvgate.cli.reports.report import UNREAD_PLATFORM, Item, Report
from kvgate.cli.terminal import progress_of_reading
from kvgate.documents.launch_files import MAX_LAUNCH_BYTES
from kvgate.documents.positions import Broken, defect
from kvgate.documents.reading import STDIN, STDIN_NAME
from kvgate.documents.written import NOTHING, Written
from kvgate.findings.finding import Located, Severity, any_one
from kvgate.judgement import assess, facts
from kvgate.judgement.assessment import Assessment, Decision
from kvgate.judgement.models import look_up_model_class, shape_of_text
from kvgate.judgement.skipping import skip_of
from kvgate.manifests import Document, InputDocuments, Subject, read_manifests
from kvgate.manifests.engines import EnginesFound, find_engines
from kvgate.manifests.judging.judgement import JudgedEngine, judge_engine
from kvgate.manifests.judging.service_roles import judge_replicas, judge_roles
from kvgate.manifests.judging.sharing import judge_together
from kvgate.manifests.pods.engine_found import FoundEngine, MountedText
from kvgate.rules.facts import UNKNOWN_ACCELERATOR, UNKNOWN_VERSION
from kvgate.rules.manifests import NOT_UNDERSTOOD
from kvgate.rules.memory import workload_missing
from kvgate.statement.deployment import statement_of

T = TypeVar("T")
_NO_ENGINE = "this document mentions vLLM, but kvgate finds no engine in it"
_NO_ENGINE_HELP = any_one("check the manifests that it is rendered to", "check the object that runs the engine")
_NO_OBJECT_HELP = "give the manifest or the values that run it; this is a text or a list, such as a script or a log"
_VALUES_HELP = "if these are the values of a chart, render the chart: helm template CHART | kvgate check -"


def run(paths: Sequence[str], options: CheckOptions) -> Report:
    """Judge everything in the paths. Raises BadInput for a configuration, baseline or config.json that cannot be used."""
    given = given_facts(paths, options)
    file, config = given.file, given.file.config if given.file else None
    engines = engines_in(paths, options, given)
    documents, found = engines.documents, engines.found
    judged = judged_with_fetched(
        lambda models: engines.judged(replace(given, models=models)),
        given.models,
        fetches=given.fetches,
        max_seconds=options.fetch_seconds,
    )
    items = [*(item for item in judged if isinstance(item, Item)), *map(_not_understood, found.not_understood)]
    if file and file.has_requirements:
        from kvgate.cli.check.requirements import with_requirements

        items = list(with_requirements(items, given))
    items = [replace(item, sources=tuple(sources_of(item, given, documents))) for item in items]
    every = (*documents.broken, *found.broken, *(item for item in judged if isinstance(item, Broken)))
    named = {STDIN_NAME, *(str(Path(path)) for path in paths)}
    no_manifests = [each for each in every if each.may_be and each.file not in named]
    of_files = {(each.file, each.may_be) for each in no_manifests}
    report = Report(
        items=_in_order(list(by_comments(_in_order(items)))),
        broken=tuple(placed_broken(each) for each in every if each not in no_manifests),
        num_others=documents.num_others + found.num_others,
        paths=tuple(paths),
        fail_on=frozenset(map(str.strip, (options.fail_on or (config and config.fail_on) or "").split(","))),
        show=Severity(options.show),
        passed_over=documents.passed_over + Counter(why for _, why in of_files if why),
        unrendered=tuple(documents.unrendered),
        skipped=tuple(documents.skipped),
        sources=tuple(sources_of_report(options, given)),
        pools=tuple(gpu for gpus in config.pools.values() for gpu in gpus) if config else (),
    )
    if file and file.config.ignore:
        report = with_findings(report, lambda placed: by_configuration(placed, file))
    if options.baseline:
        known = read_baseline(options.baseline, inside=options.guard(options.baseline))
        report = by_baseline(report, known, options.shown(options.baseline))
    return report


_COMMAND_WORDS = re.compile(
    rb"\s*(?![#-])[^\n{:]{0,200}?\b(?:vllm serve|vllm\.entrypoints|(?:docker|podman|nerdctl) (?:container )?run)\b|#!"
)
"""Beginning of a script, or of a command that is pasted; a comment or an element of a list begins YAML."""


class Engines(Struct, frozen=True, kw_only=True):
    """The engines of an input, which may be judged with several states of knowledge."""

    documents: InputDocuments
    found: EnginesFound

    def judged(self, given: GivenFacts) -> list[Item | Broken]:
        """Judge every InferenceDeployment, and every engine of another platform."""
        engines, workloads = self.found.engines, commented_workloads(self.found.engines)
        subjects = (
            _guarded(each.document, _deployment_item, each, self.documents, given) for each in self.documents.subjects
        )
        found = [
            _guarded(each.document, _judged_engine, each, stated, given)
            for each, stated in zip(engines, workloads, strict=True)
        ]
        alone = [each for each in found if isinstance(each, JudgedEngine)]
        broken = [each for each in found if isinstance(each, Broken)]
        documents = self.documents.others
        together = (
            _guarded(engines[0].document, lambda: judge_replicas(judge_together(judge_roles(alone)), documents))
            if alone
            else []
        )
        if isinstance(together, Broken):  # each is still judged alone
            broken, together = [*broken, together], alone
        return [*subjects, *map(_engine_item, together), *broken]


def engines_in(
    paths: Sequence[str], options: CheckOptions, given: GivenFacts, texts: Sequence[tuple[str, bytes]] = ()
) -> Engines:
    """Find the engines of files and folders, and of texts with their names; a command on standard input is what it would start."""
    peek = getattr(sys.stdin.buffer, "peek", None) if STDIN in paths else None
    if peek is not None and _COMMAND_WORDS.match(peek(4096)):  # where it begins in another way, nothing is read
        script = (f"{STDIN_NAME}.sh", sys.stdin.buffer.read(MAX_LAUNCH_BYTES + 1))
        paths, texts = [each for each in paths if each != STDIN], (*texts, script)
    with progress_of_reading() as seen:
        documents = read_manifests(paths, options.root, options.charts, seen, given.is_mapped, options.other, texts)
    found = find_engines(documents, given.mapped_fields)
    found.engines = list(map(given.filled, found.engines)) if given.file else found.engines
    return Engines(documents=documents, found=found)


def _in_order(items: Sequence[Item]) -> tuple[Item, ...]:
    """Sort items by their place, file by file in the order of the input, and the findings of each by file, line and severity."""
    files = {file: index for index, file in enumerate(dict.fromkeys(item.document.file for item in items))}

    def within(placed: Placed) -> tuple[str, int, int, int]:
        return placed.file, placed.line, list(Severity).index(placed.finding.severity), placed.column

    sorted_within = (replace(item, all_findings=tuple(sorted(item.all_findings, key=within))) for item in items)

    def place(item: Item) -> tuple[int, int, int]:
        in_stream = item.document.index if item.document.origin else 0
        return files[item.document.file], in_stream, item.rendered_line or item.line

    return tuple(sorted(sorted_within, key=place))


def _guarded(document: Document, judge: Callable[..., T], *about: Any) -> T | Broken:
    try:
        return judge(*about)
    except BadInput:
        raise
    except Exception as error:  # noqa: BLE001 - a defect of ours costs one engine
        return defect(document.file, document.position, error)


def _deployment_item(subject: Subject, documents: InputDocuments, given: GivenFacts) -> Item:
    from kvgate.api.allowed import disallowed  # a check without InferenceDeployments starts faster

    document = subject.document
    if subject.deployment is not None and (refused := tuple(disallowed(subject.deployment.spec, given.allowed))):
        subject = replace(subject, deployment=None, findings=refused)
    root = Written(value=document.load()) if given.file else NOTHING
    config = given.model_config_of(document.files, subject.name, root)
    judged = judge_deployment(
        subject, documents, config, given.calibration, given.models, guarantee=given.guarantee, keep=given.keep
    )
    spec = subject.deployment.spec if subject.deployment else None
    findings = judged.findings if judged else subject.findings
    if judged and judged.decision is not Decision.REFUSE:  # what the policy admits all the same is no error
        findings = tuple(finding.softened() for finding in findings)
    return _item(
        document,
        "",
        (Located(finding=finding, path=field_path(finding.field)) for finding in findings),
        kind=KIND,
        name=subject.name,
        namespace=subject.namespace,
        platform="kvgate",
        verdict=judged.verdict if judged else None,
        accelerator=spec.accelerator.type if spec else None,
        vllm_version=spec.vllm.version if spec else None,
        subject=subject,
        assessment=judged,
    )


def _item(
    document: Document,
    path: str,
    located: Iterable[Located],
    files: Mapping[str, MountedText] = NO_FILES,
    **more: Any,
) -> Item:
    """Return what is judged at a path of a document, with its place and its findings."""
    place, found = document.place_of(path), tuple(placed_in(document, each, files) for each in located)
    line, rendered = place.position.line, place.rendered_line
    return Item(document=document, line=line, rendered_line=rendered, path=path, all_findings=found, **more)


def judge_deployment(
    subject: Subject,
    documents: InputDocuments,
    config: ModelConfig | None,
    calibration: Calibration,
    models: PublishedModels = NO_MODELS,
    *,
    guarantee: Guarantee | None = None,
    keep: frozenset[str] = frozenset(),
) -> Assessment | None:
    """Gather the facts from the input, and judge; None where the schema refuses the object.

    `config` describes the model where the catalogue does not have it, and `keep` names the settings that no proposal changes.

    `guarantee` replaces that of the object, except for a workload that the object does not declare.
    """
    deployment = subject.deployment
    if deployment is None:
        return None
    spec, missing = deployment.spec, guarantee is Guarantee.WORKLOAD and not deployment.spec.workload
    if guarantee:
        admission = {"guarantee": Guarantee.STARTUP if missing else guarantee}
        spec = spec.model_copy(update={"admission": spec.admission.model_copy(update=admission)})
    if config is not None:  # what the user gives goes before what is fetched
        models = replace(models, fetched={}, missing={})
    known = facts.gather(
        statement_of(spec), documents.lookup(subject.namespace, subject.document.file), calibration, models
    )
    if config is not None and (known.shape is None or known.shape.assumed):
        shape, problems = shape_of_text(
            config.text,
            name=spec.model.name,
            where=config.where,
            quantization=spec.vllm.quantization,
            dtype=spec.vllm.dtype,
        )
        others = (each for each in known.findings if each.rule in (UNKNOWN_ACCELERATOR, UNKNOWN_VERSION))
        classes = look_up_model_class(shape, spec.vllm.version) if shape else ()
        known = replace(known, shape=shape, findings=(*problems, *others, *classes))
    assessment = assess.assess(spec, known, skip=skip_of(deployment, datetime.now(UTC)), keep=keep)
    if missing:
        not_declared = workload_missing("state spec.workload")
        assessment = replace(assessment, findings=(*assessment.findings, not_declared))
    return assessment


def _judged_engine(engine: FoundEngine, workload: Workload | None, given: GivenFacts) -> JudgedEngine:
    """Judge an engine of another platform by vLLM's own start condition."""
    defaults = given.defaults(engine.document.files, engine.name, engine.root)
    # a comment beside the engine knows its workload better than a mapping
    return judge_engine(engine, replace(defaults, workload=workload or defaults.workload))


def _engine_item(judged: JudgedEngine) -> Item:
    engine = judged.engine
    return _item(
        engine.document,
        engine.path,
        judged.findings,
        engine.files,
        kind=engine.document.kind or "values",
        name=engine.name,
        namespace=engine.namespace,
        platform=engine.platform,
        verdict=judged.verdict,
        accelerator=judged.accelerator,
        vllm_version=judged.vllm_version or None,
        assumed=judged.assumed,
        engine=judged,
        assessment=judged.assessment,
    )


def _not_understood(document: Document) -> Item:
    """Report a document about vLLM that no reader understands: never silence."""
    help_for = _NO_ENGINE_HELP if document.kind else _VALUES_HELP if document.is_object else _NO_OBJECT_HELP
    found = Located(finding=NOT_UNDERSTOOD.finding("", _NO_ENGINE, help_for), path="")
    kind = document.kind or ("values" if document.is_object else "text")
    return _item(document, "", [found], kind=kind, name="", namespace="", platform=UNREAD_PLATFORM, verdict=None)
