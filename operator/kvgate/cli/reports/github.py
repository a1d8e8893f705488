"""The report of `kvgate check` as workflow commands: GitHub Actions shows each finding on its line of the pull request."""

from kvgate.cli.reports.placed import shown_file
from kvgate.cli.reports.report import Report, counting_results
from kvgate.cli.reports.wording import notes, summary, unrendered_lines
from kvgate.findings.finding import Severity
from kvgate.text.inert import inert, inert_line

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def render(report: Report) -> str:
    """Write errors first: GitHub shows ten of a kind and step."""
    lines = []
    for result in sorted(
        counting_results(report), key=lambda result: list(Severity).index(result.placed.finding.severity)
    ):
        placed = result.placed
        place = f"file={_property(shown_file(placed.file))},line={placed.line},col={placed.column}"
        command = f"{_COMMANDS[result.placed.finding.severity]} {place},title={_property(placed.rule)}"
        lines.append(f"::{command}::{_data(result.message)}")
    for note in notes(report):
        place = f"file={_property(shown_file(note.file))},line={note.line},col=1"
        lines.append(f"::notice {place},title={note.title}::{_data(note.text)}")
    return "\n".join([*lines, *map(inert_line, unrendered_lines(report)), inert_line(summary(report))])


def _data(text: str) -> str:
    """Escape the percent sign, for the runner takes `%0A` for a line's end; an inert text has no line's end of its own."""
    return inert(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
