"""A sweep as a picture by matplotlib, the extra `plot`: verdicts by colour, hatching and text, the boundary, the chosen point.

The SVG can be read on light and dark pages, and loads nothing from anywhere. The PNG is the same picture.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING, Any
from warnings import catch_warnings

from kvgate import INSTALL
from kvgate.cli.sweep.page import escaped
from kvgate.cli.sweep.report import (
    BOUNDARIES,
    FITS,
    MAY,
    NO,
    REFUSED,
    UNKNOWN,
    boundary,
    cell_lines,
    edge_rows,
    legend,
    share_text,
    state,
    subtitle,
    title,
)
from kvgate.planning.sweep import Sweep
from kvgate.text.inert import inert
from kvgate.vllm.values import UnusableValue

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK = "#1f2328"
_LOOKS: dict[str, dict[str, Any]] = {
    FITS: {"facecolor": "#aadfb9"},
    MAY: {"facecolor": "#ffdf8f", "hatch": "//"},
    NO: {"facecolor": "#f4b0a8", "hatch": "xx"},
    REFUSED: {"facecolor": "#d1d9e0", "hatch": "--"},
    UNKNOWN: {"facecolor": "#c9d4f5", "hatch": "||"},
    "edge low": {"color": _INK, "linewidth": 2},
    "edge high": {"color": _INK, "linewidth": 2, "linestyle": (0, (1.5, 1.5))},
    "ring": {"facecolor": "none", "edgecolor": "#0969da", "linewidth": 2},
}
"""Sign of the legend → its look in words of matplotlib."""
_SETTINGS = {
    "axes.titlesize": 10,
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "hatch.linewidth": 0.5,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "kvgate",  # ids are the same each time
    "text.color": _INK,
    "text.parse_math": False,  # a name with two dollar signs is no formula
    "xtick.major.size": 0,
    "ytick.major.size": 0,
}
_INCHES = (6.2, 0.16, 0.96), (4.2, 0.1, 0.4)
"""Width and height: of all cells together, and of one, at least and at most."""
_MIN_NAMED_INCHES = 0.4
"""Width of a cell under which a name stands, at least."""
_LETTER_INCHES, _LINE_INCHES = 0.09, 0.16
_SHARP_UP_TO_INCHES = 12
"""Width of a PNG up to which it has 200 dots per inch, and not 100."""
_DARK = "@media (prefers-color-scheme: dark) { #figure_1 { filter: invert(1) hue-rotate(180deg); } }"


def svg(swept: Sweep) -> str:
    """Write a file of its own; browsers show the numbers of a cell while the pointer rests on it."""
    with drawing():
        figure, axes = _drawn(swept)
        box, tips = frame(figure), []
        for row, cells in enumerate(swept.rows):
            for column, cell in enumerate(cells):
                left, bottom = axes.transData.transform((column, row)) / figure.dpi
                right, top = axes.transData.transform((column + 1, row + 1)) / figure.dpi
                inches = {"x": left - box.x0, "y": box.y1 - top, "width": right - left, "height": top - bottom}
                place = " ".join(f'{name}="{72 * length:.1f}"' for name, length in inches.items())
                look = f'class="cell {state(cell)}" data-column="{column}" data-row="{row}"'
                tip = "\n".join(map(escaped, cell_lines(swept, column, row)))
                tips.append(f'<rect {look} {place} fill="none" pointer-events="all"><title>{tip}</title></rect>')
        return svg_of(figure, f"{title(swept)}: {swept.x.name} by {swept.y.name}", "\n".join(tips))


def png(swept: Sweep) -> bytes:
    """Write the same picture as PNG."""
    stream = io.BytesIO()
    with drawing():
        figure, _ = _drawn(swept)
        box = frame(figure)
        dots = 200 if box.width <= _SHARP_UP_TO_INCHES else 100
        figure.savefig(stream, format="png", dpi=dots, bbox_inches=box, metadata={"Software": None})
    return stream.getvalue()


@contextmanager
def drawing() -> Iterator[None]:
    """Draw the same bytes each time, and any text as it is. Raises UnusableValue where matplotlib is not installed."""
    try:
        from matplotlib import rc_context
    except ImportError:
        install = INSTALL.format(extras="plot")
        raise UnusableValue(
            f"a picture needs matplotlib, which is not installed: {install}; -o html needs nothing"
        ) from None
    with rc_context(_SETTINGS), catch_warnings(action="ignore"):  # a sign that the font lacks is drawn as a box
        yield


def frame(figure: "Figure") -> Any:
    """Return the box around everything that is drawn, in inches."""
    return figure.get_tightbbox().padded(0.15)


def svg_of(figure: "Figure", name: str, above: str = "") -> str:
    """Write a figure as SVG that follows dark pages, with elements above it."""
    stream = io.StringIO()
    described = {"Title": inert(name), "Creator": None, "Date": None, "Format": None, "Type": None}
    figure.savefig(stream, format="svg", bbox_inches=frame(figure), metadata=described)
    text = stream.getvalue()
    text = text[text.index("<svg ") :].replace("</style>", f"{_DARK}</style>", 1)
    return text.replace("<svg ", '<svg role="img" ', 1).replace("</svg>", f"{above}</svg>")


def _drawn(swept: Sweep) -> tuple["Figure", "Axes"]:
    """Draw everything; a cell is one unit of both axes."""
    from matplotlib.collections import LineCollection
    from matplotlib.figure import Figure
    from matplotlib.patches import PathPatch, Rectangle
    from matplotlib.path import Path

    (columns, width), (rows, height) = (
        (len(axis.values), min(most, max(least, whole / len(axis.values))))
        for axis, (whole, least, most) in zip((swept.x, swept.y), _INCHES, strict=True)
    )
    width = width if swept.x.is_numeric else max(width, _MIN_NAMED_INCHES)
    figure = Figure(figsize=(columns * width, rows * height))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, columns), ylim=(0, rows))
    corners = {name: list[tuple[int, int]]() for name in _LOOKS}
    for row, cells in enumerate(swept.rows):
        for column, cell in enumerate(cells):
            corners[state(cell)] += [(column + x, row + y) for x, y in ((0, 0), (1, 0), (1, 1), (0, 1), (0, 0))]
            if width >= 0.4 and height >= _LINE_INCHES:
                axes.text(column + 0.5, row + 0.5, share_text(cell), ha="center", va="center_baseline", size=8)
    # All cells of one state are one path: matplotlib needs a minute to hatch tens of thousands of them one by one.
    square = (Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY)
    for name, points in corners.items():
        if points:
            path = Path(points, square * (len(points) // len(square)))
            axes.add_patch(PathPatch(path, edgecolor="#00000030", linewidth=0.4, gid=name, **_LOOKS[name]))
    # The dashed line comes first, so that it never hides the certain one.
    for sign in reversed(BOUNDARIES):
        strokes = [[(x, y), (x, y + 1) if is_vertical else (x + 1, y)] for x, y, is_vertical in boundary(swept, sign)]
        axes.add_collection(LineCollection(strokes, gid=f"edge-{sign}", zorder=2, **_LOOKS[f"edge {sign}"]))
    if swept.at is not None:
        axes.add_patch(Rectangle(swept.at, 1, 1, fill=False, edgecolor="#ffffff", linewidth=4, zorder=2))
        axes.add_patch(Rectangle(swept.at, 1, 1, gid="ring", zorder=2, **_LOOKS["ring"]))
    _label(swept, figure, axes, width, height)
    return figure, axes


def _label(swept: Sweep, figure: "Figure", axes: "Axes", width: float, height: float) -> None:
    """Write names, values, as far as cells of this size have room for them, the exact edges, and the legend below all that."""
    from matplotlib.artist import Artist
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    labels, edges = list(map(inert, swept.x.labels)), list(edge_rows(swept))
    room = _LETTER_INCHES * (max(map(len, labels)) + 1)
    shown = range(0, len(labels), ceil(room / width) if swept.x.is_numeric else 1)
    slant: dict[str, Any] = {}
    if room > width and not swept.x.is_numeric:
        slant = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"}
    places = [column + 0.5 for column in shown]
    axes.set_xticks(places, [labels[column] for column in shown], **slant)
    axes.set_xlabel(swept.x.name, weight="bold")
    tall = range(0, len(swept.y.values), ceil(_LINE_INCHES / height))
    axes.set_yticks([row + 0.5 for row in tall], [inert(swept.y.labels[row]) for row in tall])
    axes.set_ylabel(swept.y.name, weight="bold")
    if edges:
        above = axes.secondary_xaxis("top")
        above.set_xticks(places, ["\n".join(row[column + 1] for row in edges) for column in shown])
        names = "\n".join(name for name, *_ in edges)
        axes.annotate(
            names,
            (0, 1),
            xytext=(-12, 3.5),
            textcoords="offset points",
            xycoords="axes fraction",
            ha="right",
            va="bottom",
        )
    axes.set_title(f"{inert(title(swept))}\n{inert(subtitle(swept))}", loc="left")
    signs: list[Artist] = []
    for name, meaning in legend(swept):
        look = {"label": inert(meaning), **_LOOKS[name]}
        signs.append(Line2D([], [], **look) if "edge" in name else Patch(**look))
    below = axes.transAxes.inverted().transform((0, figure.get_tightbbox().y0 * figure.dpi))[1]
    axes.legend(handles=signs, loc="upper left", bbox_to_anchor=(0, below), borderaxespad=0)
