"""Starts that constants were not fitted on: memory outside torch, read again off the other sources' logs alone.

What else was fitted moves the sum by less than 0.1 GiB (margins, CUDA graphs of dense models) or is an interval's end.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from accuracy.predictions import Prediction
from accuracy.starts import GIB, Start
from kvgate.budget import non_torch
from kvgate.budget.interval import Interval
from kvgate.judge.what_if import assess_request

Constants = dict[str, float]
"""GiB by the constant's name in kvgate.budget.non_torch."""

_KERNELS = {"KERNELS": "KERNELS_AND_GRAPHS", "KERNELS_AND_GRAPHS": "KERNELS"}
_LINKS = {
    "NCCL": "NCCL_FIRST_USE",
    "NCCL_FIRST_USE": "NCCL",
    "NCCL_GRAPHS_H100": "NCCL_GRAPHS",
    "NCCL_GRAPHS": "NCCL_GRAPHS_H100",
    "NCCL_PCIE": "STAGES",
    "STAGES": "NCCL_PCIE",
}
"""Each with its nearest neighbour, which stands in for it where no other source's log tells."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """Which constants a start's term is made of, and what its log says of their sum."""

    start: Start
    kernels: str
    links: str
    """Empty on one GPU."""
    logged_gib: float | None

    @property
    def parts(self) -> tuple[str, ...]:
        return (self.kernels, self.links) if self.links else (self.kernels,)


def refitted(
    predictions: Sequence[Prediction], starts: Iterable[Start], group_of: Callable[[Start], str]
) -> list[Prediction]:
    """The same predictions with constants that owe nothing to the start's own group."""
    readings = {reading.start.id: reading for start in starts if (reading := reading_of(start))}
    return [_moved(prediction, readings, group_of) for prediction in predictions]


def _moved(prediction: Prediction, readings: dict[str, Reading], group_of: Callable[[Start], str]) -> Prediction:
    reading = readings.get(prediction.start.id)
    if reading is None or prediction.expected is None:
        return prediction
    group = group_of(prediction.start)
    others = _fit(other for other in readings.values() if group_of(other.start) != group)
    ours = sum(_constant(name).expected / GIB for name in reading.parts)
    theirs = sum(others[name] for name in reading.parts)
    return replace(prediction, expected=prediction.expected + ours - theirs)


def _fit(readings: Iterable[Reading]) -> Constants:
    """Medians: kernels on one GPU first, then what several GPUs add to them."""
    telling = [(reading, reading.logged_gib) for reading in readings if reading.logged_gib is not None]
    constants = _medians(_KERNELS, [(r.kernels, value) for r, value in telling if not r.links])
    return constants | _medians(_LINKS, [(r.links, value - constants[r.kernels]) for r, value in telling if r.links])


def _medians(neighbours: dict[str, str], values: Sequence[tuple[str, float]]) -> Constants:
    found = {name: [value for other, value in values if other == name] for name in neighbours}
    return {
        name: median(found[name] or found[neighbour] or [_constant(name).expected / GIB])
        for name, neighbour in neighbours.items()
    }


def reading_of(start: Start) -> Reading | None:
    """None where the term has parts beside these, as on other vendors' GPUs, or there is no ledger."""
    budget = assess_request(start.request()).budget
    if budget is None or budget.tightest is None or budget.tightest.ledger is None:
        return None
    term = next(line for line in budget.tightest.ledger.lines if line.name == "non_torch")
    inputs = dict(term.inputs)
    kernels, links = _named(_KERNELS, inputs["kernels_bytes"]), _named(_LINKS, inputs["links_bytes"])
    if not kernels or (inputs["links_bytes"] and not links):
        return None
    logged = start.row["non_torch_gib"]
    return Reading(start=start, kernels=kernels, links=links, logged_gib=float(logged) if logged else None)


def _named(names: Iterable[str], expected: int | str) -> str:
    return next((name for name in names if _constant(name).expected == expected), "")


def _constant(name: str) -> Interval:
    constant = getattr(non_torch, name)
    assert isinstance(constant, Interval)
    return constant
