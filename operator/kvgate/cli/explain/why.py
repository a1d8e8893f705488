"""`kvgate explain --why TERM`: one figure with its formula, for people and for programs."""

from collections.abc import Iterator
from typing import Any

from kvgate.budget.explanations import TERMS, Explanation, explain_term, format_bytes, term_named
from kvgate.budget.plan import Budget
from kvgate.vllm.values import Unusable


def _explanation(budget: Budget | None, term: str) -> Explanation | None:
    name = term_named(term)
    if name is None:
        raise Unusable(f"--why {term}: there is no such figure; name one of {', '.join(TERMS)}")
    return explain_term(budget, name) if budget else None


def why_lines(budget: Budget | None, term: str) -> Iterator[str]:
    """Figure, formula, numbers, source, doubt, inputs, and what it is made of. Raises Unusable for an unknown term."""
    explanation = _explanation(budget, term)
    if explanation is None:
        yield f"{term}: not known; kvgate explain without --why says what is missing"
    else:
        yield from _lines(explanation)


def _lines(told: Explanation) -> Iterator[str]:
    amount = told.amount
    exactly = amount.low == amount.expected == amount.high
    between = "exactly" if exactly else f"{_figure(told, amount.low)} to {_figure(told, amount.high)}"
    whole = f" ({amount.expected} bytes)" if told.unit == "bytes" else ""
    yield f"{told.name}: {_figure(told, amount.expected)}{whole}, {between}"
    rows = [("formula", told.formula), ("numbers", told.numbers), ("source", told.source), ("may be off", told.doubt)]
    yield from (f"  {name:<12}{text}" for name, text in rows if text)
    yield from (f"  {name:<12}{text}" for name, text in zip(_labels("notes"), told.notes, strict=False))
    if told.inputs:
        yield "  inputs"
        yield from (f"    {name:<26}{_input(name, value):>16}" for name, value in told.inputs)
    if told.parts:
        yield "  parts"
        yield from (f"    {part.name:<26}{format_bytes(part.size_bytes):>16}" for part in told.parts)
        yield f"    {'sum':<26}{format_bytes(sum(part.size_bytes for part in told.parts)):>16}"


def _labels(first: str) -> Iterator[str]:
    yield first
    while True:
        yield ""


def _figure(told: Explanation, value: int) -> str:
    return format_bytes(value) if told.unit == "bytes" else f"{value} {told.unit}"


def _input(name: str, value: int | str) -> str:
    return format_bytes(value) if name.endswith("_bytes") and isinstance(value, int) else str(value)


def why_json(budget: Budget | None, term: str) -> dict[str, Any] | None:
    """The same; null where it is not known. Raises Unusable."""
    told = _explanation(budget, term)
    if told is None:
        return None
    return {
        "term": told.name,
        "unit": told.unit,
        "low": told.amount.low,
        "expected": told.amount.expected,
        "high": told.amount.high,
        "formula": told.formula,
        "numbers": told.numbers or None,
        "source": told.source,
        "may_be_off": told.doubt,
        "inputs": dict(told.inputs),
        "parts": [{"name": part.name, "bytes": part.size_bytes} for part in told.parts],
        "notes": list(told.notes),
    }
