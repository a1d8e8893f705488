"""The choice of the observed starts to believe: a witness is an owner on a node of its own, whatever its pods are called.

Two witnesses must agree before they move the prediction of other objects, and as many must agree before they overrule older ones.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from kvgate.budget.observed.starts import GpuAtStart, ObservedStart, Origin, kind_of

T = TypeVar("T")
K = TypeVar("K")

MIN_WITNESSES = 2
"""Witnesses that must report the same before they move the prediction of other objects: one report may be an accident, or a lie."""
HEALING_STARTS = 3
"""Newer starts that must agree with each other before an older one of their setting that differs from them has no more say."""


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, tuple[T, ...]]:
    """Return the items with equal keys together; keys and items keep their order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return {found: tuple(group) for found, group in groups.items()}


def of_origin(starts: Iterable[ObservedStart], origin: Origin) -> tuple[ObservedStart, ...]:
    return tuple(start for start in starts if start.origin is origin)


def num_witnesses(starts: Iterable[ObservedStart]) -> int:
    """Return how many witnesses vouch for these starts of one origin: owners on different nodes.

    Pods of one owner are one witness, and so are the owners on one node, or on nodes that no record states; an owner whose pods move
    from node to node makes no witnesses of others. Starts that have expired, and those on GPUs that others may have used, vouch for
    nothing.
    """
    vouching = (start for start in starts if start.may_move and not start.is_expired)
    nodes = grouped(dict.fromkeys((start.witness, start.node) for start in vouching), lambda pair: pair[0])
    owner_on: dict[str, tuple[str, str] | None] = {}

    def places(owner: tuple[str, str] | None, tried: set[str]) -> bool:
        """Give an owner a node of its own, for which others may have to take another of theirs; False where there is none."""
        for _, node in nodes[owner]:
            if node not in tried:
                tried.add(node)
                if node not in owner_on or places(owner_on[node], tried):
                    owner_on[node] = owner
                    return True
        return False

    return sum(places(owner, set()) for owner in nodes)


def audible(
    starts: Iterable[ObservedStart], limit: int, *, first: tuple[str, str] | None = None
) -> tuple[ObservedStart, ...]:
    """Return at most `limit` starts in their order: what people decided and what `first` reported, then the newest of each witness."""
    known = tuple(starts)
    if len(known) <= limit:
        return known
    seen: Counter[tuple[str, str] | None] = Counter()
    turns = {}
    for number in sorted(range(len(known)), key=lambda number: -known[number].revision):
        start = known[number]
        seen[start.witness] += 1
        is_first = start.is_pinned or start.witness in (None, first)
        turns[number] = (0 if is_first else seen[start.witness], -start.revision)
    return tuple(known[number] for number in sorted(sorted(turns, key=turns.__getitem__)[:limit]))


def trusted_starts(
    heard: tuple[ObservedStart, ...], reader: tuple[str, str], image_digest: str = ""
) -> tuple[ObservedStart, ...]:
    """Return the starts that the prediction follows: pinned ones, else the object's own and stated ones, else those of witnesses who agree.

    Where starts ran in different environments, those of the newest environment that may be followed are returned. An image digest that
    the object names excludes the starts of other images.
    """
    pinned = tuple(start for start in heard if start.is_pinned)
    if pinned:
        return pinned
    fit = [start for start in heard if not image_digest or start.image_digest in ("", image_digest)]
    stated = of_origin(fit, Origin.STATED)
    own = newest_environment(s for s in fit if s.witness == reader and s.gpu_at_start is not GpuAtStart.SHARED)
    if own:
        return own if disagree((*stated, *own)) else (*stated, *own)
    if stated and not disagree(stated):
        return stated
    vouching = (start for start in of_origin(fit, Origin.POD) if num_witnesses((start,)))
    agreed = [corroborated(group) for group in grouped(vouching, lambda start: start.environment).values()]
    return max(agreed, key=_last_witness, default=())


def newest_environment(starts: Iterable[ObservedStart]) -> tuple[ObservedStart, ...]:
    ordered = sorted(starts, key=lambda start: start.revision)
    return tuple(start for start in ordered if start.environment == ordered[-1].environment)


def _last_witness(starts: Sequence[ObservedStart]) -> int:
    """Return the revision since which enough witnesses agree: one more of another environment changes nothing yet."""
    newest = sorted(starts, key=lambda start: -start.revision)
    counts = (count for count in range(1, len(newest) + 1) if num_witnesses(newest[:count]) >= MIN_WITNESSES)
    return next((newest[count - 1].revision for count in counts), -1)


def corroborated(starts: Iterable[ObservedStart]) -> tuple[ObservedStart, ...]:
    """Return the starts on which most witnesses agree; none if fewer than MIN_WITNESSES agree, or as many agree on something else."""
    pods_starts = of_origin(starts, Origin.POD)
    level = level_of(pods_starts)
    reported = sorted(pods_starts, key=level)
    groups, end = [], 0
    for first in range(len(reported)):
        end = max(end, first + 1)
        while end < len(reported) and not disagree(reported[first : end + 1], level):
            end += 1
        groups.append((num_witnesses(reported[first:end]), first, end))
    witnesses, first, end = max(groups, default=(0, 0, 0), key=lambda group: group[0])
    is_rivalled = any(count == witnesses and (begin >= end or last <= first) for count, begin, last in groups)
    return tuple(reported[first:end]) if witnesses >= MIN_WITNESSES and not is_rivalled else ()


def outdated(starts: Sequence[ObservedStart]) -> frozenset[int]:
    """Return the revisions of the starts that newer ones have replaced: HEALING_STARTS newer ones agree, of as many witnesses, and differ.

    Compared are starts of one reader, one origin and one environment. Starts of a pod count once.
    """
    replaced: set[int] = set()
    groups = grouped(
        (start for start in starts if not start.is_pinned), lambda start: (start.origin, start.environment)
    )
    for group in groups.values():
        level, ordered = level_of(group), sorted(group, key=lambda start: -start.revision)
        pods = grouped(ordered, lambda start: (start.witness, start.pod or start.revision)).values()
        latest = [of_pod[0] for of_pod in pods]
        count = next((count for count in range(1, len(latest)) if disagree(latest[: count + 1], level)), len(latest))
        newer = latest[:count]
        if count < HEALING_STARTS:
            continue
        older = (start for start in ordered if start.revision < newer[HEALING_STARTS - 1].revision)
        rivals = [start for start in older if all(disagree((start, other), level) for other in newer)]
        for start in rivals:
            alike = [other for other in rivals if not disagree((start, other), level)]
            if num_witnesses(newer) >= num_witnesses(alike):
                replaced.add(start.revision)
    return frozenset(replaced)


def level_of(starts: Iterable[ObservedStart]) -> Callable[[ObservedStart], int]:
    """Return the function that makes starts comparable: their overheads, or where max_num_seqs differs what the formulas lack."""
    if len({start.max_num_seqs for start in starts}) < 2:
        return lambda start: start.overhead_bytes
    return lambda start: -start.residual_bytes


def disagree(starts: Sequence[ObservedStart], level: Callable[[ObservedStart], int] | None = None) -> bool:
    """True where starts differ by more than rounding, scatter and a compile cache explain."""
    if len(starts) < 2:
        return False
    levels = list(map(level or level_of(starts), starts))
    swings = 0 if kind_of(starts) else 1
    explained = max(swings * start.swing_bytes + 2 * (start.resolution_bytes + start.scatter_bytes) for start in starts)
    return max(levels) - min(levels) > explained
