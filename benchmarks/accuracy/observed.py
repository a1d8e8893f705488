"""Effect of one observed start on the next: every start predicted from the others, by the formulas alone and corrected."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from accuracy.predictions import Prediction, predict
from accuracy.starts import GIB, Start
from kvgate.budget.answers.answer import plan
from kvgate.budget.observed.calibration import Calibration
from kvgate.budget.observed.starts import ObservedStart
from kvgate.calibration.observed import start_of_bytes
from kvgate.judgement.what_if import read_request


@dataclass(frozen=True, kw_only=True)
class Corrected:
    """Predictions for one start that is held out: by the formulas alone, and corrected by the other starts."""

    alone: Prediction
    corrected: Prediction
    same_setting: bool
    """Another start of its setting is known. Otherwise only starts of near settings are."""
    is_narrower: bool


def held_out(starts: Iterable[Start]) -> list[Corrected]:
    """Return the starts that another start of the same or a near setting can correct, each predicted without itself."""
    observed = {start.id: (start, seen) for start in starts if (seen := _observed(start))}
    return [
        found
        for start, own in observed.values()
        if (found := _without_itself(start, own, [seen for _, seen in observed.values() if seen is not own]))
    ]


def without_own_setting(starts: Iterable[Start]) -> list[Corrected]:
    """Return the same with all starts of the setting held out, so that only near settings are left."""
    observed = {start.id: (start, seen) for start in starts if (seen := _observed(start))}
    return [
        found
        for start, own in observed.values()
        if (found := _without_itself(start, own, [seen for _, seen in observed.values() if seen.key != own.key]))
    ]


def _observed(start: Start) -> ObservedStart | None:
    """Return the observed start, or None if it has no logged figure or no prediction."""
    request, _ = read_request(start.request())
    if request is None or start.available_gib is None or not start.is_scored_for("kv"):
        return None
    available_bytes = int(start.available_gib * GIB)
    return start_of_bytes(plan(request), available_bytes, source=start.id, is_refused=not start.started)


def _without_itself(start: Start, own: ObservedStart, others: Sequence[ObservedStart]) -> Corrected | None:
    same_setting = any(other.key == own.key for other in others)
    if not same_setting and not any(other.key.neighbourhood == own.key.neighbourhood for other in others):
        return None
    alone = predict(start)
    corrected = predict(start, calibration=Calibration(starts=tuple(others)))
    return Corrected(
        alone=alone,
        corrected=corrected,
        same_setting=same_setting,
        is_narrower=corrected.width_percent < alone.width_percent,
    )
