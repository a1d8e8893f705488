"""Engines that share a GPU: what each wants free at its start, what it then holds, and whether all of them start.

vLLM's rules, as they were read: from 0.9.1 on an engine refuses to start where free memory < total × gpu_memory_utilization
(0.9.1 `Worker.init_device`, 0.14 to 0.33 `request_memory`), also where kv_cache_memory_bytes gives the KV cache. 0.8.5 and 0.9.0
check nothing, and take what others hold out of their own KV cache.
"""

from collections.abc import Sequence
from fractions import Fraction
from itertools import permutations

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.answers.answer import Budget, Stage, plan
from kvgate.budget.engine.request import BudgetRequest, Capacity
from kvgate.budget.gpu.ledger import Ledger
from kvgate.budget.gpu.non_torch import startup_slack
from kvgate.budget.ground import fitted
from kvgate.budget.ground.hardware import Accelerator
from kvgate.budget.ground.interval import Interval, Verdict
from kvgate.budget.ground.units import MIB, share_of

WORKSPACES = Interval(low=0, expected=0, high=394 * MIB)
"""Buffers of attention kernels that are allocated at their first use, after the profile (0.12 to 0.33,
`VLLM_FLASHINFER_WORKSPACE_BUFFER_SIZE`); the backend decides whether there are any."""
_CHECKED = ("nvidia", "amd")
"""Vendors whose GPUs vLLM's `gpu_worker` runs; the workers of others are not read."""
_MOST_TRIED = 5
"""Engines of which all orders are tried."""
_STEPS = 100
"""Suggested utilisations are whole hundredths, rounded down."""


class Sharer(Struct, frozen=True, kw_only=True):
    """One engine on a shared GPU, in bytes of that GPU."""

    name: str
    memory_bytes: int
    """Memory of the GPU, of which gpu_memory_utilization is a share."""
    total: Interval
    """Memory that all engines together can have: what drivers report, without what the host uses where CPU and GPU share it."""
    before: Interval
    """CUDA context and communicators: gone before vLLM looks at the free memory."""
    requested_bytes: int
    """total × gpu_memory_utilization."""
    held: Interval
    """Memory that it holds once it has started, with `before`. The low end is right after the start, when the profile's activations are
    free again, and the high end is under load."""
    overhead: Interval | None = None
    """Memory that it needs beside the KV cache, within the requested memory; None where the model is not known."""
    demand_bytes: int = 0
    """KV cache that its guarantee needs."""
    checks_free: bool = True
    """True where vLLM refuses to start without `requested_bytes` of free memory."""
    measures: bool = True
    """True where a profile run sizes the KV cache: memory that others take or free meanwhile counts as its own. A model without caches
    is not profiled (0.33, `EngineCore._initialize_kv_caches`), and its share is only checked."""
    counts_others: bool = False
    """True where memory that other processes hold is taken out of its KV cache: it fills the card up to its share (0.8 and 0.9.0)."""

    @property
    def beyond_request(self) -> Interval:
        """Bytes that it may hold beyond what it requests: what is gone before, and what is allocated after the profile."""
        return Interval(
            low=self.before.low, expected=self.before.expected, high=max(self.before.high, self.held.high - self.requested_bytes)
        )  # fmt: skip

    @property
    def needed_bytes(self) -> int:
        """Memory to request so that the guarantee holds even at the low end."""
        return (self.overhead.high if self.overhead else 0) + self.demand_bytes

    def level_bytes(self, used_bytes: int, end: str) -> int | None:
        """Return what is used after its start, where others use so much before it and it counts them; None where it does not start."""
        needed_bytes: int = used_bytes + getattr(self.overhead or self.before, end) + self.demand_bytes
        filled_bytes: int = getattr(self.held, end) - getattr(self.before, end)
        return None if needed_bytes > self.requested_bytes else max(needed_bytes, filled_bytes)

    def peak_bytes(self, held_bytes: int, before_bytes: int) -> int:
        """Return what must be free for its start; at least what it then holds."""
        return max(held_bytes, before_bytes + self.requested_bytes) if self.checks_free else held_bytes


class Sharing(Struct, frozen=True, kw_only=True):
    """The verdict over all engines of one GPU."""

    sharers: tuple[Sharer, ...]
    verdict: Verdict
    """DoesNotFit: whatever the order, one is refused, or runs out of memory while it starts."""
    order: tuple[Sharer, ...]
    """The order of starts, one after the other, that needs the least memory: whoever wants more than it then holds goes first."""
    any_order: bool
    """True where they are expected to start in every order, one after the other."""

    @property
    def total(self) -> Interval:
        return self.sharers[0].total

    @property
    def claimed(self) -> Interval:
        first, *rest = (sharer.held for sharer in self.sharers)
        return sum(rest, start=first)


def sharer_of(budget: Budget, name: str) -> Sharer:
    """Return an engine as its neighbours on the GPU see it; of pipeline stages, the one that takes least and the one that takes most."""
    request, accelerator = budget.request, budget.request.accelerator
    before, host = startup_slack(accelerator, budget.accounting, request.settings.parallelism), Interval.exactly(0)
    if accelerator.unified_memory:
        before, host = fitted.SLACK_CONTEXT.interval, fitted.SLACK_UNIFIED.interval
    requested_bytes = share_of(accelerator.memory_bytes, budget.resolved.gpu_memory_utilization)
    held = [_held(stage, stage.ledger, before, requested_bytes, budget) for stage in budget.stages if stage.ledger]
    ledger = budget.tightest.ledger if budget.tightest else None
    low, high = accelerator.memory_low_bytes, accelerator.memory_high_bytes
    whole = Interval(low=low, expected=accelerator.memory_bytes, high=high)
    return Sharer(
        name=name,
        memory_bytes=accelerator.memory_bytes,
        total=whole - host,
        before=before,
        requested_bytes=requested_bytes,
        held=Interval(
            low=min(each.low for each in held),
            expected=max(each.expected for each in held),
            high=max(each.high for each in held),
        )
        if held
        else Interval(low=before.low, expected=before.expected + requested_bytes, high=before.high + requested_bytes),
        overhead=Interval.exactly(ledger.requested_bytes) - ledger.available if ledger else None,
        demand_bytes=budget.demand_bytes or 0,
        checks_free=budget.accounting.checks_free_memory and accelerator.vendor in _CHECKED,
        measures=request.settings.kv_cache_memory_bytes is None and request.shape.keeps_caches,
        counts_others=budget.accounting.whole_card_non_torch,
    )


def _held(stage: Stage, ledger: Ledger, before: Interval, requested_bytes: int, budget: Budget) -> Interval:
    after = _uncounted_graphs(ledger) + WORKSPACES
    activation, graphs = ledger.peak_activation, ledger.cuda_graphs
    if budget.request.shape.keeps_caches and not budget.request.settings.gives_cache_memory:
        idle_bytes = max(requested_bytes - activation.high - graphs.high, ledger.weights.low + ledger.non_torch.low)
        own = Interval(low=min(idle_bytes, requested_bytes), expected=requested_bytes, high=requested_bytes)
        return before + own + after
    cache_bytes = stage.available.expected if budget.request.shape.keeps_caches else 0
    kept = ledger.weights + ledger.non_torch
    own = Interval(
        low=kept.low + cache_bytes,
        expected=kept.expected + cache_bytes + activation.expected + graphs.expected,
        high=kept.high + cache_bytes + activation.high + graphs.high,
    )
    return before + own + after


def _uncounted_graphs(ledger: Ledger) -> Interval:
    """Graphs that are captured and not taken out of the budget; logs show from a tenth of the estimate to twice as much."""
    estimate_bytes = dict(ledger.lines[3].inputs).get("estimate_bytes", 0)
    if ledger.cuda_graphs.high or not isinstance(estimate_bytes, int):
        return Interval.exactly(0)
    return Interval(low=0, expected=estimate_bytes, high=2 * estimate_bytes)


class LeastCache(Struct, frozen=True, kw_only=True):
    """The KV cache that a guarantee needs and no more, as vLLM is given it, and what that leaves of the GPU."""

    cache_memory_bytes: int
    """Value of `--kv-cache-memory-bytes`."""
    gpu_memory_utilization: Fraction
    """Share that must be free at the start, which vLLM checks although the size is given: no more than the engine then holds."""
    left: Interval
    """Bytes of the GPU that others can have."""


def least_cache(budget: Budget) -> LeastCache | None:
    """Return the cache that the guarantee needs; None where it does not fit for sure, or the size is given or pinned."""
    request, size = budget.request, max((stage.bytes_per_block for stage in budget.stages), default=0)
    is_sized = request.settings.gives_cache_memory or request.capacity is Capacity.PINNED
    if budget.demand is None or not size or is_sized or budget.verdict is not Verdict.FITS:
        return None
    given = (budget.demand.blocks + budget.accounting.null_blocks) * size
    sharer = sharer_of(plan(request.with_settings(kv_cache_memory_bytes=given)), "")
    share = hundredths(sharer.held.low - sharer.before.high, sharer.memory_bytes)
    return LeastCache(
        cache_memory_bytes=given,
        gpu_memory_utilization=max(Fraction(1, _STEPS), share),
        left=Interval(
            low=max(0, sharer.total.low - sharer.held.high),
            expected=max(0, sharer.total.expected - sharer.held.expected),
            high=max(0, sharer.total.high - sharer.held.low),
        ),
    )


def share_gpu(sharers: Sequence[Sharer]) -> Sharing:
    """Judge engines that start one after the other on one GPU."""
    total = min((sharer.total for sharer in sharers), key=lambda each: each.expected)
    same = tuple(replace(sharer, total=total) for sharer in sharers)
    verdict = Verdict.MAY_NOT_FIT
    if _order_that_works(same, total.low, "high"):
        verdict = Verdict.FITS
    elif not _order_that_works(same, total.high, "low"):
        verdict = Verdict.DOES_NOT_FIT
    best = _order_that_works(same, total.expected, "expected") or _best_orders(same, "expected")[0]
    return Sharing(sharers=same, verdict=verdict, order=best, any_order=_starts_in_every_order(same, total.expected))


def _order_that_works(sharers: Sequence[Sharer], total_bytes: int, end: str) -> tuple[Sharer, ...] | None:
    return next((order for order in _best_orders(sharers, end) if _start_in_order(order, total_bytes, end)), None)


def _best_orders(sharers: Sequence[Sharer], end: str) -> tuple[tuple[Sharer, ...], ...]:
    """Return the orders of which one works if any does.

    The i-th start needs what the others before it hold, and its own peak. Sorted by peak less held, the largest first, the largest of
    these sums is as small as any order makes it. Those that count the others fill the card up to their shares, the smallest first.
    """
    counting = sorted((each for each in sharers if each.counts_others), key=lambda each: each.requested_bytes)
    others = sorted((each for each in sharers if not each.counts_others), key=lambda each: -_extra_at_start(each, end))
    return ((*others, *counting), (*counting, *others)) if counting else (tuple(others),)


def _start_in_order(order: Sequence[Sharer], total_bytes: int, end: str) -> bool:
    used_bytes = 0
    for sharer in order:
        if sharer.counts_others:
            level_bytes = sharer.level_bytes(used_bytes, end)
            if level_bytes is None or level_bytes > total_bytes:
                return False
            used_bytes = level_bytes
            continue
        held_bytes = getattr(sharer.held, end)
        if used_bytes + held_bytes + _extra_at_start(sharer, end) > total_bytes:
            return False
        used_bytes += held_bytes
    return True


def _starts_in_every_order(sharers: Sequence[Sharer], total_bytes: int) -> bool:
    """Return whether the last one starts, whoever it is; where some count the others, try all orders of a few."""
    if any(sharer.counts_others for sharer in sharers):
        orders = permutations(sharers) if len(sharers) <= _MOST_TRIED else ()
        return bool(orders) and all(_start_in_order(order, total_bytes, "expected") for order in orders)
    held_bytes = sum(sharer.held.expected for sharer in sharers)
    return held_bytes + max(_extra_at_start(sharer, "expected") for sharer in sharers) <= total_bytes


def starts_in(sharing: Sharing, names: Sequence[str]) -> bool:
    """Return whether all are expected to start one after the other in this order of their names."""
    order = sorted(sharing.sharers, key=lambda sharer: names.index(sharer.name))
    return _start_in_order(order, sharing.total.expected, "expected")


def _extra_at_start(sharer: Sharer, end: str) -> int:
    held_bytes: int = getattr(sharer.held, end)
    return sharer.peak_bytes(held_bytes, getattr(sharer.before, end)) - held_bytes


def utilizations(sharing: Sharing, *, by_need: bool) -> tuple[Fraction, ...] | None:
    """Return a gpu_memory_utilization for each engine with which all start in any order; None where a guarantee does not hold with it.

    The memory is divided into equal parts, or in proportion to what each needs. An engine whose KV cache is given keeps what it holds.
    """
    total, sharers = sharing.total, sharing.sharers
    if any(sharer.counts_others for sharer in sharers):
        return None  # their shares would have to grow in the order of starts
    least = {
        id(s): max(Fraction(1, _STEPS), hundredths(s.held.low - s.before.high, s.memory_bytes))
        for s in sharers
        if not s.measures
    }
    free_bytes = total.low
    for s in sharers:
        start_bytes = s.before.high + share_of(s.memory_bytes, least.get(id(s), Fraction(0)))
        free_bytes -= s.beyond_request.high if s.measures else max(s.held.high, start_bytes)
    measuring = [sharer for sharer in sharers if sharer.measures]
    weights = {id(s): (s.needed_bytes or s.requested_bytes) if by_need else 1 for s in measuring}
    whole, shares = sum(weights.values()), list[Fraction]()
    for sharer in sharers:
        share = least.get(id(sharer)) or hundredths(
            free_bytes * weights[id(sharer)] // max(1, whole), sharer.memory_bytes
        )
        if share <= 0 or (sharer.measures and share_of(sharer.memory_bytes, share) < sharer.needed_bytes):
            return None
        shares.append(share)
    return tuple(shares)


def hundredths(part_bytes: int, memory_bytes: int) -> Fraction:
    """Return a part of a GPU's memory as a gpu_memory_utilization in whole hundredths, rounded down."""
    return Fraction(max(0, part_bytes) * _STEPS // memory_bytes, _STEPS)


def equal_share(accelerator: Accelerator, shared_by: int) -> Fraction | None:
    """Return the utilisation that so many engines of one GPU each can have, of which nothing else is known."""
    free_bytes = accelerator.memory_low_bytes - shared_by * (fitted.SLACK_CONTEXT.interval.high + WORKSPACES.high)
    return hundredths(free_bytes // shared_by, accelerator.memory_bytes) or None


def part_of(accelerator: Accelerator, shared_by: int) -> Accelerator:
    """Return the GPU as a container sees it that may have an equal part of the memory and sees no more (HAMi), in whole MiB."""
    memory_bytes = (
        accelerator.memory_bytes // shared_by // MIB * MIB
    )  # a limit that is set, so that no driver reports another one
    return replace(
        accelerator, memory_bytes=memory_bytes, memory_low_bytes=memory_bytes, memory_high_bytes=memory_bytes
    )


def equal_part(budget: Budget) -> Fraction | None:
    """Return the utilisation that `request.shared_by` engines of this kind can all have; None where no hundredth is left."""
    shared_by = budget.request.shared_by
    sharer = sharer_of(budget, "")
    free_bytes = sharer.total.low - shared_by * sharer.beyond_request.high
    return hundredths(free_bytes // shared_by, sharer.memory_bytes) or None


def within_part(request: BudgetRequest) -> BudgetRequest:
    """Return the same question with at most the equal part of the GPU; as it is where nobody shares it, or the cache is given."""
    if request.shared_by == 1 or request.settings.gives_cache_memory:
        return request
    budget = plan(request)
    part = equal_part(budget)
    if part is None or part >= budget.resolved.gpu_memory_utilization:
        return request
    return request.with_settings(gpu_memory_utilization=part)


def engines_per_gpu(request: BudgetRequest, at_most: int = 64) -> tuple[int, Fraction | None]:
    """Return (how many engines of this kind one GPU holds with equal parts, the part of each), each with its guarantee at the low end.

    (0, None) where not even one holds it.
    """
    best: tuple[int, Fraction | None] = (0, None)
    for count in range(1, at_most + 1):
        shared = replace(request, shared_by=count)
        alone = shared if count == 1 else within_part(shared)
        budget = plan(alone)
        if budget.verdict is not Verdict.FITS or share_gpu([sharer_of(budget, "")] * count).verdict is not Verdict.FITS:
            if count > 1:
                break
            continue
        best = (count, budget.resolved.gpu_memory_utilization)
    return best
