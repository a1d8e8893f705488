"""Small pieces of Markdown."""

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table whose first column is aligned to the left, and all others to the right."""
    lines = [_line(head), "|".join(["", "---", *["---:"] * (len(head) - 1), ""])]
    return "\n".join([*lines, *map(_line, rows)])


def _line(cells: Iterable[object]) -> str:
    return f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in cells)} |"


def fixed(value: float, digits: int = 2) -> str:
    """Return the rounded number, never with a negative zero."""
    text = f"{value:.{digits}f}"
    return text.removeprefix("-") if float(text) == 0 else text


def signed(value: float, digits: int = 2) -> str:
    text = fixed(value, digits)
    return text if text.startswith("-") or float(text) == 0 else f"+{text}"
