"""A finding, and the path in a document that it is about."""

from kvgate.record import record
from kvgate.rules.finding import Finding, Severity
from kvgate.vllm.arguments import Setting


@record
class Located:
    """A finding and its place."""

    finding: Finding
    path: str
    line: int = 0
    """Lines below the first one, where the field is a text of several."""


@record
class Place:
    """The subject of a finding, and where it is written."""

    name: str
    """vLLM's name of the setting."""
    path: str
    line: int = 0


def located(rule: str, severity: Severity, at: Setting | Place, message: str, remediation: str = "") -> Located:
    """A finding at a setting, or at any other place."""
    finding = Finding(rule=rule, severity=severity, field=at.name, message=message, remediation=remediation)
    return Located(finding=finding, path=at.path, line=at.line)
