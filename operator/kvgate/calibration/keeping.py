"""The choice of the starts to keep: a new one is weighed against those that are known, and only a pinned one is kept for ever."""

from collections import Counter
from collections.abc import Iterable

from msgspec.structs import replace

from kvgate.budget import (
    HEALING_STARTS,
    MIN_WITNESSES,
    Calibration,
    ObservedStart,
    Origin,
    StartState,
    disagree,
    num_witnesses,
    outdated,
)
from kvgate.calibration.records import MAX_STARTS, write_records

MAX_STARTS_OF_A_SETTING = 8
MAX_TEXT_BYTES = 900 << 10
"""Size of the text in a ConfigMap, which holds 1 MiB."""


def with_start(
    starts: tuple[ObservedStart, ...], start: ObservedStart, *, revision: int = 0
) -> tuple[ObservedStart, ...]:
    """Return the starts with a new one, under this revision or the next; the same object where the new one adds nothing.

    The same figure of a second witness adds something: two are believed where one is not. Starts of one setting, and of pods of one
    namespace or of none, are compared. What is impossible is not kept, and what somebody dropped is not learnt again.
    """
    if not start.is_possible:
        return starts
    setting = (start.key, start.origin, start.namespace)
    alike = [known for known in starts if (known.key, known.origin, known.namespace) == setting]
    if any(known.is_dropped and not disagree((known, start)) for known in alike):
        return starts
    live = [known for known in alike if not known.is_dropped]
    newest = max((known.revision for known in starts), default=0)
    start = replace(start, revision=max(revision, newest + 1))
    if not _adds_something(live, start):
        return starts
    loose = [known for known in live if not known.is_pinned]
    dropped = None
    if len(live) >= MAX_STARTS_OF_A_SETTING:
        gone = outdated(live) | {known.revision for known in live if known.is_expired}
        of_witness = Counter(known.witness for known in live)  # nobody pushes out another witness
        dropped = min(
            loose,
            key=lambda known: (known.revision not in gone, -of_witness[known.witness], known.revision),
            default=start,
        )
    elif len(starts) >= MAX_STARTS:
        dropped = _least_missed(starts, start)
    if dropped is start:
        return starts  # everything that could make room is pinned
    kept = tuple(known for known in starts if known is not dropped)
    return (*kept, start)


def _adds_something(live: list[ObservedStart], start: ObservedStart) -> bool:
    """True for a figure that nobody reported, that one more witness or a third pod confirms, or that newer starts had replaced."""
    replaced = outdated(live) | {known.revision for known in live if known.is_expired}
    peers = [known for known in live if known.revision not in replaced and known.environment == start.environment]
    same = [
        known
        for known in peers
        if known.max_num_seqs == start.max_num_seqs
        and abs(known.overhead_bytes - start.overhead_bytes) <= start.resolution_bytes
    ]
    if any((known.witness, known.pod) == (start.witness, start.pod) for known in same):
        return False
    if len(same) >= HEALING_STARTS and num_witnesses((*same, start)) == num_witnesses(same):
        return False
    is_witnessed = start.origin is Origin.STATED or num_witnesses(peers) >= MIN_WITNESSES
    if len(live) < MAX_STARTS_OF_A_SETTING or replaced or not is_witnessed:
        return True
    # otherwise it would only push out a start that a verdict depends on
    return Calibration(starts=(*peers, start)).state(start) is StartState.CONTRADICTORY


def _least_missed(starts: tuple[ObservedStart, ...], start: ObservedStart) -> ObservedStart:
    """Return the start that makes room: the oldest of the namespace that would have the most. Records of dropped starts go last."""
    counts = Counter(known.namespace for known in (*starts, start))
    loose = (known for known in starts if not known.is_pinned)
    return max(
        loose,
        key=lambda known: (not known.is_dropped, counts[known.namespace], -known.revision),
        default=start,
    )


def fitting(
    starts: tuple[ObservedStart, ...], *, frozen: Iterable[str], highest: int, taken_over: str
) -> tuple[tuple[ObservedStart, ...], str]:
    """Return the starts, of which some make room where their names are so long that the ConfigMap could not hold them, and their text."""
    while True:
        text = write_records(starts, frozen=frozen, highest=highest, taken_over=taken_over)
        if len(text.encode()) <= MAX_TEXT_BYTES or not starts:
            return starts, text
        for _ in range(max(1, len(starts) // 50)):
            least = _least_missed(starts, starts[-1])
            starts = tuple(start for start in starts if start is not least)
