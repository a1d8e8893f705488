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

import re
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


_COMPARED = ("verdict", "guarantee", "outcome", "headroom_ratio", "num_tokens", "rules")
_WITH_TOWERS = re.compile(
    r"-VL-|Mistral-Small-3|gemma-[34]|Qwen3\.[5-9]|Llama-4|Kimi-(VL|K2\.5|K3)|llava|whisper|Omni|EXAONE-4\.5"
)
"""Models whose towers were run."""
_VERDICTS = ("Fits", "MayNotFit", "DoesNotFit")
_NEAR, _NEARLY_EMPTY = 0.04, 0.3
"""Share of the tokens that the constants moved at most, and where the cache is nearly empty: a tenth of a GiB is much of it."""
_NOTHING = 1000
"""Tokens that are next to nothing."""


def _same(before: Row, after: Row, *but: str) -> bool:
    """Return whether two rows agree in everything that is compared, except in these fields."""
    return all(getattr(before, name) == getattr(after, name) for name in _COMPARED if name not in but)


def _moved_a_little(_: Question, before: Row | None, after: Row | None) -> bool:
    """The tokens are near, and the verdict is the same or the next one."""
    if before is None or after is None or not before.num_tokens or not after.num_tokens:
        return False
    steps = abs(_VERDICTS.index(before.verdict) - _VERDICTS.index(after.verdict)) if _is_decided(before, after) else 0
    return steps <= (1 if _is_near(before, after, _NEAR) else 0) and _is_near(before, after, _NEARLY_EMPTY)


def _is_decided(before: Row, after: Row) -> bool:
    return before.verdict in _VERDICTS and after.verdict in _VERDICTS


def _is_near(before: Row, after: Row, share: float) -> bool:
    ends = [[float(part) for part in re.findall(r"[\d.]+", str(row.num_tokens))] for row in (before, after)]
    return all(abs(one - other) <= max(share * max(one, other), _NOTHING) for one, other in zip(*ends, strict=True))


def _other_candidates_may_fit(question: Question, before: Row | None, after: Row | None) -> bool:
    """As many GPUs are sure to fit, but for a few; others may fit."""
    given = question.asked.get("arguments") or ("",)
    if given[0] != "size" or before is None or after is None:
        return False
    fitting = [re.search(r"Fits:(\d+)", str(row.verdict)) for row in (before, after)]
    counts = [int(found[1]) if found else 0 for found in fitting]
    return abs(counts[0] - counts[1]) <= 3 and _same(before, after, "verdict")


CAUSES: tuple[Cause, ...] = (
    Cause(
        name="towers-were-run",
        sentence="Towers of pictures and sounds take what vLLM's own classes took when they were run (tests/parity/towers_by_release).",
        explains=lambda question, before, after: (
            before is not None and after is not None and bool(_WITH_TOWERS.search(str(question.asked)))
        ),
    ),
    Cause(
        name="estimates-may-be-negative",
        sentence="vLLM does not clamp the first sample of its graph estimate: with drafts and recurrent states its low end is negative.",
        explains=lambda question, before, after: (
            before is not None
            and after is not None
            and "speculative" in str(question.asked)
            and _same(before, after, "verdict", "outcome", "rules")
        ),
    ),
    Cause(
        name="constants-of-257-starts",
        sentence="The constants are derived from 257 starts of 59 sources: 33 starts of 14 sources came (benchmarks/accuracy).",
        explains=_moved_a_little,
    ),
    Cause(
        name="candidates-by-the-same-constants",
        sentence="The same constants move candidates of `kvgate size` between sure and possible.",
        explains=_other_candidates_may_fit,
    ),
)
