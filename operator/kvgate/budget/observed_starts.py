"""Starts that were observed: what a record of one holds, which of several are believed, and what they say about the next start."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec import Struct

from kvgate.budget import fitted
from kvgate.budget.interval import Interval

IMPLAUSIBLE_SHARE = 5
"""A start that is off by more than this part of the requested memory, a fifth, was not a start of the setting that its record names."""
MIN_WITNESSES = 2
"""Pods that must report the same before they move the prediction of other objects: one report may be an accident, or a lie."""


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


def of_origin(starts: Iterable[ObservedStart], origin: Origin) -> tuple[ObservedStart, ...]:
    """Return the starts that one kind of reporter has told."""
    return tuple(start for start in starts if start.origin is origin)


def trusted_starts(heard: tuple[ObservedStart, ...], reader: tuple[str, str]) -> tuple[ObservedStart, ...]:
    """Return the starts that may move the prediction: stated ones and the object's own, or else those on which several pods agree."""
    has_own = bool(reader[1])  # the object's own starts come from an earlier generation, or from an earlier pod
    trusted = tuple(
        start
        for start in heard
        if start.origin is Origin.STATED
        or (has_own and start.origin is Origin.POD and (start.namespace, start.owner) == reader)
    )
    return trusted if trusted and not disagree(trusted) else corroborated(heard)


def corroborated(starts: Iterable[ObservedStart]) -> tuple[ObservedStart, ...]:
    """Return the starts on which most pods agree; none if fewer than MIN_WITNESSES agree, or as many agree on something else."""
    reported = sorted(of_origin(starts, Origin.POD), key=lambda start: start.overhead_bytes)
    groups, end = [], 0
    for first in range(len(reported)):
        end = max(end, first + 1)
        while end < len(reported) and not disagree(reported[first : end + 1]):
            end += 1
        pods = {(start.namespace, start.pod) for start in reported[first:end]}
        groups.append((len(pods), first, end))
    witnesses, first, end = max(groups, default=(0, 0, 0), key=lambda group: group[0])
    is_rivalled = any(count == witnesses and (begin >= end or last <= first) for count, begin, last in groups)
    return tuple(reported[first:end]) if witnesses >= MIN_WITNESSES and not is_rivalled else ()


def next_available(starts: tuple[ObservedStart, ...], requested_bytes: int, spread: StartToStart) -> Interval:
    """Predict the next start from the median start.

    The next start may have a compile cache where that start had none, or the other way round; unless both kinds are known, the interval
    reaches to where the formulas put the other kind.
    """
    overheads = [start.overhead_bytes for start in starts]
    typical = sorted(overheads)[len(overheads) // 2]
    margin = spread.scatter_bytes + max(start.resolution_bytes for start in starts)
    kind = _kind_of(starts)
    colder, warmer = spread.room(typical, kind)
    expected = requested_bytes - typical
    is_other_kind = bool(kind) and spread.compile_cache not in ("", kind)
    if is_other_kind:  # for sure, so the expected value moves with it
        expected, colder, warmer = expected - colder + warmer, warmer, colder
    return Interval(
        low=min(requested_bytes - max(overheads), expected - colder) - margin,
        expected=expected,
        high=max(requested_bytes - min(overheads), expected + warmer) + margin,
    )


def _kind_of(starts: Sequence[ObservedStart]) -> str:
    """Return the kind of start, `warm` or `cold`, if all are known and of one kind; else nothing."""
    kinds = {start.compile_cache for start in starts}
    return kinds.pop() if len(kinds) == 1 else ""


def _within(value: int, limit: int) -> int:
    return min(max(0, value), limit)


def disagree(starts: Sequence[ObservedStart]) -> bool:
    """True where starts differ by more than rounding, scatter and a compile cache explain."""
    if len(starts) < 2:
        return False
    overheads = [start.overhead_bytes for start in starts]
    swings = 0 if _kind_of(starts) else 1
    explained = max(swings * start.swing_bytes + 2 * (start.resolution_bytes + start.scatter_bytes) for start in starts)
    return max(overheads) - min(overheads) > explained
