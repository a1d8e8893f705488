"""The report of `kvgate diff` as Markdown: a comment on a pull request with a table before → after."""

from collections.abc import Iterator, Sequence

from kvgate.cli.check.markdown_report import MAX_ROWS
from kvgate.cli.diff.cells import HEAD, assumptions, cells, default_texts, release_change, summary
from kvgate.cli.diff.report import Change, Diff
from kvgate.cli.markup import cell, code, markdown_table
from kvgate.rules.finding import Severity


def render(diff: Diff) -> str:
    """Engines that change, what was assumed, the defaults that a release brings them, then why those that no longer start do not."""
    told = [change for change in diff.changes if change.kind != "unchanged"]
    lines = ["### kvgate: what this change does to KV cache capacity", "", cell(summary(diff))]
    if told:
        lines += ["", *markdown_table(HEAD, ([cell(text) for text in cells(change)] for change in told[:MAX_ROWS]))]
    if len(told) > MAX_ROWS:
        lines += ["", f"… and {len(told) - MAX_ROWS} more"]
    broken = [
        f"- ❌ {code(f'{placed.file}:{placed.line}')} {cell(placed.finding.message)}" for placed in diff.unreadable
    ]
    notes = [*_notes(told[:MAX_ROWS]), *broken]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _notes(changes: Sequence[Change]) -> Iterator[str]:
    yield from (_assumed(change) for change in changes if assumptions(change))
    yield from (_defaults(change) for change in changes if change.changed_defaults)
    for change in changes:
        if change.is_worse:
            yield from _reasons(change)


def _assumed(change: Change) -> str:
    return f"- {cell(change.item.subject)}: assumed {cell(assumptions(change))}"


def _defaults(change: Change) -> str:
    rows = (default_texts(each) for each in change.changed_defaults)
    listed = ", ".join(f"{code(flag)} {cell(values)}" for flag, values in rows)
    return f"- {cell(change.item.subject)}: {cell(release_change(change))} has other defaults for options that are not set: {listed}"


def _reasons(change: Change) -> Iterator[str]:
    for placed in change.item.findings:
        if placed.finding.severity is Severity.ERROR:
            finding = placed.finding
            where = code(f"{change.file or placed.file}:{placed.line}")
            remedy = f"; {cell(finding.remediation)}" if finding.remediation else ""
            yield f"- ❌ {where} **{finding.rule}** {cell(f'{change.item.subject}: {finding.message}')}{remedy}"
