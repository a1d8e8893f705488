"""kvgate's answer for a logged start, and its distance from the log."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, median

from accuracy.starts import GIB, Start
from kvgate.budget.observed.calibration import NOTHING_OBSERVED, Calibration
from kvgate.cli.assessment_json import to_json
from kvgate.judgement.what_if import assess_request

ROUNDING_GIB = 0.005
"""Logs round to 0.01 GiB."""


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One start with our answer. KV memory below zero holds nothing, so it counts as 0 on both sides."""

    start: Start
    verdict: str
    low: float | None
    expected: float | None
    high: float | None
    why_not: str
    """kvgate's own words if there is no answer; otherwise empty."""

    @property
    def logged(self) -> float:
        return max(self.start.available_gib or 0.0, 0.0)

    @property
    def error_gib(self) -> float:
        """Predicted minus logged, in GiB; no answer counts as all the requested memory."""
        return self.start.requested_gib if self.expected is None else max(self.expected, 0.0) - self.logged

    @property
    def error_percent(self) -> float:
        return 100 * abs(self.error_gib) / self.start.requested_gib

    @property
    def is_inside(self) -> bool:
        """True if the interval contains the logged figure, which is rounded."""
        if self.low is None or self.high is None:
            return False
        return max(self.low, 0.0) - ROUNDING_GIB <= self.logged <= max(self.high, 0.0) + ROUNDING_GIB

    @property
    def width_percent(self) -> float:
        if self.low is None or self.high is None:
            return 100.0
        return 100 * (max(self.high, 0.0) - max(self.low, 0.0)) / self.start.requested_gib


@dataclass(frozen=True, kw_only=True)
class Summary:
    """Errors of a group of starts."""

    count: int
    answered: int
    median_gib: float
    p90_gib: float
    median_percent: float
    p90_percent: float
    bias_gib: float | None
    """Mean error of the starts that have an answer."""
    inside: int
    median_width_percent: float


def predict(
    start: Start,
    *,
    weights_given: bool = False,
    circumstances: bool = False,
    told: Mapping[str, object] | None = None,
    calibration: Calibration = NOTHING_OBSERVED,
) -> Prediction:
    """Ask kvgate about a start; `told` are further settings."""
    values = start.request(weights_given=weights_given, circumstances=circumstances) | dict(told or {})
    answer = to_json(assess_request(values, calibration=calibration))
    pool = (answer["ledger"] or {}).get("available_kv_cache_bytes") or {}
    low, expected, high = (pool[key] / GIB if key in pool else None for key in ("low", "expected", "high"))
    problems = [finding["message"] for finding in answer["findings"] if finding["severity"] != "info"]
    why_not = "; ".join(problems) if expected is None else ""
    return Prediction(start=start, verdict=answer["verdict"], low=low, expected=expected, high=high, why_not=why_not)


def predict_pools(starts: Iterable[Start], *, weights_given: bool = False) -> list[Prediction]:
    """Predict the starts that are scored for their available KV cache memory."""
    return [predict(start, weights_given=weights_given) for start in starts if start.is_scored_for("kv")]


def percentile(values: Iterable[float], share: float) -> float:
    """Return a percentile, interpolated between the two nearest values."""
    ordered = sorted(values)
    place = (len(ordered) - 1) * share
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def summarize(predictions: Sequence[Prediction]) -> Summary:
    gib = [abs(prediction.error_gib) for prediction in predictions]
    answered = [prediction.error_gib for prediction in predictions if prediction.expected is not None]
    percent = [prediction.error_percent for prediction in predictions]
    return Summary(
        count=len(predictions),
        answered=len(answered),
        median_gib=median(gib),
        p90_gib=percentile(gib, 0.9),
        median_percent=median(percent),
        p90_percent=percentile(percent, 0.9),
        bias_gib=mean(answered) if answered else None,
        inside=sum(prediction.is_inside for prediction in predictions),
        median_width_percent=median(prediction.width_percent for prediction in predictions),
    )


def grouped(predictions: Iterable[Prediction], *, heading: str) -> dict[str, list[Prediction]]:
    """Group by the classes of one heading; order by the number in their names, then by name."""
    groups: dict[str, list[Prediction]] = {}
    for prediction in predictions:
        groups.setdefault(dict(prediction.start.classes())[heading], []).append(prediction)
    return dict(sorted(groups.items(), key=_order))


def _order(item: tuple[str, object]) -> tuple[float, str]:
    number = re.search(r"[0-9.]+", item[0])
    return float(number[0]) if number else 0.0, item[0]
