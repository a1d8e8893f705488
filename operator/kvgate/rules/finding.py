"""A finding about one setting: its rule, severity, place, numbers, and what to change."""

from collections.abc import Iterable
from enum import StrEnum

from kvgate.record import record


class Severity(StrEnum):
    """Severity of a finding; a missing fact is never an error."""

    ERROR = "error"
    """It does not start, or does not hold what is guaranteed."""
    WARNING = "warning"
    """It may not, or it cannot be decided."""
    INFO = "info"
    """Worth knowing."""


@record
class Finding:
    """One sentence with numbers, and one that says what to do."""

    rule: str
    severity: Severity
    field: str
    """vLLM's name of the setting (`max_model_len`), or a path into the document where the schema speaks."""
    message: str
    remediation: str = ""


def error_rules(findings: Iterable[Finding]) -> frozenset[str]:
    """The rules behind the errors; empty where there are none."""
    return frozenset(finding.rule for finding in findings if finding.severity is Severity.ERROR)
