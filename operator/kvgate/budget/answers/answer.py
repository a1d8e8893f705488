"""plan(BudgetRequest) → Budget: the one entry point to the arithmetic."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.answers.contradictions import contradictions_in
from kvgate.budget.engine.request import AUTO_MAX_MODEL_LEN, BudgetRequest, Capacity, Guarantee
from kvgate.budget.engine.settings import Resolved, accounting_for, longest_context, resolve_settings
from kvgate.budget.gpu.ledger import Ledger, ledger_of
from kvgate.budget.ground.interval import Interval, UnmodelledKind, UnmodelledValue, Verdict, verdict_of
from kvgate.budget.kv_cache.capacity import (
    Demand,
    KVCache,
    Pin,
    PinnedCapacity,
    blocks_of_workload,
    demand_of,
    largest,
    pin,
    shared_tokens,
)
from kvgate.budget.kv_cache.hybrid_manager import hybrid_manager, needs_manager
from kvgate.budget.kv_cache.layout import Layout, lay_out
from kvgate.budget.model.origin import Contradiction
from kvgate.budget.releases.accounting import Accounting

_MOST_REQUESTS = 1 << 20
_UNLIMITED = 1 << 62
"""Blocks of a pipeline stage without caches."""
_SEVERITY = (Verdict.FITS, Verdict.MAY_NOT_FIT, Verdict.DOES_NOT_FIT)


class Stage(Struct, frozen=True, kw_only=True):
    """One pipeline stage: the layers first ≤ i < last, and the memory of any of its ranks."""

    first: int
    last: int
    available: Interval
    """Bytes of the KV cache: the prediction of the ledger, or what vLLM is given instead."""
    ledger: Ledger | None
    """None where a part has no formula. Where kv_cache_memory_bytes bypasses the ledger, it is reported and does not decide; where the
    capacity is pinned, its low end decided."""
    bytes_per_block: int


class CacheFigures(Struct, frozen=True, kw_only=True):
    """The KV cache of one engine as expected, in the figures that every report shows; None where nothing is known."""

    num_tokens: int | None = None
    """Size as vLLM prints it."""
    num_blocks: int | None = None
    kv_cache_bytes: int | None = None
    """Bytes of one GPU, on the pipeline stage that holds the fewest blocks."""
    max_concurrency: float | None = None
    """Requests of max_model_len that run at the same time; None for a model that keeps nothing."""
    headroom_bytes: int | None = None
    """Bytes of that GPU beyond the demand of the guarantee; negative where it does not fit."""
    headroom_ratio: float | None = None
    """(capacity − demand of the guarantee) / capacity, both as expected; None where no capacity is expected."""
    headroom_percent: int | None = None
    """The same in percent, rounded down."""


class Budget(Struct, frozen=True, kw_only=True, dict=True):
    """The memory that a request has and the demand that it makes; parts without a formula are absent, not guessed."""

    request: BudgetRequest
    accounting: Accounting
    resolved: Resolved
    unmodelled: tuple[str, ...] = ()
    """Kinds without a formula; if there are any, the verdict is Unknown, unless the user gave the KV memory."""
    unmodelled_value: tuple[str, str] | None = None
    """(vLLM's name, value) of the setting whose value has no formula; its kind is among `unmodelled`."""
    kv_cache: KVCache | None = None
    stages: tuple[Stage, ...] = ()
    demand: Demand | None = None
    tightest: Stage | None = None
    """The stage that holds the fewest blocks; it decides for all stages, because the engine takes the minimum."""
    num_blocks: Interval | None = None
    """Blocks of the pool, with the null block: the minimum over the stages."""
    usable_blocks: Interval | None = None
    """Blocks that requests can hold; below zero there is no room for the null block either."""
    auto_from: int | None = None
    """The model's own length in tokens, from which `--max-model-len auto` came down to `resolved.max_model_len`, the length at the low
    end; None where a length is given."""
    pin: Pin | None = None
    """The size that is pinned; None where vLLM or the user decides it, where there is nothing to pin, and where a formula is missing."""

    @cached_property
    def num_tokens(self) -> Interval | None:
        """Size of the KV cache as vLLM prints it."""
        return self.num_blocks.each(self.kv_cache.num_tokens) if self.kv_cache and self.num_blocks else None

    @cached_property
    def auto_lengths(self) -> Interval | None:
        """Tokens of the longest request with which `--max-model-len auto` starts; None where a length is given."""
        return self.num_blocks.each(self.auto_length) if self.num_blocks and self.auto_from else None

    def auto_length(self, num_blocks: int) -> int:
        """Return the length that `auto` finds for a pool of so many blocks; 0 where it holds no token."""
        if self.kv_cache is None or self.auto_from is None:
            return 0
        return self.kv_cache.max_model_len_that_fits(num_blocks, at_most=self.auto_from)

    @cached_property
    def figures(self) -> CacheFigures:
        """The expected figures; those that are not known are None."""
        kv_cache, pool, stage, tokens = self.kv_cache, self.num_blocks, self.tightest, self.num_tokens
        if kv_cache is None or pool is None or stage is None or tokens is None:
            return CacheFigures()
        headroom, demand, percent = self.headroom, self.demand, self.headroom_percent
        return CacheFigures(
            num_tokens=tokens.expected,
            num_blocks=pool.expected,
            kv_cache_bytes=max(0, stage.available.expected),
            max_concurrency=float(kv_cache.max_concurrency(pool.expected)) if kv_cache.groups else None,
            headroom_bytes=headroom.expected if headroom else None,
            headroom_ratio=self.headroom_ratio_beside(demand.blocks) if demand else None,
            headroom_percent=percent.expected if percent else None,
        )

    @cached_property
    def pinned(self) -> PinnedCapacity | None:
        """The pinned size and its cost; None where vLLM measures."""
        pinned, stage, kv_cache = self.pin, self.tightest, self.kv_cache
        if pinned is None or stage is None or kv_cache is None:
            return None
        tokens = kv_cache.num_tokens(pinned.num_blocks)
        return PinnedCapacity(
            num_blocks=pinned.num_blocks,
            num_tokens=tokens,
            kv_cache_bytes=stage.available.expected,
            profiled_bytes=pinned.available,
            forgone_bytes=pinned.forgone_blocks * stage.bytes_per_block,
            forgone_tokens=kv_cache.num_tokens(pinned.profiled_blocks.expected) - tokens,
        )

    @property
    def headroom_shares(self) -> tuple[Fraction, Fraction, Fraction] | None:
        """Low, expected and high headroom as shares of the expected KV cache; None where no byte of one is expected."""
        headroom, whole_bytes = self.headroom, self.tightest.available.expected if self.tightest else 0
        if headroom is None or whole_bytes <= 0:
            return None
        low, expected, high = (Fraction(end, whole_bytes) for end in (headroom.low, headroom.expected, headroom.high))
        return low, expected, high

    @property
    def headroom_percent(self) -> Interval | None:
        """The same in whole percent, rounded down."""
        headroom, whole_bytes = self.headroom, self.tightest.available.expected if self.tightest else 0
        if headroom is None or whole_bytes <= 0:
            return None
        return headroom.each(lambda end: end * 100 // whole_bytes)

    @cached_property
    def verdict(self) -> Verdict:
        """Verdict of the arithmetic alone on the guarantee; the rules judge settings that vLLM refuses for other reasons."""
        return self._verdict_on(self.demand.blocks) if self.demand else Verdict.UNKNOWN

    @property
    def starts(self) -> Verdict:
        """The same on vLLM's own check: one request of max_model_len, and the states of all sequences where graphs need them."""
        return self._verdict_on(self.demand.checked_blocks) if self.demand else Verdict.UNKNOWN

    def _verdict_on(self, blocks: int) -> Verdict:
        usable, demand = self.usable_blocks, self.demand
        if demand is None or usable is None:
            return Verdict.UNKNOWN
        verdict = verdict_of(blocks, usable)
        if verdict is Verdict.DOES_NOT_FIT and self.guesses_sequences and blocks == demand.sequence_blocks:
            verdict = max(Verdict.MAY_NOT_FIT, verdict_of(demand.startup_blocks, usable), key=_SEVERITY.index)
        is_disputed = self.has_disputed_length or bool(self.contradictions)
        is_doubtful = verdict is Verdict.FITS and (is_disputed or self.fits_only_with_manager)
        return Verdict.MAY_NOT_FIT if is_doubtful else verdict

    @cached_property
    def contradictions(self) -> tuple[Contradiction, ...]:
        """Facts about the model, or about the one that drafts, that two sources state differently."""
        return contradictions_in(self.request)

    @property
    def is_of_doubtful_facts(self) -> bool:
        """True where the model's facts are assumed, or two sources contradict each other: nothing is refused on them."""
        return self.request.shape.assumed is not None or bool(self.contradictions)

    @property
    def has_disputed_length(self) -> bool:
        """True where the config that is given is too short for max_model_len, and the one that is known by its name is not."""
        longest, length = longest_context(self.request.shape, self.accounting), self.resolved.max_model_len
        return longest < length <= self.request.shape.published_max_model_len and not self.request.is_stretched

    @cached_property
    def fits_only_with_manager(self) -> bool:
        """True where a connector that nobody has read may switch the hybrid KV cache manager off, and it would not fit then."""
        if hybrid_manager(self.request, self.accounting).is_certain:
            return False
        without = plan(self.request.with_settings(disable_hybrid_kv_cache_manager=True))
        return needs_manager(self.request.shape) or without.verdict is not Verdict.FITS

    @property
    def guesses_sequences(self) -> bool:
        """True where max_num_seqs is vLLM's default only because nobody gave one, and the memory is a prediction as well."""
        pool, request = self.num_blocks, self.request
        is_guess = request.settings.max_num_seqs is None and not request.is_whole
        return is_guess and pool is not None and pool.low < pool.high

    @property
    def surely_starts(self) -> bool:
        """True where even the low end holds one request of max_model_len, and the states of all sequences where graphs need them."""
        usable, demand = self.usable_blocks, self.demand
        if usable is None or demand is None or self.fits_only_with_manager:
            return False
        return usable.low >= demand.checked_blocks

    @property
    def demand_bytes(self) -> int | None:
        return self.demand.blocks * self.tightest.bytes_per_block if self.demand and self.tightest else None

    @cached_property
    def requests_held(self) -> float | None:
        """Requests that the KV cache is expected to hold at once: of the workload, else of max_model_len; None where nothing is kept."""
        kv_cache, pool, usable = self.kv_cache, self.num_blocks, self.usable_blocks
        workload = self.request.promised_workload
        if kv_cache is None or pool is None or usable is None or not kv_cache.groups:
            return None
        if workload is None:
            return float(kv_cache.max_concurrency(pool.expected))
        shared = shared_tokens(kv_cache, self.resolved, workload)
        most = largest(
            _MOST_REQUESTS,
            lambda n: blocks_of_workload(kv_cache, workload, n, shared) <= usable.expected,
            guess=workload.peak_concurrency,
        )
        return float(most)

    @property
    def lacking_bytes(self) -> int | None:
        """Bytes of KV cache that one GPU lacks, as expected: for the start where that is refused, else for the guarantee; None for none."""
        if self.demand is None:
            return None
        blocks = self.demand.checked_blocks if self.starts is Verdict.DOES_NOT_FIT else self.demand.blocks
        lacking = max((blocks * stage.bytes_per_block - stage.available.expected for stage in self.stages), default=0)
        return lacking if lacking > 0 else None

    def headroom_ratio_beside(self, blocks: int) -> float | None:
        """(capacity − blocks) / capacity, both as expected; None where no capacity is expected."""
        usable, stage = self.usable_blocks, self.tightest
        if usable is None or stage is None or stage.available.expected <= 0:
            return None
        return (usable.expected - blocks) * stage.bytes_per_block / stage.available.expected

    @property
    def headroom(self) -> Interval | None:
        """Bytes of the tightest rank beyond the demand; negative where it does not fit."""
        usable, stage = self.usable_blocks, self.tightest
        if usable is None or stage is None or self.demand is None:
            return None
        return usable.less(self.demand.blocks).times(stage.bytes_per_block)


def plan(request: BudgetRequest) -> Budget:
    """Compute everything that is known about a request; a missing formula leaves its part out.

    Raises UnknownVersion for a release whose accounting is not known.
    """
    accounting = accounting_for(request)
    resolved = resolve_settings(request, accounting)
    unmodelled = _unmodelled(request)
    try:
        kv_cache, layout = lay_out(request, resolved, accounting)
    except UnmodelledKind as missing:
        return _without_layout(
            Budget(request=request, accounting=accounting, resolved=resolved, unmodelled=unmodelled), missing
        )
    stages = _stages(request, resolved, accounting, layout, modelled=not unmodelled)
    pool = _pool(stages, keeps_something=bool(kv_cache.groups)) if stages else None
    tightest = min(stages, key=lambda stage: _blocks(stage, stage.available.expected), default=None)
    pinned, auto_from = None, None
    is_pinned = request.capacity is Capacity.PINNED and not request.settings.gives_cache_memory
    if is_pinned and pool is not None and kv_cache.groups:
        ranks = [(stage.available, stage.bytes_per_block) for stage in stages]
        pinned, decides = pin(ranks, pool, shrinks_to_fewest_blocks=accounting.shrinks_to_fewest_blocks)
        pool = Interval.exactly(pinned.num_blocks)
        given = (Interval.exactly(pinned.num_blocks * stage.bytes_per_block) for stage in stages)
        stages = tuple(replace(stage, available=size) for stage, size in zip(stages, given, strict=True))
        tightest = stages[decides]
    if request.settings.max_model_len == AUTO_MAX_MODEL_LEN and pool is not None:
        auto_from = kv_cache.reach.max_model_len
        request, resolved, kv_cache = _with_longest(request, resolved, kv_cache, pool)
    return Budget(
        request=request,
        accounting=accounting,
        resolved=resolved,
        unmodelled=unmodelled,
        kv_cache=kv_cache,
        stages=stages,
        demand=demand_of(kv_cache, request, resolved),
        tightest=tightest,
        num_blocks=pool,
        usable_blocks=pool.less(accounting.null_blocks if kv_cache.groups else 1) if pool is not None else None,
        auto_from=auto_from,
        pin=pinned,
    )


def _without_layout(budget: Budget, missing: UnmodelledKind) -> Budget:
    """Return a budget without the part that has no formula; a draft of unknown size only adds to a target that does not fit alone."""
    if budget.request.settings.speculation is not None:
        alone = plan(replace(budget.request, draft=None).with_settings(speculation=None))
        if alone.verdict is Verdict.DOES_NOT_FIT:
            return replace(alone, unmodelled=(*alone.unmodelled, missing.kind))
    return replace(
        budget,
        unmodelled=tuple(dict.fromkeys((*budget.unmodelled, missing.kind))),
        unmodelled_value=(missing.setting, missing.value) if isinstance(missing, UnmodelledValue) else None,
    )


def _unmodelled(request: BudgetRequest) -> tuple[str, ...]:
    speculation = request.settings.speculation
    lacks_drafts = speculation is not None and speculation.uses_own_layers and not request.shape.draft_layers
    drafts = ("drafts by layers that the config does not describe",) if lacks_drafts else ()
    given = request.shape.unmodelled if request.weights_bytes is not None else ()
    kinds = (kind for kind in request.shape.unmodelled_kinds if kind not in given)
    beside = (*request.unmodelled_settings, *request.unmodelled_variables, *request.unmodelled_containers)
    return (*kinds, *drafts, *beside)


def _with_longest(
    request: BudgetRequest, resolved: Resolved, kv_cache: KVCache, pool: Interval
) -> tuple[BudgetRequest, Resolved, KVCache]:
    """vLLM starts with the longest request that fits, and the low end of the pool decides; batch limits stay as they are."""
    most, floor = kv_cache.reach.max_model_len, request.least_model_len
    # one token is enough to start (0.14 to 0.33, `_auto_fit_max_model_len`)
    longest = kv_cache.max_model_len_that_fits(pool.low, at_most=most) or 1
    request = replace(request, least_model_len=min(floor, most) if floor else None)
    request = request.with_settings(max_model_len=longest)
    if request.guarantee is Guarantee.FULL_CONTEXT and not floor:  # nobody states a length: the start alone decides
        request = replace(request, guarantee=Guarantee.STARTUP)
    reach = replace(kv_cache.reach, max_model_len=longest)
    return request, replace(resolved, max_model_len=longest), replace(kv_cache, reach=reach)


def spanned(budget: Budget, others: Sequence[Budget]) -> Budget:
    """Return a budget whose terms also span those of others that differ in a setting; blocks span only blocks of the same bytes."""
    alike = [each for each in others if len(each.stages) == len(budget.stages)]
    stages = tuple(
        _spanned_stage(stage, [each.stages[index] for each in alike]) for index, stage in enumerate(budget.stages)
    )
    equal = [each for each in alike if [s.bytes_per_block for s in each.stages] == [s.bytes_per_block for s in stages]]
    return replace(
        budget,
        stages=stages,
        tightest=next((new for new, old in zip(stages, budget.stages, strict=True) if old is budget.tightest), None),
        num_blocks=_hull(budget.num_blocks, [each.num_blocks for each in equal]),
        usable_blocks=_hull(budget.usable_blocks, [each.usable_blocks for each in equal]),
    )


def _spanned_stage(stage: Stage, others: Sequence[Stage]) -> Stage:
    ledger, ledgers = stage.ledger, [each.ledger for each in others if each.ledger]
    if ledger is not None:
        amounts = [{line.name: line.amount for line in each.lines} for each in ledgers]
        lines = tuple(
            replace(line, amount=_hull(line.amount, [each.get(line.name) for each in amounts])) for line in ledger.lines
        )
        ledger = replace(ledger, lines=lines)
    available = _hull(stage.available, [each.available for each in others])
    return replace(stage, ledger=ledger, available=available or stage.available)


def _hull(amount: Interval | None, others: Iterable[Interval | None]) -> Interval | None:
    """Return the amount as expected, between the least and the most of all."""
    return amount and amount.spanning(*filter(None, others))


def _pool(stages: tuple[Stage, ...], *, keeps_something: bool) -> Interval:
    """Return the blocks of the stage that holds the fewest.

    A model without caches has one block, which nobody can hold (vLLM 0.32, `get_kv_cache_config_from_groups`).
    """
    at_most = _UNLIMITED if keeps_something else 1
    return Interval(
        low=min(at_most, *(_blocks(stage, stage.available.low) for stage in stages)),
        expected=min(at_most, *(_blocks(stage, stage.available.expected) for stage in stages)),
        high=min(at_most, *(_blocks(stage, stage.available.high) for stage in stages)),
    )


def _blocks(stage: Stage, available_bytes: int) -> int:
    """Return the blocks that bytes hold on a stage; a stage that keeps nothing limits nothing, unless it is overdrawn."""
    if stage.bytes_per_block:
        return max(0, available_bytes) // stage.bytes_per_block
    return _UNLIMITED if available_bytes >= 0 else 0


def _stages(
    request: BudgetRequest, resolved: Resolved, accounting: Accounting, layout: Layout, *, modelled: bool
) -> tuple[Stage, ...]:
    """Return every stage with its ledger; none where a part of the ledger has no formula and the user did not give the KV memory."""
    if not modelled and _given_bytes(request, 0) is None:
        return ()
    stages: list[Stage] = []
    may_correct = request.calibration.may_correct(request.accelerator.name)
    for index, (bounds, size) in enumerate(zip(layout.stages, layout.stage_block_bytes, strict=True)):
        twin = layout.alike[index]
        if not modelled:
            ledger = None
        elif twin < index and not may_correct:
            ledger = stages[twin].ledger
        else:
            ledger = ledger_of(request, resolved, accounting, bounds)
        given = _given_bytes(request, size)
        available = (
            Interval.exactly(given) if given is not None else ledger.available if ledger else Interval.exactly(0)
        )
        stages.append(Stage(first=bounds[0], last=bounds[1], available=available, ledger=ledger, bytes_per_block=size))
    return tuple(stages)


def _given_bytes(request: BudgetRequest, bytes_per_block: int) -> int | None:
    """Return the bytes that the user gives in place of the ledger's, as blocks or as bytes per rank; None where the ledger decides."""
    blocks = request.settings.num_gpu_blocks_override
    return request.settings.kv_cache_memory_bytes if blocks is None else blocks * bytes_per_block
