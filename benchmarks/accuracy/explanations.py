"""Reasons for the worst errors, written by hand. A reason is refused if the error no longer has the direction that it explains."""

from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from accuracy.predictions import Prediction
from accuracy.starts import HERE

HOW_MANY = 10


class Unexplained(Exception):
    """One of the worst starts has no explanation, or one for the other direction."""


@dataclass(frozen=True, kw_only=True)
class Explained:
    """One of the worst starts, with its explanation."""

    prediction: Prediction
    why: str


def worst_of(predictions: Sequence[Prediction]) -> list[Explained]:
    """Return the starts with the largest errors, as shares of the requested memory.

    Raises Unexplained, which lists all missing explanations.
    """
    texts = read_explanations()
    worst = sorted(predictions, key=lambda p: (-p.error_percent, p.start.id))[:HOW_MANY]
    missing = [problem for prediction in worst if (problem := _problem(prediction, texts))]
    if missing:
        raise Unexplained("; ".join(missing))
    return [Explained(prediction=p, why=_why(p, texts)) for p in worst]


def read_explanations() -> dict[str, dict[str, str]]:
    """Return for each start the direction of the error (`predicted: too much` or `too little`) and the reason (`why`)."""
    texts: dict[str, dict[str, str]] = yaml.safe_load((HERE / "explanations.yaml").read_text(encoding="utf-8")) or {}
    return texts


def _why(prediction: Prediction, texts: dict[str, dict[str, str]]) -> str:
    return (
        f"no answer: {prediction.why_not}"
        if prediction.why_not
        else " ".join(texts[prediction.start.id]["why"].split())
    )


def direction_of(prediction: Prediction) -> str:
    return "too much" if prediction.error_gib > 0 else "too little"


def _problem(prediction: Prediction, texts: dict[str, dict[str, str]]) -> str | None:
    if prediction.why_not:
        return None
    text, direction = texts.get(prediction.start.id), direction_of(prediction)
    model = prediction.start.row["model"]
    about = f"{prediction.start.id} ({model}, {prediction.error_gib:+.2f} GiB, predicted {direction})"
    if text is None:
        return f"{about} has no entry in explanations.yaml"
    if text["predicted"] != direction:
        return f"{about}: explanations.yaml explains why it is predicted {text['predicted']}"
    return None
