"""Do a few friendly sources or families carry the figures? Errors with one of them left out, and where nothing was fitted."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from accuracy.predictions import Prediction, Summary, summarize
from accuracy.starts import read_rows

Groups = dict[str, list[Prediction]]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """How much the groups differ; errors in percent of the requested memory."""

    groups: int
    median_of_medians: float
    """Every group counts once, however many starts it has."""
    lowest: float
    """Of the medians over all other groups, each left out in turn."""
    highest: float


def by_source(predictions: Iterable[Prediction]) -> Groups:
    return _by(predictions, lambda prediction: prediction.start.source)


def by_family(predictions: Iterable[Prediction]) -> Groups:
    return _by(predictions, lambda prediction: prediction.start.family)


def _by(predictions: Iterable[Prediction], name_of: Callable[[Prediction], str]) -> Groups:
    groups: Groups = {}
    for prediction in predictions:
        groups.setdefault(name_of(prediction), []).append(prediction)
    return dict(sorted(groups.items()))


def spread_of(groups: Groups) -> Spread:
    without = [_median(p for other, group in groups.items() if other != name for p in group) for name in groups]
    return Spread(
        groups=len(groups),
        median_of_medians=median(_median(group) for group in groups.values()),
        lowest=min(without),
        highest=max(without),
    )


def _median(predictions: Iterable[Prediction]) -> float:
    return median(prediction.error_percent for prediction in predictions)


def fitted_starts() -> set[str]:
    """Starts that a constant of the ledger was fitted on, by their ids."""
    return {row["id"] for row in read_rows("fitted_on.csv")}


def fitted_and_others(predictions: Sequence[Prediction]) -> tuple[Summary, Summary]:
    fitted = fitted_starts()
    inside = [prediction for prediction in predictions if prediction.start.id in fitted]
    outside = [prediction for prediction in predictions if prediction.start.id not in fitted]
    return summarize(inside), summarize(outside)
