"""Pure verdicts over a Budget: each function makes the findings of the rule that stands before it."""
