"""The report of `kvgate check` as GitLab's code quality report: the merge request shows new findings apart from old ones."""

from hashlib import sha256

from kvgate.cli.reports.placed import shown_file
from kvgate.cli.reports.report import Report, counting_results
from kvgate.cli.reports.wording import notes
from kvgate.findings.finding import Severity
from kvgate.text.inert import inert_json

_SEVERITIES = {Severity.ERROR: "critical", Severity.WARNING: "minor", Severity.INFO: "info"}


def render(report: Report) -> str:
    """Write a list of issues."""
    issues = [
        {
            "type": "issue",
            "check_name": result.placed.rule,
            "description": result.message,
            "fingerprint": result.fingerprint,
            "severity": _SEVERITIES[result.placed.finding.severity],
            "location": {"path": shown_file(result.placed.file), "lines": {"begin": result.placed.line}},
        }
        for result in counting_results(report)
    ]
    issues += [
        {
            "type": "issue",
            "check_name": note.title,
            "description": note.text,
            "fingerprint": sha256(f"{note.title}\0{note.file}\0{note.text}".encode(errors="replace")).hexdigest()[:24],
            "severity": "info",
            "location": {"path": shown_file(note.file), "lines": {"begin": note.line}},
        }
        for note in notes(report)
    ]
    return inert_json(issues, indent=2)
