"""The report of `kvgate check` as workflow commands: GitHub Actions shows each finding on its line of the pull request."""

from kvgate.cli.check.report import Report
from kvgate.cli.check.results import Result, results, shown_file
from kvgate.cli.check.text import summary
from kvgate.rules.finding import Severity
from kvgate.text.inert import inert, inert_line

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def render(report: Report) -> str:
    """Errors first: GitHub shows ten of a kind and step."""
    found = sorted(results(report), key=lambda result: list(Severity).index(result.level))
    return "\n".join([*map(_line, found), inert_line(summary(report))])


def _line(result: Result) -> str:
    placed = result.placed
    place = f"file={_property(shown_file(placed.file))},line={placed.line},col={placed.column}"
    return f"::{_COMMANDS[result.level]} {place},title={_property(placed.rule)}::{_data(result.message)}"


def _data(text: str) -> str:
    """The runner takes `%0A` for a line's end; an inert text has none."""
    return inert(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
