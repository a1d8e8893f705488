"""Facts that manifests do not state: from the command line, else the first mapping that has them, else the configuration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from kvgate.budget.calibration import NOTHING_OBSERVED, Calibration
from kvgate.budget.request import Workload
from kvgate.cli.model_config import ModelConfig, read_model_config
from kvgate.documents.globs import any_path_matches, name_matches
from kvgate.documents.written import Written
from kvgate.manifests.judging.judged import Defaults
from kvgate.record import record

if TYPE_CHECKING:  # pydantic is for those who have a configuration
    from kvgate.cli.check.repository_config import Config, Mapping, Selector
    from kvgate.cli.check.repository_config_file import ConfigFile


@record
class Choices:
    """The command line and the configuration."""

    accelerator: str | None = None
    vllm_version: str | None = None
    model_config: ModelConfig | None = None
    calibration: Calibration = NOTHING_OBSERVED
    file: ConfigFile | None = None

    def defaults(self, file: str, name: str, root: Written) -> Defaults:
        """Return the defaults for one engine."""
        sources = self._sources(file, name, root)
        model_config = self._model_config(sources)
        workload = _said("workload", sources)
        version = self.vllm_version or _said("vllm_version", sources)
        return Defaults(
            accelerator=self.accelerator or _said("accelerator", sources),
            vllm_version=version.removeprefix("v") if version else None,
            model_config=model_config.text if model_config else None,
            workload=Workload(**workload.model_dump()) if workload else None,
            calibration=self.calibration,
        )

    def model_config_of(self, file: str, name: str, root: Written) -> ModelConfig | None:
        """The config.json for a model that is not in the catalogue."""
        return self._model_config(self._sources(file, name, root))

    def _model_config(self, sources: Sequence[Mapping | Config]) -> ModelConfig | None:
        path = None if self.model_config else _said("config_json", sources)
        if path is None or self.file is None:
            return self.model_config
        return read_model_config(self.file.folder / path, inside=self.file.root)

    def _sources(self, file: str, name: str, root: Written) -> Sequence[Mapping | Config]:
        """The mappings that are for an engine, then the configuration itself."""
        if self.file is None:
            return ()
        path = self.file.path_below(file)
        mappings = (each for each in self.file.config.mappings if _is_for(each, path, name, root))
        return (*mappings, self.file.config)


def _said(field: str, sources: Sequence[Mapping | Config]) -> Any:
    values = (getattr(source, field, None) for source in sources)
    return next((value for value in values if value is not None), None)


def _is_for(mapping: Mapping, path: str, name: str, root: Written) -> bool:
    in_paths = not mapping.paths or any_path_matches(path, mapping.paths)
    return in_paths and (mapping.selector is None or _selects(mapping.selector, name, root))


def _selects(selector: Selector, name: str, root: Written) -> bool:
    metadata = root.get("metadata")
    names = (name, metadata.get("name").text)
    return (
        any(name_matches(each, selector.name) for each in names)
        and name_matches(metadata.get("namespace").text or "default", selector.namespace)
        and all(value in _labels(root, key) for key, value in selector.match_labels.items())
    )


def _labels(root: Written, key: str) -> Iterator[str]:
    """Return the labels of the object and of its pods."""
    for place in (root, root.get("spec", "template")):
        yield place.get("metadata", "labels", key).text
