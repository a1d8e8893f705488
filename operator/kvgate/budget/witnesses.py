"""The choice of the observed starts to believe: those on which several pods agree, in the newest environment, without outdated ones."""

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from kvgate.budget.observed_starts import ObservedStart, Origin, kind_of

T = TypeVar("T")
K = TypeVar("K")

MIN_WITNESSES = 2
"""Pods that must report the same before they move the prediction of other objects: one report may be an accident, or a lie."""
HEALING_STARTS = 3
"""Newer starts that must agree with each other before an older one of their setting that differs from them has no more say."""


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, tuple[T, ...]]:
    """Return the items with equal keys together; keys and items keep their order."""
    groups: dict[K, list[T]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return {found: tuple(group) for found, group in groups.items()}


def of_origin(starts: Iterable[ObservedStart], origin: Origin) -> tuple[ObservedStart, ...]:
    """Return the starts that came in this way."""
    return tuple(start for start in starts if start.origin is origin)


def trusted_starts(
    heard: tuple[ObservedStart, ...], reader: tuple[str, str], image_digest: str = ""
) -> tuple[ObservedStart, ...]:
    """Return the starts that the prediction follows: pinned and stated ones and the object's own, or else those on which pods agree.

    Where starts ran in different environments, those of the newest environment that may be followed are returned. An image digest that
    the object names excludes the starts of other images.
    """
    pinned = tuple(start for start in heard if start.is_pinned)
    if pinned:
        return pinned
    movers = [start for start in heard if start.may_move]
    fit = [start for start in movers if not image_digest or start.image_digest in ("", image_digest)]
    stated = of_origin(fit, Origin.STATED)
    pods = of_origin(fit, Origin.POD)
    own = newest_environment(start for start in pods if reader[1] and (start.namespace, start.owner) == reader)
    trusted = (*stated, *own)
    if trusted and not disagree(trusted):
        return trusted
    agreed = [corroborated(group) for group in grouped(pods, lambda start: start.environment).values()]
    return max(agreed, key=_last_witness, default=())


def newest_environment(starts: Iterable[ObservedStart]) -> tuple[ObservedStart, ...]:
    """Return the starts in the environment of the newest one."""
    ordered = sorted(starts, key=lambda start: start.revision)
    return tuple(start for start in ordered if start.environment == ordered[-1].environment)


def _last_witness(starts: Sequence[ObservedStart]) -> int:
    """Return the revision from which on enough pods agreed: one more pod of another environment changes nothing yet."""
    of_pods = grouped(starts, lambda start: (start.namespace, start.pod)).values()
    newest = sorted(max(start.revision for start in group) for group in of_pods)
    return newest[-MIN_WITNESSES] if len(newest) >= MIN_WITNESSES else -1


def corroborated(starts: Iterable[ObservedStart]) -> tuple[ObservedStart, ...]:
    """Return the starts on which most pods agree; none if fewer than MIN_WITNESSES agree, or as many agree on something else."""
    pods_starts = of_origin(starts, Origin.POD)
    level = level_of(pods_starts)
    reported = sorted(pods_starts, key=level)
    groups, end = [], 0
    for first in range(len(reported)):
        end = max(end, first + 1)
        while end < len(reported) and not disagree(reported[first : end + 1], level):
            end += 1
        pods = {(start.namespace, start.pod) for start in reported[first:end]}
        groups.append((len(pods), first, end))
    witnesses, first, end = max(groups, default=(0, 0, 0), key=lambda group: group[0])
    is_rivalled = any(count == witnesses and (begin >= end or last <= first) for count, begin, last in groups)
    return tuple(reported[first:end]) if witnesses >= MIN_WITNESSES and not is_rivalled else ()


def outdated(starts: Sequence[ObservedStart]) -> frozenset[int]:
    """Return the revisions of the starts that newer ones have replaced: HEALING_STARTS newer ones agree, and differ from it.

    Compared are starts of one reader, one origin and one environment. Starts of pods count once for each pod.
    """
    replaced: set[int] = set()
    groups = grouped(
        (start for start in starts if not start.is_pinned), lambda start: (start.origin, start.environment)
    )
    for group in groups.values():
        newest_first = sorted(group, key=lambda start: start.revision, reverse=True)
        level = level_of(newest_first)
        by_pod = grouped(newest_first, lambda start: (start.namespace, start.pod) if start.pod else start.revision)
        newest = [starts[0] for starts in by_pod.values()][:HEALING_STARTS]
        if len(newest) < HEALING_STARTS or disagree(newest, level):
            continue
        end = min(start.revision for start in newest)
        older = (start for start in newest_first if start.revision < end)
        replaced |= {start.revision for start in older if all(disagree((start, other), level) for other in newest)}
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
