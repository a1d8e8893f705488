"""Panels of numbers, bars and rows, and the card that every panel stands on."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from math import inf
from typing import Any

from pictures.drawing import CARD, EDGE, FAINT, GRID, TEXT, Box
from pictures.grafana import Json, Source, Window, mapped, overrides, series_name, threshold_colour
from pictures.graphs import draw_graph, draw_states
from pictures.units import text_of

TITLE_HEIGHT = 30
ROW_HEIGHT = 27
Row = dict[str, Any]
"""Cells by Grafana's name of the field: a label, or `Value #A`."""


def draw_panel(box: Box, panel: Json, source: Source, window: Window) -> None:
    """Draw a panel with its card and title, or with its text for no data."""
    box.fill(CARD, edge=EDGE, radius=5)
    if panel["title"]:
        box.text(14, 17, panel["title"], size=9.5, weight="bold")
    body = box.inner(0, TITLE_HEIGHT if panel["title"] else 0, 0, 8 if panel["title"] else 0)
    if not _KINDS[panel["type"]](body, panel, source, window):
        body.text(body.width / 2, body.height / 2 - 8, panel["fieldConfig"]["defaults"]["noValue"],
                  align="center", size=10, color=FAINT)  # fmt: skip


def _values(panel: Json, source: Source, window: Window) -> list[tuple[str, float]]:
    """(name, value) at the end of the range."""
    return sorted(
        (series_name(target, sample.labels), sample.value)
        for target in panel["targets"]
        for sample in source.query(window.fill(target["expr"]), at_seconds=window.end_seconds)
    )


def _figure(box: Box, panel: Json, source: Source, window: Window) -> bool:
    found, defaults = _values(panel, source, window), panel["fieldConfig"]["defaults"]
    if not found:
        return False
    if panel["options"]["textMode"] == "name":
        return _words(box, ", ".join(name for name, _ in found))
    value = found[0][1]
    text = text_of(defaults["unit"], value, defaults.get("decimals"))
    colour = threshold_colour(defaults["thresholds"], value)
    box.text(box.width / 2, box.height / 2 - 2, text, align="center", size=21, color=colour, weight="bold")
    return True


def _words(box: Box, text: str) -> bool:
    size = 13 if box.height < 100 else 15
    shown = box.shortened(text, box.width - 28, size=size, weight="bold")
    box.text(box.width / 2, box.height / 2 - 2, shown, align="center", size=size, weight="bold")
    return True


def _bars(box: Box, panel: Json, source: Source, window: Window) -> bool:
    found, defaults = _values(panel, source, window), panel["fieldConfig"]["defaults"]
    if not found:
        return False
    names = min(max(box.width_of(name) for name, _ in found), 0.45 * box.width)
    most = max(*(value for _, value in found), 1e-9)
    room = box.width - names - 90
    height = min((box.height - 12) / len(found), 44)
    for index, (name, value) in enumerate(found):
        y = 6 + (index + 0.5) * height
        box.text(14, y, box.shortened(name, names))
        bar = box.inner(24 + names, y - 0.3 * height, box.width - 24 - names - room, box.height - y - 0.3 * height)
        bar.fill(GRID, radius=2)
        filled = max(room * max(value, 0) / most, 3)
        bar.inner(0, 0, room - filled, 0).fill(threshold_colour(defaults["thresholds"], value), radius=2)
        box.text(
            box.width - 14, y, text_of(defaults["unit"], value, defaults.get("decimals")), align="right", weight="bold"
        )
    return True


def table_rows(panel: Json, source: Source, window: Window) -> list[Row]:
    """Merge rows as Grafana does: two rows are one where the labels that they share are equal."""
    rows: list[Row] = []
    is_alone = len(panel["targets"]) == 1
    for target in panel["targets"]:
        for sample in source.query(window.fill(target["expr"]), at_seconds=window.end_seconds):
            cells = {**sample.labels, "Value" if is_alone else f"Value #{target['refId']}": sample.value}
            fitting = [row for row in rows if _agree(row, sample.labels)]
            if not fitting:
                rows.append(cells)
            for row in fitting:
                row.update(cells)
    return rows


def _agree(row: Row, labels: Mapping[str, str]) -> bool:
    shared = [name for name in labels if name in row]
    return bool(shared) and all(row[name] == labels[name] for name in shared)


def _table(box: Box, panel: Json, source: Source, window: Window) -> bool:
    rows = table_rows(panel, source, window)
    if not rows:
        return False
    order = next(step["options"]["indexByName"] for step in panel["transformations"] if step["id"] == "organize")
    there = {name for row in rows for name in row}
    columns = [(name, overrides(panel, name)) for name in sorted(order, key=order.__getitem__) if name in there]
    rows.sort(key=lambda row: [str(row.get(name, "")) for name, _ in columns])
    for by in reversed(panel["options"].get("sortBy", [])):
        name = next(name for name, look in columns if look["displayName"] == by["displayName"])
        rows.sort(key=lambda row, name=name: row.get(name, -inf), reverse=by["desc"])  # type: ignore[misc]
    places = _places(box, [look.get("custom.width") for _, look in columns])
    for (_, look), (x, width, align) in zip(columns, places, strict=True):
        box.text(
            x, 12, box.shortened(look["displayName"], width, weight="bold"), align=align, color=FAINT, weight="bold"
        )
    shown = rows[: int((box.height - 28) // ROW_HEIGHT)]
    for index, row in enumerate(shown):
        y = 26 + (index + 0.5) * ROW_HEIGHT
        box.inner(12, y - ROW_HEIGHT / 2, 12, box.height - y + ROW_HEIGHT / 2 - 1).fill(GRID)
        for (name, look), (x, width, align) in zip(columns, places, strict=True):
            text, colour = _cell(row.get(name), look, window)
            box.text(x, y, box.shortened(text, width), align=align, color=colour)
    if len(rows) > len(shown):
        box.text(box.width - 14, box.height - 4, f"and {len(rows) - len(shown)} more", align="right", color=FAINT)
    return True


def _places(box: Box, widths: list[float | None]) -> list[tuple[float, float, str]]:
    """(x, width, side): columns without a width share what is left."""
    room = box.width - 28
    free = max(room - sum(width or 0 for width in widths), 0) / max(widths.count(None), 1)
    places, x = [], 14.0
    for width in widths:
        places.append((x, (width or free) - 10, "left"))
        x += width or free
    return places


def _cell(value: Any, look: dict[str, Any], window: Window) -> tuple[str, str]:
    if value is None:
        return "–", FAINT
    if isinstance(value, str):
        return mapped(look.get("mappings", []), value) or (value, TEXT)
    if look.get("unit") == "dateTimeAsIsoNoDateIfToday":
        at, now = (datetime.fromtimestamp(seconds, UTC) for seconds in (value / 1000, window.end_seconds))
        return f"{at:%H:%M:%S}" if at.date() == now.date() else f"{at:%Y-%m-%d %H:%M:%S}", TEXT
    colour = threshold_colour(look["thresholds"], value) if "thresholds" in look else TEXT
    return text_of(look.get("unit", ""), value, look.get("decimals")), colour


_KINDS = {
    "stat": _figure,
    "bargauge": _bars,
    "table": _table,
    "timeseries": draw_graph,
    "state-timeline": draw_states,
}
