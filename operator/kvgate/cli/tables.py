"""Columns of text."""

from collections.abc import Collection, Iterator, Sequence


def table(rows: Sequence[Sequence[str]], *, right: Collection[int] = ()) -> Iterator[str]:
    """One line per row, two spaces between columns; the columns of `right` end where their widest cell ends."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (
            cell.rjust(width) if number in right else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        yield "  ".join(cells).rstrip()
