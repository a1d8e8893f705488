"""Pure verdicts over a Budget: each function makes the findings of the rule that stands before it."""

from kvgate.rules.finding import Finding, Rule, Scope, Severity

__all__ = ["Finding", "Rule", "Scope", "Severity"]
