"""Colours of drawn panels, and the box of pixels that a panel is drawn into."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

CANVAS, CARD, EDGE, GRID, TEXT, FAINT = "#f3f4f6", "#ffffff", "#dde1e6", "#e9ecef", "#1f2328", "#6b7480"
PALETTE = ("#4269d0", "#e8890c", "#2f9e44", "#9467bd", "#0c8599", "#d6336c", "#b58900", "#5c677d", "#7cb342", "#a0522d")
STYLE = {"font.family": "DejaVu Sans", "font.size": 8.5, "text.color": TEXT, "text.parse_math": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class Box:
    """A part of the figure, in pixels from its upper left corner."""

    figure: Figure
    left: float
    top: float
    width: float
    height: float

    def inner(self, left: float, top: float, right: float, bottom: float) -> Box:
        """Return the box inside these margins."""
        return Box(
            figure=self.figure,
            left=self.left + left,
            top=self.top + top,
            width=self.width - left - right,
            height=self.height - top - bottom,
        )

    def text(self, x: float, y: float, text: str, *, align: str = "left", **look: Any) -> None:
        """One line; `y` is the middle of its letters."""
        width, height = self._whole()
        at = ((self.left + x) / width, 1 - (self.top + y) / height)
        self.figure.text(*at, text, ha=align, va="center_baseline", **look)

    def width_of(self, text: str, **look: Any) -> float:
        """Pixels that a line takes."""
        drawn = self.figure.text(0, 0, text, **look)
        width = drawn.get_window_extent(self.figure.canvas.get_renderer()).width
        drawn.remove()
        return float(width)

    def shortened(self, text: str, width: float, **look: Any) -> str:
        """The text, or as much of it as fits."""
        if self.width_of(text, **look) <= width:
            return text
        while text and self.width_of(text + "…", **look) > width:
            text = text[:-1]
        return text + "…"

    def axes(self) -> Axes:
        """Axes over the whole box."""
        width, height = self._whole()
        return self.figure.add_axes(
            (self.left / width, 1 - (self.top + self.height) / height, self.width / width, self.height / height)
        )

    def fill(self, colour: str, *, edge: str = "none", radius: float = 0) -> None:
        """The box itself, with round corners."""
        patch = FancyBboxPatch(
            (self.left + radius, self._whole()[1] - self.top - self.height + radius),
            max(self.width - 2 * radius, 0.1),
            max(self.height - 2 * radius, 0.1),
            boxstyle=f"round,pad={radius}" if radius else "square,pad=0",
            facecolor=colour,
            edgecolor=edge,
            linewidth=0.8,
            zorder=-1,  # below all axes
        )
        self.figure.add_artist(patch)
        patch.set_transform(None)

    def _whole(self) -> tuple[float, float]:
        width, height = self.figure.get_size_inches() * self.figure.dpi
        return float(width), float(height)
