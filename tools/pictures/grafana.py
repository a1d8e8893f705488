"""A dashboard's JSON as Grafana reads it: panels, queries, variables, and the names and texts that it makes of answers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from controlplane.prometheus import Sample, Series

Json = dict[str, Any]
RATE_SCRAPES = 4
"""Scrapes that Grafana has in $__rate_interval, at least."""
MARK_STEPS = 60
"""Steps in which the annotations of a window are looked up."""
_LABEL_VALUES = re.compile(r"label_values\((?:(?P<selector>.+), *)?(?P<label>\w+)\)")
_VARIABLE = re.compile(r"\$(?:\{(\w+)[^}]*\}|(\w+))")
_LEGEND_LABEL = re.compile(r"\{\{\s*(\w+)\s*\}\}")


class Source(Protocol):
    """A Prometheus, as controlplane/prometheus.py has it."""

    def query(self, expression: str, *, at_seconds: float | None = None) -> list[Sample]: ...

    def query_range(
        self, expression: str, *, start_seconds: float, end_seconds: float, step_seconds: float
    ) -> list[Series]: ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Mark:
    """A moment, or a piece of time, that an annotation marks."""

    name: str
    colour: str
    start_seconds: float
    end_seconds: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Choice of a user: the time range in Unix seconds, and the variables."""

    start_seconds: float
    end_seconds: float
    scrape_seconds: float = 15.0
    chosen: Mapping[str, str] = field(default_factory=dict)
    """Variable → a value or a regular expression."""
    marks: Sequence[Mark] = ()
    """Annotations, which every graph shows."""

    @property
    def seconds(self) -> float:
        return self.end_seconds - self.start_seconds

    def fill(self, text: str, *, step_seconds: float = 0) -> str:
        """The text with the values of its variables; Grafana leaves what is none, such as the `$1` of label_replace."""
        built_in = {
            "__range": f"{max(1, round(self.seconds))}s",
            "__rate_interval": f"{max(1, round(max(step_seconds, RATE_SCRAPES * self.scrape_seconds)))}s",
        }

        def value(found: re.Match[str]) -> str:
            name = found[1] or found[2]
            return built_in.get(name) or self.chosen.get(name, found[0])

        return _VARIABLE.sub(value, text)


def panels(board: Json) -> Iterator[Json]:
    """Return the panels, without the headings of rows."""
    return (panel for panel in board["panels"] if panel["type"] != "row")


def target_expressions(board: Json) -> Iterator[str]:
    """Return the expressions of every query of every panel."""
    return (target["expr"] for panel in panels(board) for target in panel["targets"])


def annotation_expressions(board: Json) -> Iterator[tuple[str, str]]:
    """(name, expression) of every annotation that Prometheus answers."""
    return ((each["name"], each["expr"]) for each in _annotations(board))


def _annotations(board: Json) -> list[Json]:
    return [each for each in board.get("annotations", {}).get("list", []) if "expr" in each]


def marks(board: Json, source: Source, window: Window) -> list[Mark]:
    """Annotations in the window: points of time where the value says them, else the times at which the query finds something."""
    found: list[Mark] = []
    step = max(1.0, window.seconds / MARK_STEPS)
    for annotation in _annotations(board):
        expression, look = (
            window.fill(annotation["expr"]),
            {"name": annotation["name"], "colour": annotation["iconColor"]},
        )
        for series in source.query_range(
            expression, start_seconds=window.start_seconds, end_seconds=window.end_seconds, step_seconds=step
        ):
            if annotation["useValueForTime"]:
                times = [(value / 1000, value / 1000) for value in dict.fromkeys(value for _, value in series.points)]
            else:
                times = _spans([at for at, _ in series.points], step)
            found += [Mark(start_seconds=start, end_seconds=end, **look) for start, end in times]
    return [
        mark for mark in found if window.start_seconds <= mark.end_seconds and mark.start_seconds <= window.end_seconds
    ]


def _spans(times: Iterable[float], step: float) -> list[tuple[float, float]]:
    """Neighbours are one piece of time."""
    found: list[tuple[float, float]] = []
    for at in times:
        if found and at - found[-1][1] <= 1.5 * step:
            found[-1] = (found[-1][0], at)
        else:
            found.append((at, at))
    return found


def variable_queries(board: Json) -> Iterator[tuple[str, str]]:
    """(label, selector) of every variable whose values Prometheus knows."""
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            found = _LABEL_VALUES.fullmatch(variable["query"])
            if not found:
                raise ValueError(
                    f"variable {variable['name']}: {variable['query']!r} is no label_values(selector, label)"
                )
            yield found["label"], found["selector"]


def everything_chosen(board: Json) -> dict[str, str]:
    """Return the text that Grafana inserts for each variable when all of its values are chosen."""
    return {variable["name"]: variable.get("allValue") or ".+" for variable in board["templating"]["list"]}


def series_name(target: Json, labels: Mapping[str, str]) -> str:
    """Return the name from the target's legend, or the values of the labels without a legend."""
    legend = target.get("legendFormat") or "__auto"
    if legend == "__auto":
        return ", ".join(value for name, value in sorted(labels.items()) if name != "__name__") or "value"
    return _LEGEND_LABEL.sub(lambda found: labels.get(found[1], ""), legend)


def overrides(panel: Json, name: str) -> dict[str, Any]:
    """Properties that the panel gives to the field of this name."""
    return {
        found["id"]: found["value"]
        for override in panel["fieldConfig"]["overrides"]
        if override["matcher"]["options"] == name
        for found in override["properties"]
    }


def threshold_colour(thresholds: Json, value: float) -> str:
    """Return the colour of the highest step that the value has reached."""
    reached = [step for step in thresholds["steps"] if step["value"] is None or value >= step["value"]]
    return str(reached[-1]["color"])


def mapped(mappings: list[Json], value: str) -> tuple[str, str] | None:
    """(text, colour) that stand for a value."""
    for mapping in mappings:
        if found := mapping["options"].get(value):
            return found["text"], found["color"]
    return None
