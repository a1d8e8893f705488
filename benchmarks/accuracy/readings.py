"""What each log says about a fitted constant: the logged figure less everything else that kvgate computes for that start."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from msgspec.structs import replace

from accuracy.starts import GIB, Start
from kvgate.budget import Interval, fitted, plan
from kvgate.budget.fitted import Fitted
from kvgate.budget.ledger import Ledger
from kvgate.budget.request import BudgetRequest
from kvgate.judge.what_if import read_request

DOUBT_GIB = 0.15
"""A log says nothing about a constant if the rest of its figure is not known better than this."""
_STEP = 1 << 24
_STEP_SHARE = 100
"""Steps by which a constant is moved to see what depends on it: bytes, and thousandths."""

Values = Mapping[str, Interval]


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A figure of a log, and the lines of the ledger of which it is the sum."""

    logged_bytes: float
    lines: frozenset[str]
    """Names of the lines; empty for the estimate of graphs, which some releases make and do not take out of the budget."""
    is_sum: bool = False
    """True for what was left for the KV cache, from which all lines follow together."""


@dataclass(frozen=True, kw_only=True)
class Side:
    """kvgate's answer for a statement: expected bytes, and its error in both directions."""

    expected: float
    below: float
    above: float


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One constant in one log."""

    constant: str
    start: Start
    is_sum: bool
    residual: float
    """Logged less computed, with all constants as they are now, in the constant's unit."""
    others: Mapping[str, float]
    """Other constants in the same figure: units of this constant for one unit of each."""


def constants() -> dict[str, Fitted]:
    return {name: value for name, value in vars(fitted).items() if isinstance(value, Fitted)}


@contextmanager
def replaced(values: Values) -> Iterator[None]:
    """Let kvgate reckon with other values of some constants."""
    before = {name: getattr(fitted, name) for name in values}
    try:
        for name, interval in values.items():
            setattr(fitted, name, replace(before[name], interval=interval))
        _forget()
        yield
    finally:
        for name, constant in before.items():
            setattr(fitted, name, constant)
        _forget()


def _forget() -> None:
    for cached in _caches():
        cached.cache_clear()


@cache
def _caches() -> tuple[Any, ...]:
    """Return the caches of every module in which an answer may rest on a constant."""
    modules = [module for name, module in sys.modules.items() if name.startswith("kvgate.budget.")]
    users = [module for module in modules if getattr(module, "fitted", None) is fitted]
    return tuple(value for module in users for value in vars(module).values() if hasattr(value, "cache_clear"))


class _Watched:
    """A constant that notes that it was used."""

    def __init__(self, name: str, constant: Fitted, used: set[str]) -> None:
        self._name, self._constant, self._used = name, constant, used

    def __getattr__(self, name: str) -> Any:
        self._used.add(self._name)
        return getattr(self._constant, name)


def used_constants(request: BudgetRequest) -> set[str]:
    """Return the names of the constants that the ledger of this request rests on."""
    used: set[str] = set()
    before = constants()
    try:
        for name, constant in before.items():
            setattr(fitted, name, _Watched(name, constant, used))
        _forget()
        _ledger(request)
    finally:
        for name, constant in before.items():
            setattr(fitted, name, constant)
        _forget()
    return used


def _ledger(request: BudgetRequest) -> Ledger | None:
    stage = plan(request).tightest
    return stage.ledger if stage else None


def readings(starts: Iterable[Start]) -> list[Reading]:
    """Return every reading of every constant that moves the expected value of a line."""
    return [reading for start in starts for reading in _of_start(start)]


def _of_start(start: Start) -> Iterator[Reading]:
    request, _ = read_request(start.request(circumstances=True))
    ledger = _ledger(request) if request else None
    if request is None or ledger is None:
        return
    told = list(_statements(start, ledger))
    sides = [_side(ledger, each) for each in told]
    slopes: dict[str, list[float]] = {}
    own_doubts: dict[str, list[float]] = {}
    for name in sorted(used_constants(request)):
        interval, step = constants()[name].interval, _step(constants()[name])
        with replaced({name: _moved(interval, step)}):
            moved = [_side(_ledger(request), each) for each in told]
        with replaced({name: Interval.exactly(interval.expected)}):
            exact = [_side(_ledger(request), each) for each in told]
        slopes[name] = [(after.expected - now.expected) / step for after, now in zip(moved, sides, strict=True)]
        own_doubts[name] = [max(side.below, side.above) for side in exact]
    for index, (statement, side) in enumerate(zip(told, sides, strict=True)):
        for name, slope in slopes.items():
            if slope[index] > 0 and own_doubts[name][index] <= DOUBT_GIB * GIB:
                yield Reading(
                    constant=name,
                    start=start,
                    is_sum=statement.is_sum,
                    residual=(statement.logged_bytes - side.expected) / slope[index],
                    others={
                        other: each[index] / slope[index]
                        for other, each in slopes.items()
                        if other != name and each[index]
                    },
                )


def _step(constant: Fitted) -> int:
    return _STEP_SHARE if constant.unit.startswith("thousandths") else _STEP


def _moved(interval: Interval, step: int) -> Interval:
    return Interval(low=interval.low + step, expected=interval.expected + step, high=interval.high + step)


def _statements(start: Start, ledger: Ledger) -> Iterator[Statement]:
    """Yield what the log says, as sums of lines of the ledger. From 0.27 on, weights and memory outside torch are one figure."""
    row = start.row
    if row["activation_peak_gib"] and not row["consumed_gib"]:
        yield _stated(row["activation_peak_gib"], "peak_activation")
    if row["non_torch_gib"]:
        yield _stated(row["non_torch_gib"], "non_torch")
    if row["weights_gib"] and row["weights_from"] == "config":
        yield _stated(row["weights_gib"], "weights")
    if row["graph_estimate_gib"]:
        yield _stated(row["graph_estimate_gib"])
    if start.available_gib is not None and start.is_scored_for("kv"):
        yield Statement(
            logged_bytes=ledger.requested_bytes - start.available_gib * GIB,
            lines=frozenset(line.name for line in ledger.lines),
            is_sum=True,
        )


def _stated(figure: str, *lines: str) -> Statement:
    return Statement(logged_bytes=float(figure) * GIB, lines=frozenset(lines))


def _side(ledger: Ledger | None, statement: Statement) -> Side:
    assert ledger is not None
    if not statement.lines:
        estimate = next(int(value) for line in ledger.lines for key, value in line.inputs if key == "estimate_bytes")
        return Side(expected=estimate, below=0, above=0)
    amounts = [line.amount for line in ledger.lines if line.name in statement.lines]
    doubt = ledger.uncertainty_bytes if statement.is_sum else 0
    return Side(
        expected=sum(amount.expected for amount in amounts),
        below=_joint(doubt, *(amount.expected - amount.low for amount in amounts)),
        above=_joint(doubt, *(amount.high - amount.expected for amount in amounts)),
    )


def _joint(*doubts: float) -> float:
    return float(sum(doubt * doubt for doubt in doubts) ** 0.5)
