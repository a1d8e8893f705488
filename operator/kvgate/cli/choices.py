"""What is taken where a manifest does not say: the command line first, then the first mapping that says it, then the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kvgate.budget.calibration import NOTHING_OBSERVED, Calibration
from kvgate.budget.request import Workload
from kvgate.cli.globs import name_matches, path_matches
from kvgate.cli.model_config import ModelConfig, read_model_config
from kvgate.manifests.judged import Defaults
from kvgate.manifests.written import Written
from kvgate.record import record

if TYPE_CHECKING:  # pydantic is for those who have a configuration
    from kvgate.cli.config import Mapping, Selector
    from kvgate.cli.config_file import ConfigFile


@record
class Choices:
    """The command line and the configuration."""

    accelerator: str | None = None
    vllm_version: str | None = None
    model_config: ModelConfig | None = None
    calibration: Calibration = NOTHING_OBSERVED
    file: ConfigFile | None = None

    def defaults(self, file: str, name: str, root: Written) -> Defaults:
        """For one engine."""
        model_config = self.model_config_of(file, name, root)
        workload = self._said("workload", file, name, root)
        version = self.vllm_version or self._said("vllm_version", file, name, root)
        return Defaults(
            accelerator=self.accelerator or self._said("accelerator", file, name, root),
            vllm_version=version.removeprefix("v") if version else None,
            model_config=model_config.text if model_config else None,
            workload=Workload(**workload.model_dump()) if workload else None,
            calibration=self.calibration,
        )

    def model_config_of(self, file: str, name: str, root: Written) -> ModelConfig | None:
        """The config.json for a model that is not in the catalogue."""
        path = None if self.model_config else self._said("config_json", file, name, root)
        if path is None or self.file is None:
            return self.model_config
        return read_model_config(self.file.path.parent / path)

    def _said(self, field: str, file: str, name: str, root: Written) -> Any:
        if self.file is None:
            return None
        for source in (*self._mappings(file, name, root), self.file.config):
            if (value := getattr(source, field, None)) is not None:
                return value
        return None

    def _mappings(self, file: str, name: str, root: Written) -> Iterator[Mapping]:
        config = self.file
        for mapping in config.config.mappings if config else ():
            path = config.path_below(file) if config else ""
            in_paths = not mapping.paths or any(path_matches(path, glob) for glob in mapping.paths)
            if in_paths and (mapping.selector is None or _selects(mapping.selector, name, root)):
                yield mapping


def _selects(selector: Selector, name: str, root: Written) -> bool:
    metadata = root.get("metadata")
    names = (name, metadata.get("name").text)
    return (
        any(name_matches(each, selector.name) for each in names)
        and name_matches(metadata.get("namespace").text or "default", selector.namespace)
        and all(value in _labels(root, key) for key, value in selector.match_labels.items())
    )


def _labels(root: Written, key: str) -> Iterator[str]:
    """Of the object, and of its pods."""
    for place in (root, root.get("spec", "template")):
        yield place.get("metadata", "labels", key).text
