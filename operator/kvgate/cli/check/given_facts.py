"""Facts that the user gives beside the manifests: on the command line, else in the first mapping that has them, else for all.

Mappings, and facts for all engines, stand in `.kvgate.yaml`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from kvgate import catalogue
from kvgate.budget import NOTHING_OBSERVED, Calibration, Guarantee, Workload
from kvgate.checkpoint.published import NO_MODELS, PublishedModels
from kvgate.cli.exits import BadInput
from kvgate.cli.known_models import ModelConfig, ModelOptions, locked_models, read_model_config
from kvgate.cli.shared_options import read_calibration
from kvgate.documents.bounded_files import guard_of, repository_of
from kvgate.documents.discovery import OtherRevision
from kvgate.documents.globs import any_path_matches, name_matches
from kvgate.documents.origins import ChartOptions
from kvgate.documents.reading import STDIN
from kvgate.documents.written import Written
from kvgate.findings.finding import Severity
from kvgate.judgement.facts import unknown_accelerators
from kvgate.manifests.judging.engine_budget import Defaults
from kvgate.manifests.pods.engine_found import FoundEngine, MappedFields

if TYPE_CHECKING:
    from kvgate.api.allowed import AllowedPods
    from kvgate.cli.check.repository_config import Config, ConfigFile, Mapping
    from kvgate.cli.reports.report import Item

CONFIG_NAME = ".kvgate.yaml"
FACTS = {
    "accelerator": ("accelerator", "accelerator"),
    "vllm_version": ("vllmVersion", "vLLM's release"),
    "workload": ("workload", "workload"),
    "config_json": ("modelConfig", "choice of config.json"),
    "fields_at": ("fields", "places of facts"),
    "variables": ("variables", "values of variables"),
}
"""Fact about one engine → its name in the file, and its name for people."""
_Source = tuple[str, "Mapping | Config"]
"""A mapping with the beginning of the paths of its fields, or the configuration itself."""


class CheckOptions(ModelOptions, frozen=True, kw_only=True):
    """Options of the command line beside paths and output."""

    accelerator: str | None = None
    vllm_version: str | None = None
    model_config: Path | None = None
    guarantee: str | None = None
    calibration: Path | None = None
    config: Path | None = None
    baseline: Path | None = None
    fail_on: str | None = None
    keep: frozenset[str] = frozenset()
    """Settings that no proposal changes."""
    show: str = Severity.WARNING.value
    """Least severity that reports for people show."""
    root: Path | None = None
    """The folder that nothing leads out of."""
    charts: ChartOptions = ChartOptions()
    other: OtherRevision | None = None
    """The revision that the settings of the repository are read from; None: from the checkout."""

    def guard(self, path: Path) -> Path | None:
        """Return the folder that a path of the command line must not lead out of."""
        if self.other and path.is_relative_to(self.other.copy):
            return self.other.copy
        return guard_of(path, self.root)

    def shown(self, path: Path | None) -> str:
        """Return the name of a file for people; empty where there is none."""
        if path is None:
            return ""
        from kvgate.cli.reports.placed import shown_file

        return self.other.shown(path) if self.other else shown_file(str(path))


class GivenFacts(Struct, frozen=True, kw_only=True):
    """Facts of the command line and of the configuration."""

    accelerator: str | None = None
    may_be_any: bool = False
    """A name of the command line means several GPUs, so that an engine need not start on each."""
    vllm_version: str | None = None
    model_config: ModelConfig | None = None
    model_config_place: str = ""
    guarantee: Guarantee | None = None
    """Guarantee that every engine is judged by, instead of its own."""
    calibration: Calibration = NOTHING_OBSERVED
    calibration_place: str = ""
    models: PublishedModels = NO_MODELS
    """Checkpoints that are known beside the catalogue."""
    fetches: bool = False
    keep: frozenset[str] = frozenset()
    """Settings that no proposal changes."""
    file: ConfigFile | None = None

    @property
    def allowed(self) -> AllowedPods:
        """Parts of pods that the administrator allows."""
        from kvgate.api.allowed import NOTHING_ALLOWED

        return (self.file.config.pods if self.file else None) or NOTHING_ALLOWED

    def is_mapped(self, file: str) -> bool:
        """Return whether a mapping with paths says where the facts of this file's engines stand."""
        mappings = self.file.config.mappings if self.file else ()
        path = self.file.path_below(file) if self.file and mappings else ""
        return any(each.fields_at and each.paths and any_path_matches(path, each.paths) for each in mappings)

    def mapped_fields(self, files: Sequence[str], root: Written) -> MappedFields | None:
        """Return where the facts of a document's engines stand, by the first mapping that states it."""
        paths = tuple(map(self.file.path_below, files)) if self.file else ()
        for index, mapping in enumerate(self.file.config.mappings if self.file else ()):
            if mapping.fields_at and _matches(mapping, paths, "", root):
                stated = mapping.fields_at.model_dump(by_alias=True, exclude_none=True)
                named = stated.pop("options", {})
                options = {name.lstrip("-").replace("-", "_"): path for name, path in named.items()}
                return MappedFields(origin=f"mappings[{index}].fields", facts=stated, options=options)
        return None

    def filled(self, engine: FoundEngine) -> FoundEngine:
        """Return an engine with the values of variables that are stated for it."""
        stated = [
            getattr(source, "variables", None) or {}
            for _, source in self._sources(engine.document.files, engine.name, engine.root)
        ]
        values = {name: value for each in reversed(stated) for name, value in each.items()}
        return engine.with_variables(values) if values else engine

    def defaults(self, files: Sequence[str], name: str, root: Written) -> Defaults:
        """Return the facts for one engine: `root` is the object that holds it, `name` its own name, `files` what it was rendered from."""
        sources = self._sources(files, name, root)
        model_config, workload = self._model_config(sources), _first("workload", sources)[1]
        version = self.vllm_version or _first("vllm_version", sources)[1]
        pools = self.file.config.pools if self.file else {}
        stated = self.accelerator or _first("accelerator", sources)[1]
        return Defaults(
            accelerator=",".join(pools[stated]) if stated in pools else stated,
            may_be_any=self.may_be_any,
            pools={} if self.accelerator else pools,  # the command line wins
            vllm_version=version.removeprefix("v") if version else None,
            model_config=model_config.text if model_config else None,
            guarantee=self.guarantee or Guarantee.STARTUP,
            workload=Workload(**workload.model_dump()) if workload else None,
            calibration=self.calibration,
            models=self.models,
        )

    def required(self, item: Item) -> Iterator[tuple[str, str, Any]]:
        """Yield (name, path of the field, value) of each requirement of one engine: of the first mapping that states it, else for all."""
        if self.file is None or not self.file.has_requirements:
            return
        sources = self._sources(*item.identity)
        for name in ("headroom", "guarantee", "accelerators"):
            stated = ((prefix, getattr(source.require, name)) for prefix, source in sources if source.require)
            for prefix, value in islice((pair for pair in stated if pair[1]), 1):
                # the accelerators of a pool stand in its place
                gpus = (gpu for each in value for gpu in self.file.config.pools.get(each, (each,)))
                yield name, f"{prefix}require.{name}", tuple(gpus) if name == "accelerators" else value

    def stated(self, files: Sequence[str], name: str, root: Written) -> Iterator[tuple[str, Any, str]]:
        """Yield (fact, its value, file and line) of what the configuration states about one engine."""
        sources = self._sources(files, name, root)
        for fact, (field, _) in FACTS.items():
            prefix, value = _first(fact, sources)
            if value is not None and self.file is not None:
                yield fact, value, self.file.place_of(f"{prefix}{field}")

    def model_config_of(self, files: Sequence[str], name: str, root: Written) -> ModelConfig | None:
        """Return the config.json for the model of one engine, used where the catalogue does not have the model."""
        return self._model_config(self._sources(files, name, root))

    def _model_config(self, sources: Sequence[_Source]) -> ModelConfig | None:
        path = None if self.model_config else _first("config_json", sources)[1]
        if path is None or self.file is None:
            return self.model_config
        return read_model_config(self.file.folder / path, inside=self.file.root)

    def _sources(self, files: Sequence[str], name: str, root: Written) -> Sequence[_Source]:
        """Return the mappings that match an engine, then the configuration itself."""
        if self.file is None:
            return ()
        paths = tuple(map(self.file.path_below, files))
        numbered = enumerate(self.file.config.mappings)
        mappings = ((f"mappings[{number}].", each) for number, each in numbered if _matches(each, paths, name, root))
        return (*mappings, ("", self.file.config))


def _first(fact: str, sources: Sequence[_Source]) -> tuple[str, Any]:
    """Return the first value that a source states, with the beginning of its path."""
    values = ((prefix, getattr(source, fact, None)) for prefix, source in sources)
    return next((pair for pair in values if pair[1] is not None), ("", None))


def _matches(mapping: Mapping, paths: Sequence[str], name: str, root: Written) -> bool:
    if mapping.paths and not any(any_path_matches(path, mapping.paths) for path in paths):
        return False
    selector = mapping.selector
    if selector is None:
        return True
    metadata = root.get("metadata")
    names = (name, metadata.get("name").text)
    labelled = (root, root.get("spec", "template"))  # the object, and its pods
    return (
        any(name_matches(each, selector.name) for each in names)
        and name_matches(metadata.get("namespace").text or "default", selector.namespace)
        and all(
            any(place.get("metadata", "labels", key).text == value for place in labelled)
            for key, value in selector.match_labels.items()
        )
    )


def given_facts(paths: Sequence[str], options: CheckOptions) -> GivenFacts:
    """Read the configuration, and the files that it and the command line name. Raises BadInput."""
    file, path = None, options.config or find_config(paths, options.root, options.other)
    if path is not None:
        from kvgate.cli.check.repository_config import read_repository_config

        # a file that is found may be a link, and one that is given may not be the user's own
        folder, other = path.parent, options.other
        if other and path.is_relative_to(other.copy):
            file = read_repository_config(path, inside=other.copy, root=other.copy, other=other)
        else:
            inside = options.guard(path) if options.config else options.root or repository_of(folder) or folder
            file = read_repository_config(path, inside=inside, root=options.root)
    accelerator, may_be_any = _named_gpus(options.accelerator, file.config.pools if file else {})
    config_json = options.model_config
    starts = options.calibration or (file.calibration if file else None)
    lock = options.lock or (file.lock if file else None)
    own = file.config.models if file else None

    def inside_of(given: Path | None) -> Path | None:
        return options.guard(given) if given else file.root if file else None

    return GivenFacts(
        accelerator=accelerator,
        may_be_any=may_be_any,
        vllm_version=options.vllm_version,
        guarantee=Guarantee(options.guarantee) if options.guarantee else None,
        model_config=read_model_config(config_json, inside=options.guard(config_json)) if config_json else None,
        model_config_place=options.shown(config_json),
        calibration=read_calibration(starts, inside=inside_of(options.calibration)),
        calibration_place=options.shown(starts),
        models=locked_models(lock, inside=inside_of(options.lock), shown=options.shown(lock), facts=options.facts),
        keep=options.keep,
        fetches=bool(own and own.fetch) if options.fetch is None else options.fetch,
        file=file,
    )


def _named_gpus(text: str | None, pools: Collection[str]) -> tuple[str | None, bool]:
    """Return the GPUs of --gpu with commas between them, and whether a name means several of them. Raises BadInput.

    Of several, those that are seldom met do not count: an engine of a repository is hardly meant for them.
    """
    if not text or text in pools:
        return text, False
    from kvgate.cli.gpu_names import read_gpus
    from kvgate.vllm.values import UnusableValue

    try:
        choices = read_gpus(text)
    except UnusableValue as error:
        raise BadInput(str(error)) from None
    usual = {accelerator.name for accelerator in catalogue.accelerators()}
    meant = [tuple(name for name in each.names if name in usual) or each.names for each in choices]
    names = ",".join(name for each in meant for name in each)
    if unknown := list(unknown_accelerators(names, pools)):
        reasons = "; ".join(f"{each.message} ({each.remediation})" for each in unknown)
        raise BadInput(f"--gpu {text}: {reasons}")
    return names, any(len(each) > 1 for each in meant)


def find_config(paths: Sequence[str], root: Path | None = None, other: OtherRevision | None = None) -> Path | None:
    """Return the `.kvgate.yaml` nearest to the paths, upward within the repository or the root. Raises BadInput for several."""
    found = dict[Path, None]()
    for path in paths:
        start = Path() if path == STDIN else Path(path)
        folder = (start if start.is_dir() else start.parent).absolute()
        top = root.resolve() if root else repository_of(folder)
        for up in (folder, *folder.parents):
            config = other.path(up / CONFIG_NAME) if other else up / CONFIG_NAME
            if config.is_file():
                found[config] = None
                break
            if up.resolve() == top:
                break
    if len(found) > 1:
        names = " and ".join(map(str, found))
        raise BadInput(
            f"the paths have different configurations, {names}; check each path alone, or choose one with --config"
        )
    return next(iter(found), None)
