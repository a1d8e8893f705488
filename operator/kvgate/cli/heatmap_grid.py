"""Where the cells of a heat map lie, and between which of them memory runs out; the first row is at the bottom."""

from collections.abc import Collection, Iterator

from kvgate.budget.interval import Verdict
from kvgate.record import record
from kvgate.sweep import Sweep

Segment = tuple[int, int, bool]
"""(column, row, vertical): the left side of a cell, or its lower one."""

_LEFT, _TOP, _RIGHT = 150, 84, 24
_WIDTH, _HEIGHT = 620, 420
"""Of the cells together, about."""


@record
class Grid:
    """Lengths in pixels of the picture."""

    columns: int
    rows: int
    has_edges: bool
    longest_label: int
    """Characters left of the cells."""

    @property
    def left(self) -> float:
        return max(_LEFT, 30 + 8 * self.longest_label)

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
        return max(self.left + self.columns * self.cell_width + _RIGHT, 640)

    @property
    def foot(self) -> float:
        """The lower end of the cells."""
        return round(_TOP + self.rows * self.cell_height, 1)

    @property
    def bottom(self) -> float:
        """Where the legend starts."""
        return self.foot + (72 if self.has_edges else 38)

    @property
    def has_numbers(self) -> bool:
        return self.cell_width >= 40 and self.cell_height >= 16

    @property
    def labelled_columns(self) -> range:
        """Every one that has room for its label."""
        return range(0, self.columns, max(1, -(-52 // int(self.cell_width))))

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
