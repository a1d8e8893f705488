"""Predictions with constants for memory outside torch that are fitted again, only from the logs of other sources.

Other fitted constants move the sum by less than 0.1 GiB (margins, CUDA graphs of dense models), or are the end of an interval.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from accuracy.predictions import Prediction
from accuracy.starts import GIB, Start
from kvgate.budget import fitted
from kvgate.budget.interval import Interval
from kvgate.judge.what_if import assess_request

Constants = dict[str, float]
"""Values in GiB by the name of the constant in kvgate.budget.fitted."""

_KERNELS = {"KERNELS": "KERNELS_AND_GRAPHS", "KERNELS_AND_GRAPHS": "KERNELS"}
_LINKS = {
    "NCCL_PCIE": "NCCL_PCIE_FIRST_USE",
    "NCCL_PCIE_FIRST_USE": "NCCL_PCIE",
    "STAGES": "NCCL_PCIE",
}
"""Each constant with its nearest neighbour, which replaces it if no log of another source has the figure."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The constants that a start's term consists of, and the sum of them in its log."""

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
    """Return the same predictions with constants that are fitted without the start's own group."""
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
    """Fit medians: first kernels on one GPU, then what several GPUs add to them."""
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
    """Return None if there is no ledger, or if the term has other parts too, as on GPUs of other vendors."""
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
    constant = getattr(fitted, name)
    assert isinstance(constant, fitted.Fitted)
    return constant.interval
