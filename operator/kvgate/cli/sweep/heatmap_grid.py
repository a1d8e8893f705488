"""Places of the cells of a heat map, and the edge at which memory runs out; the first row is at the bottom."""

from collections.abc import Collection, Iterator
from math import ceil, cos, radians, sin

from kvgate.budget.interval import Verdict
from kvgate.planning.sweep import Sweep
from kvgate.record import record

Segment = tuple[int, int, bool]
"""(column, row, vertical): the left side of a cell, or its lower one."""

_LEFT, _TOP, _RIGHT = 150, 84, 24
_WIDTH, _HEIGHT = 620, 420
"""Approximate size of all cells together."""
_LETTER, _BOLD = 8, 8.5
"""Width of a character, at most about."""
SLANT = 30
"""Degrees by which names under narrow columns fall."""


@record
class Grid:
    """Lengths in pixels of the picture."""

    columns: int
    rows: int
    has_edges: bool
    longest_label: int
    """Characters left of the cells."""
    name_length: int
    """Characters of the setting whose values stand under the columns; it stands left of them."""
    longest_column: int
    """Characters under a column."""
    names_columns: bool
    """Names are all written; of numbers those that have room."""
    title_length: int
    """Characters."""
    legend_length: int

    @property
    def left(self) -> float:
        first = 0 if self.slants else max(0, round(self._column_label - self.cell_width)) // 2
        return max(_LEFT, 30 + _LETTER * self.longest_label, 30 + _BOLD * self.name_length + first)

    @property
    def top(self) -> float:
        return _TOP

    @property
    def cell_width(self) -> float:
        return round(min(96, max(14, _WIDTH / self.columns)), 1)

    @property
    def cell_height(self) -> float:
        return round(min(40, max(10, _HEIGHT / self.rows)), 1)

    @property
    def width(self) -> float:
        cells = self.left + self.columns * self.cell_width + _RIGHT
        overhang = self._column_label * cos(radians(SLANT)) - self.cell_width / 2 if self.slants else 0
        words = max(16 + self.title_length * _LETTER, self.left + 32 + self.legend_length * _LETTER)
        return max(cells + max(0, round(overhang)), words, 640)

    @property
    def foot(self) -> float:
        """The lower end of the cells."""
        return round(_TOP + self.rows * self.cell_height, 1)

    @property
    def labels_foot(self) -> float:
        """The lower end of what stands under the columns."""
        return self.foot + 18 + (round(self._column_label * sin(radians(SLANT))) if self.slants else 0)

    @property
    def bottom(self) -> float:
        """Height at which the legend starts."""
        return self.labels_foot + (54 if self.has_edges else 20)

    @property
    def slants(self) -> bool:
        """True where names are wider than their columns."""
        return self.names_columns and self._column_label > self.cell_width

    @property
    def _column_label(self) -> float:
        return _LETTER * (self.longest_column + 1)

    @property
    def has_numbers(self) -> bool:
        return self.cell_width >= 40 and self.cell_height >= 16

    @property
    def labelled_columns(self) -> range:
        """Every one that has room for its label."""
        step = 1 if self.names_columns else ceil(self._column_label / self.cell_width)
        return range(0, self.columns, step)

    @property
    def labelled_rows(self) -> range:
        return range(0, self.rows, max(1, -(-15 // int(self.cell_height))))

    def x(self, column: int) -> float:
        """Left side."""
        return round(self.left + column * self.cell_width, 1)

    def y(self, row: int) -> float:
        """Upper side."""
        return round(_TOP + (self.rows - 1 - row) * self.cell_height, 1)

    def middle(self, column: int) -> float:
        return round(self.x(column) + self.cell_width / 2, 1)

    def segment(self, column: int, row: int, vertical: bool) -> str:  # noqa: FBT001 - a Segment, spread
        """The path of one side of a cell."""
        if vertical:
            return f"M{self.x(column):g} {self.y(row):g}v{self.cell_height:g}"
        return f"M{self.x(column):g} {self.y(row) + self.cell_height:g}h{self.cell_width:g}"


def boundary(swept: Sweep, verdicts: Collection[Verdict]) -> Iterator[Segment]:
    """Sides between a cell whose memory verdict is one of these and a neighbour whose is another.

    There are none where a verdict is unknown, and none among settings that vLLM refuses anyway.
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
