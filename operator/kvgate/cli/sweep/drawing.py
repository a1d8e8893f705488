"""A picture of boxes, lines and words in pixels from its upper left corner: written as SVG, or as PNG with matplotlib.

Looks are classes of the picture's style sheet. matplotlib is the extra `plot`; it takes the same looks from a table.
"""

import io
from collections import defaultdict
from collections.abc import Mapping
from html import escape
from typing import Any

from msgspec import Struct

from kvgate import INSTALL
from kvgate.text.inert import inert
from kvgate.vllm.values import UnusableValue


class Box(Struct, frozen=True, kw_only=True):
    """A rectangle."""

    width: float
    height: float
    x: float = 0
    y: float = 0
    look: str
    radius: float = 0
    """Radius of the corners in an SVG."""
    data: tuple[tuple[str, object], ...] = ()
    """Names and values of data attributes, for scripts."""
    tip: tuple[str, ...] | None = None
    """Lines that a browser shows while the pointer rests on the box."""


class Line(Struct, frozen=True, kw_only=True):
    """Horizontal and vertical strokes: (x, y, length to the right, length down)."""

    strokes: tuple[tuple[float, float, float, float], ...]
    look: str


class Caption(Struct, frozen=True, kw_only=True):
    """One line of text; `y` is its base line."""

    x: float
    y: float
    text: str
    look: str = ""
    anchor: str = ""
    """`middle` or `end`: the part of the text that stands at `x`; its start where this is empty."""
    degrees: float = 0
    """Slope, clockwise."""


Shape = Box | Line | Caption


class Picture(Struct, frozen=True, kw_only=True):
    """Shapes, the later ones on top; shapes that belong together share a tuple, and a line of the file."""

    name: str
    """Class of the whole picture, and the beginning of its ids."""
    title: str
    width: float
    height: float
    shapes: tuple[tuple[Shape, ...], ...]
    style: str
    hatches: Mapping[str, str]
    """Look → the path of its hatching over 12 × 12 pixels; the look NAME-back colours the ground."""


class Look(Struct, frozen=True, kw_only=True):
    """The look of a class in a PNG: colours as #rrggbb, lengths in pixels."""

    fill: str = "none"
    stroke: str = "none"
    width: float = 0
    hatch: str = ""
    dashes: tuple[float, float] | None = None
    text_size: float = 13
    is_bold: bool = False
    anchor: str = "start"


def escaped(text: str) -> str:
    """Return one line for HTML and SVG, inert and without markup."""
    return escape(inert(text))


def svg_text(picture: Picture) -> str:
    """Write the SVG element."""
    size = f'width="{picture.width:g}" height="{picture.height:g}"'
    hatches = "".join(
        f'<pattern id="hatch-{name}" width="12" height="12" patternUnits="userSpaceOnUse"><rect class="{name}-back" '
        f'width="12" height="12"/><path class="hatch" d="{path}"/></pattern>'
        for name, path in picture.hatches.items()
    )
    box = f'viewBox="0 0 {picture.width:g} {picture.height:g}" role="img" aria-labelledby="{picture.name}-title"'
    lines = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{picture.name}" {box}>',
        f'<title id="{picture.name}-title">{escaped(picture.title)}</title>',
        f"<style>{picture.style}</style>" if picture.style else "",
        f"<defs>{hatches}</defs>" if hatches else "",
        f'<rect class="page" {size} rx="6"/>',
        *("".join(map(_element, together)) for together in picture.shapes),
        "</svg>",
    )
    return "\n".join(line for line in lines if line)


def _element(shape: Shape) -> str:
    look = f' class="{shape.look}"' if shape.look else ""
    if isinstance(shape, Line):
        strokes = (f"M{x:g} {y:g}" + (f"v{down:g}" if down else f"h{right:g}") for x, y, right, down in shape.strokes)
        return f'<path{look} d="{"".join(strokes)}"/>'
    if isinstance(shape, Caption):
        anchor = f' text-anchor="{shape.anchor}"' if shape.anchor else ""
        place = f'x="{shape.x:g}" y="{shape.y:g}"'
        if shape.degrees:
            place = f'transform="translate({shape.x:g} {shape.y:g}) rotate({shape.degrees:g})"'
        return f"<text{look}{anchor} {place}>{escaped(shape.text)}</text>"
    data = "".join(f' data-{name}="{value}"' for name, value in shape.data)
    radius = f' rx="{shape.radius:g}"' if shape.radius else ""
    box = f'<rect{look}{data} x="{shape.x:g}" y="{shape.y:g}" width="{shape.width:g}" height="{shape.height:g}"{radius}'
    if shape.tip is None:
        return f"{box}/>"
    tip = f"<title>{chr(10).join(map(escaped, shape.tip))}</title>" if shape.tip else ""
    return f"{box}>{tip}</rect>"


_PIXELS_PER_INCH = 100
_SHARPNESS, _SHARP_UP_TO = 2, 2400
"""Dots of the file for a pixel of the picture; one dot where that would be more than so many dots in a row."""
_POINTS = 72 / _PIXELS_PER_INCH
"""Points of matplotlib in a pixel of the picture."""


def png(picture: Picture, looks: Mapping[str, Look]) -> bytes:
    """Draw the picture as PNG. Raises UnusableValue where matplotlib is not installed."""
    try:
        from matplotlib import rc_context
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UnusableValue(
            f"a png needs matplotlib, which is not installed: {INSTALL.format(extras='plot')}; -o svg and -o html need nothing"
        ) from None
    shapes = [shape for together in picture.shapes for shape in together]
    groups = defaultdict[tuple[type[Shape], str], list[Any]](list)
    for shape in shapes:
        groups[type(shape), shape.look].append(shape)
    # The first word of a look is its layer, and layers lie in the order in which they appear: numbers over all cells.
    layers = list(dict.fromkeys(shape.look.partition(" ")[0] for shape in shapes))
    with rc_context({"text.parse_math": False}):  # a name with two dollar signs is no formula
        inches = picture.width / _PIXELS_PER_INCH, picture.height / _PIXELS_PER_INCH
        sharpness = _SHARPNESS if picture.width * _SHARPNESS <= _SHARP_UP_TO else 1
        figure = Figure(figsize=inches, dpi=_PIXELS_PER_INCH * sharpness, facecolor=looks["page"].fill)
        axes = FigureCanvasAgg(figure).figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, picture.width), ylim=(picture.height, 0))
        axes.set_axis_off()
        for (kind, name), group in groups.items():
            _DRAWERS[kind](axes, group, looks[name], layers.index(name.partition(" ")[0]))
        stream = io.BytesIO()
        figure.savefig(stream, format="png", metadata={"Software": None})
        return stream.getvalue()


def _draw_boxes(axes: Any, boxes: list[Box], look: Look, layer: int) -> None:
    """All boxes of one look are one path: matplotlib needs a minute to hatch tens of thousands of them one by one."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path

    corners = [
        (box.x + right * box.width, box.y + down * box.height)
        for box in boxes
        for right, down in ((0, 0), (1, 0), (1, 1), (0, 1), (0, 0))
    ]
    codes = (Path.MOVETO, Path.LINETO, Path.LINETO, Path.LINETO, Path.CLOSEPOLY) * len(boxes)
    paint = {"facecolor": look.fill, "edgecolor": look.stroke, "linewidth": look.width * _POINTS, "hatch": look.hatch}
    axes.add_patch(PathPatch(Path(corners, codes), zorder=layer, **paint))


def _draw_lines(axes: Any, lines: list[Line], look: Look, layer: int) -> None:
    from matplotlib.collections import LineCollection

    strokes = [[(x, y), (x + right, y + down)] for line in lines for x, y, right, down in line.strokes]
    dashes = (0, look.dashes) if look.dashes else "solid"
    axes.add_collection(
        LineCollection(strokes, colors=look.stroke, linewidths=look.width * _POINTS, linestyles=[dashes], zorder=layer)
    )


def _draw_words(axes: Any, texts: list[Caption], look: Look, layer: int) -> None:
    for words in texts:
        axes.text(
            words.x, words.y, inert(words.text), color=look.fill, fontsize=look.text_size * _POINTS,
            fontweight="bold" if look.is_bold else "normal", rotation=-words.degrees, rotation_mode="anchor",
            ha={"start": "left", "middle": "center", "end": "right"}[words.anchor or look.anchor], va="baseline", zorder=layer,
        )  # fmt: skip


_DRAWERS: Mapping[type[Shape], Any] = {Box: _draw_boxes, Line: _draw_lines, Caption: _draw_words}
