"""What a release of vLLM changes: defaults and accounting as tables. No other room compares with a release of its own.

Others use `accounting_of`, `host_accounting` and `parse_release` of `kvgate.budget`.
"""
