"""The report of `kvgate diff` for people: one block per engine that changed."""

from collections.abc import Iterator, Sequence

from kvgate.cli.check.text import broken_lines, finding_lines
from kvgate.cli.diff.cells import HEAD, assumptions, cells, default_texts, release_change, summary
from kvgate.cli.diff.report import Change, Diff
from kvgate.cli.terminal import Line, Styled, text_of
from kvgate.vllm.options import ChangedDefault


def render(diff: Diff) -> str:
    """Write the report; unchanged engines are only counted."""
    return text_of(_lines(diff))


def _lines(diff: Diff) -> Iterator[Line]:
    for change in diff.changes:
        if change.kind != "unchanged":
            yield from _change_lines(change)
            yield ""
    for placed in diff.unreadable:
        yield from broken_lines(placed)
        yield ""
    yield summary(diff)


def _change_lines(change: Change) -> Iterator[Line]:
    item = change.item
    name, *values = cells(change)
    yield (
        f"{item.document.file}:{item.line}: ",
        Styled(text=name, colour="red" if change.is_worse else None, is_bold=True),
    )
    width = max(map(len, HEAD[1:]))
    for title, value in zip(HEAD[1:], values, strict=True):
        yield f"  {title:<{width}}  {value}"
    if assumed := assumptions(change):
        yield f"  {'assumed':<{width}}  {assumed}"
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
