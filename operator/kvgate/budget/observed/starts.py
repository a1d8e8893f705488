"""Starts that were observed: the record of one, and the prediction of the next start from several."""

from collections.abc import Callable, Sequence
from enum import StrEnum

from msgspec import Struct

from kvgate.budget.ground import fitted
from kvgate.budget.ground.interval import Interval

IMPLAUSIBLE_SHARE = 5
"""A start that is off by more than this part of the requested memory, a fifth, was not a start of the setting that its record names."""


class Origin(StrEnum):
    """The one who reported a start."""

    STATED = "Stated"
    """Read by `kvgate calibrate`, or written by hand: the person who keeps the records states it."""
    POD = "Pod"
    """Reported by a pod that the controller owns."""


class GpuAtStart(StrEnum):
    """Memory of the GPU in front of the start, as far as a log shows it."""

    EMPTY = "Empty"
    """Nobody else held memory."""
    SHARED = "Shared"
    """Another process held memory, or may hold some because the node shares its GPUs: the start may only widen."""
    UNKNOWN = "Unknown"


class StartKey(Struct, frozen=True, kw_only=True):
    """Everything that decides which kernels a rank's start runs, and on what; starts with equal keys are starts of one setting.

    `max_num_seqs` is not among it: the formulas carry its effect (rows of the sampler, penalties, number of CUDA graphs).
    """

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
    def machine(self) -> tuple[object, ...]:
        """GPU and release, and what decides beside them which circumstances there are: links between ranks, and a compiler."""
        return self.accelerator, self.vllm_version, self.tensor_parallel_size > 1, self.enforce_eager

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
    max_num_seqs: int
    requested_bytes: int
    """total × gpu_memory_utilization."""
    available_kv_cache_bytes: int
    """Bytes that the rank had for its KV cache; negative where the budget was overdrawn."""
    resolution_bytes: int
    """Half of the step to which the figure was rounded: a block, or the last digit of a log."""
    predicted: Interval
    """The prediction of the formulas alone."""
    possible_bytes: tuple[int, int]
    """(least, most) bytes for the KV cache that physics allows: an engine that runs has some, and none has what its weights take."""
    swing_bytes: int = 0
    """Bytes by which a compile cache changes it, by the formulas."""
    compile_cache: str = ""
    """`warm` or `cold`, where a log shows which kind of start it was; else empty."""
    circumstances: tuple[tuple[str, str], ...] = ()
    """Circumstances that the figure settles, by their names in `Circumstances`."""
    residue_bytes: int | None = None
    """Bytes that the nearest combination of circumstances leaves unexplained; None: nobody has looked (records of older releases)."""
    scatter_bytes: int = fitted.SCATTER.interval.high
    revision: int = 0
    """Number that grows with every recorded start, so that a verdict can be given as of a revision, and that no other start gets."""
    source: str = ""
    """The place where the start was seen, in words for people."""
    origin: Origin = Origin.STATED
    namespace: str = ""
    """Namespace of the pod; empty for starts that no pod reported."""
    owner: str = ""
    """The InferenceDeployment whose pod it was."""
    pod: str = ""
    node: str = ""
    """Node of the pod; empty where the record does not state it."""
    image: str = ""
    """Image as the container runtime reports it: repository and digest."""
    driver: str = ""
    """Release of the GPU's driver; empty where the node was not read, as for `product`."""
    product: str = ""
    """Product of the GPU as the node's labels have it."""
    gpu_at_start: GpuAtStart = GpuAtStart.UNKNOWN
    is_pinned: bool = False
    """Somebody has decided that predictions follow this start."""
    is_dropped: bool = False
    """Somebody has decided that this start, and any like it, counts for nothing; the record prevents that it is learnt again."""
    is_expired: bool = False
    """Its node is gone or has another driver, or its owner runs another image: it vouches for nothing any more."""

    @property
    def image_digest(self) -> str:
        return self.image.rpartition("@")[2]

    @property
    def environment(self) -> tuple[str, str, str]:
        """The image's digest, the driver and the GPU's product: starts that differ in one of them are neighbours of each other."""
        return self.image_digest, self.driver, self.product

    @property
    def witness(self) -> tuple[str, str] | None:
        """The (namespace, owner) that reports it, whatever its pods are called; None for what people state."""
        return (self.namespace, self.owner) if self.origin is Origin.POD else None

    @property
    def overhead_bytes(self) -> int:
        return self.requested_bytes - self.available_kv_cache_bytes

    @property
    def residual_bytes(self) -> int:
        return self.available_kv_cache_bytes - self.predicted.expected

    @property
    def is_plausible(self) -> bool:
        return abs(self.residual_bytes) <= max(self.requested_bytes, 1) // IMPLAUSIBLE_SHARE

    @property
    def is_possible(self) -> bool:
        """False for a figure that no engine of this setting can have, whatever the formulas lack."""
        least, most = self.possible_bytes
        return least <= self.available_kv_cache_bytes - self.resolution_bytes <= most

    @property
    def may_move(self) -> bool:
        """False where another process may have held memory: then the start widens predictions of others and moves none.

        Where no log shows how much memory was free, a pod that has less than even the low end of the formulas is taken for one with a
        neighbour. Memory beyond their high end comes from no neighbour.
        """
        if self.is_pinned or self.origin is Origin.STATED:
            return True
        is_short = self.available_kv_cache_bytes + self.resolution_bytes < self.predicted.low
        return self.gpu_at_start is GpuAtStart.EMPTY or (self.gpu_at_start is GpuAtStart.UNKNOWN and not is_short)


class StartToStart(Struct, frozen=True, kw_only=True):
    """Difference that the formulas allow between two starts of one setting."""

    warm_overhead_bytes: int
    """Overhead with the compile cache of an earlier start."""
    cold_overhead_bytes: int
    """Overhead without a compile cache."""
    scatter_bytes: int
    likely_swing_bytes: int | None = None
    """Difference that is expected between both kinds; None: all of `swing_bytes`."""
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


class NextStart(Struct, frozen=True, kw_only=True):
    """The start that is predicted."""

    max_num_seqs: int
    requested_bytes: int
    predicted: Interval
    """The prediction of the formulas."""
    most_bytes: int
    """The most for the KV cache that physics allows."""
    spread: StartToStart
    formula_overhead: Callable[[int], int]
    """Overhead by the formulas of today with another max_num_seqs and everything else the same."""
    image_digest: str = ""
    """Digest of the image, where it is known."""
    under: Callable[[tuple[tuple[str, str], ...]], tuple[Interval, int]] | None = None
    """Return the prediction of the formulas under circumstances, and the bytes that are expected with the kind of start among them."""

    def overhead_of(self, start: ObservedStart) -> tuple[int, int]:
        """Return the overhead of a start as it would be with this max_num_seqs, and the doubt about that difference."""
        if start.max_num_seqs == self.max_num_seqs:
            return start.overhead_bytes, 0
        difference = self.requested_bytes - self.predicted.expected - self.formula_overhead(start.max_num_seqs)
        return start.overhead_bytes + difference, fitted.OTHER_MAX_NUM_SEQS.of(abs(difference)).high


def next_available(starts: tuple[ObservedStart, ...], upcoming: NextStart) -> Interval:
    """Predict the next start from the median start, in which newer starts weigh more and every witness has one voice, its newest start.

    The next start may have a compile cache where that start had none, or the other way round: starts of the kind that comes decide, if
    there are some. Unless both kinds are known, the interval reaches to where the formulas put the other kind.
    """
    coming = upcoming.spread.compile_cache
    starts = (coming and tuple(start for start in starts if start.compile_cache == coming)) or starts
    moved = [upcoming.overhead_of(start) for start in starts]
    by_age = sorted(range(len(starts)), key=lambda number: starts[number].revision)
    voices = {starts[number].witness or number: number for number in by_age}.values()
    typical = _weighted_median([moved[each][0] for each in voices], [starts[each].revision for each in voices])
    margin = upcoming.spread.scatter_bytes + max(start.resolution_bytes for start in starts)
    kind = kind_of(starts)
    colder, warmer = upcoming.spread.room(typical, kind)
    expected = upcoming.requested_bytes - typical
    is_other_kind = bool(kind) and coming not in ("", kind)
    if is_other_kind:  # for sure, so the expected value moves with it
        likely = upcoming.spread.likely_swing_bytes
        moved_by = max(colder, warmer) if likely is None else _within(likely, max(colder, warmer))
        if colder:
            expected, colder, warmer = expected - moved_by, colder - moved_by, moved_by
        else:
            expected, colder, warmer = expected + moved_by, moved_by, warmer - moved_by
    least = upcoming.requested_bytes - max(overhead + doubt for overhead, doubt in moved)
    most = upcoming.requested_bytes - min(overhead - doubt for overhead, doubt in moved)
    return Interval(
        low=min(least, expected - colder) - margin, expected=expected, high=max(most, expected + warmer) + margin
    )


def _weighted_median(values: Sequence[int], revisions: Sequence[int]) -> int:
    """Return the median, in which a value counts 1 / (1 + number of newer starts): the upper one of two."""
    if len(values) == 1:
        return values[0]
    weighed = sorted(
        (value, 1 / (1 + sum(other > revision for other in revisions)))
        for value, revision in zip(values, revisions, strict=True)
    )
    half, seen = sum(weight for _, weight in weighed) / 2, 0.0
    for value, weight in weighed:
        seen += weight
        if seen > half:
            return value
    return weighed[-1][0]


def kind_of(starts: Sequence[ObservedStart]) -> str:
    """Return the kind of start, `warm` or `cold`, if all are known and of one kind; else nothing."""
    kinds = {start.compile_cache for start in starts}
    return kinds.pop() if len(kinds) == 1 else ""


def _within(value: int, limit: int) -> int:
    return min(max(0, value), limit)
