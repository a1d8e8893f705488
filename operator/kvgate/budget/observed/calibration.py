"""Prediction of a start from starts that were observed: one of the same setting replaces the formulas, a near one only widens them.

A start shows how much of the requested memory did not become KV cache (`overhead_bytes`). This overhead does not depend on
gpu_memory_utilization, and on max_model_len only if the profile run does, so one start answers for all of these.

Starts in a file of the user's own are the user's statement. In a cluster a start comes from some pod, and trust is not free: it counts
in its own namespace (unless the scope is the cluster), and it moves the prediction of other objects only with a second witness.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from functools import cached_property, partial

from msgspec import Struct, field

from kvgate.budget.ground.interval import Interval
from kvgate.budget.observed.machine import Lesson, lesson_of
from kvgate.budget.observed.starts import NextStart, ObservedStart, Origin, StartKey, next_available
from kvgate.budget.observed.witnesses import (
    audible,
    corroborated,
    disagree,
    grouped,
    newest_environment,
    of_origin,
    outdated,
    trusted_starts,
)

MAX_HEARD = 32
"""Starts of one setting that are weighed against each other. With scope Cluster many namespaces may have some; the newest count."""


class CalibrationScope(StrEnum):
    """Objects for which the starts of a namespace count."""

    NAMESPACE = "Namespace"
    """They count for the objects of their own namespace."""
    CLUSTER = "Cluster"
    """They count for every object: for clusters whose tenants trust each other."""


class StartState(StrEnum):
    """The way in which a recorded start is used."""

    USED = "used"
    CONTRADICTORY = "contradictory"
    """Starts of one setting differ by more than starts usually do: none of them is used."""
    IMPOSSIBLE = "impossible"
    """Physics does not allow the figure: more than the weights leave, or nothing at all in an engine that runs."""
    IMPLAUSIBLE = "implausible"
    """The start is too far from the prediction to be one of the setting that its record names."""
    SHARED = "shared"
    """Another process held memory of the GPU, or probably did: the start widens predictions of others and moves none."""
    OUTDATED = "outdated"
    """Newer starts of the setting agree on something else: it has no say any more."""
    EXPIRED = "expired"
    """Its image, driver or node is no longer what runs: it widens predictions of others and moves none."""
    DROPPED = "dropped"
    """Somebody has dropped it: it has no say, and is not learnt again."""


class Correction(Struct, frozen=True, kw_only=True):
    """A prediction as observed starts correct it."""

    available: Interval
    starts: int
    is_same_setting: bool
    """False: only neighbours were seen, and the interval is at most wider."""


class Weighed(Struct, frozen=True, kw_only=True):
    """The starts of one setting that count for an object."""

    followed: tuple[ObservedStart, ...] = ()
    """Starts that agree: the prediction follows them."""
    others: tuple[ObservedStart, ...] = ()
    """Starts that only widen the interval."""


class Calibration(Struct, frozen=True, kw_only=True, eq=False, dict=True):
    """Observed starts, looked up by setting; it is compared by identity, because it is part of questions that are cached."""

    starts: tuple[ObservedStart, ...] = ()
    scope: CalibrationScope | None = None
    """None: a file of the user's own, of which every start counts for every object."""
    _whole: "Calibration | None" = None
    """The calibration whose index this one uses, because a thousand objects may be judged as of a thousand revisions."""
    _reader: tuple[str, str] = ("", "")
    """(namespace, name) of the object that is judged, if there are starts of it; else empty."""
    _earlier: dict[int, "Calibration"] = field(default_factory=dict)
    _views: dict[tuple[str, str], "Calibration"] = field(default_factory=dict)
    _weighed: dict[tuple[StartKey, str], Weighed] = field(default_factory=dict)
    """Weighed starts of the settings, and images, that were looked up before."""
    _rivals: dict[tuple[StartKey, str], tuple[tuple[ObservedStart, ...], frozenset[int]]] = field(default_factory=dict)
    """Starts of a setting that are compared with each other, by their namespace, and the replaced ones among them."""
    _spans: dict[tuple[object, ...], tuple[int, int, int] | None] = field(default_factory=dict)
    """(lowest residual, highest residual, starts) of the neighbourhoods that were looked up before."""
    _lessons: dict[tuple[tuple[object, ...], str], Lesson | None] = field(default_factory=dict)
    """Lessons of the machines, and images, that were looked up before."""

    @cached_property
    def revision(self) -> int:
        """Revision of the newest start; 0 where there is none."""
        return max((start.revision for start in self.starts), default=0)

    @cached_property
    def _plausible(self) -> Mapping[StartKey, tuple[ObservedStart, ...]]:
        eligible = (s for s in self.starts if not s.is_dropped and (s.is_pinned or (s.is_possible and s.is_plausible)))
        return grouped(eligible, lambda start: start.key)

    @cached_property
    def _neighbours(self) -> Mapping[tuple[object, ...], tuple[StartKey, ...]]:
        return grouped(self._plausible, lambda key: key.neighbourhood)

    @cached_property
    def _machines(self) -> Mapping[tuple[object, ...], tuple[StartKey, ...]]:
        return grouped(self._plausible, lambda key: key.machine)

    @cached_property
    def _accelerators(self) -> Mapping[str, tuple[ObservedStart, ...]]:
        return grouped(self.starts, lambda start: start.key.accelerator)

    def may_correct(self, accelerator: str) -> bool:
        """False where no start on such a GPU was seen: then no setting of it has a correction."""
        return accelerator in (self._whole or self)._accelerators

    def about(self, accelerator: str) -> tuple[ObservedStart, ...]:
        """Return the starts on such a GPU: with the same ones, two calibrations correct an engine alike for one reader."""
        known = (self._whole or self)._accelerators.get(accelerator, ())
        return known if self._whole is None else tuple(start for start in known if start.revision <= self.revision)

    @cached_property
    def _readers(self) -> frozenset[tuple[str, str]]:
        """Readers whom some starts concern; only these get a view of their own, so there are few views."""
        owners = {(start.namespace, start.owner) for start in self.starts}
        return frozenset(owners | {(namespace, "") for namespace, _ in owners})

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle without the lookups; a part is pickled as a reader's view of the whole, which a pickler may know already."""
        if self._whole is None:
            return partial(Calibration, starts=self.starts, scope=self.scope), ()
        return Calibration._part, (self._whole, self._reader, self.revision)

    def _part(self, reader: tuple[str, str], revision: int) -> "Calibration":
        earlier = self.as_of(revision)
        return earlier._view(reader) if any(reader) else earlier

    def as_of(self, revision: int) -> "Calibration":
        """Return the calibration as it was at a revision, because a verdict that stands must not move when its own pods report starts."""
        if revision >= self.revision:
            return self
        if revision not in self._earlier:
            starts = tuple(start for start in self.starts if start.revision <= revision)
            self._earlier[revision] = Calibration(
                starts=starts, scope=self.scope, _whole=self._whole or self, _reader=self._reader
            )
        return self._earlier[revision]

    def seen_from(self, namespace: str, name: str) -> "Calibration":
        """Return the calibration that this object may use; a file of the user's own is the same for all."""
        if self.scope is None:
            return self
        reader = next((reader for reader in ((namespace, name), (namespace, "")) if reader in self._readers), ("", ""))
        return self._view(reader)

    def _view(self, reader: tuple[str, str]) -> "Calibration":
        if reader not in self._views:
            self._views[reader] = Calibration(
                starts=self.starts, scope=self.scope, _whole=self._whole or self, _reader=reader
            )
        return self._views[reader]

    def state(self, start: ObservedStart) -> StartState:
        """Return the way in which the start is used, which names the reason if it is not."""
        if start.is_dropped:
            return StartState.DROPPED
        if start.is_pinned:
            return StartState.USED
        if not start.is_possible:
            return StartState.IMPOSSIBLE
        if not start.is_plausible:
            return StartState.IMPLAUSIBLE
        peers, replaced = self._peers(start)
        if start.revision in replaced:
            return StartState.OUTDATED
        if not start.may_move:
            return StartState.SHARED
        if start.is_expired:
            return StartState.EXPIRED
        peers = tuple(peer for peer in peers if peer.revision not in replaced and peer.environment == start.environment)
        peers = tuple(peer for peer in peers if not peer.is_expired)
        if self.scope is not None and start.origin is Origin.STATED:
            peers = of_origin(peers, Origin.STATED)
        if not disagree(peers):
            return StartState.USED
        is_believed = self.scope is not None and start in corroborated(peer for peer in peers if peer.may_move)
        return StartState.USED if is_believed else StartState.CONTRADICTORY

    def _peers(self, start: ObservedStart) -> tuple[tuple[ObservedStart, ...], frozenset[int]]:
        """Return the newest starts that count where this one does, and the revisions of those that newer ones have replaced."""
        place = (start.key, start.namespace if self.scope is CalibrationScope.NAMESPACE else "")
        if place not in self._rivals:
            known = (peer for peer in self._known(start.key) if self._speaks_to(peer, start.namespace))
            heard = audible(known, MAX_HEARD)
            self._rivals[place] = heard, outdated(heard)
        return self._rivals[place]

    def _known(self, key: StartKey) -> tuple[ObservedStart, ...]:
        """Return the plausible starts of the setting, whoever owns them."""
        if self._whole is None:
            return self._plausible.get(key, ())
        return tuple(start for start in self._whole._known(key) if start.revision <= self.revision)

    def _speaks_to(self, start: ObservedStart, namespace: str) -> bool:
        """True where the start counts in a namespace.

        With scope Namespace a pod's start stays where the pod ran.
        """
        return (
            self.scope is not CalibrationScope.NAMESPACE
            or start.origin is not Origin.POD
            or start.namespace == namespace
        )

    def _heard(self, key: StartKey) -> tuple[ObservedStart, ...]:
        """Return the starts that count for this reader; those that newer ones have replaced do not, and its own only its own replace."""
        known = self._known(key)
        if self.scope is CalibrationScope.NAMESPACE:
            known = tuple(start for start in known if self._speaks_to(start, self._reader[0]))
        known = audible(known, MAX_HEARD, first=self._reader)
        own = tuple(start for start in known if start.witness == self._reader)
        replaced = (outdated(known) - {start.revision for start in own}) | outdated(own)
        return tuple(start for start in known if start.revision not in replaced) if replaced else known

    def weighed(self, key: StartKey, image_digest: str = "") -> Weighed:
        """Return the starts that a prediction for this setting follows, and those that only widen it."""
        known = self._weighed.get((key, image_digest))
        if known is not None:
            return known
        heard = self._heard(key)
        if self.scope is not None:
            followed = trusted_starts(heard, self._reader, image_digest)
        else:
            followed = tuple(start for start in heard if start.is_pinned) or newest_environment(heard)
            if disagree(followed):
                followed = heard = ()
        believed = set(map(id, followed))
        others = tuple(start for start in heard if id(start) not in believed)
        self._weighed[key, image_digest] = weighed = Weighed(followed=followed, others=others)
        return weighed

    def correction(self, key: StartKey, upcoming: NextStart) -> Correction | None:
        """Correct a prediction; None where no start says anything about this setting."""
        weighed, predicted = self.weighed(key, upcoming.image_digest), upcoming.predicted
        doubts = [next_available((start,), upcoming) for start in weighed.others]
        if weighed.followed:
            moved = next_available(weighed.followed, upcoming)
            return _corrected(upcoming, moved, doubts, starts=len(weighed.followed), is_same_setting=True)
        lesson = self._lesson(key.machine, upcoming.image_digest)
        if lesson is not None and upcoming.under is not None:
            interval, expected = upcoming.under(lesson.circumstances)
            taught = lesson.moved(interval, expected)
            return _corrected(upcoming, taught, doubts, starts=lesson.starts, is_same_setting=False)
        place = key.neighbourhood
        if place not in self._spans:
            heard = (self.weighed(each) for each in (self._whole or self)._neighbours.get(place, ()))
            residuals = [start.residual_bytes for each in heard for start in (*each.followed, *each.others)]
            self._spans[place] = (min(residuals), max(residuals), len(residuals)) if residuals else None
        span = self._spans[place]
        if span is None:
            return None
        lowest, highest, count = span
        near = Interval(
            low=predicted.expected + min(0, lowest),
            expected=predicted.expected,
            high=predicted.expected + max(0, highest),
        )
        return _corrected(upcoming, predicted, (near, *doubts), starts=count, is_same_setting=False)

    def _lesson(self, machine: tuple[object, ...], image_digest: str) -> Lesson | None:
        """Return what the starts of the machine teach that a person states and this reader follows; another image's teach nothing.

        What pods report may be untrue, and a lesson speaks for every setting of the machine: those of others too.
        """
        place = machine, image_digest
        if place not in self._lessons:
            heard = (self.weighed(key, image_digest) for key in (self._whole or self)._machines.get(machine, ()))
            stated = (start for each in heard for start in of_origin(each.followed, Origin.STATED))
            alike = (start for start in stated if not image_digest or start.image_digest in ("", image_digest))
            self._lessons[place] = lesson_of(alike)
        return self._lessons[place]


NOTHING_OBSERVED = Calibration()


def _corrected(
    upcoming: NextStart, interval: Interval, others: Iterable[Interval], *, starts: int, is_same_setting: bool
) -> Correction:
    """Widen the interval to hold the others as well, as far as physics allows; the expected value stays."""
    available = interval.spanning(*others).each(lambda end: min(end, upcoming.most_bytes))
    return Correction(available=available, starts=starts, is_same_setting=is_same_setting)
