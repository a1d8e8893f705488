"""The values of the figures of a judgement; the table of figures names them and says what they mean."""

from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any

from msgspec import Struct

from kvgate.budget.answers.answer import Budget
from kvgate.budget.answers.pod_ledger import pod_ledger
from kvgate.budget.gpu.ledger import Ledger
from kvgate.budget.ground.interval import Interval
from kvgate.budget.host.memory import HostLedger


class Bounds(Struct, frozen=True):
    """A prediction that is no whole number of bytes or tokens."""

    low: float
    expected: float
    high: float


class Figure(Struct, frozen=True, kw_only=True):
    name: str
    unit: str
    """`bytes`, `tokens`, `blocks`, `requests`, `starts`, or `ratio`."""
    help: str
    """Its meaning, in whole sentences."""
    value: Callable[["FiguresOfBudget"], Any]
    """Returns an Interval or Bounds where the figure is predicted, else a number; None where it is not known."""
    json: tuple[str, ...] = ()
    """Paths in the record of an engine, as `kvgate check`, `explain` and `diff` write it."""
    size: str = ""
    """Key of a candidate in `kvgate size -o json`."""
    sweep: str = ""
    """Key of a cell in `kvgate sweep -o json`."""
    status: str = ""
    """Path in the status of an InferenceDeployment."""
    metric: str = ""
    """Name of the metric; several terms share one."""
    label: str = ""
    """Name in the tables for people."""


class Figures(Mapping[str, Any]):
    """Figures of one judgement by their names: computed from its budget, or read from its record."""

    def expected(self, name: str) -> Any:
        """Return the expected value of a prediction, and any other figure as it is."""
        value = self[name]
        return value.expected if isinstance(value, Interval | Bounds) else value

    def ends(self, name: str) -> tuple[float, float, float] | None:
        value = self[name]
        return None if value is None else (value.low, value.expected, value.high)


class FiguresOfBudget(Figures):
    """The figures of one budget; each is computed when it is first asked for."""

    def __init__(self, budget: Budget, table: Mapping[str, "Figure"]) -> None:
        self.budget = budget
        self._table = table
        self._known: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._known:
            self._known[name] = self._table[name].value(self)
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._table)

    def __len__(self) -> int:
        return len(self._table)

    @property
    def ledger(self) -> Ledger | None:
        return self.budget.tightest.ledger if self.budget.tightest else None

    @cached_property
    def host(self) -> HostLedger:
        return pod_ledger(self.budget)


def available_kv_cache_bytes(figures: FiguresOfBudget) -> Interval | None:
    return figures.budget.tightest.available if figures.budget.tightest else None


def capacity_bytes(figures: FiguresOfBudget) -> Interval | None:
    """Return the same, never below 0."""
    available = available_kv_cache_bytes(figures)
    return available.each(lambda end: max(0, end)) if available else None


def full_length_requests(figures: FiguresOfBudget) -> Bounds | None:
    """Return how many requests of max_model_len the KV cache holds; None where nothing is kept."""
    cache, pool = figures.budget.kv_cache, figures.budget.num_blocks
    if cache is None or pool is None or not cache.groups:
        return None
    needed = cache.request_blocks
    return Bounds(*(blocks / needed for blocks in (pool.low, pool.expected, pool.high))) if needed else None


def demand_tokens(figures: FiguresOfBudget) -> int | None:
    """Return the demand in tokens: the size that vLLM would print for a KV cache of just the demand, with the null block, as it counts."""
    cache, demand = figures.budget.kv_cache, figures.budget.demand
    return cache.num_tokens(demand.blocks + cache.null_blocks) if cache is not None and demand is not None else None


def headroom_ratio(figures: FiguresOfBudget) -> Bounds | None:
    """Return the headroom as shares of the expected capacity; None where none is expected."""
    headroom, available = figures.budget.headroom, available_kv_cache_bytes(figures)
    if headroom is None or available is None or available.expected <= 0:
        return None
    return Bounds(*(end / available.expected for end in (headroom.low, headroom.expected, headroom.high)))


def max_model_len_that_fits(figures: FiguresOfBudget) -> int | None:
    cache, pool = figures.budget.kv_cache, figures.budget.num_blocks
    if cache is None or pool is None:
        return None
    return cache.max_model_len_that_fits(pool.expected, at_most=figures.budget.resolved.max_model_len)


def of_cache(read: Callable[[Any], int]) -> Callable[[FiguresOfBudget], int | None]:
    """Return a figure of the KV cache; None where it is not known."""
    return lambda figures: None if figures.budget.kv_cache is None else read(figures.budget.kv_cache)


def of_ledger(read: Callable[[Ledger], Any]) -> Callable[[FiguresOfBudget], Any]:
    """Return a figure of the ledger of the tightest stage; None where there is none."""
    return lambda figures: None if figures.ledger is None else read(figures.ledger)
