"""Pure verdicts over a Budget: each rule is a function, all of them stand in RULES."""

from kvgate.rules.catalog import RULES, judge_budget
from kvgate.rules.finding import Finding, Severity

__all__ = ["RULES", "Finding", "Severity", "judge_budget"]
