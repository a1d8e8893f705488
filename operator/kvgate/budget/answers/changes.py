"""Changes that may make room: what each costs its user, and the steps in which it is tried."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from math import log2
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.answers.answer import Budget
from kvgate.budget.answers.sharing import hundredths, sharer_of
from kvgate.budget.answers.solver import KnobChange, can_use_fp8
from kvgate.budget.answers.support import kv_cache_dtype_refusal, parallelism_refusals
from kvgate.budget.engine.request import NO_OFFLOAD, BudgetRequest, Capacity, Guarantee
from kvgate.budget.ground.hardware import Accelerator
from kvgate.budget.ground.units import GIB, cdiv
from kvgate.budget.model.shape import ModelShape


class Loss(StrEnum):
    """The thing that a change takes from the user."""

    NOTHING = "nothing"
    SPEED = "speed"
    QUALITY = "quality"
    CONTEXT = "context"
    USERS = "users at once"
    MEDIA = "images and sounds"
    MONEY = "money"


class Cost(Struct, frozen=True, kw_only=True):
    loss: Loss
    points: float
    """Points of one change, or of one halving, doubling or GiB of it. 5 points are half of the context."""
    per: Literal["change", "halving", "doubling", "GiB"] = "change"
    base: float = 0
    """Points that come to those, however small the change is."""
    words: str


COSTS: Mapping[str, Cost] = {
    "gpu_memory_utilization": Cost(loss=Loss.NOTHING, points=1, words="the GPU must have no other user"),
    "capacity": Cost(loss=Loss.NOTHING, points=1, words="each start measures another size"),
    "max_num_batched_tokens": Cost(loss=Loss.SPEED, points=1, per="halving", words="long prompts are read more slowly"),
    "decode_context_parallel_size": Cost(loss=Loss.SPEED, points=2, words="ranks exchange more for each token"),
    "enforce_eager": Cost(loss=Loss.SPEED, points=3, words="tokens come more slowly without CUDA graphs"),
    "kv_cache_dtype": Cost(loss=Loss.QUALITY, points=3, words="keys and values are rounded to 8 bits"),
    "max_num_seqs": Cost(loss=Loss.USERS, points=4, per="halving", words="fewer requests run at the same time"),
    "max_model_len": Cost(loss=Loss.CONTEXT, points=5, per="halving", words="requests are shorter"),
    "language_model_only": Cost(loss=Loss.MEDIA, points=8, words="images and sounds are refused"),
    "limit_mm_per_prompt": Cost(loss=Loss.MEDIA, points=8, words="images and sounds are refused"),
    "model": Cost(loss=Loss.QUALITY, points=10, words="weights are rounded further"),
    "tensor_parallel_size": Cost(loss=Loss.MONEY, points=12, per="doubling", words="twice as many GPUs"),
    "accelerator": Cost(loss=Loss.MONEY, points=12, per="doubling", words="a GPU with more memory, counted by its memory"),
    "replicas": Cost(loss=Loss.MONEY, points=12, per="doubling", words="twice as many GPUs"),
    "pipeline_parallel_size": Cost(loss=Loss.MONEY, points=13, per="doubling", words="twice as many GPUs, one after the other"),
    "cpu_offload_gb": Cost(loss=Loss.SPEED, base=10, points=3, per="GiB", words="these weights cross the bus for each token"),
}  # fmt: skip
"""The cost of each change. Points are added up; of two combinations, the one with fewer points comes first."""
SPARE_SEQUENCES = 16
"""Sequences above which fewer cost nobody much where max_num_seqs is vLLM's default, and no guarantee counts it."""
_SPARED_POINTS = 0.25
_LEAST_BATCH = 512
_MOST_GPUS = 8
"""Ranks of one engine that are proposed."""
_ALIKE_BYTES = 4 * GIB
"""GPUs of one generation whose memory differs by less are one proposal."""
_MOST_OFFLOADED_GIB = 10
"""Weights in host memory that are proposed."""
TOGETHER = "together"
"""Field of an alternative that is several changes."""


class Alternative(Struct, frozen=True, kw_only=True):
    """One change that would fit, or several that fit only together."""

    field: str
    """vLLM's name of the setting; TOGETHER for several changes."""
    value: int | str
    changes: tuple[KnobChange, ...] = ()
    """The changes with the values before them."""
    points: float = 0.0
    """Cost by COSTS."""

    @property
    def losses(self) -> tuple[Loss, ...]:
        """The things that it takes from the user, each once, the dearest first."""
        return tuple(dict.fromkeys(COSTS[each.field].loss for each in self.changes))


class Scope(Struct, frozen=True, kw_only=True):
    """The settings that may be changed, and how far."""

    keep: frozenset[str] = frozenset()
    """vLLM's names of the settings that stay as they are."""
    kept_in_sets: frozenset[str] = frozenset()
    """Settings that change alone or not at all."""
    min_max_model_len: int = 1
    min_max_num_seqs: int = 1
    accelerators: Sequence[Accelerator] = ()
    """GPUs that may be used instead."""
    checkpoints: Sequence[ModelShape] = ()
    """The same model in smaller weight formats."""
    leaves_out_media: str = "language_model_only"
    """The setting with which the release leaves out images and sounds."""
    refuses: Callable[[Budget], bool] = lambda _budget: False
    """True where vLLM refuses a setting of the budget, whatever memory there is."""
    most_plans: int = 300
    """Plans of a simple model that a search may make; then the best that is known is the answer."""
    wishes: tuple[Loss, ...] = (Loss.CONTEXT, Loss.QUALITY, Loss.SPEED, Loss.MONEY)
    """Losses of the cheapest combination, for each of which the cheapest without it is sought too."""


def safe_utilization(budget: Budget) -> tuple[Fraction, int]:
    """Return the largest gpu_memory_utilization with which an engine that has the GPU for itself surely starts and runs, and the bytes
    that it leaves at least.

    vLLM refuses to start where less than total × gpu_memory_utilization is free, and the CUDA context is gone by then; attention
    workspaces and the sampler's warm-up are allocated outside the share later.
    """
    request, sharer = budget.request, sharer_of(budget, "")
    rows_bytes = budget.resolved.max_num_seqs * request.shape.vocab_size * 4
    outside_bytes = max(sharer.beyond_request.high, sharer.before.high + rows_bytes)
    total_bytes = request.accelerator.memory_low_bytes
    return hundredths(total_bytes - outside_bytes, total_bytes), outside_bytes


Value = int | str


def _fp8(budget: Budget, _scope: Scope) -> Iterator[Value]:
    if can_use_fp8(budget):
        yield "fp8"


def _eager(budget: Budget, _scope: Scope) -> Iterator[Value]:
    if not budget.request.settings.enforce_eager:
        yield True


def _fewer_sequences(budget: Budget, scope: Scope) -> Iterator[Value]:
    request, now = budget.request, budget.resolved.max_num_seqs
    workload = request.promised_workload
    floor = max(scope.min_max_num_seqs, workload.peak_concurrency if workload else 1)
    while now > floor:
        now = max(floor, now // (2 if counts_sequences(budget) else 4))
        yield now


def counts_sequences(budget: Budget) -> bool:
    """True where somebody states max_num_seqs, or the guarantee counts it."""
    return budget.request.settings.max_num_seqs is not None or budget.request.guarantee is Guarantee.FULL_CONTEXT


def _smaller_batches(budget: Budget, _scope: Scope) -> Iterator[Value]:
    now, floor = budget.resolved.max_num_batched_tokens, max(_LEAST_BATCH, budget.resolved.max_num_seqs)
    while now // 2 >= floor:
        now //= 2
        yield now


def _larger_share(budget: Budget, _scope: Scope) -> Iterator[Value]:
    request, now = budget.request, budget.resolved.gpu_memory_utilization
    if request.shared_by > 1 or request.settings.gives_cache_memory or request.accelerator.unified_memory:
        return
    for hundredth in range(int(now * 100) + 1, int(safe_utilization(budget)[0] * 100) + 1):
        yield f"{hundredth / 100:g}"


def _measured(budget: Budget, _scope: Scope) -> Iterator[Value]:
    if budget.request.capacity is Capacity.PINNED:
        yield Capacity.PROFILED.value


SETTINGS: Mapping[str, Callable[[Budget, Scope], Iterator[Value]]] = {
    "capacity": _measured,
    "kv_cache_dtype": _fp8,
    "enforce_eager": _eager,
    "max_num_seqs": _fewer_sequences,
    "max_num_batched_tokens": _smaller_batches,
    "gpu_memory_utilization": _larger_share,
}
"""Setting → its steps from the budget of the engine before them; each leaves more memory than the one before."""
ALIKE = frozenset({"gpu_memory_utilization"})
"""Settings all of whose steps cost the same, so that a search tries the last alone."""

# ── Other GPUs, more of them, another checkpoint ──


def hardware(budget: Budget, scope: Scope) -> Iterator[tuple[str, Value]]:
    """Yield (field, value) for each change of GPUs that vLLM does not refuse for the model; the least of each kind first."""
    request, workload = budget.request, budget.request.workload
    cut, accelerator = request.settings.parallelism, request.accelerator
    found = set[str]()
    for name in () if accelerator.is_slice or accelerator.unified_memory else _SIZES:
        for size in (2, 4, 8) if name != "pipeline_parallel_size" or "tensor_parallel_size" not in found else ():
            wider = replace(cut, **{_SIZES[name]: size})
            is_more = size > getattr(cut, _SIZES[name]) and wider.num_gpus <= max(_MOST_GPUS, cut.num_gpus)
            if is_more and not parallelism_refusals(request.shape, wider, request.vllm_version):
                found.add(name)
                yield name, size
    yield from (("accelerator", each.name) for each in _larger(budget, scope))
    stage = budget.tightest
    if request.settings.offload == NO_OFFLOAD and stage is not None and stage.ledger is not None:
        most_gib = min(_MOST_OFFLOADED_GIB, cdiv(stage.ledger.weights.low, GIB))
        yield from (("cpu_offload_gb", 1 << power) for power in range(most_gib.bit_length()))
    if request.guarantee is Guarantee.WORKLOAD and workload is not None and cut.data == 1:
        yield from (("replicas", workload.engines * times) for times in (2, 3, 4, 8))


_SIZES = {
    "decode_context_parallel_size": "decode_context",
    "tensor_parallel_size": "tensor",
    "pipeline_parallel_size": "pipeline",
}
"""Parallel sizes in the order in which they are proposed; stages only where no further tensor-parallel size goes with the model."""


def _larger(budget: Budget, scope: Scope) -> Iterator[Accelerator]:
    """Yield larger GPUs of the same vendor, the smallest first; never one that shares the CPU's memory, nor a slice for a whole GPU."""
    request, stage = budget.request, budget.tightest
    now, least_bytes = request.accelerator, stage.ledger.weights.low if stage and stage.ledger else 0
    seen = set[tuple[int, int | None]]()
    for other in sorted(scope.accelerators, key=lambda other: (other.memory_bytes, other.name)):
        could_replace = other.vendor == now.vendor and not other.unified_memory and (now.is_slice or not other.is_slice)
        if not could_replace or other.memory_bytes < max(now.memory_bytes + 1, least_bytes):
            continue
        kind = cdiv(other.memory_bytes, _ALIKE_BYTES), other.capability_major
        refusal = kv_cache_dtype_refusal(request.settings.kv_cache_dtype, request.shape, other, budget.accounting)
        if refusal is None and kind not in seen:
            seen.add(kind)
            yield other


def checkpoints(_budget: Budget, scope: Scope) -> Iterator[tuple[str, Value]]:
    yield from (("model", shape.name) for shape in scope.checkpoints)


def without_media(budget: Budget, scope: Scope) -> Iterator[tuple[str, Value]]:
    """Yield the setting with which the release takes text alone. Without encoders another program may be compiled, which is not sure to
    need less in each part; so it is a choice like another checkpoint, and not a step."""
    request = budget.request
    modalities = sorted({item.modality for encoder in request.shape.encoders for item in encoder.items})
    if any(map(request.settings.takes, modalities)):
        each_left_out = json.dumps(dict.fromkeys(modalities, 0))
        yield scope.leaves_out_media, True if scope.leaves_out_media == "language_model_only" else each_left_out


def with_change(request: BudgetRequest, name: str, value: int | str, scope: Scope) -> BudgetRequest:
    """Return the question with one change, as its steps make it."""
    if name in _SIZES:
        return request.with_settings(parallelism=replace(request.settings.parallelism, **{_SIZES[name]: value}))
    if name == "accelerator":
        return replace(request, accelerator=next(each for each in scope.accelerators if each.name == value))
    if name == "model":
        return replace(request, shape=next(each for each in scope.checkpoints if each.name == value))
    if name == "replicas" and request.workload is not None:
        return replace(request, workload=request.workload.shared_among(int(value) // request.workload.engines))
    if name == "cpu_offload_gb":
        return request.with_settings(offload=replace(NO_OFFLOAD, cpu_bytes=int(value) * GIB))
    if name == "capacity":
        return replace(request, capacity=Capacity(str(value)))
    if name == "limit_mm_per_prompt":
        return request.with_settings(limit_mm_per_prompt=tuple(json.loads(str(value)).items()))
    return request.with_settings(**{name: Fraction(value) if name == "gpu_memory_utilization" else value})


def value_before(start: Budget, name: str) -> int | str:
    """Return the value that a change replaces."""
    request, resolved, cut = start.request, start.resolved, start.request.settings.parallelism
    values: dict[str, int | str] = {
        "max_model_len": resolved.max_model_len,
        "max_num_seqs": resolved.max_num_seqs,
        "max_num_batched_tokens": resolved.max_num_batched_tokens,
        "gpu_memory_utilization": f"{float(resolved.gpu_memory_utilization):g}",
        "kv_cache_dtype": request.settings.kv_cache_dtype,
        "capacity": request.capacity.value,
        "tensor_parallel_size": cut.tensor,
        "pipeline_parallel_size": cut.pipeline,
        "decode_context_parallel_size": cut.decode_context,
        "accelerator": request.accelerator.name,
        "model": request.shape.name,
        "replicas": request.workload.engines if request.workload else 1,
        "cpu_offload_gb": 0,
    }
    return values.get(name, False)


def points_of(start: Budget, name: str, after: Value, scope: Scope) -> float:
    """Return the points of a change by COSTS."""
    cost, before = COSTS[name], value_before(start, name)
    if name == "accelerator":
        now = start.request.accelerator
        before, after = now.memory_bytes, with_change(start.request, name, after, scope).accelerator.memory_bytes
    if isinstance(before, str) or isinstance(after, str) or cost.per == "change":
        return cost.points
    if cost.per == "GiB":
        return cost.base + cost.points * after
    if cost.per == "doubling":
        return cost.points * max(1.0, log2(after / max(1, before)))
    if name == "max_num_seqs" and not counts_sequences(start):
        spared = max(0.0, log2(before / max(after, SPARE_SEQUENCES)))
        return _SPARED_POINTS * spared + cost.points * max(0.0, log2(min(before, SPARE_SEQUENCES) / after))
    return cost.points * max(0.0, log2(before / after))
