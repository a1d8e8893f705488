"""A sweep as PNG, drawn by matplotlib: the extra `kvgate[plot]`."""

import io
from typing import Any

from kvgate.budget.interval import Verdict
from kvgate.cli.sweep.heatmap_grid import boundary
from kvgate.cli.sweep.words import (
    FITS,
    MAY,
    MEANINGS,
    NO,
    REFUSED,
    UNKNOWN,
    edge_of,
    legend,
    share_text,
    state,
    subtitle,
    title,
)
from kvgate.planning.sweep import Sweep
from kvgate.text.inert import inert
from kvgate.vllm.values import Unusable

_FACES = {FITS: "#aadfb9", MAY: "#ffdf8f", NO: "#f4b0a8", REFUSED: "#d1d9e0", UNKNOWN: "#c9d4f5"}
_HATCHES = {FITS: "", MAY: "//", NO: "xx", REFUSED: "--", UNKNOWN: "||"}
_INK, _CHOSEN = "#1f2328", "#0969da"
_DASHES: dict[str, Any] = {"edge low": "solid", "edge high": (0, (1.5, 1.5))}
_DPI = 120


def png(swept: Sweep) -> bytes:
    """The bytes of the file. Raises Unusable where matplotlib is not installed."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise Unusable(
            "a png needs matplotlib, which is not installed: pip install 'kvgate[plot]'; -o svg and -o html need nothing"
        ) from None
    with rc_context({"text.parse_math": False}):  # a name with two dollar signs is no formula
        return _drawn(swept)


def _drawn(swept: Sweep) -> bytes:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns, rows = len(swept.x.values), len(swept.y.values)
    figure = Figure(
        figsize=(3.2 + min(9.0, 0.8 * columns), 2.6 + min(6.0, 0.36 * rows)), dpi=_DPI, layout="constrained"
    )
    axes = FigureCanvasAgg(figure).figure.add_subplot()
    _draw_cells(axes, swept)
    _draw_edges(axes, swept)
    _draw_frame(axes, swept)
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()


def _draw_cells(axes: Any, swept: Sweep) -> None:
    """All of one state are one path: hatching each apart takes a minute for tens of thousands."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    places = [(column, row, cell) for row, cells in enumerate(swept.rows) for column, cell in enumerate(cells)]
    for name in MEANINGS:
        corners = [_corners(column, row) for column, row, cell in places if state(cell) == name]
        codes = (Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY) * len(corners)
        path = Path([corner for square in corners for corner in square], codes) if corners else Path([(0, 0)])
        style = {"facecolor": _FACES[name], "edgecolor": "#00000030", "linewidth": 0.4, "hatch": _HATCHES[name]}
        axes.add_patch(PathPatch(path, **style))
    if len(swept.x.values) <= 14 and len(swept.y.values) <= 20:
        for column, row, cell in places:
            axes.text(column + 0.5, row + 0.5, share_text(cell), ha="center", va="center", fontsize=8, color=_INK)


def _corners(column: int, row: int) -> tuple[tuple[int, int], ...]:
    """Around a cell and back."""
    return (column, row), (column + 1, row), (column + 1, row + 1), (column, row + 1), (column, row)


def _draw_edges(axes: Any, swept: Sweep) -> None:
    """The same sides as in the other pictures."""
    from matplotlib.collections import LineCollection

    for name, verdicts in (("edge high", (Verdict.FITS, Verdict.MAY_NOT_FIT)), ("edge low", (Verdict.FITS,))):
        sides = [
            [(column, row), (column, row + 1) if vertical else (column + 1, row)]
            for column, row, vertical in boundary(swept, verdicts)
        ]
        axes.add_collection(
            LineCollection(sides, colors=_INK, linewidths=2.2, linestyles=[_DASHES[name]], clip_on=False)
        )


def _draw_frame(axes: Any, swept: Sweep) -> None:
    from matplotlib.patches import Rectangle

    columns, rows = len(swept.x.values), len(swept.y.values)
    brackets = f" (in brackets: {swept.y.name} that fits, exactly)" if swept.edges is not None else ""
    axes.set(xlim=(0, columns), ylim=(0, rows), xlabel=swept.x.name + brackets, ylabel=swept.y.name)
    axes.set_title(f"{inert(title(swept))}\n{inert(subtitle(swept))}", loc="left", fontsize=9)
    every_column, every_row = max(1, columns // 12) if swept.x.is_numeric else 1, max(1, rows // 20)
    slant = {} if swept.x.is_numeric else {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    axes.set_xticks(
        [c + 0.5 for c in range(0, columns, every_column)], _ticks(swept)[::every_column], fontsize=8, **slant
    )
    axes.set_yticks(
        [r + 0.5 for r in range(0, rows, every_row)], [inert(text) for text in swept.y.labels[::every_row]], fontsize=8
    )
    if swept.at:
        axes.add_patch(Rectangle(swept.at, 1, 1, fill=False, edgecolor=_CHOSEN, linewidth=3, zorder=5))
    signs = [_sign(name, inert(text)) for name, text in legend(swept)]
    axes.figure.legend(handles=signs, loc="outside lower left", fontsize=8, frameon=False)


def _sign(name: str, text: str) -> Any:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    if name in MEANINGS:
        return Patch(facecolor=_FACES[name], hatch=_HATCHES[name], edgecolor="#00000060", label=text)
    if name == "ring":
        return Patch(fill=False, edgecolor=_CHOSEN, linewidth=3, label=text)
    return Line2D([], [], color=_INK, linewidth=2.2, linestyle=_DASHES[name], label=text)


def _ticks(swept: Sweep) -> list[str]:
    """The value, and under it the exact edge of its column."""
    if swept.edges is None:
        return list(map(inert, swept.x.labels))
    return [f"{inert(text)}\n({edge_of(swept, column)[0]})" for column, text in enumerate(swept.x.labels)]
