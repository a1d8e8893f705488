"""Effect of one observed start on the next: every start predicted from the others, by the formulas alone and corrected."""

from collections.abc import Iterable, Iterator, Sequence
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
    """Return the starts that another one of the same machine and image can correct, each predicted without itself."""
    return list(_corrected(starts, without_own_setting=False))


def without_own_setting(starts: Iterable[Start]) -> list[Corrected]:
    """Return the same with all starts of the setting held out, so that only other settings are left."""
    return list(_corrected(starts, without_own_setting=True))


def _corrected(starts: Iterable[Start], *, without_own_setting: bool) -> Iterator[Corrected]:
    observed = [(start, seen) for start in starts if (seen := _observed(start))]
    for start, own in observed:
        others = [
            seen
            for other, seen in observed
            if seen is not own
            and _machine_and_image(other) == _machine_and_image(start)
            and not (without_own_setting and seen.key == own.key)
        ]
        if found := _without_itself(start, own, others):
            yield found


def _machine_and_image(start: Start) -> tuple[str, ...]:
    return start.source, start.row["installed_by"], start.row["sampler"]


def _observed(start: Start) -> ObservedStart | None:
    """Return the observed start as `kvgate calibrate` reads it, or None if it has no logged figure or no prediction."""
    request, _ = read_request(start.request())
    if request is None or start.available_gib is None or not start.is_scored_for("kv"):
        return None
    available_bytes = int(start.available_gib * GIB)
    cache, is_refused = start.row["compile_cache"], not start.started
    return start_of_bytes(plan(request), available_bytes, source=start.id, compile_cache=cache, is_refused=is_refused)


def _teaches(other: ObservedStart, own: ObservedStart) -> bool:
    return other.key.neighbourhood == own.key.neighbourhood or other.key.machine == own.key.machine


def _without_itself(start: Start, own: ObservedStart, others: Sequence[ObservedStart]) -> Corrected | None:
    same_setting = any(other.key == own.key for other in others)
    if not same_setting and not any(_teaches(other, own) for other in others):
        return None
    # a pod knows whether its compile cache is kept, and every question that leaves it open has two answers
    told = {"compile_cache": start.row["compile_cache"]} if start.row["compile_cache"] else {}
    alone = predict(start, told=told)
    corrected = predict(start, told=told, calibration=Calibration(starts=tuple(others)))
    return Corrected(
        alone=alone,
        corrected=corrected,
        same_setting=same_setting,
        is_narrower=corrected.width_percent < alone.width_percent,
    )
