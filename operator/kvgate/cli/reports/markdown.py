"""The reports as Markdown: for a comment on a pull request, or for the summary of a job."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from kvgate.cli.markup import cell, code, markdown_table
from kvgate.cli.reports.report import Report, counting_results, shown_file
from kvgate.cli.reports.wording import (
    CHANGE_HEAD,
    assumptions,
    change_cells,
    default_change,
    difference_summary,
    outcome,
    release_change,
    summary,
)
from kvgate.rules.finding import Severity

if TYPE_CHECKING:  # `kvgate check` has none
    from kvgate.cli.reports.difference import Change, Difference

MAX_ROWS = 200
"""Engines and findings that are listed: GitHub takes comments of 65,536 characters."""
_MARKS = {Severity.ERROR: "❌", Severity.WARNING: "⚠️", Severity.INFO: "ℹ️"}


def render(report: Report) -> str:
    """Write the sum, a table of engines, and a list of findings."""
    lines = ["### kvgate", "", cell(summary(report))]
    engines = [item for item in report.items if item.verdict or item.is_refused]
    if engines:
        rows = []
        for item in engines[:MAX_ROWS]:
            place = _place(shown_file(item.document.file), item.line)
            rows.append((cell(item.title), item.verdict or "", outcome(item)[0], place))
        lines += ["", *markdown_table(("engine", "verdict", "", "where"), rows), *_rest(engines)]
    results = list(counting_results(report))
    if results:
        lines.append("")
        for result in results[:MAX_ROWS]:
            place = _place(shown_file(result.placed.file), result.placed.line)
            lines.append(f"- {_MARKS[result.level]} {place} **{result.placed.rule}** {cell(result.message)}")
        lines += _rest(results)
    return "\n".join(lines)


def _place(file: str, line: int) -> str:
    return code(f"{file}:{line}")


def _rest(listed: Sequence[object]) -> list[str]:
    return ["", f"… and {len(listed) - MAX_ROWS} more"] if len(listed) > MAX_ROWS else []


def render_difference(difference: Difference) -> str:
    """Write a table before → after of engines that change, what is assumed, changed defaults, and why engines no longer start."""
    changes = [change for change in difference.changes if change.kind != "unchanged"]
    lines = ["### kvgate: what this change does to KV cache capacity", "", cell(difference_summary(difference))]
    if changes:
        rows = [[cell(text) for text in change_cells(change)] for change in changes[:MAX_ROWS]]
        lines += ["", *markdown_table(CHANGE_HEAD, rows), *_rest(changes)]
    broken = (
        f"- ❌ {_place(placed.file, placed.line)} {cell(placed.finding.message)}" for placed in difference.unreadable
    )
    notes = [*_notes(changes[:MAX_ROWS]), *broken]
    return "\n".join([*lines, *([""] if notes else []), *notes])


def _notes(changes: Sequence[Change]) -> Iterator[str]:
    for change in changes:
        if assumed := assumptions(change):
            yield f"- {cell(change.item.title)}: assumed {cell(assumed)}"
    for change in changes:
        if change.changed_defaults:
            defaults = map(default_change, change.changed_defaults)
            listed = ", ".join(f"{code(flag)} {cell(default)}" for flag, default in defaults)
            release = cell(release_change(change))
            yield f"- {cell(change.item.title)}: {release} has other defaults for options that are not set: {listed}"
    for change in changes:
        yield from _reasons(change) if change.is_worse else ()


def _reasons(change: Change) -> Iterator[str]:
    for placed in change.item.findings:
        finding = placed.finding
        if finding.severity is Severity.ERROR:
            place = _place(change.file or placed.file, placed.line)
            remedy = f"; {cell(finding.remediation)}" if finding.remediation else ""
            yield f"- ❌ {place} **{finding.rule}** {cell(f'{change.item.title}: {finding.message}')}{remedy}"
