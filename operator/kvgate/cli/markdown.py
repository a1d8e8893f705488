"""Tables, cells and code of Markdown, from text that anybody may have written."""

import re
from collections.abc import Iterable, Iterator, Sequence

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
"""Text of which GitHub or GitLab make a link; a comment inside prevents that, and a backslash does not."""


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Lines of a table; cells are Markdown already."""
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(row)} |"


def cell(text: str) -> str:
    """Text as it reads, on one line: no links, no mentions, no markup; pairs of single backquotes stay."""
    line = shortened(inert(" ".join(text.split())), MAX_CELL)
    runs = _BACKQUOTES.findall(line)
    is_paired = len(runs) % 2 == 0 and all(len(run) == 1 for run in runs)
    parts = line.split("`") if is_paired else [line.replace("`", "'")]
    return "`".join(part.replace("|", "\\|") if index % 2 else _plain(part) for index, part in enumerate(parts))


def code(text: str) -> str:
    """Text between backquotes, more of them than it has in a row: nothing in it is markup."""
    line = inert(text).replace("|", "\\|")
    fence = "`" * (1 + max(map(len, _BACKQUOTES.findall(line)), default=0))
    return f"{fence} {line} {fence}" if line[:1] == "`" or line[-1:] == "`" else f"{fence}{line}{fence}"


def _plain(text: str) -> str:
    escaped = _MARKUP.sub(lambda match: "&amp;" if match[0] == "&" else f"\\{match[0]}", text)
    return _CALLS.sub(r"\g<0><!-- -->", escaped)
