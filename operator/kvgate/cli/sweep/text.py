"""The table of `kvgate sweep` for people."""

from collections.abc import Iterator

from kvgate.cli.sweep.words import (
    FITS,
    MAY,
    NO,
    REFUSED,
    UNKNOWN,
    cell_lines,
    edge_of,
    share_text,
    state,
    subtitle,
    title,
)
from kvgate.cli.terminal import Line, Styled, text_of
from kvgate.planning.sweep import Cell, Sweep

_MARKS = {FITS: "", MAY: "~", NO: "!", REFUSED: "x", UNKNOWN: "?"}
_WORDS = {MAY: "~ may not fit", NO: "! does not fit", REFUSED: "x refused by vLLM", UNKNOWN: "? unknown"}
_COLOURS = {FITS: "green", MAY: "yellow", NO: "red", REFUSED: "magenta", UNKNOWN: "cyan"}

_REASONS = 3
"""Refusals that are shown at most."""


def text_report(swept: Sweep) -> str:
    """Large values of y on top, as in a picture; under the columns the exact edge."""
    return text_of(_lines(swept))


def _lines(swept: Sweep) -> Iterator[Line]:
    yield title(swept)
    yield subtitle(swept)
    yield f"demand as a share of the KV cache that is expected{_legend(swept)}"
    yield ""
    yield from _table(swept)
    yield from _refusals(swept)
    if swept.at:
        yield ""
        yield from cell_lines(swept, *swept.at)


def _table(swept: Sweep) -> Iterator[Line]:
    numbers = list(reversed(range(len(swept.rows))))
    texts = {number: [_text(cell) for cell in swept.rows[number]] for number in numbers}
    if swept.at:
        column, row = swept.at
        texts[row][column] = f"[{texts[row][column]}]"
    lines = [[f"{swept.y.name} ↓  {swept.x.name} →", *swept.x.labels]]
    lines += [[swept.y.labels[number], *texts[number]] for number in numbers]
    lines += _edges(swept)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = [[cell.rjust(width) for cell, width in zip(line, widths, strict=True)] for line in lines]
    yield f"  {'  '.join(padded[0])}"
    for (label, *shown), number in zip(padded[1:], numbers, strict=False):
        coloured = (_coloured(cell, text) for cell, text in zip(swept.rows[number], shown, strict=True))
        yield f"  {label}", *(part for text in coloured for part in ("  ", text))
    yield from (f"  {'  '.join(line)}" for line in padded[1 + len(numbers) :])


def _legend(swept: Sweep) -> str:
    present = {state(cell) for row in swept.rows for cell in row}
    return "".join(f"; {word}" for name, word in _WORDS.items() if name in present)


def _text(cell: Cell) -> str:
    shown = share_text(cell)
    return _MARKS[state(cell)] + ("" if shown == "-" and state(cell) in (REFUSED, UNKNOWN) else shown)


def _coloured(cell: Cell, text: str) -> Styled:
    return Styled(text=text, colour=_COLOURS[state(cell)])


def _refusals(swept: Sweep) -> Iterator[str]:
    """Return vLLM's reasons for refusing, in the order of the columns."""
    cells = (cell for column in zip(*swept.rows, strict=True) for cell in column)
    reasons = list(dict.fromkeys(cell.refusal for cell in cells if cell.refusal))
    if reasons:
        yield ""
    yield from (f"  {_MARKS[REFUSED]} {reason}" for reason in reasons[:_REASONS])
    if len(reasons) > _REASONS:
        yield f"  {_MARKS[REFUSED]} {len(reasons) - _REASONS} more reasons; --at {swept.x.name},{swept.y.name} tells that of one point"


def _edges(swept: Sweep) -> list[list[str]]:
    if swept.edges is None:
        return []
    edges = [edge_of(swept, column) for column in range(len(swept.edges))]
    rows = [["fits up to", *(fits for fits, _ in edges)]]
    if any(fits != may_fit for fits, may_fit in edges):
        rows.append(["may fit up to", *(may_fit for _, may_fit in edges)])
    return rows
