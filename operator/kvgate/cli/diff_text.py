"""The report of `kvgate diff` for people: one block per engine that changed."""

from collections.abc import Iterator, Sequence

import click

from kvgate.changed_defaults import ChangedDefault
from kvgate.cli.check_text import broken_lines, finding_lines, printable
from kvgate.cli.diff_cells import HEAD, assumptions, cells, default_texts, release_change, summary
from kvgate.cli.diff_report import Change, Diff


def render(diff: Diff) -> str:
    """What is unchanged is only counted."""
    blocks = ["\n".join(_lines(change)) for change in diff.changes if change.kind != "unchanged"]
    blocks += map(broken_lines, diff.unreadable)
    return "\n\n".join([*blocks, summary(diff)])


def _lines(change: Change) -> Iterator[str]:
    item = change.item
    name, *values = map(printable, cells(change))
    yield f"{printable(item.document.file)}:{item.line}: {click.style(name, bold=True, fg='red' if change.is_worse else None)}"
    width = max(map(len, HEAD[1:]))
    for title, value in zip(HEAD[1:], values, strict=True):
        yield f"  {title:<{width}}  {value}"
    if assumed := assumptions(change):
        yield f"  {'assumed':<{width}}  {printable(assumed)}"
    if change.changed_defaults:
        yield f"  {release_change(change)} has other defaults for options that are not set:"
        yield from _default_lines(change.changed_defaults)
    if change.is_worse:
        yield from finding_lines(item.findings)


def _default_lines(changed: Sequence[ChangedDefault]) -> Iterator[str]:
    rows = list(map(default_texts, changed))
    width = max(len(flag) for flag, _ in rows)
    for flag, values in rows:
        yield f"    {flag:<{width}}  {values}"
