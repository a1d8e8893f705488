"""The report of `kvgate check` as Markdown: for a comment on a pull request, or the summary of a job."""

from collections.abc import Iterator

from kvgate.cli.check.report import Item, Report
from kvgate.cli.check.results import Result, results, shown_file
from kvgate.cli.check.text import outcome, summary
from kvgate.cli.markup import cell, code, markdown_table

MAX_ROWS = 200
"""Engines and findings that are listed: GitHub takes comments of 65,536 characters."""
_MARKS = {"error": "❌", "warning": "⚠️", "info": "ℹ️"}


def render(report: Report) -> str:
    """The sum, a table of engines, a list of findings."""
    return "\n".join(["### kvgate", "", cell(summary(report)), *_engines(report), *_findings(report)])


def _engines(report: Report) -> Iterator[str]:
    items = [item for item in report.items if item.verdict or item.is_refused]
    if items:
        yield ""
        yield from markdown_table(("engine", "verdict", "", "where"), map(_row, items[:MAX_ROWS]))
        yield from _rest(len(items))


def _row(item: Item) -> tuple[str, ...]:
    where = code(f"{shown_file(item.document.file)}:{item.line}")
    return cell(item.subject), item.verdict or "", outcome(item), where


def _findings(report: Report) -> Iterator[str]:
    found = list(results(report))
    if found:
        yield ""
        yield from map(_line, found[:MAX_ROWS])
        yield from _rest(len(found))


def _line(result: Result) -> str:
    placed = result.placed
    where = code(f"{shown_file(placed.file)}:{placed.line}")
    return f"- {_MARKS[result.level.value]} {where} **{placed.rule}** {cell(result.message)}"


def _rest(count: int) -> Iterator[str]:
    if count > MAX_ROWS:
        yield ""
        yield f"… and {count - MAX_ROWS} more"
