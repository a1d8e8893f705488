"""One of our dashboards as one picture, from its JSON and a Prometheus: every panel with its own query, in its own place.

    PYTHONPATH=tools .venv/bin/python -m pictures.dashboard charts/kvgate/dashboards/kvgate-deployment.json picture.png \\
        --prometheus http://127.0.0.1:9090 --minutes 5 --set namespace=serving --set inferencedeployment=chat

It is not Grafana: what it draws is close to what Grafana draws, from the same queries over the same time. A page is narrower than a
screen, so that panels take more of its columns (`folded`), and their text is read at its own size.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.parse
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from controlplane.prometheus import Sample, Series
from pictures.drawing import CANVAS, FAINT, STYLE, TEXT, Box
from pictures.grafana import Json, Source, Window, everything_chosen, marks
from pictures.panels import draw_panel

WIDTH, MARGIN, HEADER = 1000, 12, 76
ROW, GAP = 37, 8
"""Pixels of a unit of Grafana's grid, and between panels."""
COLUMNS, HALF, MOST_OF_THREE = 24, 12, 8
AREAS = 40
"""Colours that fill more than edges."""
NEIGHBOURS = 6
"""Steps of 256 in each of red, green, blue."""


def draw(board: Json, source: Source, window: Window, target: Path) -> None:
    """Write the PNG; a variable without a choice stands for all of its values."""
    canvas = figure(board, source, window).canvas
    image = Image.frombytes("RGBA", canvas.get_width_height(), bytes(canvas.buffer_rgba())).convert("RGB")
    _with_few_colours(image).save(target, optimize=True)


def figure(board: Json, source: Source, window: Window) -> Figure:
    """Draw all panels."""
    window = replace(window, chosen={**everything_chosen(board), **window.chosen})
    window = replace(window, marks=marks(board, source, window))
    places = folded([panel["gridPos"] for panel in board["panels"]])
    grid_rows = max(place["y"] + place["h"] for place in places)
    height = HEADER + grid_rows * ROW + MARGIN
    with mpl.rc_context(STYLE):
        drawn = Figure(figsize=(WIDTH / 100, height / 100), dpi=100, facecolor=CANVAS)
        canvas = FigureCanvasAgg(drawn)
        _head(Box(figure=drawn, left=MARGIN, top=0, width=WIDTH - 2 * MARGIN, height=height), board, window)
        for panel, position in zip(board["panels"], places, strict=True):
            place = _place(drawn, position)
            if panel["type"] == "row":
                place.text(2, place.height - 14, panel["title"], size=11.5, weight="bold")
            else:
                draw_panel(place, panel, source, window)
        canvas.draw()
    return drawn


def folded(places: Sequence[dict[str, int]]) -> list[dict[str, int]]:
    """Return the places in the order of reading: figures are twice as wide as on the dashboard, graphs take half of a row or all of it.

    The last of a row is stretched.
    """
    rows: list[list[dict[str, int]]] = []
    found: dict[int, dict[str, int]] = {}
    last = None
    for index in sorted(range(len(places)), key=lambda index: (places[index]["y"], places[index]["x"])):
        place = found[index] = {**places[index], "w": min(HALF, 2 * places[index]["w"])}
        if places[index]["w"] > MOST_OF_THREE:
            place["w"] = COLUMNS
        if last != places[index]["y"] or sum(each["w"] for each in rows[-1]) + place["w"] > COLUMNS:
            rows.append([])
        last = places[index]["y"]
        rows[-1].append(place)
    top = 0
    for row in rows:
        left = 0
        for place in row:
            place["x"], place["y"], left = left, top, left + place["w"]
        row[-1]["w"] += COLUMNS - left
        top += max(place["h"] for place in row)
    return [found[index] for index in range(len(places))]


def _with_few_colours(image: Image.Image) -> Image.Image:
    """Reduce the file to a third of its bytes; areas keep their exact colours, and the edges of letters lose shades that nobody sees."""
    frequent = [colour for _, colour in sorted(image.getcolors(1 << 24) or [], reverse=True)[:AREAS]]
    parts = image.quantize(256 - AREAS, method=Image.Quantize.MAXCOVERAGE).getpalette() or []
    kept: list[tuple[int, ...]] = []
    for colour in (*frequent, *zip(parts[::3], parts[1::3], parts[2::3], strict=True)):
        if _is_none_of(kept, colour):
            kept.append(colour)
    palette = Image.new("P", (1, 1))
    palette.putpalette([part for colour in kept for part in colour])
    return image.quantize(palette=palette, dither=Image.Dither.NONE)


def _is_none_of(kept: list[tuple[int, ...]], colour: tuple[int, ...]) -> bool:
    """Pillow treats near colours as one; the colour of an area must have none near it."""
    return all(max(abs(one - other) for one, other in zip(each, colour, strict=True)) > NEIGHBOURS for each in kept)


def _head(page: Box, board: Json, window: Window) -> None:
    everything = everything_chosen(board)
    chosen = "   ".join(f"{name}: {value}" for name, value in window.chosen.items() if value != everything.get(name))
    page.text(2, 26, board["title"], size=16, weight="bold")
    page.text(2, 54, chosen or board["description"], size=9.5, color=FAINT)
    x = page.width - 2.0
    for name, colour in sorted({(mark.name, mark.colour) for mark in window.marks}, reverse=True):
        page.text(x, 54, name, size=9, color=TEXT, align="right")
        x -= page.width_of(name, size=9) + 10
        page.inner(x, 47, page.width - x - 3, page.height - 61).fill(colour)
        x -= 18
    start, end = (datetime.fromtimestamp(at, UTC) for at in (window.start_seconds, window.end_seconds))
    page.text(
        page.width - 2, 26, f"{start:%Y-%m-%d %H:%M:%S} to {end:%H:%M:%S} UTC", size=9.5, color=TEXT, align="right"
    )


def _place(figure: Figure, position: dict[str, int]) -> Box:
    unit = (WIDTH - 2 * MARGIN + GAP) / COLUMNS
    return Box(
        figure=figure,
        left=MARGIN + position["x"] * unit,
        top=HEADER + position["y"] * ROW,
        width=position["w"] * unit - GAP,
        height=position["h"] * ROW - GAP,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class AtUrl:
    """Any Prometheus."""

    url: str

    def query(self, expression: str, *, at_seconds: float | None = None) -> list[Sample]:
        """Return the samples at one time; panels request no scalars."""
        at = {} if at_seconds is None else {"time": at_seconds}
        return [Sample.parse(element) for element in self._get("query", query=expression, **at)]

    def query_range(
        self, expression: str, *, start_seconds: float, end_seconds: float, step_seconds: float
    ) -> list[Series]:
        """Return the series over a range of time, as a panel of Grafana requests them."""
        found = self._get("query_range", query=expression, start=start_seconds, end=end_seconds, step=step_seconds)
        return [Series.parse(element) for element in found]

    def _get(self, path: str, **parameters: str | float) -> Any:
        asked = f"{self.url.rstrip('/')}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(asked, timeout=30) as answer:  # noqa: S310  # the user's own address
            return json.load(answer)["data"]["result"]


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Draw one of our dashboards.")
    parser.add_argument("dashboard", type=Path, help="its JSON")
    parser.add_argument("picture", type=Path, help="PNG to write")
    parser.add_argument("--prometheus", required=True, metavar="URL")
    parser.add_argument("--minutes", type=float, default=60, help="how far back; default: 60")
    parser.add_argument("--end", type=float, default=None, metavar="SECONDS", help="Unix time; default: now")
    parser.add_argument("--scrape-seconds", type=float, default=15, help="of the Prometheus; default: 15")
    parser.add_argument("--set", action="append", default=[], metavar="VARIABLE=VALUE", help="what is chosen")
    given = parser.parse_args()
    end = time.time() if given.end is None else given.end
    window = Window(
        start_seconds=end - given.minutes * 60,
        end_seconds=end,
        scrape_seconds=given.scrape_seconds,
        chosen=dict(pair.split("=", 1) for pair in given.set),
    )
    board = json.loads(given.dashboard.read_text(encoding="utf-8"))
    draw(board, AtUrl(url=given.prometheus), window, given.picture)
    print(given.picture)


if __name__ == "__main__":
    main()
