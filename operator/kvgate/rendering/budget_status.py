"""A Budget → status.budget."""

from math import floor

from kvgate.api.base import Document
from kvgate.api.status import BudgetStatus, Bytes, LedgerStatus
from kvgate.budget.interval import Interval
from kvgate.budget.ledger import Ledger
from kvgate.judge.assess import Assessment, Decision


def budget_status(assessment: Assessment) -> Document | None:
    """Return the budget of what is rendered, or of the spec as written where nothing is; None where a part of it is not known."""
    budget = assessment.effective
    if budget is None or budget.kv_cache is None or budget.tightest is None:
        return None
    blocks, demand, headroom, shares = budget.num_blocks, budget.demand, budget.headroom, budget.headroom_shares
    if blocks is None or demand is None or headroom is None or shares is None:
        return None
    adjusted = assessment.decision is Decision.ADMIT_ADJUSTED
    available, ledger = budget.tightest.available, budget.tightest.ledger
    status = BudgetStatus(
        verdict=(budget.verdict if adjusted else assessment.verdict).value,
        guarantee=demand.guarantee.value,
        demand_bytes=budget.demand_bytes or 0,
        available_kv_cache_bytes=_bytes(available),
        headroom_bytes=_bytes(headroom),
        headroom_percent=floor(shares[1] * 100),
        capacity_tokens=budget.kv_cache.num_tokens(blocks.expected),
        max_concurrency=f"{float(budget.kv_cache.max_concurrency(blocks.expected)):.2f}",
        observed_starts=_observed_starts(ledger),
        ledger=_ledger(ledger) if ledger else None,
    )
    dumped: Document = status.model_dump(by_alias=True, exclude_none=True)
    return dumped


def _bytes(interval: Interval) -> Bytes:
    return Bytes(low=interval.low, expected=interval.expected, high=interval.high)


def _observed_starts(ledger: Ledger | None) -> int | None:
    correction = ledger.correction if ledger else None
    return correction.starts if correction and correction.is_same_setting else None


def _ledger(ledger: Ledger) -> LedgerStatus:
    terms = {f"{name}_bytes": term.expected for name, term in ledger.terms}
    return LedgerStatus(total_bytes=ledger.total_bytes, requested_bytes=ledger.requested_bytes, **terms)
