"""Prediction of a start from starts that were observed: one of the same setting replaces the formulas, a near one only widens them.

A start shows how much of the requested memory did not become KV cache (`overhead_bytes`). This overhead does not depend on
gpu_memory_utilization, and on max_model_len only if the profile run does, so one start answers for all of these.

Starts in a file of the user's own are the user's statement. In a cluster a start comes from some pod, and trust is not free: it counts
in its own namespace (unless the scope is the cluster), and alone it widens the interval of other objects and never moves it.
"""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property, partial

from msgspec import Struct, field

from kvgate.budget import fitted
from kvgate.budget.interval import Interval

IMPLAUSIBLE_SHARE = 5
"""A start that is off by more than this part of the requested memory, a fifth, was not a start of the setting that its record names."""
MIN_WITNESSES = 2
"""Pods that must report the same before they move the prediction of other objects: one report may be an accident, or a lie."""
MAX_HEARD = 32
"""Starts of one setting that are weighed against each other. With scope Cluster many namespaces may have some; the newest count."""


class CalibrationScope(StrEnum):
    """Objects for which the starts of a namespace count."""

    NAMESPACE = "Namespace"
    """They count for the objects of their own namespace."""
    CLUSTER = "Cluster"
    """They count for every object: for clusters whose tenants trust each other."""


class Origin(StrEnum):
    """The one who reported a start."""

    STATED = "Stated"
    """Read by `kvgate calibrate`, or written by hand: the person who keeps the records states it."""
    POD = "Pod"
    """Reported by a pod that the controller owns."""
    UNKNOWN = "Unknown"
    """Recorded by a release that did not record where the pod was: it may only widen."""


class StartKey(Struct, frozen=True, kw_only=True):
    """Everything that decides how much memory a rank's start takes; starts with equal keys are starts of one setting."""

    architecture: str
    weights_bytes: int
    """Bytes of the rank's weights after loading; they distinguish models, quantisations (even those made while loading) and cuts."""
    accelerator: str
    vllm_version: str
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    decode_context_parallel_size: int = 1
    first_layer: int = 0
    """First layer of the pipeline stage."""
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    """The length as far as the profile run depends on it."""
    kv_cache_dtype: str = "auto"
    enforce_eager: bool = False
    """True also for another option that switches compilation off."""
    speculative_tokens: int = 0
    modalities: str = ""
    """Modalities that the profile run encodes, with `+` between them."""
    cudagraphs: str = ""
    """Settings of CUDA graphs; empty where vLLM decides."""

    @property
    def neighbourhood(self) -> tuple[object, ...]:
        """Facts that two settings share if they run the same kernels on the same GPUs; patch releases, sizes and limits may differ."""
        minor = tuple(self.vllm_version.split(".")[:2])
        return (
            self.architecture, self.accelerator, minor, self.tensor_parallel_size, self.pipeline_parallel_size,
            self.data_parallel_size, self.enable_expert_parallel, self.enforce_eager,
        )  # fmt: skip


class ObservedStart(Struct, frozen=True, kw_only=True):
    """One start of a real server."""

    key: StartKey
    requested_bytes: int
    """total × gpu_memory_utilization."""
    available_kv_cache_bytes: int
    """Bytes that the rank had for its KV cache; negative where the budget was overdrawn."""
    resolution_bytes: int
    """Half of the step to which the figure was rounded: a block, or the last digit of a log."""
    predicted: Interval
    """The prediction of the formulas alone."""
    swing_bytes: int = 0
    """Bytes by which a compile cache changes it, by the formulas."""
    compile_cache: str = ""
    """`warm` or `cold`, where a log shows which kind of start it was; else empty."""
    scatter_bytes: int = fitted.SCATTER.interval.high
    revision: int = 0
    """Number that grows with every recorded start, so that a verdict can be given as of a revision."""
    source: str = ""
    """The place where the start was seen, in words for people."""
    origin: Origin = Origin.STATED
    namespace: str = ""
    """Namespace of the pod; empty for starts that no pod reported."""
    owner: str = ""
    """The InferenceDeployment whose pod it was."""
    pod: str = ""
    image: str = ""
    """Image as the container runtime reports it: repository and digest."""

    @property
    def overhead_bytes(self) -> int:
        return self.requested_bytes - self.available_kv_cache_bytes

    @property
    def residual_bytes(self) -> int:
        """Observed − predicted."""
        return self.available_kv_cache_bytes - self.predicted.expected

    @property
    def is_plausible(self) -> bool:
        return abs(self.residual_bytes) <= max(self.requested_bytes, 1) // IMPLAUSIBLE_SHARE


class StartState(StrEnum):
    """The way in which a recorded start is used."""

    USED = "used"
    CONTRADICTORY = "contradictory"
    """Starts of one setting differ by more than starts usually do: none of them is used."""
    IMPLAUSIBLE = "implausible"
    """The start is too far from the prediction to be one of the setting that its record names."""


class StartToStart(Struct, frozen=True, kw_only=True):
    """Difference that the formulas allow between two starts of one setting."""

    warm_overhead_bytes: int
    """Overhead with the compile cache of an earlier start."""
    cold_overhead_bytes: int
    """Overhead without a compile cache."""
    scatter_bytes: int
    compile_cache: str = ""
    """`warm` or `cold`, if it is known which kind the next start is."""

    @property
    def swing_bytes(self) -> int:
        return max(0, self.cold_overhead_bytes - self.warm_overhead_bytes)

    def room(self, overhead_bytes: int, kind: str) -> tuple[int, int]:
        """Return how much more and how much less the next start may take than one of this kind: up to the whole swing.

        If the kind is not known, it is the one that is nearer by the formulas.
        """
        if kind:
            is_settled = kind == self.compile_cache
            return (0, 0) if is_settled else (self.swing_bytes, 0) if kind == "warm" else (0, self.swing_bytes)
        from_warm, to_cold = overhead_bytes - self.warm_overhead_bytes, self.cold_overhead_bytes - overhead_bytes
        if from_warm <= to_cold:
            return self.swing_bytes, _within(from_warm, self.swing_bytes)
        return _within(to_cold, self.swing_bytes), self.swing_bytes


class Correction(Struct, frozen=True, kw_only=True):
    """A prediction as observed starts correct it."""

    available: Interval
    starts: int
    is_same_setting: bool
    """False: only neighbours were seen, and the interval is at most wider."""


class _Weighed(Struct, frozen=True, kw_only=True):
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
    _weighed: dict[StartKey, _Weighed] = field(default_factory=dict)
    """Weighed starts of the settings that were looked up before."""
    _spans: dict[tuple[object, ...], tuple[int, int, int] | None] = field(default_factory=dict)
    """(lowest residual, highest residual, starts) of the neighbourhoods that were looked up before."""

    @cached_property
    def revision(self) -> int:
        """Revision of the newest start; 0 where there is none."""
        return max((start.revision for start in self.starts), default=0)

    @cached_property
    def _plausible(self) -> Mapping[StartKey, tuple[ObservedStart, ...]]:
        by_key: dict[StartKey, list[ObservedStart]] = {}
        for start in self.starts:
            if start.is_plausible:
                by_key.setdefault(start.key, []).append(start)
        return {key: tuple(starts) for key, starts in by_key.items()}

    @cached_property
    def _neighbours(self) -> Mapping[tuple[object, ...], tuple[StartKey, ...]]:
        keys: dict[tuple[object, ...], list[StartKey]] = {}
        for key in self._plausible:
            keys.setdefault(key.neighbourhood, []).append(key)
        return {near: tuple(found) for near, found in keys.items()}

    @cached_property
    def _engines(self) -> frozenset[tuple[str, str]]:
        return frozenset((start.key.architecture, start.key.accelerator) for start in self.starts)

    def may_correct(self, architecture: str, accelerator: str) -> bool:
        """False where no start of such an engine was seen: then no setting of it has a correction."""
        return (architecture, accelerator) in (self._whole or self)._engines

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
        known = (reader for reader in ((namespace, name), (namespace, "")) if reader in self._readers)
        reader = next(known, ("", ""))
        return self._view(reader)

    def _view(self, reader: tuple[str, str]) -> "Calibration":
        if reader not in self._views:
            self._views[reader] = Calibration(
                starts=self.starts, scope=self.scope, _whole=self._whole or self, _reader=reader
            )
        return self._views[reader]

    def state(self, start: ObservedStart) -> StartState:
        """Return the way in which the start is used, which names the reason if it is not."""
        if not start.is_plausible:
            return StartState.IMPLAUSIBLE
        peers = tuple(peer for peer in self._known(start.key) if self._speaks_to(peer, start.namespace))
        if self.scope is not None and start.origin is Origin.STATED:
            peers = _of_origin(peers, Origin.STATED)
        if not _disagree(peers):
            return StartState.USED
        is_believed = self.scope is not None and start in _corroborated(peers)
        return StartState.USED if is_believed else StartState.CONTRADICTORY

    def _known(self, key: StartKey) -> tuple[ObservedStart, ...]:
        """Return the plausible starts of the setting, whoever owns them."""
        if self._whole is None:
            return self._plausible.get(key, ())
        return tuple(start for start in self._whole._known(key) if start.revision <= self.revision)

    def _speaks_to(self, start: ObservedStart, namespace: str) -> bool:
        """True where the start counts in a namespace.

        With scope Namespace a pod's start stays where the pod ran. A start whose place is not known may widen everywhere.
        """
        return (
            self.scope is not CalibrationScope.NAMESPACE
            or start.origin is not Origin.POD
            or start.namespace == namespace
        )

    def _heard(self, key: StartKey) -> tuple[ObservedStart, ...]:
        """Return the starts that count for this reader."""
        known = self._known(key)
        if self.scope is None:
            return () if _disagree(known) else known
        return tuple(start for start in known if self._speaks_to(start, self._reader[0]))[-MAX_HEARD:]

    def _weigh(self, key: StartKey) -> _Weighed:
        if key not in self._weighed:
            heard = self._heard(key)
            followed = heard if self.scope is None else _followed(heard, self._reader)
            believed = set(map(id, followed))
            self._weighed[key] = _Weighed(
                followed=followed, others=tuple(start for start in heard if id(start) not in believed)
            )
        return self._weighed[key]

    def correction(
        self, key: StartKey, *, requested_bytes: int, predicted: Interval, spread: StartToStart
    ) -> Correction | None:
        """Correct a prediction; None where no start says anything about this setting."""
        weighed = self._weigh(key)
        doubts = [_of_same_setting((start,), requested_bytes, spread) for start in weighed.others]
        if weighed.followed:
            moved = _of_same_setting(weighed.followed, requested_bytes, spread)
            return Correction(available=_widened(moved, doubts), starts=len(weighed.followed), is_same_setting=True)
        span = self._span(key.neighbourhood)
        if span is None:
            return None
        lowest, highest, count = span
        near = Interval(
            low=predicted.expected + min(0, lowest),
            expected=predicted.expected,
            high=predicted.expected + max(0, highest),
        )
        return Correction(available=_widened(predicted, (near, *doubts)), starts=count, is_same_setting=False)

    def _span(self, near: tuple[object, ...]) -> tuple[int, int, int] | None:
        if near not in self._spans:
            keys = (self._whole or self)._neighbours.get(near, ())
            residuals = [start.residual_bytes for key in keys for start in self._heard(key)]
            self._spans[near] = (min(residuals), max(residuals), len(residuals)) if residuals else None
        return self._spans[near]


NOTHING_OBSERVED = Calibration()


def _of_origin(starts: Iterable[ObservedStart], origin: Origin) -> tuple[ObservedStart, ...]:
    return tuple(start for start in starts if start.origin is origin)


def _followed(heard: tuple[ObservedStart, ...], reader: tuple[str, str]) -> tuple[ObservedStart, ...]:
    """Return the starts that may move the prediction: stated ones and the object's own, or else those on which several pods agree."""
    has_own = bool(reader[1])  # the object's own starts come from an earlier generation, or from an earlier pod
    trusted = tuple(
        start
        for start in heard
        if start.origin is Origin.STATED
        or (has_own and start.origin is Origin.POD and (start.namespace, start.owner) == reader)
    )
    return trusted if trusted and not _disagree(trusted) else _corroborated(heard)


def _corroborated(starts: Iterable[ObservedStart]) -> tuple[ObservedStart, ...]:
    """Return the starts on which most pods agree; none if fewer than MIN_WITNESSES agree, or as many agree on something else."""
    reported = sorted(_of_origin(starts, Origin.POD), key=lambda start: start.overhead_bytes)
    groups, end = [], 0
    for first in range(len(reported)):
        end = max(end, first + 1)
        while end < len(reported) and not _disagree(reported[first : end + 1]):
            end += 1
        pods = {(start.namespace, start.pod) for start in reported[first:end]}
        groups.append((len(pods), first, end))
    witnesses, first, end = max(groups, default=(0, 0, 0), key=lambda group: group[0])
    is_rivalled = any(count == witnesses and (begin >= end or last <= first) for count, begin, last in groups)
    return tuple(reported[first:end]) if witnesses >= MIN_WITNESSES and not is_rivalled else ()


def _widened(interval: Interval, others: Iterable[Interval]) -> Interval:
    """Return the interval widened to hold the others as well; the expected value stays."""
    low, high = interval.low, interval.high
    for other in others:
        low, high = min(low, other.low), max(high, other.high)
    return Interval(low=low, expected=interval.expected, high=high)


def _of_same_setting(starts: tuple[ObservedStart, ...], requested_bytes: int, spread: StartToStart) -> Interval:
    """Predict the next start from the median start.

    The next start may have a compile cache where that start had none, or the other way round; unless both kinds are known, the interval
    reaches to where the formulas put the other kind.
    """
    overheads = [start.overhead_bytes for start in starts]
    typical = sorted(overheads)[len(overheads) // 2]
    margin = spread.scatter_bytes + max(start.resolution_bytes for start in starts)
    kinds = {start.compile_cache for start in starts}
    kind = kinds.pop() if len(kinds) == 1 else ""
    colder, warmer = spread.room(typical, kind)
    expected = requested_bytes - typical
    if kind and spread.compile_cache not in (
        "",
        kind,
    ):  # the kind changes for sure, so the expected value moves with it
        expected, colder, warmer = expected - colder + warmer, warmer, colder
    return Interval(
        low=min(requested_bytes - max(overheads), expected - colder) - margin,
        expected=expected,
        high=max(requested_bytes - min(overheads), expected + warmer) + margin,
    )


def _within(value: int, limit: int) -> int:
    return min(max(0, value), limit)


def _disagree(starts: Sequence[ObservedStart]) -> bool:
    """True where starts differ by more than rounding, scatter and a compile cache explain."""
    if len(starts) < 2:
        return False
    overheads = [start.overhead_bytes for start in starts]
    kinds = {start.compile_cache for start in starts}
    swings = 1 if len(kinds) > 1 or "" in kinds else 0
    explained = max(swings * start.swing_bytes + 2 * (start.resolution_bytes + start.scatter_bytes) for start in starts)
    return max(overheads) - min(overheads) > explained
