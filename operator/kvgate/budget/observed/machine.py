"""Lessons of the starts of a machine and an image about its other settings: circumstances that explain the figures, and what is left.

A log of one setting may decide what no configuration says: who samples, whether GPUs reach each other, whether a compile cache was there.
It then holds for every other setting of the same GPU and release. What the circumstances leave unexplained belongs to machine and image:
other settings are expected to differ from the formulas by as much, and their intervals grow by it.
"""

from collections.abc import Iterable, Sequence
from statistics import median_low

from msgspec import Struct

from kvgate.budget.ground import fitted
from kvgate.budget.ground.interval import Interval
from kvgate.budget.observed.starts import ObservedStart
from kvgate.budget.observed.witnesses import grouped

LIKE_OTHERS_SHARE = 20
"""A residue of more than a twentieth of the requested memory belongs to the setting itself, and not to every one of the machine."""
CIRCUMSTANCES = {
    "compile_cache": ("cold", "warm"),
    "links": ("nvlink", "pcie", "host"),
    "sampler": ("flashinfer", "pytorch"),
}
"""Circumstances that a log shows or a figure settles, with their values."""
Values = tuple[tuple[str, str], ...]
"""Circumstances by their names in `Circumstances`."""


class Explanation(Struct, frozen=True, kw_only=True):
    """The combination of circumstances that explains a start."""

    circumstances: Values = ()
    """Those that every combination near the figure has in common."""
    residue_bytes: int
    """Bytes that the nearest combination leaves unexplained: more than zero where the start had more for its KV cache."""


def explained(available_bytes: int, candidates: Sequence[tuple[Values, int]]) -> Explanation:
    """Choose among combinations, each with the bytes that the formulas expect under it.

    A circumstance is settled only where its combinations meet the figure within what two starts differ by, and no combination with
    another value comes within twice as much.
    """
    near = 2 * fitted.SCATTER.interval.high
    misses = [(abs(available_bytes - expected), values) for values, expected in candidates]
    best = min(miss for miss, _ in misses)
    rivals = [set(values) for miss, values in misses if miss <= 2 * near]
    common = set.intersection(*rivals) if best <= near else set[tuple[str, str]]()
    nearest = min(candidates, key=lambda candidate: abs(available_bytes - candidate[1]))
    return Explanation(circumstances=tuple(sorted(common)), residue_bytes=available_bytes - nearest[1])


class Lesson(Struct, frozen=True, kw_only=True):
    """A lesson of the starts of one machine and image, for all of its settings."""

    circumstances: Values
    residue_bytes: int
    is_like_others: bool
    """False for a residue that is too large to be one of every setting: it widens and moves nothing."""
    starts: int

    def moved(self, interval: Interval, expected: int) -> Interval:
        """Return the interval of the formulas under these circumstances, grown to where the residue moves it."""
        by = self.residue_bytes
        expected += by if self.is_like_others else 0
        low, high = interval.low + min(0, by), interval.high + max(0, by)
        return Interval(low=min(low, expected), expected=expected, high=max(high, expected))


def lesson_of(starts: Iterable[ObservedStart]) -> Lesson | None:
    """Return what the starts agree on, each setting with one voice; None where none of them was explained."""
    known = [start for start in starts if start.residue_bytes is not None and not start.is_expired and start.may_move]
    if not known:
        return None
    told = grouped((pair for start in known for pair in start.circumstances), lambda pair: pair[0])
    agreed = tuple(pairs[0] for _, pairs in sorted(told.items()) if len(set(pairs)) == 1)
    voices = [
        median_low([start.residue_bytes or 0 for start in of_setting])
        for of_setting in grouped(known, lambda start: start.key).values()
    ]
    residue = median_low(voices)
    requested = min(start.requested_bytes for start in known)
    is_scatter = abs(residue) <= 2 * fitted.SCATTER.interval.high
    return Lesson(
        circumstances=agreed,
        residue_bytes=0 if is_scatter else residue,
        is_like_others=abs(residue) * LIKE_OTHERS_SHARE <= requested,
        starts=len(known),
    )
