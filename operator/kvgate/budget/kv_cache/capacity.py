"""Blocks of the pool: what a number of blocks holds, what the demand of a guarantee takes, and the pinned size.

Formulas: vLLM 0.32, `v1/core/kv_cache_utils.py` (`get_num_blocks`, `_check_enough_kv_cache_memory`, `_estimate_max_model_len`,
`get_max_concurrency_for_kv_cache_config`). Where the capacity is pinned, the KV cache gets the low end of the ledger, so that every start
on every rank has the blocks that were promised.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import cached_property, lru_cache
from math import ceil, exp, lcm, log

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.engine.request import BudgetRequest, Guarantee, Workload
from kvgate.budget.engine.settings import Resolved
from kvgate.budget.ground.interval import Interval
from kvgate.budget.ground.units import MIB, cdiv
from kvgate.budget.kv_cache.dtype import KVCacheDtype
from kvgate.budget.kv_cache.groups import Groups, request_blocks
from kvgate.budget.kv_cache.spec import Reach, SlidingWindowSpec, WindowMLASpec


class KVCache(Struct, frozen=True, kw_only=True, dict=True):
    """Layout of the cache of one engine, and the blocks that requests take in it."""

    groups: Groups
    dtype: KVCacheDtype
    bytes_per_block: int
    """Bytes of a block on the pipeline stage where it is largest; 0 for a model that keeps nothing."""
    checked_bytes_per_block: int
    """The same as vLLM's start check counts it: in some releases those of all stages together."""
    reach: Reach
    null_blocks: int
    """Blocks that vLLM keeps for itself: 1 since 0.29; they count in num_blocks, and no request can use them."""
    kernel_block: int = 16
    """The smallest block, in tokens, that the release takes for every layer."""
    tokens_by_concurrency: bool = True
    """True where the logged number of tokens is the number of full-length requests × max_model_len."""

    @cached_property
    def request_blocks(self) -> int:
        """Blocks of one request of max_model_len."""
        return request_blocks(self.groups, self.reach)

    @property
    def request_bytes(self) -> int:
        return self.request_blocks * self.bytes_per_block

    def blocks_of(self, num_tokens: int) -> int:
        """Blocks of one request of that many tokens."""
        if num_tokens == self.reach.max_model_len:
            return self.request_blocks
        return request_blocks(self.groups, replace(self.reach, max_model_len=num_tokens))

    def checked_blocks(self, num_tokens: int) -> int:
        """Blocks that vLLM's start check wants for one request of that many tokens."""
        blocks = self.blocks_of(num_tokens)
        if self.checked_bytes_per_block == self.bytes_per_block:
            return blocks
        return cdiv(blocks * self.checked_bytes_per_block, self.bytes_per_block)

    def max_concurrency(self, num_blocks: int) -> Fraction:
        """Full-length requests at the same time, as vLLM prints it, without subtracting the null block; 0 where nothing is kept."""
        needed = self.request_blocks
        return Fraction(num_blocks, needed) if needed else Fraction(0)

    def num_tokens(self, num_blocks: int) -> int:
        """The `GPU KV cache size` that vLLM prints: concurrency × max_model_len, or what one group could hold (up to 0.20)."""
        if self.tokens_by_concurrency or not self.groups:
            needed = self.request_blocks
            return num_blocks * self.reach.max_model_len // needed if needed else 0
        block_size = min(group.spec.block_size or self.reach.max_model_len for group in self.groups)
        return num_blocks // len(self.groups) * block_size * self.reach.decode_context

    def max_model_len_that_fits(self, num_blocks: int, *, at_most: int) -> int:
        """vLLM's `estimated maximum model length`: the longest request that fits beside the null block; 0 if none does."""
        usable = num_blocks - self.null_blocks
        if self.checked_blocks(at_most) <= usable:
            return at_most
        # the guess: while every cache grows, or after windows are full and only whole caches grow
        blocks = usable // max(1, self.checked_bytes_per_block // max(1, self.bytes_per_block))
        reach = replace(self.reach, max_model_len=at_most)
        specs = [group.spec for group in self.groups if group.spec.block_size]
        growth = sum(1 / spec.block_size for spec in specs)
        whole = sum(1 / spec.block_size for spec in specs if spec.shares_prefixes)
        full = sum(group.spec.blocks(reach) for group in self.groups if not group.spec.shares_prefixes)
        early, late = blocks / (growth or 1), (blocks - full) / (whole or 1)
        guess = int(max(early, late) * self.reach.decode_context)
        return largest(at_most, lambda length: self.checked_blocks(length) <= usable, guess=guess)


def largest(at_most: int, fits: Callable[[int], bool], *, at_least: int = 1, guess: int = 0) -> int:
    """Return the largest n in [at_least, at_most] that fits; 0 if not even the smallest does.

    `fits` must be monotone: if n does not fit, no larger number does. A good `guess` costs two or three calls of `fits`,
    a bad one a few more than plain bisection; the answer is the same.
    """
    if at_most < at_least or not fits(at_least):
        return 0
    low, high = _bracket(min(max(guess, at_least), at_most), at_least, at_most, fits)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def _bracket(guess: int, at_least: int, at_most: int, fits: Callable[[int], bool]) -> tuple[int, int]:
    """Return a number that fits and the largest that may fit, found from the guess in steps that double."""
    step = 1
    if fits(guess):
        while guess < at_most and fits(min(guess + step, at_most)):
            guess, step = min(guess + step, at_most), 2 * step
        return guess, min(guess + step, at_most + 1) - 1
    while guess - step > at_least and not fits(guess - step):
        guess, step = guess - step, 2 * step
    return max(at_least, guess - step), guess - 1


class Demand(Struct, frozen=True, kw_only=True):
    """Blocks that the guarantee needs; never fewer than one full-length request takes, because vLLM then does not start."""

    guarantee: Guarantee
    requests: int
    """Requests that are held at the same time."""
    blocks: int
    startup_blocks: int
    """Blocks that vLLM's start check wants: those of one request of max_model_len, in some releases on all pipeline stages."""
    sequence_blocks: int = 0
    """Blocks that full CUDA graphs over recurrent states need: one for every sequence, the null block among them."""

    @property
    def checked_blocks(self) -> int:
        """Blocks without which vLLM does not start."""
        return max(self.startup_blocks, self.sequence_blocks)

    @property
    def is_for_sequences(self) -> bool:
        return 0 < self.blocks == self.sequence_blocks


def demand_of(kv_cache: KVCache, request: BudgetRequest, resolved: Resolved) -> Demand:
    """Return the demand of a guarantee; Workload without a workload is Startup."""
    guarantee, workload = request.guarantee, request.workload
    startup = kv_cache.checked_blocks(kv_cache.reach.max_model_len)
    requests, blocks = 1, startup
    if guarantee is Guarantee.FULL_CONTEXT:
        whole = replace(kv_cache.reach, max_model_len=request.least_model_len or kv_cache.reach.max_model_len)
        requests = resolved.max_num_seqs
        blocks = max(startup, requests * replace(kv_cache, reach=whole).request_blocks)
    elif guarantee is Guarantee.WORKLOAD and workload is not None:
        requests, shared = workload.peak_concurrency, shared_tokens(kv_cache, resolved, workload)
        least = kv_cache.blocks_of(request.least_model_len) if request.least_model_len else 0
        blocks = max(startup, least, blocks_of_workload(kv_cache, workload, requests, shared))
    sequences = resolved.max_num_seqs - kv_cache.null_blocks if resolved.graphs_hold_states else 0
    return Demand(
        guarantee=guarantee,
        requests=requests,
        blocks=max(blocks, sequences),
        startup_blocks=startup,
        sequence_blocks=sequences,
    )


def shared_tokens(kv_cache: KVCache, resolved: Resolved, workload: Workload) -> int:
    """Tokens of the shared prefix that are kept once: whole blocks of every group at once (0.32, `HybridKVCacheCoordinator`)."""
    if not resolved.enable_prefix_caching:
        return 0
    step = lcm(*(group.spec.block_size or 1 for group in kv_cache.groups)) * kv_cache.reach.decode_context
    return min(workload.shared_prefix_tokens, workload.prompt_tokens) // step * step


def blocks_of_requests(kv_cache: KVCache, requests: int, num_tokens: int, shared_tokens: int = 0) -> int:
    """Blocks that equal requests hold at the same time; a group that can share a prefix holds its blocks once."""
    reach, total = replace(kv_cache.reach, max_model_len=num_tokens), 0
    for group in kv_cache.groups:
        spec, each = group.spec, group.spec.blocks(reach)
        if isinstance(spec, SlidingWindowSpec | WindowMLASpec):
            # The tokens in flight belong to one batch or two, however many requests share them. The request that comes next finds
            # its whole reserve free, because vLLM checks that before it admits one.
            others, unaligned = requests - 1, spec.reach_back + spec.block_size - 1
            windows = cdiv(others * unaligned + reach.in_flight_tokens, spec.block_size) + others
            total += min(requests * each, windows + each)
        else:
            shares = shared_tokens and spec.shares_prefixes
            shared = spec.blocks(replace(reach, max_model_len=shared_tokens)) if shares else 0
            total += requests * (each - shared) + shared
    return total


RARE = 100
"""Requests of different lengths take more blocks than their demand at 1 moment of so many, at most."""
_TILTS = tuple(1.25**power for power in range(-30, 45))


def blocks_of_workload(kv_cache: KVCache, workload: Workload, requests: int, shared_tokens: int) -> int:
    """Blocks that so many requests of a workload hold at the same time, each rounded up to blocks.

    Of different lengths it is a bound that independent requests pass at no more than 1 moment of RARE, and at most the blocks of as
    many of the longest. Windows count as those of the longest.
    """
    longest = blocks_of_requests(kv_cache, requests, workload.request_tokens, shared_tokens)
    if not workload.lengths:
        return longest
    windows = (SlidingWindowSpec, WindowMLASpec)
    growing = replace(kv_cache, groups=tuple(g for g in kv_cache.groups if not isinstance(g.spec, windows)))

    def blocks(requests: int, tokens: int) -> int:
        return blocks_of_requests(growing, requests, tokens, shared_tokens)

    own = tuple((max(0, blocks(2, tokens) - blocks(1, tokens)), weight) for tokens, weight in workload.lengths)
    once = 2 * blocks(1, workload.request_tokens) - blocks(2, workload.request_tokens)
    in_windows = longest - blocks(requests, workload.request_tokens)
    return min(longest, in_windows + once + sum_of_independent(own, requests))


def sum_of_independent(own: tuple[tuple[int, int], ...], requests: int) -> int:
    """Bound of the sum of independent draws, passed in at most 1 of RARE cases. `own` are (value, weight).

    Chernoff 1952: P(sum ≥ s) ≤ E[exp(t·value)]^n ÷ exp(t·s) for every t > 0, so that s = (n·ln E[exp(t·value)] + ln RARE) ÷ t holds.
    """
    return ceil(min((requests * mean + spread for mean, spread in _chernoff(own)), default=0) - 1e-9)


@lru_cache(maxsize=1024)
def _chernoff(own: tuple[tuple[int, int], ...]) -> tuple[tuple[float, float], ...]:
    """(Share per draw, constant) of the bound for every t that is tried; t is divided by the largest value, so that nothing overflows."""
    largest, total = max(value for value, _ in own), sum(weight for _, weight in own)
    if not largest:
        return ()
    return tuple(
        (
            largest * (1 + log(sum(weight * exp(t * (value / largest - 1)) for value, weight in own) / total) / t),
            largest * log(RARE) / t,
        )
        for t in _TILTS
    )


PINNED_SAFETY_BYTES = 150 * MIB
"""Bytes of every GPU that stay free below the low end. vLLM leaves out the same of the size that it suggests for `--kv-cache-memory-bytes`,
because its own profile run may find too little (0.10.2 to 0.33, `Worker.compile_or_warm_up_model`, `redundancy_buffer_memory`)."""


class Pin(Struct, frozen=True, kw_only=True):
    """Size of the KV cache that vLLM is given, and the prediction of the size that it would find itself."""

    num_blocks: int
    """Blocks of every rank, the null block included; 0 where the low end holds none, so that nothing can be pinned."""
    cache_memory_bytes: int
    """Value of `--kv-cache-memory-bytes`. It is one for all ranks: the blocks on the pipeline stage where a block is largest."""
    available: Interval
    """Bytes that the ledger leaves on the stage that holds the fewest blocks; negative ends mean an overdrawn budget."""
    profiled_blocks: Interval
    """Blocks that vLLM would find itself."""

    @property
    def forgone_blocks(self) -> int:
        """Blocks that are given away against the expected size."""
        return self.profiled_blocks.expected - self.num_blocks


class PinnedCapacity(Struct, frozen=True, kw_only=True):
    """A pinned KV cache in figures, and what is given away against the size that vLLM is expected to find itself."""

    num_blocks: int
    num_tokens: int
    """Size as vLLM prints it."""
    kv_cache_bytes: int
    """Bytes of the blocks on the GPU that has the least room."""
    profiled_bytes: Interval
    """Bytes that vLLM would find itself on that GPU."""
    forgone_bytes: int
    forgone_tokens: int


def pin(
    stages: Sequence[tuple[Interval, int]], profiled_blocks: Interval, *, shrinks_to_fewest_blocks: bool
) -> tuple[Pin, int]:
    """Return the pin, and the index of the stage that decides it. `stages` are (available bytes, bytes per block) of pipeline stages.

    vLLM divides the one value by the size of each stage's blocks, and all ranks take the smallest result (0.32, `get_kv_cache_configs`):
    a multiple of the largest block gives exactly that many blocks everywhere. A release that does not shrink the other ranks lets each
    of them hold the whole value, which therefore must fit on the smallest.
    """
    largest = max(size for _, size in stages)
    counts = []
    for available, own_size in stages:
        room, size = available.low - PINNED_SAFETY_BYTES, own_size if shrinks_to_fewest_blocks else largest
        # a stage without caches limits nothing, unless it is overdrawn
        counts.append(max(0, room) // size if size else profiled_blocks.high * (room >= 0))
    blocks = min(counts)
    decides = counts.index(blocks)
    found = Pin(
        num_blocks=blocks,
        cache_memory_bytes=blocks * largest,
        available=stages[decides][0],
        profiled_blocks=profiled_blocks,
    )
    return found, decides
