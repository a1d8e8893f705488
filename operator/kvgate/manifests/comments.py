"""`# kvgate: …` in a manifest: what it says, and of which line."""

import re
from collections.abc import Iterator

from kvgate.record import record

_COMMENT = re.compile(r"^(.*?)#\s*kvgate:([^\n]*)$", re.MULTILINE)
_SAYS_NOTHING = re.compile(r"\s*(?:#|---|$)")


@record
class Comment:
    """One comment that is for kvgate."""

    line: int
    """In the file, from 1."""
    about: int
    """The line that it speaks of: its own, or the next one where it stands alone."""
    text: str
    """After `kvgate:`."""

    @property
    def stands_alone(self) -> bool:
        return self.about != self.line


def comments_in(text: str, line_offset: int) -> Iterator[Comment]:
    """Every comment of a document's text."""
    if "kvgate:" not in text:
        return
    lines = text.split("\n")
    for match in _COMMENT.finditer(text):
        number = text.count("\n", 0, match.start())
        about = number if not _SAYS_NOTHING.match(match[1]) else _next_that_says(lines, number + 1)
        yield Comment(line=line_offset + number + 1, about=line_offset + about + 1, text=match[2].strip())


def _next_that_says(lines: list[str], number: int) -> int:
    """Over other comments and empty lines."""
    return next((n for n in range(number, len(lines)) if not _SAYS_NOTHING.match(lines[n])), len(lines))
