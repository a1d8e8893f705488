"""What each log says about a fitted constant: the logged figure less everything else that kvgate computes for that start."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

from msgspec.structs import replace

from accuracy.starts import GIB, Start
from kvgate.budget import Interval, accounting_of, plan
from kvgate.budget.engine.request import BudgetRequest
from kvgate.budget.gpu.non_torch import startup_slack
from kvgate.budget.ground import fitted
from kvgate.budget.ground.fitted import Fitted
from kvgate.calibration.observed import NEIGHBOUR_BYTES
from kvgate.judgement.what_if import read_request

DOUBT_GIB = 0.5
"""A sum says nothing about a constant if the rest of it is not known better than this, and a line not if it is twice as much."""
_STEP = 1 << 24
_STEP_SHARE = 100
"""Steps by which a constant is moved to see what depends on it: bytes, and thousandths."""

Values = Mapping[str, Interval]


@dataclass(frozen=True, kw_only=True)
class Statement:
    """A figure of a log, and the lines of the ledger of which it is the sum."""

    logged_bytes: float
    lines: frozenset[str]
    is_sum: bool = False
    """True for what was left for the KV cache: the sum of all lines that the log does not state."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """kvgate's answer for a start."""

    requested_bytes: int
    uncertainty_bytes: int
    lines: Mapping[str, Interval]
    """The lines of the ledger, and two figures beside it: `estimate`, what vLLM reckons for graphs even where it takes nothing for them
    out of the budget, and `slack`, the memory that is in use at start-up."""


SIDE_FIGURES = frozenset({"estimate", "slack"})


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
    is_error: bool
    """True if the constant is the error of a formula: it moves the ends of a line, and not what is expected."""
    residual: float
    """Logged less computed, with all constants as they are now, in the constant's unit. For an error: how far the logged figure is
    beyond the ends of the line without this error; below zero inside them."""
    others: Mapping[str, float]
    """Other constants of the same figure: units of this constant for one unit of each. For an error these are other errors."""


@dataclass(frozen=True, kw_only=True)
class _Effect:
    """What one constant does to one statement."""

    slope: float
    """Bytes of the expected figure for one unit of the constant."""
    is_part: bool
    """True if it moves only a part of the interval: the figure is a mixture, and the log does not say of what it is one case."""
    error_slope: float
    """Bytes of the figure's high end for one unit of the constant's high end, if the expected figure stays."""
    below: float
    """Error in bytes of everything else, in both directions."""
    above: float

    @property
    def doubt(self) -> float:
        return max(self.below, self.above)


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
    users = [
        sys.modules["kvgate.judgement.assess"],
        *(each for each in modules if getattr(each, "fitted", None) is fitted),
    ]
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
        figures_of(request)
    finally:
        for name, constant in before.items():
            setattr(fitted, name, constant)
        _forget()
    return used


def figures_of(request: BudgetRequest) -> Figures | None:
    """Return None for a model or a setting without a ledger."""
    budget = plan(request)
    stage = budget.tightest
    if stage is None or stage.ledger is None:
        return None
    lines = {line.name: line.amount for line in stage.ledger.lines}
    lines["slack"] = startup_slack(request.accelerator, budget.accounting, request.settings.parallelism)
    estimates = (int(value) for line in stage.ledger.lines for key, value in line.inputs if key == "estimate_bytes")
    lines["estimate"] = Interval.exactly(next(estimates, 0))
    return Figures(
        requested_bytes=stage.ledger.requested_bytes, uncertainty_bytes=stage.ledger.uncertainty_bytes, lines=lines
    )


def readings(starts: Iterable[Start]) -> list[Reading]:
    """Return every reading of every constant."""
    return [reading for start in starts for reading in _of_start(start)]


def _of_start(start: Start) -> Iterator[Reading]:
    request, _ = read_request(start.request(circumstances=True))
    figures = figures_of(request) if request else None
    if request is None or figures is None:
        return
    told = list(_statements(start, request, figures))
    sides = [_side(figures, each) for each in told]
    names = sorted(used_constants(request))
    effects = {name: _effects(request, name, told, sides) for name in names}
    for index, (statement, side) in enumerate(zip(told, sides, strict=True)):
        if any(effect[index].slope and effect[index].is_part for effect in effects.values()):
            continue
        residual = statement.logged_bytes - side.expected
        slopes = {name: effect[index].slope for name, effect in effects.items() if effect[index].slope > 0}
        errors = {name: effect[index].error_slope for name, effect in effects.items() if effect[index].error_slope > 0}
        guesses = {name for name in slopes if statement.is_sum and constants()[name].is_guess}
        for name, slope in slopes.items():
            if guesses <= {name} and _is_clear(effects[name][index], constants()[name], is_sum=statement.is_sum):
                others = {other: each / slope for other, each in slopes.items() if other != name}
                yield _reading(name, start, statement, residual / slope, others, is_error=False)
        if not slopes and not statement.is_sum:
            for name, slope in errors.items():
                others = {other: each / slope for other, each in errors.items() if other != name}
                without = effects[name][index]
                beyond = max(residual - without.above, -residual - without.below)
                yield _reading(name, start, statement, beyond / slope, others, is_error=True)


def _is_clear(effect: _Effect, constant: Fitted, *, is_sum: bool) -> bool:
    """The rest of the figure must be known, and a constant per graph or layer must be most of the figure."""
    if "per" in constant.unit and effect.doubt > effect.slope * constant.interval.expected:
        return False
    return effect.doubt <= (DOUBT_GIB if is_sum else 2 * DOUBT_GIB) * GIB


def _reading(
    name: str, start: Start, statement: Statement, residual: float, others: dict[str, float], *, is_error: bool
) -> Reading:
    return Reading(
        constant=name, start=start, is_sum=statement.is_sum, is_error=is_error, residual=residual, others=others
    )


def _effects(request: BudgetRequest, name: str, told: Sequence[Statement], sides: Sequence[Side]) -> list[_Effect]:
    interval, step = constants()[name].interval, _step(constants()[name])
    wider = Interval(low=interval.low, expected=interval.expected, high=interval.high + step)
    moved = Interval(low=interval.low + step, expected=interval.expected + step, high=interval.high + step)
    after, ends, exact = (
        _sides(request, name, value, told) for value in (moved, wider, Interval.exactly(interval.expected))
    )
    return [
        _Effect(
            slope=(after[index].expected - side.expected) / step,
            is_part=abs(after[index].below - side.below) > 1 or abs(after[index].above - side.above) > 1,
            error_slope=(ends[index].above - side.above) / step,
            below=exact[index].below,
            above=exact[index].above,
        )
        for index, side in enumerate(sides)
    ]


def _sides(request: BudgetRequest, name: str, value: Interval, told: Sequence[Statement]) -> list[Side]:
    with replaced({name: value}):
        figures = figures_of(request)
    assert figures is not None
    return [_side(figures, each) for each in told]


def _step(constant: Fitted) -> int:
    return _STEP_SHARE if constant.unit.startswith("thousandths") else _STEP


def _statements(start: Start, request: BudgetRequest, figures: Figures) -> Iterator[Statement]:
    """Yield what the log says, as sums of figures; from 0.27 on it has no line alone but the weights.

    The log of a pipeline does not say to which stage a figure belongs, and that of V0 not to which rank: only the first one samples.
    """
    row, known = start.row, dict[str, float]()
    if row["pipeline_parallel_size"] not in ("", "1"):
        return
    several_of_v0 = row["engine"] == "V0" and request.settings.parallelism.tensor > 1
    if row["activation_peak_gib"] and not _consumes(row["vllm_version"]) and not several_of_v0:
        known["peak_activation"] = float(row["activation_peak_gib"]) * GIB
    if row["non_torch_gib"]:
        known["non_torch"] = float(row["non_torch_gib"]) * GIB
    if row["weights_gib"]:
        known["weights"] = float(row["weights_gib"]) * GIB
    for line, logged_bytes in known.items():
        if line != "weights" or row["weights_from"] == "config":
            yield _of_line(line, logged_bytes)
    if row["graph_estimate_gib"]:
        yield _of_line("estimate", float(row["graph_estimate_gib"]) * GIB)
    free_bytes = float(row["free_at_start_gib"] or 0) * GIB
    held_bytes = request.accelerator.memory_bytes - free_bytes
    if free_bytes and held_bytes <= figures.lines["slack"].high + NEIGHBOUR_BYTES:  # else somebody else held memory too
        yield _of_line("slack", held_bytes)
    if start.available_gib is not None and start.is_scored_for("kv"):
        left_bytes = figures.requested_bytes - start.available_gib * GIB - sum(known.values())
        lines = frozenset(figures.lines) - known.keys() - SIDE_FIGURES
        yield Statement(logged_bytes=left_bytes, lines=lines, is_sum=True)


def _consumes(version: str) -> bool:
    """True where a log's peak is only what the profile run gives back, because vLLM counts the rest as consumed (0.27)."""
    return bool(version) and accounting_of(version).consumed_accounting


def _of_line(line: str, logged_bytes: float) -> Statement:
    return Statement(logged_bytes=logged_bytes, lines=frozenset({line}))


def _side(figures: Figures, statement: Statement) -> Side:
    amounts = [figures.lines[name] for name in statement.lines]
    doubt = figures.uncertainty_bytes if statement.is_sum else 0
    return Side(
        expected=sum(amount.expected for amount in amounts),
        below=_joint(doubt, *(amount.expected - amount.low for amount in amounts)),
        above=_joint(doubt, *(amount.high - amount.expected for amount in amounts)),
    )


def _joint(*doubts: float) -> float:
    return float(sum(doubt * doubt for doubt in doubts) ** 0.5)
