"""The reasons why answers differ from the frozen ones: one row for each change that was meant.

A cause is named, quotes the sentence that decides it, and says which changes it explains. The first that explains a change takes it. Make
the predicate as narrow as the sentence: a change that none explains fails the comparison, and one that explains too much hides a defect.

    Cause(
        name="block-count-of-windows",
        sentence="A window keeps one block more than its length (vLLM 0.31, SlidingWindowManager).",
        explains=lambda question, before, after: question.kind == "what-ifs" and "gemma" in question.asked["model"]
        and before is not None and after is not None and before.verdict == after.verdict and before.rules == after.rules,
    ),
"""

from collections.abc import Callable

from msgspec import Struct

from answers.records import Question, Row


class Cause(Struct, frozen=True, kw_only=True):
    """Why answers changed."""

    name: str
    sentence: str
    """The fact or the decision, with its source."""
    explains: Callable[[Question, Row | None, Row | None], bool]
    """(question, row before, row after) → whether this is why they differ. A row is None where the answer has no such engine."""


CAUSES: tuple[Cause, ...] = ()
