"""Two settings against each other: what the engine says of every pair, and where memory runs out."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from kvgate.budget.capacity import largest
from kvgate.budget.interval import Interval, Verdict
from kvgate.budget.plan import Budget, plan
from kvgate.budget.request import BudgetRequest, EngineSettings, Guarantee
from kvgate.judge import assess
from kvgate.judge.assess import Assessment
from kvgate.judge.what_if import UnknownFacts, read_request
from kvgate.planning.sweep_axes import Axis
from kvgate.record import record
from kvgate.rules import BUDGET_RULES
from kvgate.rules.finding import Finding, Severity

SEARCHED = ("max_num_seqs", "max_model_len")
"""Settings whose demand only grows with them: between two values that are asked, the last that fits is searched exactly."""
_ENGINE = frozenset(each.name for each in fields(EngineSettings))


@record
class Cell:
    """One pair of values."""

    verdict: Verdict
    by_memory: Verdict
    """Verdict of the bytes alone: the boundary is drawn between these."""
    refusal: str
    """Reason why vLLM refuses the setting with any memory; empty where it does not."""
    demand_bytes: int | None
    available: Interval | None
    """Bytes for the KV cache of one GPU."""
    message: str
    """The first error or warning."""

    @property
    def share(self) -> float | None:
        """Demand as a share of the KV cache that is expected; None where there is none."""
        if self.demand_bytes is None or self.available is None or self.available.expected <= 0:
            return None
        return self.demand_bytes / self.available.expected


@record
class Edge:
    """Edge of one column: the largest values of the other setting, within the axis; 0 where not even the least fits."""

    fits: int
    """Even at the low end."""
    may_fit: int
    """At the high end."""


@record
class Sweep:
    """Rows by y and columns by x, both in the order of their axes."""

    x: Axis
    y: Axis
    rows: tuple[tuple[Cell, ...], ...]
    edges: tuple[Edge, ...] | None
    """Edges by column; None where the setting of y has no largest value that fits."""
    guarantee: Guarantee
    findings: tuple[Finding, ...]
    request: BudgetRequest
    """Request of the first cell."""
    at: tuple[int, int] | None = None
    """Column and row of the chosen point."""

    @property
    def chosen(self) -> Cell | None:
        return self.rows[self.at[1]][self.at[0]] if self.at else None


def sweep(
    values: Mapping[str, Any],
    x: Axis,
    y: Axis,
    *,
    guarantee: Guarantee,
    at: tuple[int, int] | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Sweep:
    """Ask for every pair. Raises BadRequest, and UnknownFacts where nothing can be judged."""
    columns = []
    for number in range(len(x.values)):
        columns.append(_column(values, x, number, y, guarantee))
        progress(number + 1, len(x.values))
    request, findings = _request({**values, x.name: x.values[0], y.name: y.values[0]}, guarantee)
    searches = y.name in SEARCHED and y.is_numeric
    return Sweep(
        x=x,
        y=y,
        rows=tuple(zip(*columns, strict=True)),
        edges=tuple(_edge(values, x, number, y, guarantee) for number in range(len(x.values))) if searches else None,
        guarantee=guarantee,
        findings=findings,
        request=request,
        at=at,
    )


def _request(values: Mapping[str, Any], guarantee: Guarantee) -> tuple[BudgetRequest, tuple[Finding, ...]]:
    request, findings = read_request(values, guarantee=guarantee)
    if request is None:
        raise UnknownFacts(findings)
    return request, findings


def _column(values: Mapping[str, Any], x: Axis, number: int, y: Axis, guarantee: Guarantee) -> list[Cell]:
    """Settings of the engine are turned on the request of the column; others are read anew."""
    column = {**values, x.name: x.values[number]}
    if y.name not in _ENGINE:
        return [_cell(*_request({**column, y.name: value}, guarantee)) for value in y.values]
    request, findings = _request({**column, y.name: y.values[0]}, guarantee)
    return [_cell(request.with_settings(**{y.name: value}), findings) for value in y.values]


def _cell(request: BudgetRequest, findings: tuple[Finding, ...]) -> Cell:
    assessment = assess.judge(request, extra=findings)
    budget = assessment.budget
    return Cell(
        verdict=assessment.verdict,
        by_memory=budget.verdict if budget else Verdict.UNKNOWN,
        refusal=next((f.message for f in _errors(assessment) if f.rule not in BUDGET_RULES), ""),
        demand_bytes=budget.demand_bytes if budget else None,
        available=_available(budget) if budget else None,
        message=next((f.message for f in assessment.findings if f.severity is not Severity.INFO), ""),
    )


def _errors(assessment: Assessment) -> Iterator[Finding]:
    return (finding for finding in assessment.findings if finding.severity is Severity.ERROR)


def _available(budget: Budget) -> Interval | None:
    """Return the bytes that requests can hold on the tightest rank: whole blocks without the null block, as the verdict counts."""
    usable, stage = budget.usable_blocks, budget.tightest
    if usable is None or stage is None:
        return None
    low, expected, high = (max(0, end) * stage.bytes_per_block for end in (usable.low, usable.expected, usable.high))
    return Interval(low=low, expected=expected, high=high)


def _edge(values: Mapping[str, Any], x: Axis, number: int, y: Axis, guarantee: Guarantee) -> Edge:
    request, _ = _request({**values, x.name: x.values[number], y.name: y.values[-1]}, guarantee)
    fits = _largest(request, y, (Verdict.FITS,))
    return Edge(
        fits=fits, may_fit=_largest(request, y, (Verdict.FITS, Verdict.MAY_NOT_FIT), at_least=max(1, fits)) or fits
    )


def _largest(request: BudgetRequest, y: Axis, verdicts: tuple[Verdict, ...], *, at_least: int = 1) -> int:
    """Within the axis, by the bytes alone, as `adjust.largest_max_num_seqs` searches."""
    top, budget = y.values[-1], plan(request)
    guess = top
    if budget.usable_blocks and budget.demand:
        blocks = budget.usable_blocks.low if len(verdicts) == 1 else budget.usable_blocks.high
        guess = blocks * top // max(1, budget.demand.blocks)
    return largest(
        top,
        lambda value: plan(request.with_settings(**{y.name: value})).verdict in verdicts,
        at_least=at_least,
        guess=guess,
    )


def with_guarantee(values: Mapping[str, Any], x: Axis, y: Axis, asked: Guarantee | None) -> Guarantee:
    """FullContext where sequences are part of the question: demand is then so many requests of max_model_len."""
    if asked is not None:
        return asked
    counts = "max_num_seqs" in (x.name, y.name) or values.get("max_num_seqs") is not None
    return Guarantee.FULL_CONTEXT if counts else Guarantee.STARTUP
