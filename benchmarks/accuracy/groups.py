"""Errors with one source or model class left out, and errors of starts whose logs hide the terms: do a few sources decide the figures?"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from accuracy.predictions import Prediction, Summary, summarize

Groups = dict[str, list[Prediction]]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Difference between groups; errors in percent of the requested memory."""

    groups: int
    median_of_medians: float
    """Every group counts once, however many starts it has."""
    lowest: float
    """Lowest median when one group is left out, each in turn; `highest` is the highest."""
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


def with_and_without_terms(predictions: Sequence[Prediction]) -> tuple[Summary, Summary]:
    """Return the errors of starts whose logs have terms of the ledger, and of starts whose logs have only the sum."""
    shown = [prediction for prediction in predictions if prediction.start.shows_terms]
    hidden = [prediction for prediction in predictions if not prediction.start.shows_terms]
    return summarize(shown), summarize(hidden)
