"""Doubt that is no arithmetic: how sure the facts are, and which of several worlds holds.

A world is one of the possible releases of vLLM, GPUs, or values that kvgate does not know. Each is judged by itself; the join here is
the only one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum

from msgspec import Struct

from kvgate.budget import Verdict


class Confidence(StrEnum):
    """Certainty of the facts about the model, the surest first. Nothing is refused on facts that are assumed or contradictory."""

    KNOWN = "Known"
    ASSUMED = "Assumed"
    """They are those of another model, by the name."""
    CONTRADICTORY = "Contradictory"
    """Two sources of them disagree, or the name and the config do."""


class World(Struct, frozen=True, kw_only=True):
    """The answers in one world."""

    verdict: Verdict
    start_verdict: Verdict
    confidence: Confidence = Confidence.KNOWN

    def changed(self, change: Callable[[Verdict], Verdict]) -> World:
        """Return a world both of whose answers are changed alike."""
        return World(verdict=change(self.verdict), start_verdict=change(self.start_verdict), confidence=self.confidence)


def joined(worlds: Sequence[World]) -> World:
    """Join worlds of which one holds, and nobody knows which; there is one at least."""
    return World(
        verdict=joined_verdict(each.verdict for each in worlds),
        start_verdict=joined_verdict(each.start_verdict for each in worlds),
        confidence=max((each.confidence for each in worlds), key=list(Confidence).index),
    )


def joined_verdict(worlds: Iterable[Verdict]) -> Verdict:
    """Return the verdict of all worlds where they agree, else MayNotFit.

    A world that cannot be judged (Unknown) takes the certainty from the others, and no more: the answer is Unknown where none can.
    """
    verdicts = set(worlds)
    return verdicts.pop() if len(verdicts) == 1 else Verdict.MAY_NOT_FIT


def refusing_nothing(verdict: Verdict) -> Verdict:
    """Return the verdict of one world beside others that nobody sees: it is no refusal, because they may start."""
    return Verdict.MAY_NOT_FIT if verdict is Verdict.DOES_NOT_FIT else verdict


def refuse_apart(verdict: Verdict, *, is_error_common: bool) -> bool:
    """Return whether each world refuses for a reason of its own, so that the errors of one stay errors."""
    return verdict is Verdict.DOES_NOT_FIT and not is_error_common
