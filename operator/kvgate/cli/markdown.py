"""Tables and cells of Markdown, from text that anybody may have written."""

import re
from collections.abc import Iterable, Iterator, Sequence

_MARKUP = re.compile(r"[\\|<>\[\]*~]|(?<!\w)_|_(?!\w)")
_CALLS = re.compile(r"(?<!\w)[@#](?=\w)")
"""A person's name or an issue's number: a comment inside keeps it from being one, which a backslash does not."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines of a table; cells are Markdown already."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def cell(text: str) -> str:
    """Text as it reads, on one line: no links, no mentions, no markup; pairs of backquotes stay."""
    line = " ".join(text.split())
    parts = line.split("`") if line.count("`") % 2 == 0 else [line.replace("`", "'")]
    return "`".join(part.replace("|", "\\|") if index % 2 else _plain(part) for index, part in enumerate(parts))


def _plain(text: str) -> str:
    return _CALLS.sub(r"\g<0><!-- -->", _MARKUP.sub(r"\\\g<0>", text))
