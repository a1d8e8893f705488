"""Pure verdicts over a Budget: each rule is a function, all of them stand in RULES."""

from kvgate.rules.all_rules import BUDGET_RULES, RULES, judge_budget
from kvgate.rules.finding import Finding, Severity

__all__ = ["BUDGET_RULES", "RULES", "Finding", "Severity", "judge_budget"]
