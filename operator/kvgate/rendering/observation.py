"""The pods that run: their rollout, and what they report. Pure.

Ready, Reconciling and Stalled are the conditions that `kubectl wait`, Helm and Flux look at. Observed and PredictionDrift, and
status.observed, are about the size of the KV cache.
"""

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from msgspec import Struct

from kvgate.api.base import Document
from kvgate.api.conditions import ConditionType, Reason
from kvgate.api.status import ObservedStatus
from kvgate.budget import Budget
from kvgate.budget.ground.units import format_gib
from kvgate.rendering.admission import Admitted
from kvgate.rendering.hindrances import Hindrance, refusal_of
from kvgate.rendering.workload import NotRendered
from kvgate.vllm.metric_names import EngineReading

DRIFT_PERCENT = 5
"""Difference from the prediction, in either direction, beyond which the prediction counts as wrong."""

Statement = tuple[ConditionType, bool | None, str, str]
"""Type, status, reason and message of one condition."""


class RunningEngine(Struct, frozen=True, kw_only=True):
    """A ready pod that has reported its capacity."""

    pod: str
    template_hash: str
    """Hash of the template that the pod was made from."""
    reading: EngineReading
    declared_image: str = ""
    """Image as the pod's spec names it."""
    image: str = ""
    """Image that ran, as the container runtime reports it."""
    node: str = ""


class ToldLength(Struct, frozen=True, kw_only=True):
    """The longest request of a ready pod, as it tells it at `/v1/models`; `message` completes `pod …` where it does not."""

    pod: str
    tokens: int | None = None
    reason: Reason = Reason.NOT_OBSERVED
    message: str = ""


class PodTrouble(Struct, frozen=True, kw_only=True):
    """A ready pod that cannot be read; `message` completes `pod …`."""

    pod: str
    reason: Reason
    message: str


class Crash(Struct, frozen=True, kw_only=True):
    """A pod whose engine has ended by itself and is not ready again; `message` is a sentence."""

    pod: str
    template_hash: str
    reason: str
    """A Reason, or the name of the row in the table of failed starts."""
    message: str
    may_pass: bool = False
    """True where the next start may succeed: the engine ended once, and by nothing that vLLM itself refuses."""
    available_kv_cache_bytes: int | None = None
    """Bytes that vLLM had found for the KV cache, if its message states them."""
    declared_image: str = ""
    image: str = ""
    """Image that ran, as for a RunningEngine."""
    node: str = ""


class Observation(Struct, frozen=True, kw_only=True, eq=False):
    """The reports of all pods of one InferenceDeployment. Two observations are equal if their capacities are, whatever the usage."""

    engines: tuple[RunningEngine, ...] = ()
    lengths: tuple[ToldLength, ...] = ()
    troubles: tuple[PodTrouble, ...] = ()
    crashes: tuple[Crash, ...] = ()
    remark: str = ""
    """Reason why the reports do not correct the next prediction; empty where they do."""

    @property
    def usage_ratio(self) -> float | None:
        usages = (engine.reading.usage_ratio for engine in self.engines)
        return max((usage for usage in usages if usage is not None), default=None)

    def of(self, template_hash: str) -> tuple[RunningEngine, ...]:
        """Return the engines of the current spec."""
        return tuple(engine for engine in self.engines if engine.template_hash == template_hash)

    def starts(self, template_hash: str) -> tuple[RunningEngine | Crash, ...]:
        """Return the starts of the current spec that report how much memory became KV cache, or would have."""
        refused = (crash for crash in self.crashes if crash.available_kv_cache_bytes is not None)
        return *self.of(template_hash), *(crash for crash in refused if crash.template_hash == template_hash)

    def crash_of(self, template_hash: str) -> Crash | None:
        """Return the first crash of the current spec, in the order of the pods' names."""
        return next((crash for crash in self.crashes if crash.template_hash == template_hash), None)

    def _identity(self) -> object:
        return self.engines, self.lengths, self.troubles, self.crashes

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Observation) and self._identity() == other._identity()

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(self._identity())


class Comparison(Struct, frozen=True, kw_only=True):
    """An observation compared with the prediction."""

    pods: int = 0
    smallest: EngineReading | None = None
    capacity_tokens: int | None = None
    """Capacity of the smallest engine."""
    current_tokens: int | None = None
    """Capacity of the smallest engine of the current spec."""
    expected_tokens: int | None = None
    """None also where no KV cache is expected."""
    pinned_blocks: int | None = None
    """Blocks that every engine of the current spec was given; None where vLLM measured."""
    unpinned: EngineReading | None = None
    """The first engine of the current spec that reports another size than it was given."""
    most_tokens: int | None = None
    """Tokens that all the memory of the GPU would hold; None where the layout of the cache is not known."""

    @property
    def error(self) -> Fraction | None:
        """Observed / expected - 1."""
        if self.current_tokens is None or self.expected_tokens is None:
            return None
        return Fraction(self.current_tokens, self.expected_tokens) - 1


def compared(
    observation: Observation | None, budget: Budget | None, template_hash: str, expected: int | None,
    pinned_blocks: int | None = None,
) -> Comparison:  # fmt: skip
    """Compare an observation with `expected` tokens. `budget` has the layout of the cache; `template_hash` is that of the current spec."""
    if observation is None:
        return Comparison()
    smallest = min(
        (engine.reading for engine in observation.engines),
        key=lambda reading: (capacity_tokens(reading, budget) or 0, reading.num_gpu_blocks),
        default=None,
    )
    of_now = observation.of(template_hash)
    current = (capacity_tokens(engine.reading, budget) for engine in of_now)
    others = (
        each.reading for each in of_now if pinned_blocks and not _has(each.reading, pinned_blocks, expected, budget)
    )
    return Comparison(
        pods=len(observation.engines),
        smallest=smallest,
        capacity_tokens=capacity_tokens(smallest, budget) if smallest else None,
        current_tokens=min((tokens for tokens in current if tokens is not None), default=None),
        expected_tokens=expected or None,
        pinned_blocks=pinned_blocks,
        unpinned=next(others, None),
        most_tokens=_most_tokens(budget),
    )


def _most_tokens(budget: Budget | None) -> int | None:
    cache, stage = (budget.kv_cache, budget.tightest) if budget else (None, None)
    if cache is None or stage is None or stage.ledger is None or not stage.bytes_per_block:
        return None
    return cache.num_tokens(stage.ledger.total_bytes // stage.bytes_per_block)


def _has(reading: EngineReading, blocks: int, expected: int | None, budget: Budget | None) -> bool:
    """Return True where an engine has the pinned blocks, or as many tokens in blocks of another size: attention backends choose it."""
    tokens = capacity_tokens(reading, budget)
    is_alike = tokens is not None and expected is not None and abs(tokens - expected) < reading.block_size
    return reading.num_gpu_blocks == blocks or is_alike


def capacity_tokens(reading: EngineReading, budget: Budget | None) -> int | None:
    """Return the tokens as vLLM's log counts them. Before vLLM 0.24 they are computed from the blocks, if the cache's layout is known."""
    if reading.kv_cache_size_tokens is not None:
        return reading.kv_cache_size_tokens
    cache = budget.kv_cache if budget else None
    if cache is None or not cache.groups:
        return None
    if len(cache.groups) == 1:
        return reading.num_gpu_blocks * reading.block_size * cache.reach.decode_context
    return cache.num_tokens(reading.num_gpu_blocks)


def observed_status(
    figures: Comparison, lengths: list[Document] | None, previous: Mapping[str, Any], now: str
) -> Document | None:
    """Return status.observed. Its time changes with the size alone; `previous` is the previous status.observed."""
    if figures.smallest is None:
        return None
    size: Document = {"numGpuBlocks": figures.smallest.num_gpu_blocks, "blockSize": figures.smallest.block_size}
    if figures.capacity_tokens is not None:
        size["kvCacheCapacityTokens"] = figures.capacity_tokens
    keys = ("kvCacheCapacityTokens", *size)
    is_same = all(previous.get(key) == size.get(key) for key in keys) and isinstance(previous.get("observedTime"), str)
    return ObservedStatus(
        **size, pods=figures.pods, lengths=lengths, observed_time=previous["observedTime"] if is_same else now,
        prediction_error_percent=f"{_percent(figures.error):.1f}" if figures.error is not None else None,
    ).model_dump(by_alias=True, exclude_none=True)  # fmt: skip


def observed_statements(observation: Observation, figures: Comparison) -> list[Statement]:
    return [
        (ConditionType.OBSERVED, *_observed(observation, figures)),
        (ConditionType.PREDICTION_DRIFT, *_drift(figures, observation.remark)),
    ]


def _observed(observation: Observation, figures: Comparison) -> tuple[bool | None, Reason, str]:
    if observation.troubles:
        first, more = observation.troubles[0], len(observation.troubles) - 1
        message = f"pod {first.pod} {first.message}" + (f"; {more} more pods cannot be read" if more else "")
        return False, first.reason, message
    if figures.smallest is None:
        return None, Reason.NO_READY_PODS, "no ready pod has been read"
    blocks = f"{figures.smallest.num_gpu_blocks:,} blocks of {figures.smallest.block_size} tokens"
    size = f"{figures.capacity_tokens:,} tokens, in {blocks}" if figures.capacity_tokens is not None else blocks
    return True, Reason.CAPACITY_REPORTED, f"vLLM reports a KV cache of {size}"


def _drift(figures: Comparison, remark: str) -> tuple[bool | None, Reason, str]:
    error = figures.error
    if figures.unpinned is not None:
        text = (
            f"vLLM reports {figures.unpinned.num_gpu_blocks:,} blocks of {figures.unpinned.block_size} tokens, and "
            f"{figures.pinned_blocks:,} are pinned: the image does not do what its release does, or kvgate computes another block"
        )
        return True, Reason.CAPACITY_DIFFERS, text
    if error is None:
        is_observed = figures.current_tokens is not None
        message = "nothing was predicted" if is_observed else "no pod of the current spec has reported its capacity"
        return None, Reason.NOT_OBSERVED, message
    text = f"vLLM reports {figures.current_tokens:,} tokens, kvgate expects {figures.expected_tokens:,}: {_percent(error):+.1f} %"
    text += f"; {remark}" if remark else ""
    if figures.most_tokens and (figures.current_tokens or 0) > figures.most_tokens:
        text += f"; its whole GPU would hold {figures.most_tokens:,} in the expected layout: is the image the one that the spec states?"
        return True, Reason.CAPACITY_IMPOSSIBLE, text
    if abs(error) * 100 > DRIFT_PERCENT:
        return True, Reason.CAPACITY_DIFFERS, text
    return False, Reason.WITHIN_TOLERANCE, text


def _percent(error: Fraction) -> float:
    return float(error * 100) + 0.0  # no "-0.0"


def crash_text(crash: Crash, budget: Budget | None) -> str:
    """Describe a crash, with the prediction beside it where the crash is about memory."""
    is_of_memory = crash.reason in (Reason.KV_CACHE_TOO_SMALL, Reason.OUT_OF_MEMORY)
    available = budget.tightest.available if budget and budget.tightest and is_of_memory else None
    if available is None:
        return f"pod {crash.pod}: {crash.message}"
    expected, low, high = map(format_gib, (available.expected, available.low, available.high))
    if budget and budget.pin:
        remedy = "set spec.admission.capacity to Profiled, or lower spec.vllm.gpuMemoryUtilization"
        return f"pod {crash.pod}: {crash.message}; {expected} are pinned for the KV cache, and the start took more than predicted: {remedy}"
    return f"pod {crash.pod}: {crash.message}; kvgate expects {expected} for the KV cache ({low} to {high})"


WAITING = "waiting for a change of the spec or of the cluster"
_NOTHING_BLOCKS = "nothing blocks the rollout"


class Obstacle(Struct, frozen=True, kw_only=True):
    """The reason why the manifests could not be applied."""

    reason: Reason
    message: str

    @property
    def is_transient(self) -> bool:
        """True where the next try may succeed without a change by anybody."""
        return self.reason is Reason.API_UNAVAILABLE


class Rollout(Struct, frozen=True, kw_only=True):
    """The state of a Deployment's rollout: counts of pods, and what blocks it."""

    wanted: int = 0
    existing: int = 0
    ready: int = 0
    available: int = 0
    updated: int = 0
    is_observed: bool = False
    """True where the counts are about the present spec of the Deployment."""
    stuck: str = ""
    """Message of the Deployment's controller after the progress deadline; else empty."""
    refused: str = ""
    """Message of the API server where it refuses the pods (a quota, an admission policy); else empty."""
    was_complete: bool = False
    """True where all pods of the present template were available at one time."""
    is_suspended: bool = False
    """True where the spec wants no pod for now."""

    @property
    def is_complete(self) -> bool:
        """True where all replicas are of the present spec and available, and no older one is left."""
        return self.is_observed and self.updated == self.available == self.existing == self.wanted


def rollout_of(deployment: Mapping[str, Any]) -> Rollout:
    """Read the state of a Deployment; the API server leaves out counts that are zero."""
    status, metadata = deployment.get("status", {}), deployment.get("metadata", {})
    conditions = {condition.get("type"): condition for condition in status.get("conditions", ())}
    progressing, failure = conditions.get("Progressing", {}), conditions.get("ReplicaFailure", {})
    return Rollout(
        wanted=deployment.get("spec", {}).get("replicas", 1),
        existing=status.get("replicas", 0),
        ready=status.get("readyReplicas", 0),
        available=status.get("availableReplicas", 0),
        updated=status.get("updatedReplicas", 0),
        is_observed=status.get("observedGeneration", 0) >= metadata.get("generation", 1),
        stuck=str(progressing.get("message", "")) if progressing.get("reason") == "ProgressDeadlineExceeded" else "",
        refused=str(failure.get("message", "")) if failure.get("status") == "True" else "",
        was_complete=progressing.get("reason") == "NewReplicaSetAvailable",
    )


def progress(
    left_out: NotRendered | None, obstacle: Obstacle | None, rollout: Rollout, crash: tuple[str, str] | None,
    admitted: Admitted | None = None, *, hindrances: Sequence[Hindrance] = (), may_pass: bool = False,
    was_ready: bool = False,
) -> list[Statement]:  # fmt: skip
    """Return Ready, Reconciling and Stalled. A crash whose cause vLLM states says more than what Kubernetes sees of it.

    `may_pass` is about the crash. `was_ready` means that all replicas of the current spec were ready once.
    """
    if left_out is not None and admitted is not None and admitted.owner is not None:
        return _of_earlier(left_out, obstacle, rollout, admitted.record.generation)
    if left_out is not None:
        stale = f"; {rollout.existing} pods of an earlier spec keep running" if rollout.existing else ""
        ready: Statement = (ConditionType.READY, False, Reason.NOT_RENDERED, left_out.message + stale)
        return [ready, *_left_out(left_out, stale)]
    if obstacle is not None and not obstacle.is_transient:
        return _halted(obstacle.reason, obstacle.message, Reason.REPLICAS_NOT_READY)
    if crash is not None and not rollout.is_complete and not may_pass:
        return _halted(*crash, crash[0])
    ready, reconciling, stalled = _of_rollout(rollout, hindrances, crash, was_ready=was_ready)
    if obstacle is not None:
        reconciling = (ConditionType.RECONCILING, True, obstacle.reason, obstacle.message)
    return [ready, reconciling, stalled]


def _of_earlier(left_out: NotRendered, obstacle: Obstacle | None, rollout: Rollout, generation: int) -> list[Statement]:
    """Return the conditions where the present generation is left out and an earlier one runs; Ready is about the pods that run."""
    reason = Reason.REPLICAS_READY if rollout.is_complete else Reason.REPLICAS_NOT_READY
    this_one = "this one is not judged yet" if left_out.is_waiting else "this one is refused"
    ready = f"{rollout.available} of {rollout.wanted} replicas of generation {generation} are ready; {this_one}"
    more = f"; {obstacle.message}" if obstacle else ""
    state = _left_out(left_out, f"; generation {generation} keeps running{more}")
    return [(ConditionType.READY, rollout.is_complete, reason, ready), *state]


def _left_out(left_out: NotRendered, more: str) -> list[Statement]:
    """Return Reconciling and Stalled; a spec that waits for kvgate alone is not stalled."""
    if left_out.is_waiting:
        return [
            (ConditionType.RECONCILING, True, left_out.reason, left_out.message + more),
            (ConditionType.STALLED, False, left_out.reason, _NOTHING_BLOCKS),
        ]
    return _halted(left_out.reason, left_out.message + more, left_out.reason)[1:]


def first_of(hindrances: Sequence[Hindrance]) -> tuple[str, str, bool] | None:
    """Return the reason, the message and whether somebody must help, of the pod that needs somebody before one that time helps."""
    usual = (
        Reason.EVICTED,
        Reason.LOADING_SLOWLY,
        Reason.LOADING,
        Reason.CONTAINER_CREATING,
    )  # another takes its place
    rank = {reason: index for index, reason in enumerate(usual)}
    first = min(hindrances, key=lambda each: (not each.needs_somebody, rank.get(each.reason, -1)), default=None)
    if first is None:
        return None
    others = sum(each.reason is first.reason for each in hindrances) - 1
    more = f"; so {'do' if others > 1 else 'does'} {others} more" if others else ""
    return first.reason, f"pod {first.pod}: {first.message}{more}", first.needs_somebody


def _of_rollout(
    rollout: Rollout, hindrances: Sequence[Hindrance], crash: tuple[str, str] | None, *, was_ready: bool
) -> list[Statement]:
    ready = f"{rollout.available} of {rollout.wanted} replicas are ready"
    if rollout.is_complete:
        is_empty = not rollout.wanted
        none = (
            (Reason.SUSPENDED, "spec.suspend is true")
            if rollout.is_suspended
            else (Reason.SCALED_TO_ZERO, "spec.replicas is 0")
        )
        all_ready = none if is_empty else (Reason.REPLICAS_READY, ready)
        return [
            (ConditionType.READY, True, *all_ready),
            (ConditionType.RECONCILING, False, Reason.UP_TO_DATE, "all replicas are of the current spec"),
            (ConditionType.STALLED, False, Reason.UP_TO_DATE, _NOTHING_BLOCKS),
        ]
    if rollout.refused:
        return _halted(refusal_of(rollout.refused), rollout.refused, refusal_of(rollout.refused))
    found = (*crash, False) if crash else first_of(hindrances)
    why: str = Reason.REPLICA_LOST if was_ready else Reason.ROLLING_OUT
    of_ready, text, is_halted = (why if was_ready else Reason.REPLICAS_NOT_READY), ready, bool(rollout.stuck)
    if found is not None:
        why, text = found[0], f"{ready}; {found[1]}"
        of_ready, is_halted = why, found[2] or is_halted
    told = text
    if rollout.stuck and not (found and found[2]):
        why, told = Reason.PROGRESS_DEADLINE_EXCEEDED, f"{rollout.stuck}; {text}" if found else rollout.stuck
    return [
        (ConditionType.READY, False, of_ready, text),
        (ConditionType.RECONCILING, not is_halted, why, told),
        (ConditionType.STALLED, is_halted, why, told if is_halted else _NOTHING_BLOCKS),
    ]


def _halted(reason: str, message: str, ready: str) -> list[Statement]:
    return [
        (ConditionType.READY, False, ready, message),
        (ConditionType.RECONCILING, False, reason, WAITING),
        (ConditionType.STALLED, True, reason, message),
    ]
