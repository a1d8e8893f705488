"""Text that anybody may have written, as a part of Markdown, HTML, SVG and XML: nothing in it acts as markup."""

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from kvgate.judge.summary import shortened
from kvgate.text.inert import inert

MAX_CELL = 2000
"""Characters of one sentence: GitHub takes comments of 65,536."""
_MARKUP = re.compile(r"[\\|<>\[\]*~]|(?<!\w)_|_(?!\w)|&(?=#?\w+;)")
_BACKQUOTES = re.compile("`+")
_CALLS = re.compile(
    r"(?<![A-Za-z0-9_])[@#](?=\w)|#(?=\d)|@(?=[0-9a-f]{7,40}\b|[\w.-]+\.\w)"  # a person, an issue, a commit, an address
    r"|\b(?:https?|ftp):(?=//)|\bwww(?=\.)|\bGH-(?=\d)"
    r"|[!%$&](?=\d)|~(?=\w)|\[(?=\w+:)",  # GitLab's merge requests, milestones, snippets, epics, labels
    re.IGNORECASE,
)
"""Text that GitHub or GitLab turn into a link. A comment behind it prevents that; a backslash before it does not."""


def escaped(text: str) -> str:
    """Return one line for HTML, SVG and XML, inert and without markup."""
    return escape(inert(text))


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a table; its cells are Markdown already."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def cell(text: str) -> str:
    """Return Markdown that reads as the text, on one line: no links, no mentions, no markup; pairs of single backquotes stay."""
    line = shortened(inert(" ".join(text.split())), MAX_CELL)
    runs = _BACKQUOTES.findall(line)
    is_paired = len(runs) % 2 == 0 and all(len(run) == 1 for run in runs)
    parts = line.split("`") if is_paired else [line.replace("`", "'")]
    return "`".join(part.replace("|", "\\|") if index % 2 else _plain(part) for index, part in enumerate(parts))


def _plain(text: str) -> str:
    without_markup = _MARKUP.sub(lambda match: "&amp;" if match[0] == "&" else f"\\{match[0]}", text)
    return _CALLS.sub(r"\g<0><!-- -->", without_markup)


def code(text: str) -> str:
    """Return Markdown code: the fence has more backquotes than the text has in a row, so nothing in it is markup."""
    line = inert(text).replace("|", "\\|")
    fence = "`" * (1 + max(map(len, _BACKQUOTES.findall(line)), default=0))
    return f"{fence} {line} {fence}" if line[:1] == "`" or line[-1:] == "`" else f"{fence}{line}{fence}"
