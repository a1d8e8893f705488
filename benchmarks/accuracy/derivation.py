"""The one rule by which every fitted constant follows from the logs.

A constant takes the figures in which only exact formulas, guesses and constants that stand before it in `ground/fitted.py` take part.
Logs that state a line count; only where fewer than MIN_SOURCES sources do, what is left of the sum counts too. Each source counts once:

* *expected* is the median of the medians of the sources.
* *low* and *high* leave out one reading in ten on each side, where a source that nobody has seen counts as one more that may lie on
  either side. With few sources they are the extremes. The fewer the sources, the wider: both distances grow by 2/n, and they are at least
  (expected + FEW_GIB)/(n + 1).
* The error of a formula reaches as far as eight readings in ten, by the same rule, and is the same on both sides. Fewer than MIN_SOURCES
  sources cannot say how wrong a formula may be: it then stays a guess.

The ends of several constants add up in squares, so that the interval of the sum holds more than eight in ten.

A guess stays as it is, and so does a constant without a reading, which must say that it is a guess.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

from accuracy.readings import Reading, constants
from accuracy.starts import GIB
from kvgate.budget import Interval
from kvgate.budget.ground.fitted import Fitted

MIN_SOURCES = 5
FEW_GIB = 0.2
"""Width that one source more or less is worth where the constant itself is small."""
MIN_GIB = 0.06
MIN_SHARE = 5
"""Least error of a formula: half of what two starts of one setting differ by (`fitted.SCATTER`), in GiB; thousandths for shares."""
SPARED = 0.1
"""Share of the sources that may lie beyond each end."""


@dataclass(frozen=True, kw_only=True)
class Derived:
    """A constant as the logs give it."""

    interval: Interval
    starts: tuple[str, ...]
    sources: int


def derive(readings: Iterable[Reading]) -> dict[str, Derived]:
    """Return every constant that has a reading."""
    by_name: dict[str, list[Reading]] = {}
    for reading in readings:
        by_name.setdefault(reading.constant, []).append(reading)
    now, found = constants(), dict[str, Derived]()
    earlier = {name for name, constant in now.items() if constant.is_guess}
    for name, constant in now.items():
        usable = [reading for reading in by_name.get(name, []) if earlier.issuperset(reading.others)]
        values = {} if constant.is_guess else _values(_best(usable), found)
        if values and (len(values) >= MIN_SOURCES or not usable[0].is_error):
            found[name] = _including(_derived(values, constant, is_error=usable[0].is_error), constant, found)
        earlier.add(name)
    return found


def _best(usable: Sequence[Reading]) -> list[Reading]:
    """Return the readings of stated lines; where too few sources state it, one reading of each start."""
    stated = [reading for reading in usable if not reading.is_sum]
    if len({reading.start.source for reading in stated}) >= MIN_SOURCES:
        return stated
    named = {reading.start.id for reading in stated}
    return stated + [reading for reading in usable if reading.is_sum and reading.start.id not in named]


def _values(readings: Iterable[Reading], found: Mapping[str, Derived]) -> dict[str, list[tuple[str, float]]]:
    """Return for each source its starts with their values, in the constant's unit."""
    values: dict[str, list[tuple[str, float]]] = {}
    for reading in readings:
        values.setdefault(reading.start.source, []).append((reading.start.id, value_of(reading, found)))
    return values


def value_of(reading: Reading, found: Mapping[str, Derived]) -> float:
    """Return the constant that the log shows, in its unit, if the others are as they are found."""
    now = constants()
    if reading.is_error:
        less = sum(
            units * (now[other].interval.high - _now(other, found).high) for other, units in reading.others.items()
        )
        return max(0.0, reading.residual + less)
    moved = sum(
        units * (_now(other, found).expected - now[other].interval.expected) for other, units in reading.others.items()
    )
    value = now[reading.constant].interval.expected + reading.residual - moved
    return value if now[reading.constant].interval.low < 0 else max(0.0, value)  # memory that is used is not negative


def _now(name: str, found: Mapping[str, Derived]) -> Interval:
    return found[name].interval if name in found else constants()[name].interval


def _derived(values: Mapping[str, Sequence[tuple[str, float]]], constant: Fitted, *, is_error: bool) -> Derived:
    by_source = [[value for _, value in group] for group in values.values()]
    interval = _error(by_source, constant) if is_error else _interval(by_source, constant)
    starts = tuple(sorted(name for group in values.values() for name, _ in group))
    return Derived(interval=interval, starts=starts, sources=len(values))


def _including(derived: Derived, constant: Fitted, found: Mapping[str, Derived]) -> Derived:
    """Return the constant with no end below that of the memory which it includes; few logs may show less of it by chance."""
    if not constant.includes:
        return derived
    one, other = derived.interval, _now(constant.includes, found)
    low, expected, high = max(one.low, other.low), max(one.expected, other.expected), max(one.high, other.high)
    return replace(derived, interval=Interval(low=low, expected=expected, high=high))


def _interval(by_source: Sequence[Sequence[float]], constant: Fitted) -> Interval:
    n = len(by_source)
    expected = median(median(group) for group in by_source)
    low, high = (_end(by_source, highest=highest, spared=SPARED) for highest in (False, True))
    margin = (abs(expected) + (0 if "per" in constant.unit else FEW_GIB * GIB)) / (n + 1)
    below, above = (max((1 + 2 / n) * distance, margin) for distance in (expected - low, high - expected))
    low = expected - below if constant.interval.low < 0 else max(0.0, expected - below)
    return Interval(low=round(low), expected=round(expected), high=round(expected + above))


def _error(by_source: Sequence[Sequence[float]], constant: Fitted) -> Interval:
    least = MIN_SHARE if constant.unit.startswith("thousandths") else MIN_GIB * GIB
    farthest = _end(by_source, highest=True, spared=2 * SPARED)
    bound = round(max((1 + 2 / len(by_source)) * farthest, least))
    return Interval(low=-bound, expected=0, high=bound)


def _end(by_source: Sequence[Sequence[float]], *, highest: bool, spared: float) -> float:
    """Return the value beyond which at most `spared` of all readings lie, if each source counts once.

    A source that nobody has seen counts as one more, and half of it lies beyond each end.
    """
    each = 1 / (len(by_source) + 1)
    weighted = sorted(
        ((value, each / len(group)) for group in by_source for value in group),
        key=lambda pair: pair[0],
        reverse=highest,
    )
    beyond = each * spared / (2 * SPARED)
    for value, weight in weighted:
        beyond += weight
        if beyond > spared:
            return value
    return weighted[-1][0]
