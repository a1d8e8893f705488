"""Two settings against each other: the verdict of every pair of values, and where memory runs out."""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from kvgate.budget import BudgetRequest, Guarantee, Interval, Verdict, Workload, plan
from kvgate.budget.kv_cache.capacity import largest
from kvgate.checkpoint.published import NO_MODELS, PublishedModels
from kvgate.findings.finding import Finding, Severity
from kvgate.judgement import assess
from kvgate.judgement.assessment import Answer, Confidence
from kvgate.judgement.summary import verdict_text
from kvgate.judgement.what_if import UnknownFacts, read_request
from kvgate.planning.sweep_axes import Axis
from kvgate.rules.checks import BUDGET_RULES
from kvgate.vllm.settings import SWEPT

SEARCHED = ("max_num_seqs", "max_model_len")
"""Settings whose demand only grows with them: the last value that fits is searched exactly, also between two given values."""
_CHANGED_IN_PLACE = frozenset(
    name for name, setting in SWEPT.items() if setting.budget == name and not setting.shapes_model
)
"""Settings that change one field of a request and nothing else."""


class Cell(Struct, frozen=True, kw_only=True):
    """One pair of values."""

    verdict: Verdict
    """Verdict of the answer that decides."""
    decides: Literal["starts", "holds"]
    starts: Answer
    holds: Answer
    headroom_ratio: float | None
    """That of the answer that decides."""
    confidence: Confidence
    is_refusal: bool
    text: str
    """The sentence of every door: it says what was judged, and how much is left."""
    by_memory: Verdict
    """Verdict of the bytes alone: the boundary is drawn between these."""
    refusal: str
    """Reason why vLLM refuses the setting with any memory; empty where it does not."""
    demand_bytes: int | None
    available: Interval | None
    """Bytes for the KV cache of one GPU."""
    message: str
    """The first error or warning; empty where there is none."""

    @property
    def share(self) -> float | None:
        """Demand as a share of the KV cache that is expected; None where there is none."""
        if self.demand_bytes is None or self.available is None or self.available.expected <= 0:
            return None
        return self.demand_bytes / self.available.expected


class Edge(Struct, frozen=True, kw_only=True):
    """Edge of one column: the largest values of the other setting within the axis; 0 where not even the smallest fits."""

    fits: int
    """Largest value that fits even at the low end of the interval."""
    may_fit: int
    """Largest value that fits at the high end."""


class Sweep(Struct, frozen=True, kw_only=True):
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


def judge_pairs(
    values: Mapping[str, Any],
    x: Axis,
    y: Axis,
    *,
    guarantee: Guarantee,
    workload: Workload | None = None,
    at: tuple[int, int] | None = None,
    models: PublishedModels = NO_MODELS,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Sweep:
    """Judge every pair. Raises BadRequest, and UnknownFacts where nothing can be judged."""

    def ask(given: Mapping[str, Any]) -> _Asked:
        stated = {"usage_context": "server", **given}
        request, findings = read_request(stated, guarantee=guarantee, workload=workload, models=models)
        if request is None:
            raise UnknownFacts(findings)
        return request, findings

    columns = []
    for number in range(len(x.values)):
        columns.append(_column(ask, {**values, x.name: x.values[number]}, y))
        progress(number + 1, len(x.values))
    request, findings = ask({**values, x.name: x.values[0], y.name: y.values[0]})
    edges = []
    for value in x.values if y.name in SEARCHED and y.is_numeric else ():
        last, _ = ask({**values, x.name: value, y.name: y.values[-1]})
        fits = _largest(last, y, (Verdict.FITS,))
        may_fit = _largest(last, y, (Verdict.FITS, Verdict.MAY_NOT_FIT), at_least=max(1, fits)) or fits
        edges.append(Edge(fits=fits, may_fit=may_fit))
    return Sweep(
        x=x,
        y=y,
        rows=tuple(zip(*columns, strict=True)),
        edges=tuple(edges) or None,
        guarantee=guarantee,
        findings=findings,
        request=request,
        at=at,
    )


_Asked = tuple[BudgetRequest, tuple[Finding, ...]]


def _column(ask: Callable[[Mapping[str, Any]], _Asked], column: Mapping[str, Any], y: Axis) -> list[Cell]:
    """Return the cells of one column. The model is read once for all of them, where the setting allows it."""
    if y.name not in _CHANGED_IN_PLACE:
        return [_cell(*ask({**column, y.name: value})) for value in y.values]
    request, findings = ask({**column, y.name: y.values[0]})
    return [_cell(request.with_settings(**{y.name: value}), findings) for value in y.values]


def _cell(request: BudgetRequest, findings: tuple[Finding, ...]) -> Cell:
    assessment = assess.judge(request, extra=findings)
    budget = assessment.budget
    errors = [finding for finding in assessment.findings if finding.severity is Severity.ERROR]
    available = None  # on the tightest rank, in whole blocks without the null block, as the verdict counts
    if budget and budget.usable_blocks and budget.tightest:
        block_bytes = budget.tightest.bytes_per_block
        available = budget.usable_blocks.each(lambda blocks: max(0, blocks) * block_bytes)
    return Cell(
        verdict=assessment.verdict,
        decides=assessment.decides,
        starts=assessment.starts,
        holds=assessment.holds,
        headroom_ratio=budget.figures.headroom_ratio if budget else None,
        confidence=assessment.confidence,
        is_refusal=assessment.is_refusal,
        text=verdict_text(assessment.verdict, budget),
        by_memory=budget.verdict if budget else Verdict.UNKNOWN,
        refusal=next((f.message for f in errors if f.rule not in BUDGET_RULES), ""),
        demand_bytes=budget.demand_bytes if budget else None,
        available=available,
        message=next((f.message for f in assessment.findings if f.severity is not Severity.INFO), ""),
    )


def _largest(request: BudgetRequest, y: Axis, verdicts: tuple[Verdict, ...], *, at_least: int = 1) -> int:
    """Return the largest value within the axis by the bytes alone, as `adjust.largest_max_num_seqs` searches it."""
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
