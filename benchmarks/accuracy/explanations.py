"""Reasons for the worst errors, written by hand, and checked: a reason must name something that can be wrong.

A reason says in which direction the prediction errs, and one of these:

* `line`: the line of the ledger in which most of the error is; the log must state it.
* `told`: circumstances or settings with which the prediction comes within `within_gib` of the log.
* `not_understood: true`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import yaml

from accuracy.predictions import Prediction, predict
from accuracy.readings import figures_of
from accuracy.starts import GIB, HERE
from kvgate.judgement.what_if import read_request

HOW_MANY = 40
MOST = 0.6
"""Share of the error that must be in the line that a reason names."""
_LOGGED = {"weights": "weights_gib", "peak_activation": "activation_peak_gib", "non_torch": "non_torch_gib"}

Reason = dict[str, Any]


class Unexplained(Exception):
    """One of the worst starts has no explanation, or one that does not hold."""


@dataclass(frozen=True, kw_only=True)
class Explained:
    """One of the worst starts, with the number of its reason."""

    prediction: Prediction
    number: int


def worst_of(predictions: Sequence[Prediction]) -> list[Prediction]:
    """Return the starts with the largest errors, as shares of the requested memory."""
    return sorted(predictions, key=lambda each: (-each.error_percent, each.start.id))[:HOW_MANY]


def explained(worst: Sequence[Prediction]) -> tuple[list[Explained], list[Reason]]:
    """Return the starts with their reasons, numbered in the order in which they are needed.

    Raises Unexplained, which lists all problems.
    """
    reasons = read_explanations()
    by_start = {name: reason for reason in reasons for name in reason["starts"]}
    problems = [problem for each in worst for problem in _problems(each, by_start.get(each.start.id))]
    if problems:
        raise Unexplained("\n".join(problems))
    used: list[Reason] = []
    found = []
    for each in worst:
        reason = by_start[each.start.id]
        if reason not in used:
            used.append(reason)
        found.append(Explained(prediction=each, number=used.index(reason) + 1))
    return found, used


@cache
def read_explanations() -> list[Reason]:
    reasons: list[Reason] = yaml.safe_load((HERE / "explanations.yaml").read_text(encoding="utf-8")) or []
    return reasons


def direction_of(prediction: Prediction) -> str:
    return "too much" if prediction.error_gib > 0 else "too little"


def _problems(prediction: Prediction, reason: Reason | None) -> Iterator[str]:
    start, direction = prediction.start, direction_of(prediction)
    about = f"{start.id} ({start.row['model']}, {prediction.error_gib:+.2f} GiB, predicted {direction})"
    if reason is None:
        yield f"{about} has no reason in explanations.yaml"
        return
    if reason["predicted"] != direction:
        yield f"{about}: explanations.yaml explains why it is predicted {reason['predicted']}"
    if line := reason.get("line"):
        part = _error_of_line(prediction, line)
        if part is None or abs(part) < MOST * abs(prediction.error_gib) or (part > 0) != (prediction.error_gib > 0):
            yield f"{about}: the line {line} explains {part if part is None else round(part, 2)} GiB of it"
    if told := reason.get("told"):
        error = abs(predict(start, told=told).error_gib)
        if error > reason["within_gib"]:
            yield f"{about}: with {told} the error is still {error:.2f} GiB"
    if not (line or told or reason.get("not_understood")):
        yield f"{about}: the reason has nothing that can be checked"


def _error_of_line(prediction: Prediction, line: str) -> float | None:
    """Return logged less computed bytes of a line in GiB; positive if the line makes the prediction too large."""
    logged = prediction.start.row[_LOGGED[line]]
    request, _ = read_request(prediction.start.request())
    figures = figures_of(request) if request else None
    return float(logged) - figures.lines[line].expected / GIB if logged and figures else None
