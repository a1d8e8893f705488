"""One engine as the budget is asked about it: settings, circumstances, and what the release makes of them.

Others use `BudgetRequest` and `EngineSettings` of `kvgate.budget`, and `settings`.
"""
