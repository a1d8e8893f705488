"""Errors of other planners on the same starts (planners.csv), compared with ours on the starts that both answer."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from accuracy.predictions import Prediction
from accuracy.starts import read_rows

MIN_STARTS = 3
"""A median of fewer starts says nothing."""

Pools = dict[str, float]
"""Predicted KV memory in GiB by start; starts without an answer are missing."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One planner on one class of starts: medians of the absolute error in GiB, over the starts that both answer."""

    planner: str
    starts: int
    """Starts of the class, answered or not."""
    answered: int
    """Starts that the planner answers."""
    theirs_gib: float
    ours_gib: float

    @property
    def ratio(self) -> float:
        """Our median divided by theirs; below 1, kvgate is nearer to the log."""
        return self.ours_gib / self.theirs_gib if self.theirs_gib else float("inf")


def read_planners() -> dict[str, Pools]:
    """Return the answers of each planner, by its name and version."""
    pools: dict[str, Pools] = {}
    for row in read_rows("planners.csv"):
        answers = pools.setdefault(f"{row['planner']} {row['version']}", {})
        if row["kv_pool_gib"]:
            answers[row["id"]] = float(row["kv_pool_gib"])
    return pools


def asked_starts() -> set[str]:
    """Return the starts for which every planner was run: those whose weights are logged."""
    return {row["id"] for row in read_rows("planners.csv")}


def compare(planner: str, pools: Pools, predictions: Iterable[Prediction]) -> Comparison | None:
    """Compare a planner with kvgate; return None if both answer fewer than MIN_STARTS starts."""
    group = list(predictions)
    both = [p for p in group if p.start.id in pools and p.expected is not None]
    if len(both) < MIN_STARTS:
        return None
    return Comparison(
        planner=planner,
        starts=len(group),
        answered=sum(p.start.id in pools for p in group),
        theirs_gib=median(abs(max(pools[p.start.id], 0.0) - p.logged) for p in both),
        ours_gib=median(abs(p.error_gib) for p in both),
    )


def best_of(comparisons: Iterable[Comparison | None]) -> Comparison | None:
    """Return the planner that comes nearest to kvgate, among those that answer at least half of the class."""
    found = [c for c in comparisons if c is not None and 2 * c.answered >= c.starts]
    return max(found, key=lambda c: (c.ratio, c.planner), default=None)
