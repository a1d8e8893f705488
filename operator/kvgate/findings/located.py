"""Findings with the place that they are about: the path of a field, and a line of its text."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct
from msgspec.structs import replace

from kvgate.findings.finding import Action, Finding, Naming, Remedy, Rule, Severity, Words


class HasPlace(Protocol):
    """A setting that is written somewhere: its name in vLLM, the path of the field, and lines below the first of its text."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str: ...

    @property
    def line(self) -> int: ...


class Place(Struct, frozen=True, kw_only=True):
    """The subject of a finding, and where it is written."""

    name: str
    path: str
    line: int = 0


class Located(Struct, frozen=True, kw_only=True):
    finding: Finding
    path: str
    line: int = 0
    """Lines below the first one, where the field is a text of several."""

    def softened(self) -> Located:
        """A warning instead of an error: something that is not seen here may put it right."""
        return replace(self, finding=self.finding.softened())

    def named(self, naming: Naming) -> Located:
        return replace(self, finding=self.finding.named(naming))


def located(
    rule: Rule,
    at: HasPlace,
    message: str | Words,
    remedy: str | Action | Remedy | None = None,
    *,
    severity: Severity | None = None,
) -> Located:
    """Make a finding at an option, or at any other place, with the rule's usual severity where none is given."""
    return Located(finding=rule.finding(at.name, message, remedy, severity=severity), path=at.path, line=at.line)
