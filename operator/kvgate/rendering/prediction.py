"""The figures that are promised of a spec, from the judgement of now or from the record of the admission, and their place in the status."""

from types import MappingProxyType
from typing import Any

from msgspec import Struct
from pydantic.alias_generators import to_camel

from kvgate.api.base import Document
from kvgate.api.status import (
    AdmissionRecordSpec,
    BudgetStatus,
    Bytes,
    HostMemoryStatus,
    LedgerStatus,
    PinnedStatus,
    RecordedFigure,
)
from kvgate.budget import Interval
from kvgate.budget.answers.figure_values import Bounds, Figures
from kvgate.budget.answers.figures import FIGURES, figures_of
from kvgate.judge.assessment import Assessment, Decision

_NAMES = MappingProxyType({to_camel(name): name for name in FIGURES})


class Prediction(Struct, frozen=True, kw_only=True):
    """A verdict with the guarantee that it is about, and its figures."""

    verdict: str
    guarantee: str
    figures: Figures
    observed_starts: int | None = None
    """Number of observed starts with the same settings, which make the prediction certain; None where there were none."""

    @property
    def capacity_tokens(self) -> int:
        tokens: int = self.figures.expected("capacity_tokens")
        return tokens


class RecordedFigures(dict[str, Any], Figures):
    """The figures as a record has them."""

    def __missing__(self, name: str) -> None:
        """Return None for a figure that the record lacks."""
        if name not in FIGURES:
            raise KeyError(name)


def prediction_of(assessment: Assessment) -> Prediction | None:
    """Return the prediction of what is rendered, or of the spec as written where nothing is; None where a part of it is unknown."""
    budget = assessment.effective
    if budget is None or budget.kv_cache is None or budget.tightest is None:
        return None
    if budget.num_blocks is None or budget.demand is None or budget.headroom is None:
        return None
    correction = budget.tightest.ledger.correction if budget.tightest.ledger else None
    verdict = budget.verdict if assessment.decision is Decision.ADMIT_ADJUSTED else assessment.verdict
    return Prediction(
        verdict=verdict.value,
        guarantee=budget.demand.guarantee.value,
        figures=figures_of(budget),
        observed_starts=correction.starts if correction is not None and correction.is_same_setting else None,
    )


def admitted_prediction(record: AdmissionRecordSpec) -> Prediction | None:
    """Return the prediction of a record; None where it has no figures. Raises ValueError where ends do not enclose the expected value."""
    if record.verdict is None or record.guarantee is None:
        return None
    figures = RecordedFigures({
        _NAMES[name]: _value(figure) for name, figure in record.figures.items() if name in _NAMES
    })  # fmt: skip
    return Prediction(
        verdict=record.verdict,
        guarantee=record.guarantee,
        figures=figures,
        observed_starts=figures["observed_starts"],
    )


def recorded_figures(prediction: Prediction) -> dict[str, RecordedFigure]:
    values = {**prediction.figures, "observed_starts": prediction.observed_starts}
    return {
        to_camel(name): RecordedFigure(
            low=_stored(value.low), expected=_stored(value.expected), high=_stored(value.high)
        )
        if isinstance(value, Interval | Bounds)
        else RecordedFigure(expected=_stored(value))
        for name, value in values.items()
        if value is not None
    }


def _stored(value: Any) -> int | str:
    return value if isinstance(value, int) else repr(float(value))


def _value(figure: RecordedFigure) -> Any:
    if figure.low is None or figure.high is None:
        return _read(figure.expected)
    ends = _read(figure.low), _read(figure.expected), _read(figure.high)
    if any(isinstance(end, float) for end in ends):
        return Bounds(*ends)
    return Interval(low=ends[0], expected=ends[1], high=ends[2])


def _read(number: int | str) -> Any:
    return number if isinstance(number, int) else float(number)


def budget_status(prediction: Prediction | None) -> Document | None:
    if prediction is None:
        return None
    of = prediction.figures
    return BudgetStatus(
        verdict=prediction.verdict,
        guarantee=prediction.guarantee,
        demand_bytes=of["demand_bytes"],
        available_kv_cache_bytes=as_bytes(of["available_kv_cache_bytes"]),
        headroom_bytes=as_bytes(of["headroom_bytes"]),
        headroom_percent=of.expected("headroom_percent"),
        capacity_tokens=prediction.capacity_tokens,
        max_concurrency=f"{of.expected('full_length_requests') or 0:.2f}",
        observed_starts=prediction.observed_starts,
        pinned=PinnedStatus(
            num_blocks=of["pinned_blocks"],
            kv_cache_bytes=of["pinned_bytes"],
            capacity_tokens=of["pinned_tokens"],
            profiled_kv_cache_bytes=as_bytes(of["profiled_kv_cache_bytes"]),
            forgone_bytes=of["forgone_bytes"],
            forgone_tokens=of["forgone_tokens"],
        )
        if of["pinned_blocks"] is not None
        else None,
        ledger=LedgerStatus(**{name: of.expected(name) for name in LedgerStatus.model_fields})
        if of["total_bytes"] is not None
        else None,
        host_memory=HostMemoryStatus(
            needs_bytes=as_bytes(of["host_memory_bytes"]), shared_memory_bytes=of.expected("shared_memory_bytes")
        )
        if of["host_memory_bytes"] is not None
        else None,
    ).model_dump(by_alias=True, exclude_none=True)


def as_bytes(interval: Interval) -> Bytes:
    return Bytes(low=interval.low, expected=interval.expected, high=interval.high)
