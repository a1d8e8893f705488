"""What observed starts say about the next one: the same setting is known, a near one is only less certain.

A start tells how much of the requested memory did not become KV cache (`overhead_bytes`). That does not depend on
gpu_memory_utilization, and on max_model_len only where the profile run does, so one start answers for all of these.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from kvgate.budget.interval import Interval
from kvgate.budget.units import gib
from kvgate.record import record

SCATTER_BYTES = gib(0.06)
"""Half of what starts of one setting on one machine differ by: up to 0.09 GiB in five starts of Qwen2.5-7B and 0.08 in five of
Llama-3.1-8B (RTX 3090, 0.17.1), 0.05 GLM-5.1 (H200, 8 ranks), 0.03 Qwen3.6-35B (RTX 5090, 0.24)."""
SCATTER_UNIFIED_BYTES = gib(4.5)
"""Where CPU and GPU share the memory the neighbours count: two starts of one setting on GB10 lay 4.4 GiB apart."""
IMPLAUSIBLE_SHARE = 5
"""A start that is off by more than a fifth of the requested memory was not the setting that it is said to be."""


@record
class StartKey:
    """All that decides how much memory a rank's start takes; starts with equal keys are starts of one setting."""

    architecture: str
    weights_bytes: int
    """Of the rank, as loaded: tells models, quantizations (those made while loading, too) and cuts apart."""
    accelerator: str
    vllm_version: str
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    enable_expert_parallel: bool = False
    decode_context_parallel_size: int = 1
    first_layer: int = 0
    """Of the pipeline stage."""
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    """Only as far as the profile run depends on it."""
    kv_cache_dtype: str = "auto"
    enforce_eager: bool = False
    """Or another option that switches compilation off."""
    speculative_tokens: int = 0
    modalities: str = ""
    """What the profile run encodes, with `+` between."""
    cudagraphs: str = ""
    """What is said about CUDA graphs; empty: vLLM decides."""

    @property
    def neighbourhood(self) -> tuple[object, ...]:
        """Keys that share this run the same kernels on the same GPUs: patch releases, sizes and limits may differ."""
        minor = tuple(self.vllm_version.split(".")[:2])
        return (
            self.architecture, self.accelerator, minor, self.tensor_parallel_size, self.pipeline_parallel_size,
            self.data_parallel_size, self.enable_expert_parallel, self.enforce_eager,
        )  # fmt: skip


@record
class ObservedStart:
    """One start of a real server."""

    key: StartKey
    requested_bytes: int
    """total × gpu_memory_utilization."""
    available_kv_cache_bytes: int
    """Of the rank; negative where the budget was overdrawn."""
    resolution_bytes: int
    """Half of what the figure was rounded to: a block, or the last digit of a log."""
    predicted: Interval
    """What the formulas alone had said."""
    swing_bytes: int = 0
    """What a compile cache could make of it, by the formulas."""
    scatter_bytes: int = SCATTER_BYTES
    revision: int = 0
    """Grows with every start that is recorded: a verdict can be given as of one."""
    source: str = ""
    """Where it was seen, for people."""

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
    """What becomes of a recorded start."""

    USED = "used"
    CONTRADICTORY = "contradictory"
    """Starts of one setting differ by more than starts do: none of them is used."""
    IMPLAUSIBLE = "implausible"
    """Too far from the prediction to be the setting that it is said to be."""


@record
class StartToStart:
    """How much two starts of one setting may differ, by the formulas."""

    warm_overhead_bytes: int
    """With the compile cache of an earlier start."""
    cold_overhead_bytes: int
    """Without one."""
    scatter_bytes: int

    @property
    def swing_bytes(self) -> int:
        return max(0, self.cold_overhead_bytes - self.warm_overhead_bytes)

    def room(self, overhead_bytes: int) -> tuple[int, int]:
        """How much more and how much less the next start may take: the whole swing away from the kind that this one looks like."""
        from_warm, to_cold = overhead_bytes - self.warm_overhead_bytes, self.cold_overhead_bytes - overhead_bytes
        if from_warm <= to_cold:
            return self.swing_bytes, _within(from_warm, self.swing_bytes)
        return _within(to_cold, self.swing_bytes), self.swing_bytes


@record
class Correction:
    """What observed starts make of a prediction."""

    available: Interval
    starts: int
    is_same_setting: bool
    """False: only neighbours were seen, and the interval is at most wider."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Calibration:
    """Observed starts, looked up by setting; compared by identity, because it stands in questions that are cached."""

    starts: tuple[ObservedStart, ...] = ()
    _whole: "Calibration | None" = field(default=None, repr=False)
    """Whose index this one uses: a thousand objects may be judged as of a thousand revisions."""
    _earlier: dict[int, "Calibration"] = field(default_factory=dict, init=False, repr=False)
    _spans: dict[tuple[object, ...], tuple[int, int, int] | None] = field(default_factory=dict, init=False, repr=False)
    """(lowest residual, highest residual, starts) by neighbourhood, of those that were asked for."""

    @cached_property
    def revision(self) -> int:
        """Of the newest start; 0 where there is none."""
        return max((start.revision for start in self.starts), default=0)

    @cached_property
    def _plausible(self) -> Mapping[StartKey, tuple[ObservedStart, ...]]:
        by_key: dict[StartKey, tuple[ObservedStart, ...]] = {}
        for start in self.starts:
            if start.is_plausible:
                by_key[start.key] = (*by_key.get(start.key, ()), start)
        return by_key

    @cached_property
    def _neighbours(self) -> Mapping[tuple[object, ...], tuple[StartKey, ...]]:
        keys: dict[tuple[object, ...], tuple[StartKey, ...]] = {}
        for key in self._plausible:
            keys[key.neighbourhood] = (*keys.get(key.neighbourhood, ()), key)
        return keys

    def _known(self, key: StartKey) -> tuple[ObservedStart, ...]:
        if self._whole is None:
            return self._plausible.get(key, ())
        return tuple(start for start in self._whole._known(key) if start.revision <= self.revision)

    def state(self, start: ObservedStart) -> StartState:
        """Whether the start is used, and if not, why."""
        if not start.is_plausible:
            return StartState.IMPLAUSIBLE
        return StartState.CONTRADICTORY if _disagree(self._known(start.key)) else StartState.USED

    def _used(self, key: StartKey) -> tuple[ObservedStart, ...]:
        known = self._known(key)
        return () if _disagree(known) else known

    def as_of(self, revision: int) -> "Calibration":
        """What was known then: a verdict that stands must not move with what its own pods report."""
        if revision >= self.revision:
            return self
        if revision not in self._earlier:
            starts = tuple(start for start in self.starts if start.revision <= revision)
            self._earlier[revision] = Calibration(starts=starts, _whole=self._whole or self)
        return self._earlier[revision]

    def correction(
        self, key: StartKey, *, requested_bytes: int, predicted: Interval, spread: StartToStart
    ) -> Correction | None:
        """None where nothing was seen that says anything about this setting."""
        starts = self._used(key)
        if starts:
            return _of_same_setting(starts, requested_bytes, spread)
        span = self._span(key.neighbourhood)
        if span is None:
            return None
        lowest, highest, count = span
        widened = Interval(
            low=min(predicted.low, predicted.expected + lowest),
            expected=predicted.expected,
            high=max(predicted.high, predicted.expected + highest),
        )
        return Correction(available=widened, starts=count, is_same_setting=False)

    def _span(self, near: tuple[object, ...]) -> tuple[int, int, int] | None:
        if near not in self._spans:
            keys = (self._whole or self)._neighbours.get(near, ())
            residuals = [start.residual_bytes for key in keys for start in self._used(key)]
            self._spans[near] = (min(residuals), max(residuals), len(residuals)) if residuals else None
        return self._spans[near]


NOTHING_OBSERVED = Calibration()


def _of_same_setting(starts: tuple[ObservedStart, ...], requested_bytes: int, spread: StartToStart) -> Correction:
    """The median start; whether it had a compile cache is not known, so the next may lie where the formulas put the other kind."""
    overheads = [start.overhead_bytes for start in starts]
    typical = sorted(overheads)[len(overheads) // 2]
    margin = spread.scatter_bytes + max(start.resolution_bytes for start in starts)
    colder, warmer = spread.room(typical)
    expected = requested_bytes - typical
    return Correction(
        available=Interval(
            low=min(requested_bytes - max(overheads), expected - colder) - margin,
            expected=expected,
            high=max(requested_bytes - min(overheads), expected + warmer) + margin,
        ),
        starts=len(starts),
        is_same_setting=True,
    )


def _within(value: int, limit: int) -> int:
    return min(max(0, value), limit)


def _disagree(starts: Sequence[ObservedStart]) -> bool:
    """Beyond rounding, scatter and what a compile cache explains."""
    if len(starts) < 2:
        return False
    overheads = [start.overhead_bytes for start in starts]
    explained = max(start.swing_bytes + 2 * (start.resolution_bytes + start.scatter_bytes) for start in starts)
    return max(overheads) - min(overheads) > explained
