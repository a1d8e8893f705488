"""Panels over time: lines, stacked bars, bands, and the states of conditions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import ceil, isfinite, nan

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, MaxNLocator

from pictures.drawing import CARD, EDGE, FAINT, GRID, PALETTE, TEXT, Box
from pictures.grafana import Json, Source, Window, mapped, overrides, series_name
from pictures.units import Scale, scale

POINTS = 240
"""Points of a line, unless the panel requests fewer."""
LEGEND_LINE, SWATCH, BETWEEN = 17.0, 14.0, 18.0
MOST_LEGEND_LINES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Drawn:
    """One series: its points, a gap where it was away, and how it is drawn."""

    name: str
    seconds: Sequence[float]
    values: Sequence[float]
    colour: str
    dashed: bool
    bars: bool
    width: float
    down_to: str
    in_legend: bool = True

    @property
    def last(self) -> float:
        return next((value for value in reversed(self.values) if isfinite(value)), nan)


def read(panel: Json, source: Source, window: Window) -> tuple[list[Drawn], float]:
    """All series of the panel's queries, and the step between their points."""
    step = max(1.0, ceil(window.seconds / (panel.get("maxDataPoints") or POINTS)))
    found: list[Drawn] = []
    taken = {
        overrides(panel, target.get("legendFormat", "")).get("color", {}).get("fixedColor")
        for target in panel["targets"]
    }
    free = [colour for colour in PALETTE if colour not in taken]
    for target in panel["targets"]:
        series = source.query_range(
            window.fill(target["expr"], step_seconds=step),
            start_seconds=window.start_seconds,
            end_seconds=window.end_seconds,
            step_seconds=step,
        )
        named = sorted(((series_name(target, one.labels), one.points) for one in series), key=lambda pair: pair[0])
        for name, points in named:
            of_palette = sum("color" not in overrides(panel, each.name) for each in found)
            found.append(_drawn(panel, name, _with_gaps(points, step), free[of_palette % len(free)]))
    return found, step


def _drawn(panel: Json, name: str, points: Sequence[tuple[float, float]], colour: str) -> Drawn:
    own, usual = overrides(panel, name), panel["fieldConfig"]["defaults"].get("custom", {})
    return Drawn(
        name=name,
        seconds=[second for second, _ in points],
        values=[value for _, value in points],
        colour=own.get("color", {}).get("fixedColor", colour),
        dashed=own.get("custom.lineStyle", {}).get("fill") == "dash",
        bars=own.get("custom.drawStyle", usual.get("drawStyle")) == "bars",
        width=own.get("custom.lineWidth", usual.get("lineWidth") or 2),
        down_to=own.get("custom.fillBelowTo", ""),
        in_legend=not own.get("custom.hideFrom", {}).get("legend"),
    )


def _with_gaps(points: Iterable[tuple[float, float]], step: float) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for second, value in points:
        if found and second - found[-1][0] > 1.5 * step:
            found.append((found[-1][0] + step, nan))
        found.append((second, value))
    return found


def draw_graph(box: Box, panel: Json, source: Source, window: Window) -> bool:
    """Draw the panel; return False where there is nothing to draw."""
    found, step = read(panel, source, window)
    if not found:
        return False
    defaults = panel["fieldConfig"]["defaults"]
    finite = [abs(value) for one in found for value in one.values if isfinite(value)]
    finite.append(defaults.get("custom", {}).get("axisSoftMax", 0))
    measure = scale(defaults.get("unit", ""), max(finite, default=0))
    left = 22 + box.width_of(f"1000{measure.suffix}", size=8)
    axes = _legend(box, panel, [one for one in found if one.in_legend], measure).inner(left, 4, 12, 28).axes()
    _style(axes, window, measure)
    _marks(axes, window)
    if any(one.bars for one in found):
        axes.set_xlim(window.start_seconds - step / 2, window.end_seconds + step / 2)
    tops = _bars(axes, [one for one in found if one.bars], measure, step)
    for one in found:
        if not one.bars:
            _line(axes, one, measure, {other.name: other for other in found})
    _limits(axes, panel, found, measure, tops)
    return True


def _marks(axes: Axes, window: Window) -> None:
    """Draw a dashed line for a moment; a piece of time is shaded too."""
    for mark in window.marks:
        axes.axvline(mark.start_seconds, color=mark.colour, linewidth=0.9, linestyle=(0, (4, 3)), zorder=2)
        if mark.end_seconds > mark.start_seconds:
            axes.axvspan(mark.start_seconds, mark.end_seconds, color=mark.colour, alpha=0.05, linewidth=0, zorder=0)


def _line(axes: Axes, one: Drawn, measure: Scale, others: dict[str, Drawn]) -> None:
    values = [value / measure.divisor for value in one.values]
    style = (0, (5, 3)) if one.dashed else "-"
    axes.plot(one.seconds, values, color=one.colour, linewidth=one.width * 0.8, linestyle=style, zorder=3)
    if one.down_to in others:
        floor = [value / measure.divisor for value in others[one.down_to].values]
        if len(floor) == len(values):
            axes.fill_between(one.seconds, values, floor, color=one.colour, alpha=0.13, linewidth=0, zorder=1)


def _bars(axes: Axes, bars: list[Drawn], measure: Scale, step: float) -> list[float]:
    """Draw each series on top of those before it; return the heights that they reach."""
    tops: dict[float, float] = {}
    for one in bars:
        points = [
            (at, value / measure.divisor) for at, value in zip(one.seconds, one.values, strict=True) if isfinite(value)
        ]
        seconds, heights = [at for at, _ in points], [height for _, height in points]
        axes.bar(
            seconds,
            heights,
            0.84 * step,
            [tops.get(at, 0.0) for at in seconds],
            color=one.colour,
            linewidth=0,
            zorder=2,
        )
        tops.update({at: tops.get(at, 0.0) + height for at, height in points})
    return list(tops.values())


def _limits(axes: Axes, panel: Json, found: list[Drawn], measure: Scale, tops: list[float]) -> None:
    custom = panel["fieldConfig"]["defaults"].get("custom", {})
    values = [value / measure.divisor for one in found if not one.bars for value in one.values if isfinite(value)]
    values += tops
    steps = [step["value"] / measure.divisor for step in panel["fieldConfig"]["defaults"]["thresholds"]["steps"][1:]]
    dashed = custom.get("thresholdsStyle", {}).get("mode") == "dashed"
    softly = [custom[end] / measure.divisor for end in ("axisSoftMin", "axisSoftMax") if end in custom]
    low, high = min([*values, *softly], default=0), max([*values, *softly], default=1)
    if dashed:  # as much of them as lies near
        reach = (high - low) or abs(high) or 1
        near = [step for step in steps if low - reach <= step <= high + reach]
        low, high = min([low, *near]), max([high, *near])
        for step, at in zip(panel["fieldConfig"]["defaults"]["thresholds"]["steps"][1:], steps, strict=True):
            axes.axhline(at, color=step["color"], linewidth=1, linestyle=(0, (2, 2)), alpha=0.8, zorder=1)
    if low == high:
        high += abs(high) or 1
    spread = high - low
    below = 0.01 if softly and low >= min(softly) else 0.06
    axes.set_ylim(low - below * spread, high + 0.06 * spread)


def _style(axes: Axes, window: Window, measure: Scale) -> None:
    axes.set_facecolor(CARD)
    axes.set_xlim(window.start_seconds, window.end_seconds)
    axes.grid(axis="y", color=GRID, linewidth=0.8, zorder=0)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(EDGE)
    axes.tick_params(length=0, labelsize=8, labelcolor=FAINT, pad=5)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, min_n_ticks=3, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}".replace("-", "−") + measure.suffix))
    _clock(axes, window)


def _clock(axes: Axes, window: Window) -> None:
    """Ticks at round times of the day."""
    steps = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
    step = next((each for each in steps if window.seconds / each <= 6), steps[-1])
    first = ceil(window.start_seconds / step) * step
    ticks = [first + index * step for index in range(int((window.end_seconds - first) // step) + 1)]
    form = "%H:%M" if step >= 60 else "%H:%M:%S"
    axes.set_xticks(ticks, [datetime.fromtimestamp(tick, UTC).strftime(form) for tick in ticks])


def _legend(box: Box, panel: Json, found: list[Drawn], measure: Scale) -> Box:
    """Draws it; returns the box that is left for the axes."""
    options = panel["options"]["legend"]
    if not options["showLegend"]:
        return box
    if options["placement"] == "right":
        return _legend_table(box, found, measure)
    lines = _lines(box, found, box.width - 24)
    kept = lines[:MOST_LEGEND_LINES]
    top = box.height - LEGEND_LINE * len(kept) + 4
    for index, line in enumerate(kept):
        x = 14.0
        for one, width in line:
            _entry(box, x, top + index * LEGEND_LINE, one)
            x += width
    if len(lines) > len(kept):
        box.text(
            box.width - 12, box.height - 7, f"and {sum(map(len, lines[len(kept) :]))} more", align="right", color=FAINT
        )
    return box.inner(0, 0, 0, LEGEND_LINE * len(kept) - 2)


def _lines(box: Box, found: list[Drawn], room: float) -> list[list[tuple[Drawn, float]]]:
    lines: list[list[tuple[Drawn, float]]] = [[]]
    for one in found:
        width = SWATCH + 6 + box.width_of(one.name, size=8) + BETWEEN
        if lines[-1] and sum(taken for _, taken in lines[-1]) + width > room + BETWEEN:
            lines.append([])
        lines[-1].append((one, width))
    return lines


def _legend_table(box: Box, found: list[Drawn], measure: Scale) -> Box:
    """Draw the legend from the top of the stack down, each series with its last value."""
    width = 190.0
    left = box.width - width
    shown = [*(one for one in found if not one.bars), *(one for one in reversed(found) if one.bars)]
    for index, one in enumerate(shown):
        y = 22 + index * 22
        _entry(box, left, y, one)
        box.text(box.width - 16, y, measure.text(one.last), align="right", size=8, weight="bold")
    return box.inner(0, 0, width + 4, 0)


def _entry(box: Box, x: float, y: float, one: Drawn) -> None:
    if one.bars:
        box.inner(x, y - 5, box.width - x - 11, box.height - y - 5).fill(one.colour, radius=2)
    else:
        strokes = ((0, 5.5), (8.5, 5.5)) if one.dashed else ((0, SWATCH),)
        for start, length in strokes:
            box.inner(x + start, y - 1.5, box.width - x - start - length, box.height - y - 1.5).fill(one.colour)
    box.text(x + SWATCH + 6, y, one.name, size=8, color=TEXT)


def draw_states(box: Box, panel: Json, source: Source, window: Window) -> bool:
    """A band per series, in pieces of equal value."""
    found, step = read(panel, source, window)
    if not found:
        return False
    left = 16 + max(box.width_of(one.name, size=8.5) for one in found) + 10
    axes = box.inner(left, 6, 12, 28).axes()
    _style(axes, window, Scale(divisor=1, suffix=""))
    axes.set_yticks([])
    axes.set_ylim(-0.5, len(found) - 0.5)
    for index, one in enumerate(reversed(found)):
        mappings = overrides(panel, one.name).get("mappings", panel["fieldConfig"]["defaults"]["mappings"])
        for start, end, value in _pieces(one, step):
            _state(axes, (start, end), index, mapped(mappings, f"{value:g}") or (f"{value:g}", FAINT), window)
        axes.annotate(one.name, (0, index), (-10, 0), xycoords=("axes fraction", "data"), textcoords="offset points",
                      ha="right", va="center", size=8.5)  # fmt: skip
    return True


def _state(axes: Axes, span: tuple[float, float], row: int, meaning: tuple[str, str], window: Window) -> None:
    (start, end), (text, colour) = span, meaning
    axes.barh(row, end - start, 0.66, start, color=colour, linewidth=0, alpha=0.85)
    if end - start > 0.12 * window.seconds:
        axes.text((start + end) / 2, row, text, ha="center", va="center", size=8, color="white", weight="bold")


def _pieces(one: Drawn, step: float) -> list[tuple[float, float, float]]:
    """(from, to, value); a gap is no piece."""
    found: list[tuple[float, float, float]] = []
    for second, value in zip(one.seconds, one.values, strict=True):
        if not isfinite(value):
            continue
        if found and found[-1][2] == value and second - found[-1][1] < step:
            found[-1] = (found[-1][0], second + step, value)
        else:
            found.append((second, second + step, value))
    return found
