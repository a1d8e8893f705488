"""The solver: the smallest change, over the knobs that the user allows, whose *low* bound fits."""

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.answers.sharing import within_part
from kvgate.budget.answers.support import kv_cache_dtype_refusal
from kvgate.budget.engine.request import BudgetRequest, Guarantee
from kvgate.budget.ground.interval import Verdict
from kvgate.budget.kv_cache.capacity import largest
from kvgate.budget.kv_cache.dtype import takes_cache_dtype


class Knob(StrEnum):
    """A setting that a user allows kvgate to change."""

    MAX_NUM_SEQS = "MaxNumSeqs"
    MAX_MODEL_LEN = "MaxModelLen"
    KV_CACHE_DTYPE = "KvCacheDtype"
    GPU_MEMORY_UTILIZATION = "GpuMemoryUtilization"
    """Only down to the equal part of a GPU that several engines share."""


class AdjustLimits(Struct, frozen=True, kw_only=True):
    """The knobs in the order in which the user would rather turn them, and the lowest values that they may reach."""

    knobs: tuple[Knob, ...] = (Knob.MAX_NUM_SEQS, Knob.MAX_MODEL_LEN)
    min_max_model_len: int = 1
    min_max_num_seqs: int = 1


class KnobChange(Struct, frozen=True, kw_only=True):
    field: str
    before: int | str
    after: int | str


class Adjustment(Struct, frozen=True, kw_only=True):
    """Settings that fit even at the low end; no knob could have stayed closer to what the user wrote on its own."""

    budget: Budget
    changes: tuple[KnobChange, ...]


def adjust(request: BudgetRequest, limits: AdjustLimits) -> Adjustment | None:
    """Turn one knob if one is enough, in the user's order; else several, each no further than needed; None if nothing fits.

    Several knobs: every knob first goes to its floor, then as much as fits is given back, the last of the user's order first. So
    the knob that the user would rather turn stays turned furthest, and no knob can be given back further alone.
    """
    start = plan(request)
    if start.demand is None:
        return None
    if Knob.GPU_MEMORY_UTILIZATION in limits.knobs and (lowered := within_part(request)) != request:
        lowest = replace(limits, knobs=tuple(knob for knob in limits.knobs if knob is not Knob.GPU_MEMORY_UTILIZATION))
        rest = None if fits_low(lowered) else adjust(lowered, lowest)
        return _adjustment(start, rest.budget if rest else plan(lowered)) if rest or fits_low(lowered) else None
    for knob in limits.knobs:
        floor = _at_floor(start.request, knob, limits)
        if fits_low(floor):
            return _adjustment(start, plan(_given_back(floor, start, knob)))
    adjusted = start.request
    for knob in limits.knobs:
        adjusted = _at_floor(adjusted, knob, limits)
    if not fits_low(adjusted):
        return None
    for knob in reversed(limits.knobs):
        adjusted = _given_back(adjusted, start, knob)
    return _adjustment(start, plan(adjusted))


def _at_floor(request: BudgetRequest, knob: Knob, limits: AdjustLimits) -> BudgetRequest:
    if knob is Knob.GPU_MEMORY_UTILIZATION:
        return request
    settings = plan(request).resolved
    if knob is Knob.MAX_NUM_SEQS:
        return request.with_settings(max_num_seqs=min(settings.max_num_seqs, limits.min_max_num_seqs))
    if knob is Knob.MAX_MODEL_LEN:
        return request.with_settings(max_model_len=min(settings.max_model_len, limits.min_max_model_len))
    return request.with_settings(kv_cache_dtype="fp8") if can_use_fp8(plan(request)) else request


def _given_back(request: BudgetRequest, start: Budget, knob: Knob) -> BudgetRequest:
    """Return the request with the knob as close to the user's value as fits; `request` fits, and all else in it stays."""
    if knob is Knob.GPU_MEMORY_UTILIZATION:
        return request
    if knob is Knob.KV_CACHE_DTYPE:
        kept = request.with_settings(kv_cache_dtype=start.request.settings.kv_cache_dtype)
        return kept if fits_low(kept) else request
    if knob is Knob.MAX_NUM_SEQS:
        floor = request.settings.max_num_seqs or 1
        return request.with_settings(max_num_seqs=largest_max_num_seqs(request, start.resolved.max_num_seqs, floor))
    floor = request.settings.max_model_len or 1
    return request.with_settings(max_model_len=largest_length(request, start.resolved.max_model_len, floor))


def _adjustment(start: Budget, end: Budget) -> Adjustment:
    pairs = (
        ("max_num_seqs", start.resolved.max_num_seqs, end.resolved.max_num_seqs),
        ("max_model_len", start.resolved.max_model_len, end.resolved.max_model_len),
        ("kv_cache_dtype", start.request.settings.kv_cache_dtype, end.request.settings.kv_cache_dtype),
        ("gpu_memory_utilization", *(f"{float(each.resolved.gpu_memory_utilization):g}" for each in (start, end))),
    )
    return Adjustment(budget=end, changes=tuple(KnobChange(field=f, before=a, after=b) for f, a, b in pairs if a != b))


def largest_max_num_seqs(request: BudgetRequest, at_most: int, at_least: int = 1) -> int:
    """Return the most sequences whose guarantee fits at the low end; 0 if not even the fewest do."""
    budget, guess = plan(request), at_most
    if request.guarantee is Guarantee.FULL_CONTEXT and budget.usable_blocks and budget.demand:
        guess = budget.usable_blocks.low // max(1, budget.demand.startup_blocks)
    return largest(
        at_most, lambda value: fits_low(request.with_settings(max_num_seqs=value)), at_least=at_least, guess=guess
    )


def largest_max_model_len(request: BudgetRequest) -> int:
    """Return the longest context, up to the requested one, whose guarantee fits at the low end; 0 if none does."""
    return largest_length(request, plan(request).resolved.max_model_len)


def largest_length(request: BudgetRequest, at_most: int, at_least: int = 1, budget: Budget | None = None) -> int:
    """Return the longest context within these limits that fits at the low end; 0 if none does. `budget` is the request's, if known."""
    guess = _promising_length(budget or plan(request), at_most)
    if at_least < guess < at_most:  # what a profile run takes depends on the length too
        guess = _promising_length(plan(request.with_settings(max_model_len=guess)), at_most)
    return largest(
        at_most, lambda value: fits_low(request.with_settings(max_model_len=value)), at_least=at_least, guess=guess
    )


def _promising_length(budget: Budget, at_most: int) -> int:
    """Return the context for which the low end of a budget's pool has the blocks, for each request that must fit."""
    if not budget.usable_blocks or not budget.kv_cache:
        return at_most
    requests = budget.resolved.max_num_seqs if budget.request.guarantee is Guarantee.FULL_CONTEXT else 1
    blocks = budget.usable_blocks.low // requests + budget.kv_cache.null_blocks
    return budget.kv_cache.max_model_len_that_fits(blocks, at_most=at_most)


def fits_low(request: BudgetRequest) -> bool:
    return plan(request).verdict is Verdict.FITS


def can_use_fp8(budget: Budget) -> bool:
    """Return whether release, GPU and model take a cache of fp8, where the one in use has wider elements."""
    request, kv_cache = budget.request, budget.kv_cache
    if (
        kv_cache is None
        or kv_cache.dtype.bytes_per_element <= 1
        or not takes_cache_dtype(request.shape, budget.accounting)
    ):
        return False
    return kv_cache_dtype_refusal("fp8", request.shape, request.accelerator, budget.accounting) is None
