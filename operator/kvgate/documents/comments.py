"""`# kvgate: …` in a manifest: what it says, and of which line."""

import re
from collections.abc import Iterator

from kvgate.record import record

_COMMENT = re.compile(r"#\s*kvgate:(.*)")
_SAYS_NOTHING = re.compile(r"\s*(?:#|---|$)")


@record
class Comment:
    """One comment that is for kvgate."""

    line: int
    """Line in the file, from 1."""
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
    found, about = list[Comment](), len(lines)
    for number in reversed(range(len(lines))):
        about = about if _SAYS_NOTHING.match(lines[number]) else number
        if match := _COMMENT.search(lines[number]):
            found.append(Comment(line=line_offset + number + 1, about=line_offset + about + 1, text=match[1].strip()))
    yield from reversed(found)
