"""A sweep as a picture in SVG: verdicts by colour, hatching and text, the out-of-memory boundary, the chosen point.

Legible on light and dark pages; nothing is loaded from anywhere.
"""

from collections.abc import Iterator
from html import escape

from kvgate.budget.interval import Verdict
from kvgate.cli.sweep.heatmap_grid import SLANT, Grid, boundary
from kvgate.cli.sweep.words import (
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
from kvgate.text.inert import inert

STYLE = """
  .heatmap .page { fill: #ffffff; } .heatmap text { font: 13px system-ui, sans-serif; fill: #1f2328; }
  .heatmap .small { font-size: 11px; fill: #59636e; } .heatmap .axis { font-weight: 600; }
  .heatmap .number { font-size: 11px; text-anchor: middle; }
  .heatmap .number, .heatmap .edge, .heatmap .ring, .heatmap .halo { pointer-events: none; }
  .heatmap .fits { fill: #aadfb9; } .heatmap .may-back { fill: #ffdf8f; } .heatmap .no-back { fill: #f4b0a8; }
  .heatmap .refused-back { fill: #d1d9e0; } .heatmap .unknown-back { fill: #c9d4f5; }
  .heatmap .may { fill: url(#hatch-may); } .heatmap .no { fill: url(#hatch-no); }
  .heatmap .refused { fill: url(#hatch-refused); } .heatmap .unknown { fill: url(#hatch-unknown); }
  .heatmap .hatch { fill: none; stroke: #1f2328; stroke-opacity: .28; }
  .heatmap .cell { stroke: #ffffff; stroke-width: .6; }
  .heatmap .edge { fill: none; stroke: #1f2328; stroke-width: 3; stroke-linecap: square; }
  .heatmap .high { stroke-dasharray: 3 5; }
  .heatmap .ring { fill: none; stroke: #0969da; stroke-width: 3; }
  .heatmap .halo { fill: none; stroke: #ffffff; stroke-width: 6; }
  @media (prefers-color-scheme: dark) {
    .heatmap .page { fill: #0d1117; } .heatmap text { fill: #f0f6fc; } .heatmap .small { fill: #b1bac4; }
    .heatmap .fits { fill: #1c6b38; } .heatmap .may-back { fill: #7d5a00; } .heatmap .no-back { fill: #8a2c22; }
    .heatmap .refused-back { fill: #484f58; } .heatmap .unknown-back { fill: #34457c; }
    .heatmap .hatch { stroke: #ffffff; stroke-opacity: .22; } .heatmap .cell { stroke: #0d1117; }
    .heatmap .edge { stroke: #ffffff; } .heatmap .ring { stroke: #58a6ff; } .heatmap .halo { stroke: #0d1117; }
  }
"""
_HATCHES = {
    MAY: "M-2 10L10 -2M4 16L16 4",
    NO: "M0 0L12 12M12 0L0 12",
    REFUSED: "M0 6H12",
    UNKNOWN: "M6 0V12",
}
_LEGEND_STEP = 20
_ROLE = 'role="img" aria-labelledby="heatmap-title"'


def escaped(text: str) -> str:
    """Return one line for HTML and SVG, inert and without markup."""
    return escape(inert(text))


def svg(swept: Sweep) -> str:
    """A file of its own; browsers show the numbers of a cell where the pointer rests."""
    return drawing(swept, style=STYLE, titles=True) + "\n"


def drawing(swept: Sweep, *, style: str, titles: bool) -> str:
    """The SVG element, with its style inside, or without where a page has it."""
    grid = _grid(swept)
    signs = list(_legend(swept, grid))
    height = grid.bottom + _LEGEND_STEP * len(signs) + 16
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="heatmap" viewBox="0 0 {grid.width:g} {height:g}" {_ROLE}>',
        f'<title id="heatmap-title">{escaped(title(swept))}: {escaped(swept.x.name)} by {escaped(swept.y.name)}</title>',
        f"<style>{style}</style>" if style else "",
        f"<defs>{''.join(_hatch(name, path) for name, path in _HATCHES.items())}</defs>",
        f'<rect class="page" width="{grid.width:g}" height="{height:g}" rx="6"/>',
        _text(16, 26, title(swept)),
        _text(16, 44, subtitle(swept), "small"),
        *_cells(swept, grid, titles=titles),
        *_axes(swept, grid),
        *_edges(swept, grid),
        *_chosen(swept, grid),
        *signs,
        "</svg>",
    ]
    return "\n".join(line for line in lines if line)


def _grid(swept: Sweep) -> Grid:
    """Lengths in characters; those of the subtitle are small."""
    return Grid(
        columns=len(swept.x.values),
        rows=len(swept.y.values),
        has_edges=swept.edges is not None,
        longest_label=max(map(len, swept.y.labels)),
        name_length=len(swept.x.name),
        longest_column=max(map(len, swept.x.labels)),
        names_columns=not swept.x.is_numeric,
        title_length=max(len(title(swept)), len(subtitle(swept)) * 5 // 6),
        legend_length=max(len(text) for _, text in legend(swept)),
    )


def _hatch(name: str, path: str) -> str:
    return (
        f'<pattern id="hatch-{name}" width="12" height="12" patternUnits="userSpaceOnUse"><rect class="{name}-back" '
        f'width="12" height="12"/><path class="hatch" d="{path}"/></pattern>'
    )


def _cells(swept: Sweep, grid: Grid, *, titles: bool) -> Iterator[str]:
    for row, cells in enumerate(swept.rows):
        for column, cell in enumerate(cells):
            x, y = grid.x(column), grid.y(row)
            told = f"<title>{chr(10).join(map(escaped, cell_lines(swept, column, row)))}</title>" if titles else ""
            yield (
                f'<rect class="cell {state(cell)}" data-column="{column}" data-row="{row}" x="{x:g}" y="{y:g}" '
                f'width="{grid.cell_width:g}" height="{grid.cell_height:g}">{told}</rect>'
            )
            if grid.has_numbers:
                yield _text(x + grid.cell_width / 2, y + grid.cell_height / 2 + 4, share_text(cell), "number")


def _axes(swept: Sweep, grid: Grid) -> Iterator[str]:
    yield _text(16, grid.top - 10, swept.y.name, "axis")
    for row in grid.labelled_rows:
        yield _text(grid.left - 8, grid.y(row) + grid.cell_height / 2 + 4, swept.y.labels[row], anchor="end")
    for column in grid.labelled_columns:
        yield _column_label(grid, column, swept.x.labels[column])
    yield _text(grid.left - 22, grid.foot + 18, swept.x.name, "axis", anchor="end")
    if swept.edges is None:
        return
    yield _text(grid.left - 8, grid.labels_foot + 18, "fits up to", "small", anchor="end")
    yield _text(grid.left - 8, grid.labels_foot + 33, "may fit up to", "small", anchor="end")
    for column in grid.labelled_columns:
        for drop, edge in zip((18, 33), edge_of(swept, column), strict=True):
            yield _text(grid.middle(column), grid.labels_foot + drop, edge, "small", anchor="middle")


def _column_label(grid: Grid, column: int, text: str) -> str:
    x, y = grid.middle(column), grid.foot + 18
    if not grid.slants:
        return _text(x, y, text, anchor="middle")
    return f'<text transform="translate({x - 6:g} {y - 2:g}) rotate({SLANT})">{escaped(text)}</text>'


def _edges(swept: Sweep, grid: Grid) -> Iterator[str]:
    """The dashed line first, so that the certain one is never hidden."""
    for name, verdicts in (("edge high", (Verdict.FITS, Verdict.MAY_NOT_FIT)), ("edge low", (Verdict.FITS,))):
        path = "".join(grid.segment(*segment) for segment in boundary(swept, verdicts))
        if path:
            yield f'<path class="{name}" d="{path}"/>'


def _chosen(swept: Sweep, grid: Grid) -> Iterator[str]:
    if swept.at is None:
        return
    column, row = swept.at
    place = (
        f'x="{grid.x(column):g}" y="{grid.y(row):g}" width="{grid.cell_width:g}" height="{grid.cell_height:g}" rx="3"'
    )
    yield f'<rect class="halo" {place}/><rect class="ring" data-chosen="{column},{row}" {place}/>'


def _legend(swept: Sweep, grid: Grid) -> Iterator[str]:
    for number, (name, text) in enumerate(legend(swept)):
        y = grid.bottom + number * _LEGEND_STEP
        yield _sign(name, grid.left, y) + _text(grid.left + 32, y + 11, text)


def _sign(name: str, x: float, y: float) -> str:
    if name == "ring":
        return f'<rect class="ring" x="{x + 1:g}" y="{y:g}" width="20" height="13" rx="3"/>'
    if name in MEANINGS:
        return f'<rect class="cell {name}" x="{x:g}" y="{y:g}" width="22" height="14"/>'
    return f'<path class="{name}" d="M{x:g} {y + 7:g}h22"/>'


def _text(x: float, y: float, text: str, name: str = "", *, anchor: str = "") -> str:
    attributes = (f' class="{name}"' if name else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text{attributes} x="{x:g}" y="{y:g}">{escaped(text)}</text>'
