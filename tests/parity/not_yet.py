"""What does not yet equal vLLM. Every set must shrink to empty: a test fails as soon as an entry is right in full."""

ARITHMETIC: frozenset[str] = frozenset()
"""Models with a row in kv_arithmetic that differs."""

WEIGHTS: frozenset[str] = frozenset()
"""Models with a rank whose parameter bytes differ."""

REFUSALS: frozenset[str] = frozenset()
"""Reasons for which vLLM refuses a setting that we do not refuse."""

NEIGHBOURS: frozenset[str] = frozenset()
"""Models with a setting that vLLM starts, beside a refused one, that we do not call Fits."""
