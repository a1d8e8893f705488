"""The report of `kvgate check` for GitHub Actions (workflow commands) and for GitLab (a code quality report).

Both show each finding on its line of the change; GitLab shows new findings apart from old ones.
"""

from hashlib import sha256

from kvgate.cli.reports.placed import shown_file
from kvgate.cli.reports.report import Report
from kvgate.cli.reports.wording import issues, summary, unrendered_lines
from kvgate.findings.finding import Severity
from kvgate.text.inert import inert, inert_json, inert_line

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}
_SEVERITIES = {Severity.ERROR: "critical", Severity.WARNING: "minor", Severity.INFO: "info"}


def github(report: Report) -> str:
    """Write errors first: GitHub shows ten of a kind and step."""
    lines = []
    for each in sorted(issues(report), key=lambda each: list(Severity).index(each.severity)):
        place = f"file={_property(shown_file(each.file))},line={each.line},col={each.column}"
        command = f"{_COMMANDS[each.severity]} {place},title={_property(each.title)}"
        lines.append(f"::{command}::{_data(each.text)}")
    return "\n".join([*lines, *map(inert_line, unrendered_lines(report)), inert_line(summary(report))])


def _data(text: str) -> str:
    """Escape the percent sign, for the runner takes `%0A` for a line's end; an inert text has no line's end of its own."""
    return inert(text).replace("%", "%25")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def gitlab(report: Report) -> str:
    listed = [
        {
            "type": "issue",
            "check_name": each.title,
            "description": each.text,
            "fingerprint": each.fingerprint
            or sha256(f"{each.title}\0{each.file}\0{each.text}".encode(errors="replace")).hexdigest()[:24],
            "severity": _SEVERITIES[each.severity],
            "location": {"path": shown_file(each.file), "lines": {"begin": each.line}},
        }
        for each in issues(report)
    ]
    return inert_json(listed, indent=2)
