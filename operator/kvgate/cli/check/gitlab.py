"""The report of `kvgate check` as GitLab's code quality report: shown in the merge request, new findings apart from old ones."""

from typing import Any

from kvgate.cli.check.report import Report
from kvgate.cli.check.results import Result, results, shown_file
from kvgate.rules.finding import Severity
from kvgate.text.inert import inert_json

_SEVERITIES = {Severity.ERROR: "critical", Severity.WARNING: "minor", Severity.INFO: "info"}


def render(report: Report) -> str:
    """A list of issues."""
    return inert_json(list(map(_issue, results(report))), indent=2)


def _issue(result: Result) -> dict[str, Any]:
    placed = result.placed
    return {
        "type": "issue",
        "check_name": placed.rule,
        "description": result.message,
        "fingerprint": result.fingerprint,
        "severity": _SEVERITIES[result.level],
        "location": {"path": shown_file(placed.file), "lines": {"begin": placed.line}},
    }
