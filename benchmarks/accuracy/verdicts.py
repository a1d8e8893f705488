"""Verdicts compared with outcomes: logged starts, settings that vLLM refuses, and settings that its own code computed."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from accuracy.predictions import predict
from accuracy.starts import Start
from kvgate.budget.ground.interval import Verdict
from parity.comparison import PLENTY_BYTES, answer_to
from parity.tables import KINDS, arithmetic_of, rows_of

VERDICTS = tuple(verdict.value for verdict in Verdict)


@dataclass(frozen=True, kw_only=True)
class Matrix:
    """Number of times that each verdict was given, for starts and for refusals of vLLM."""

    started: Counter[str]
    refused: Counter[str]

    @property
    def wrong(self) -> int:
        """Number of wrong promises: DoesNotFit for a start, or Fits for a refusal."""
        return self.started["DoesNotFit"] + self.refused["Fits"]

    @property
    def open(self) -> int:
        """Number of verdicts that are no promise."""
        return self.count - sum(
            group[verdict] for group in (self.started, self.refused) for verdict in ("Fits", "DoesNotFit")
        )

    @property
    def count(self) -> int:
        return self.started.total() + self.refused.total()


def matrix_of(cases: Iterable[tuple[bool, str]]) -> Matrix:
    judged = list(cases)
    return Matrix(
        started=Counter(verdict for started, verdict in judged if started),
        refused=Counter(verdict for started, verdict in judged if not started),
    )


def logged_verdicts(starts: Iterable[Start]) -> Matrix:
    return matrix_of((start.started, predict(start).verdict) for start in starts if start.is_scored_for("verdict"))


def refusal_verdicts() -> Matrix:
    """Judge with more than enough KV memory, so that only the setting counts; crashes of vLLM are left out."""
    rows = [row for row in rows_of("refusals.csv") if row["scored"] == "yes"]
    return matrix_of(
        (row["starts"] == "yes", answer_to(row, kv_cache_memory_bytes=PLENTY_BYTES)["verdict"]) for row in rows
    )


def computed_verdicts() -> Matrix:
    rows = [row for kind in KINDS for rows in arithmetic_of(kind).values() for row in rows]
    return matrix_of((row["starts"] == "yes", answer_to(row)["verdict"]) for row in rows)
