"""Errors of a group of starts, in which every source counts once: a repository or a page with forty starts is one piece of evidence."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, median

from accuracy.predictions import Prediction, percentile


@dataclass(frozen=True, kw_only=True)
class BySource:
    """Each source has the median error of its starts, and the share of them that the interval holds."""

    sources: int
    starts: int
    median_percent: float
    p90_percent: float
    inside: float
    width_percent: float
    """Median width over all sources."""


def by_source(predictions: Sequence[Prediction]) -> BySource:
    groups = sources_of(predictions)
    errors = [median(each.error_percent for each in group) for group in groups.values()]
    return BySource(
        sources=len(groups),
        starts=len(predictions),
        median_percent=median(errors),
        p90_percent=percentile(errors, 0.9),
        inside=mean(mean(each.is_inside for each in group) for group in groups.values()),
        width_percent=median(median(each.width_percent for each in group) for group in groups.values()),
    )


def sources_of(predictions: Iterable[Prediction]) -> dict[str, list[Prediction]]:
    groups: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        groups.setdefault(prediction.start.source, []).append(prediction)
    return dict(sorted(groups.items()))
