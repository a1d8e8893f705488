"""A sweep as a picture: verdicts by colour, hatching and text, the out-of-memory boundary, the chosen point.

The SVG can be read on light and dark pages, and loads nothing from anywhere. The PNG is the same picture.
"""

from collections.abc import Collection, Iterator
from math import ceil, cos, radians, sin
from string import Template

from msgspec.structs import replace

from kvgate.budget import Verdict
from kvgate.cli.sweep.drawing import Box, Caption, Line, Look, Picture, Shape, png, svg_text
from kvgate.cli.sweep.report import (
    FITS,
    MAY,
    MEANINGS,
    NO,
    REFUSED,
    UNKNOWN,
    cell_lines,
    edge_of,
    legend,
    share_text,
    state,
    subtitle,
    title,
)
from kvgate.planning.sweep import Sweep

_COLOURS = {
    FITS: "#aadfb9", MAY: "#ffdf8f", NO: "#f4b0a8", REFUSED: "#d1d9e0", UNKNOWN: "#c9d4f5",
    "paper": "#ffffff", "ink": "#1f2328", "faint": "#59636e", "chosen": "#0969da",
}  # fmt: skip
"""Colours on light pages, and of the PNG."""
STYLE = Template("""
  .heatmap .page { fill: $paper; } .heatmap text { font: 13px system-ui, sans-serif; fill: $ink; }
  .heatmap .small { font-size: 11px; fill: $faint; } .heatmap .axis { font-weight: 600; }
  .heatmap .number { font-size: 11px; text-anchor: middle; }
  .heatmap .number, .heatmap .edge, .heatmap .ring, .heatmap .halo { pointer-events: none; }
  .heatmap .fits { fill: $fits; } .heatmap .may-back { fill: $may; } .heatmap .no-back { fill: $no; }
  .heatmap .refused-back { fill: $refused; } .heatmap .unknown-back { fill: $unknown; }
  .heatmap .may { fill: url(#hatch-may); } .heatmap .no { fill: url(#hatch-no); }
  .heatmap .refused { fill: url(#hatch-refused); } .heatmap .unknown { fill: url(#hatch-unknown); }
  .heatmap .hatch { fill: none; stroke: $ink; stroke-opacity: .28; }
  .heatmap .cell { stroke: $paper; stroke-width: .6; }
  .heatmap .edge { fill: none; stroke: $ink; stroke-width: 3; stroke-linecap: square; }
  .heatmap .high { stroke-dasharray: 3 5; }
  .heatmap .ring { fill: none; stroke: $chosen; stroke-width: 3; }
  .heatmap .halo { fill: none; stroke: $paper; stroke-width: 6; }
  @media (prefers-color-scheme: dark) {
    .heatmap .page { fill: #0d1117; } .heatmap text { fill: #f0f6fc; } .heatmap .small { fill: #b1bac4; }
    .heatmap .fits { fill: #1c6b38; } .heatmap .may-back { fill: #7d5a00; } .heatmap .no-back { fill: #8a2c22; }
    .heatmap .refused-back { fill: #484f58; } .heatmap .unknown-back { fill: #34457c; }
    .heatmap .hatch { stroke: #ffffff; stroke-opacity: .22; } .heatmap .cell { stroke: #0d1117; }
    .heatmap .edge { stroke: #ffffff; } .heatmap .ring { stroke: #58a6ff; } .heatmap .halo { stroke: #0d1117; }
  }
""").substitute(_COLOURS)
_HATCHES = {
    MAY: "M-2 10L10 -2M4 16L16 4",
    NO: "M0 0L12 12M12 0L0 12",
    REFUSED: "M0 6H12",
    UNKNOWN: "M6 0V12",
}
_PNG_HATCHES = {FITS: "", MAY: "//", NO: "xx", REFUSED: "--", UNKNOWN: "||"}
_PNG_LOOKS = {
    "page": Look(fill=_COLOURS["paper"]),
    "": Look(fill=_COLOURS["ink"]),
    "small": Look(fill=_COLOURS["faint"], text_size=11),
    "axis": Look(fill=_COLOURS["ink"], is_bold=True),
    "number": Look(fill=_COLOURS["ink"], text_size=11, anchor="middle"),
    **{f"cell {name}": Look(fill=_COLOURS[name], stroke="#00000030", width=0.6, hatch=hatch) for name, hatch in _PNG_HATCHES.items()},
    "edge low": Look(stroke=_COLOURS["ink"], width=3),
    "edge high": Look(stroke=_COLOURS["ink"], width=3, dashes=(1.5, 1.5)),
    "halo": Look(stroke=_COLOURS["paper"], width=6),
    "ring": Look(stroke=_COLOURS["chosen"], width=3),
}  # fmt: skip
"""The style sheet for matplotlib."""

_LEFT, _TOP, _RIGHT = 150, 84, 24
_WIDTH, _HEIGHT = 620, 420
"""Approximate size of all cells together."""
_LETTER, _BOLD = 8, 8.5
"""Width of a character, at most about."""
_SLANT = 30
"""Degrees by which names under narrow columns fall."""
_LEGEND_STEP = 20


class Grid:
    """Places of the cells in pixels; the first row is at the bottom."""

    def __init__(self, swept: Sweep) -> None:
        x, y = swept.x, swept.y
        self.rows = len(y.values)
        self.cell_width = round(min(96, max(14, _WIDTH / len(x.values))), 1)
        self.cell_height = round(min(40, max(10, _HEIGHT / self.rows)), 1)
        self.has_numbers = self.cell_width >= 40 and self.cell_height >= 16
        # Numbers under the columns are left out where they have no room; names are all written, and slant where they are too wide.
        label_width = _LETTER * (max(map(len, x.labels)) + 1)
        step = ceil(label_width / self.cell_width) if x.is_numeric else 1
        self.slants = not x.is_numeric and label_width > self.cell_width
        self.labelled_columns = range(0, len(x.values), step)
        self.labelled_rows = range(0, self.rows, max(1, -(-15 // int(self.cell_height))))

        # Left of the cells stand the values of y, and the name of x, next to its first value.
        first = 0 if self.slants else max(0, round(label_width - self.cell_width)) // 2
        self.left = max(_LEFT, 30 + _LETTER * max(map(len, y.labels)), 36 + _BOLD * len(x.name) + first)
        self.foot = round(_TOP + self.rows * self.cell_height, 1)
        self.labels_foot = self.foot + 18 + (round(label_width * sin(radians(_SLANT))) if self.slants else 0)
        self.legend_top = self.labels_foot + (54 if swept.edges is not None else 20)

        signs = [text for _, text in legend(swept)]
        overhang = label_width * cos(radians(_SLANT)) - self.cell_width / 2 if self.slants else 0
        cells = self.left + len(x.values) * self.cell_width + _RIGHT + max(0, round(overhang))
        head = 16 + max(len(title(swept)), len(subtitle(swept)) * 5 // 6) * _LETTER  # letters of the subtitle are small
        self.width = max(cells, head, self.left + 32 + max(map(len, signs)) * _LETTER, 640)
        self.height = self.legend_top + _LEGEND_STEP * len(signs) + 16

    def x(self, column: int) -> float:
        """Return the left side of a column."""
        return round(self.left + column * self.cell_width, 1)

    def y(self, row: int) -> float:
        """Return the upper side of a row."""
        return round(_TOP + (self.rows - 1 - row) * self.cell_height, 1)

    def middle(self, column: int) -> float:
        """Return the middle of a column."""
        return round(self.x(column) + self.cell_width / 2, 1)


def boundary(swept: Sweep, verdicts: Collection[Verdict]) -> Iterator[tuple[int, int, bool]]:
    """Return the sides at which memory runs out: (column, row, vertical), the left side of a cell or its lower side.

    Such a side is between a cell whose memory verdict is one of these and a neighbour whose is another. There are none where a
    verdict is unknown, and none between settings that vLLM refuses anyway.
    """
    for row, cells in enumerate(swept.rows):
        for column, cell in enumerate(cells):
            left = swept.rows[row][column - 1] if column else cell
            below = swept.rows[row - 1][column] if row else cell
            for neighbour, vertical in ((left, True), (below, False)):
                known = Verdict.UNKNOWN not in (cell.by_memory, neighbour.by_memory)
                counts = known and not (cell.refusal and neighbour.refusal)
                if counts and (cell.by_memory in verdicts) != (neighbour.by_memory in verdicts):
                    yield column, row, vertical


def svg(swept: Sweep) -> str:
    """Write a file of its own; browsers show the numbers of a cell while the pointer rests on it."""
    return svg_text(heat_map(swept)) + "\n"


def png_file(swept: Sweep) -> bytes:
    """Write the same picture as PNG. Raises Unusable where matplotlib is not installed."""
    return png(heat_map(swept, has_tips=False), _PNG_LOOKS)


def heat_map(swept: Sweep, *, has_tips: bool = True) -> Picture:
    """Return the picture; `has_tips` is False for a page that shows the numbers of a cell by itself."""
    grid = Grid(swept)
    return Picture(
        name="heatmap",
        title=f"{title(swept)}: {swept.x.name} by {swept.y.name}",
        width=grid.width,
        height=grid.height,
        shapes=tuple(_shapes(swept, grid, has_tips=has_tips)),
        style=STYLE,
        hatches=_HATCHES,
    )


def _shapes(swept: Sweep, grid: Grid, *, has_tips: bool) -> Iterator[tuple[Shape, ...]]:
    yield (Caption(x=16, y=26, text=title(swept)),)
    yield (Caption(x=16, y=44, text=subtitle(swept), look="small"),)
    width, height = grid.cell_width, grid.cell_height
    for row, cells in enumerate(swept.rows):
        for column, cell in enumerate(cells):
            x, y, look = grid.x(column), grid.y(row), f"cell {state(cell)}"
            place = (("column", column), ("row", row))
            tip = tuple(cell_lines(swept, column, row)) if has_tips else ()
            yield (Box(x=x, y=y, width=width, height=height, look=look, data=place, tip=tip),)
            if grid.has_numbers:
                yield (Caption(x=x + width / 2, y=y + height / 2 + 4, text=share_text(cell), look="number"),)
    yield from ((words,) for words in _axes(swept, grid))
    # The dashed line comes first, so that it never hides the certain one.
    for look, verdicts in (("edge high", (Verdict.FITS, Verdict.MAY_NOT_FIT)), ("edge low", (Verdict.FITS,))):
        strokes = tuple(
            (grid.x(column), grid.y(row), 0.0, grid.cell_height)
            if vertical
            else (grid.x(column), grid.y(row) + grid.cell_height, grid.cell_width, 0.0)
            for column, row, vertical in boundary(swept, verdicts)
        )
        if strokes:
            yield (Line(strokes=strokes, look=look),)
    if swept.at is not None:
        x, y, chosen = grid.x(swept.at[0]), grid.y(swept.at[1]), f"{swept.at[0]},{swept.at[1]}"
        ring = Box(x=x, y=y, width=width, height=height, radius=3, look="ring", data=(("chosen", chosen),))
        yield replace(ring, look="halo", data=()), ring
    for number, (look, meaning) in enumerate(legend(swept)):
        x, y = grid.left, grid.legend_top + number * _LEGEND_STEP
        sign: Shape = Line(strokes=((x, y + 7, 22, 0),), look=look)
        if look == "ring":
            sign = Box(x=x + 1, y=y, width=20, height=13, radius=3, look=look)
        elif look in MEANINGS:
            sign = Box(x=x, y=y, width=22, height=14, look=f"cell {look}")
        yield sign, Caption(x=x + 32, y=y + 11, text=meaning)


def _axes(swept: Sweep, grid: Grid) -> Iterator[Caption]:
    """Return the names of the axes and their values; under each column also the largest y that fits and that may fit."""
    yield Caption(x=16, y=_TOP - 10, text=swept.y.name, look="axis")
    for row in grid.labelled_rows:
        yield Caption(x=grid.left - 8, y=grid.y(row) + grid.cell_height / 2 + 4, text=swept.y.labels[row], anchor="end")
    for column in grid.labelled_columns:
        x, y, label = grid.middle(column), grid.foot + 18, swept.x.labels[column]
        if grid.slants:
            yield Caption(x=x - 6, y=y - 2, text=label, degrees=_SLANT)
        else:
            yield Caption(x=x, y=y, text=label, anchor="middle")
    yield Caption(x=grid.left - 28, y=grid.foot + 18, text=swept.x.name, look="axis", anchor="end")
    if swept.edges is None:
        return
    yield Caption(x=grid.left - 8, y=grid.labels_foot + 18, text="fits up to", look="small", anchor="end")
    yield Caption(x=grid.left - 8, y=grid.labels_foot + 33, text="may fit up to", look="small", anchor="end")
    for column in grid.labelled_columns:
        for drop, edge in zip((18, 33), edge_of(swept, column), strict=True):
            yield Caption(x=grid.middle(column), y=grid.labels_foot + drop, text=edge, look="small", anchor="middle")
