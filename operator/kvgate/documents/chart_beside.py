"""Files of values in the folder of a chart that is not rendered: what Helm adds to them, and which of them templates name.

Helm merges objects, takes lists as a whole, and gives templates the `appVersion` of Chart.yaml, a common default of tags: helm.sh,
"Values Files" and "Built-in Objects".
"""

import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct

from kvgate.documents.bounded_files import read_text
from kvgate.documents.discovery import CHART_FILE, root_of
from kvgate.documents.nodes import value_of_file
from kvgate.text.json_values import merged_fields
from kvgate.text.patterns import pattern

_VALUES, _TEMPLATES, _CI = "values.yaml", "templates", "ci"
_NAMED = pattern(r"\.Values\b((?:\.\w{1,100}){0,20})")
_APP_VERSION = ".Chart.AppVersion"
_MAX_FILES, _MAX_FILE_BYTES = 200, 1 << 20
_MAX_DEPTH = 20


class ChartBeside(Struct, frozen=True, kw_only=True):
    """The facts that a chart states about its values without being rendered."""

    own: Mapping[str, Any]
    """Values that every other file of values is merged into."""
    app_version: str
    """The tag of an image that states none; empty where no template takes it."""
    named: frozenset[str] | None
    """Values that templates name, as `model.name`; None where they may pass on any."""

    def completed(self, values: Mapping[str, Any], *, is_own: bool) -> Mapping[str, Any]:
        """Return the values as templates get them, without those that no template names."""
        merged = values if is_own else merged_fields(self.own, values)
        kept = merged if self.named is None else _kept(merged, self.named)
        return _with_tags(kept, self.app_version) if self.app_version else kept


def completed_values(file: str, values: Any) -> Any:
    """Return the values of a file as the chart beside it takes them; as they are, where no chart lies there."""
    path = Path(file)
    is_schema = path.name.endswith(".schema.json")
    if "values" not in path.name or is_schema or not isinstance(values, Mapping):
        return values
    folder = path.parent.parent if path.parent.name == _CI else path.parent
    chart = _chart_in(Path(os.path.realpath(folder))) if (folder / CHART_FILE).is_file() else None
    return chart.completed(values, is_own=path.name == _VALUES) if chart else values


@lru_cache(maxsize=256)
def _chart_in(folder: Path) -> ChartBeside | None:
    """Read what a chart says; None where it cannot be read as one."""
    inside = root_of(folder)
    try:
        chart = value_of_file(folder / CHART_FILE, max_bytes=_MAX_FILE_BYTES, inside=inside)
        is_there = (folder / _VALUES).is_file()
        own = value_of_file(folder / _VALUES, max_bytes=_MAX_FILE_BYTES, inside=inside) if is_there else {}
        paths = [Path(top, name) for top, _, names in os.walk(folder / _TEMPLATES) for name in sorted(names)]
        if len(paths) > _MAX_FILES:
            return None
        templates = [read_text(path, max_bytes=_MAX_FILE_BYTES, inside=inside) for path in paths]
    except (OSError, ValueError):
        return None
    if not isinstance(chart, Mapping):
        return None
    named = {match[1].lstrip(".") for text in templates for match in _NAMED.finditer(text)}
    passes_any = not named or "" in named or bool(chart.get("dependencies")) or (folder / "charts").is_dir()
    takes_version = any(_APP_VERSION in text for text in templates)
    return ChartBeside(
        own=own if isinstance(own, Mapping) else {},
        app_version=str(chart.get("appVersion") or "") if takes_version else "",
        named=None if passes_any else frozenset(named),
    )


def _kept(values: Mapping[str, Any], named: frozenset[str], above: str = "", depth: int = 0) -> Mapping[str, Any]:
    """Return the values that a template names, with everything below them."""
    kept = dict[str, Any]()
    for name, value in values.items():
        path = f"{above}{name}"
        if path in named or depth > _MAX_DEPTH:
            kept[name] = value
        elif any(each.startswith(f"{path}.") for each in named):
            kept[name] = _kept(value, named, f"{path}.", depth + 1) if isinstance(value, Mapping) else value
    return kept


def _with_tags(value: Any, tag: str, depth: int = 0) -> Any:
    """Return values whose images without a tag have this one."""
    if not isinstance(value, Mapping) or depth > _MAX_DEPTH:
        return value
    below = {name: _with_tags(child, tag, depth + 1) for name, child in value.items()}
    is_open = bool(value.get("repository")) and not (value.get("tag") or value.get("digest"))
    return {**below, "tag": tag} if is_open else below
