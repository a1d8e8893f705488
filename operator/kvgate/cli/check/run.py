"""Reads, judges, and puts in order: what `kvgate check` and `kvgate diff` do before they write."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvgate.budget.calibration import NOTHING_OBSERVED, Calibration
from kvgate.budget.request import Workload
from kvgate.cli.check.checked import check_subject
from kvgate.cli.check.choices import Choices
from kvgate.cli.check.config_search import find_config
from kvgate.cli.check.ignoring import by_comments, by_configuration, with_findings
from kvgate.cli.check.report import Item, Report, in_order, of_broken, of_document, of_engine, of_ours
from kvgate.cli.check.workload_comments import commented_workloads
from kvgate.cli.exits import BadInput
from kvgate.cli.model_config import ModelConfig, read_model_config
from kvgate.cli.shared_options import read_calibration
from kvgate.documents.bounded_files import guard_of, repository_of
from kvgate.documents.positions import Broken, defect
from kvgate.documents.written import NOTHING, Written
from kvgate.manifests import Document, InputDocuments, Subject, read_manifests
from kvgate.manifests.engines import find_engines
from kvgate.manifests.judging.outcome import judge_engine
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.record import record
from kvgate.rules.finding import Severity

if TYPE_CHECKING:
    from kvgate.cli.check.repository_config_file import ConfigFile


@record
class Options:
    """Options of the command line beside paths and output."""

    accelerator: str | None = None
    vllm_version: str | None = None
    model_config: Path | None = None
    calibration: Path | None = None
    config: Path | None = None
    baseline: Path | None = None
    fail_on: str | None = None
    root: Path | None = None
    """The folder that nothing leads out of."""

    def guard(self, path: Path) -> Path | None:
        """The folder that a path of the command line must not lead out of."""
        return guard_of(path, self.root)


def run(paths: Sequence[str], options: Options) -> Report:
    """Raises BadInput for files beside the manifests that are not as they should be."""
    file = _config_file(paths, options)
    choices = Choices(
        accelerator=options.accelerator,
        vllm_version=options.vllm_version,
        model_config=_model_config(options),
        calibration=_calibration(options, file),
        file=file,
    )
    report = _judged(read_manifests(paths, options.root), choices, tuple(paths))
    fail_on = options.fail_on or (file and file.config.fail_on) or Severity.ERROR
    return _without_ignored(replace(report, fail_on=Severity(fail_on)), file, options)


def _config_file(paths: Sequence[str], options: Options) -> ConfigFile | None:
    """A file that is found may be a link, and one that is given may not be the user's own."""
    path = options.config or find_config(paths, options.root)
    if path is None:
        return None
    from kvgate.cli.check.repository_config_file import read_config

    folder = path.parent
    inside = options.guard(path) if options.config else options.root or repository_of(folder) or folder
    return read_config(path, inside=inside, root=options.root)


def _model_config(options: Options) -> ModelConfig | None:
    path = options.model_config
    return read_model_config(path, inside=options.guard(path)) if path else None


def _calibration(options: Options, file: ConfigFile | None) -> Calibration:
    if options.calibration:
        return read_calibration(options.calibration, inside=options.guard(options.calibration))
    return read_calibration(file.calibration, inside=file.root) if file else NOTHING_OBSERVED


def _judged(manifests: InputDocuments, choices: Choices, paths: tuple[str, ...]) -> Report:
    found = find_engines(manifests)
    workloads = commented_workloads(found.engines)
    judged = [
        *(_item_of(subject.document, _ours, subject, manifests, choices) for subject in manifests.subjects),
        *(_item_of(each.document, _another, each, said, choices) for each, said in zip(found.engines, workloads, strict=True)),
    ]  # fmt: skip
    items = [*(item for item in judged if isinstance(item, Item)), *map(of_document, found.not_understood)]
    failed = [item for item in judged if isinstance(item, Broken)]
    return Report(
        items=in_order(list(by_comments(in_order(items)))),
        broken=tuple(map(of_broken, (*manifests.broken, *found.broken, *failed))),
        num_others=manifests.num_others + found.num_others,
        paths=paths,
        passed_over=manifests.passed_over,
    )


def _item_of(document: Document, judge: Callable[..., Item], *given: Any) -> Item | Broken:
    try:
        return judge(*given)
    except BadInput:
        raise
    except Exception as error:  # noqa: BLE001 - a defect of ours costs one engine
        return defect(document.file, document.position, error)


def _ours(subject: Subject, manifests: InputDocuments, choices: Choices) -> Item:
    document = subject.document
    root = Written(value=document.load()) if choices.file else NOTHING
    config = choices.model_config_of(document.file, subject.name, root)
    return of_ours(check_subject(subject, manifests, config, choices.calibration))


def _another(engine: FoundEngine, workload: Workload | None, choices: Choices) -> Item:
    """A comment beside the engine knows its workload better than a mapping."""
    defaults = choices.defaults(engine.document.file, engine.name, engine.root)
    return of_engine(judge_engine(engine, replace(defaults, workload=workload or defaults.workload)))


def _without_ignored(report: Report, file: ConfigFile | None, options: Options) -> Report:
    if file and file.config.ignore:
        report = with_findings(report, lambda placed: by_configuration(placed, file))
    if options.baseline is None:
        return report
    from kvgate.cli.check.baseline import read_baseline, without_known

    return without_known(report, read_baseline(options.baseline, inside=options.guard(options.baseline)))
