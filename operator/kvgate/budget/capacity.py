"""Blocks, tokens and full-length requests that a number of bytes holds.

Formulas: vLLM 0.32, `v1/core/kv_cache_utils.py` (`get_num_blocks`, `_check_enough_kv_cache_memory`, `_estimate_max_model_len`,
`get_max_concurrency_for_kv_cache_config`).
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from math import lcm

from kvgate.budget.kv_cache_dtype import KVCacheDtype
from kvgate.budget.kv_cache_groups import Groups, request_blocks
from kvgate.budget.kv_cache_spec import KVCacheSpec, Reach, SlidingWindowSpec, WindowMLASpec
from kvgate.budget.request import Guarantee, Workload
from kvgate.budget.settings import Resolved
from kvgate.budget.units import cdiv
from kvgate.record import record


@record
class KVCache:
    """Layout of the cache of one engine, and the blocks that requests take in it."""

    groups: Groups
    dtype: KVCacheDtype
    bytes_per_block: int
    """Bytes of a block on the pipeline stage where it is largest; 0 for a model that keeps nothing."""
    reach: Reach
    null_blocks: int
    """Blocks that vLLM keeps for itself: 1 since 0.29, counted in num_blocks but not usable."""
    tokens_by_concurrency: bool = True
    """True where the logged number of tokens is that of full-length requests."""

    @property
    def request_blocks(self) -> int:
        """Blocks of one request of max_model_len."""
        return request_blocks(self.groups, self.reach)

    @property
    def request_bytes(self) -> int:
        return self.request_blocks * self.bytes_per_block

    def blocks_of(self, num_tokens: int) -> int:
        """Blocks of one request of that many tokens."""
        return request_blocks(self.groups, replace(self.reach, max_model_len=num_tokens))

    def max_concurrency(self, num_blocks: int) -> Fraction:
        """Full-length requests at once, as vLLM prints it: the null block is not subtracted; 0 where nothing is kept."""
        needed = self.request_blocks
        return Fraction(num_blocks, needed) if needed else Fraction(0)

    def num_tokens(self, num_blocks: int) -> int:
        """The `GPU KV cache size` that vLLM prints: concurrency × max_model_len, or what one group could hold (up to 0.20)."""
        if self.tokens_by_concurrency or not self.groups:
            return int(self.max_concurrency(num_blocks) * self.reach.max_model_len)
        block_size = min(group.spec.block_size or self.reach.max_model_len for group in self.groups)
        return num_blocks // len(self.groups) * block_size * self.reach.decode_context

    def max_model_len_that_fits(self, num_blocks: int, *, at_most: int) -> int:
        """vLLM's `estimated maximum model length`: the longest request that fits beside the null block; 0 if none does."""
        usable = num_blocks - self.null_blocks
        if self.blocks_of(at_most) <= usable:
            return at_most
        guess = self._length_of(usable, at_most)
        return largest(at_most, lambda length: self.blocks_of(length) <= usable, guess=guess)

    def _length_of(self, blocks: int, at_most: int) -> int:
        """About the tokens that blocks hold: every cache still grows, or windows are full and only whole caches grow."""
        reach = replace(self.reach, max_model_len=at_most)
        specs = [group.spec for group in self.groups if group.spec.block_size]
        growth = sum(1 / spec.block_size for spec in specs)
        whole = sum(1 / spec.block_size for spec in specs if spec.shares_prefixes)
        full = sum(group.spec.blocks(reach) for group in self.groups if not group.spec.shares_prefixes)
        early, late = blocks / (growth or 1), (blocks - full) / (whole or 1)
        return int(max(early, late) * self.reach.decode_context)


def largest(at_most: int, fits: Callable[[int], bool], *, at_least: int = 1, guess: int = 0) -> int:
    """The largest n in [at_least, at_most] that fits; 0 if not even the smallest does.

    `fits` must be monotone: what does not fit at n does not fit beyond n. A good `guess` costs two or three questions,
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
    """(fits, cannot be beyond) around the guess, in steps that double."""
    step = 1
    if fits(guess):
        while guess < at_most and fits(min(guess + step, at_most)):
            guess, step = min(guess + step, at_most), 2 * step
        return guess, min(guess + step, at_most + 1) - 1
    while guess - step > at_least and not fits(guess - step):
        guess, step = guess - step, 2 * step
    return max(at_least, guess - step), guess - 1


@record
class Demand:
    """Blocks that the guarantee asks for; never below one full-length request, or vLLM does not start."""

    guarantee: Guarantee
    requests: int
    """Requests that are held at the same time."""
    blocks: int
    startup_blocks: int
    """Blocks of one request of max_model_len."""
    sequence_blocks: int = 0
    """Blocks that full CUDA graphs over recurrent states need: one for every sequence, the null block among them."""

    @property
    def is_for_sequences(self) -> bool:
        """True where the graphs ask for more than the guarantee."""
        return 0 < self.blocks == self.sequence_blocks


def demand_of(
    kv_cache: KVCache,
    guarantee: Guarantee,
    *,
    settings: Resolved,
    workload: Workload | None,
) -> Demand:
    """The demand of a guarantee; Workload without a workload is Startup."""
    startup = kv_cache.request_blocks
    requests, blocks = 1, startup
    if guarantee is Guarantee.FULL_CONTEXT:
        requests, blocks = settings.max_num_seqs, settings.max_num_seqs * startup
    elif guarantee is Guarantee.WORKLOAD and workload is not None:
        requests = workload.peak_concurrency
        shares = settings.enable_prefix_caching
        blocks = max(startup, _workload_blocks(kv_cache, workload, shares_prefixes=shares))
    sequences = settings.max_num_seqs - kv_cache.null_blocks if settings.graphs_hold_states else 0
    return Demand(
        guarantee=guarantee,
        requests=requests,
        blocks=max(blocks, sequences),
        startup_blocks=startup,
        sequence_blocks=sequences,
    )


def blocks_of_requests(kv_cache: KVCache, requests: int, num_tokens: int) -> int:
    """Blocks that equal requests hold at the same time, with no prefix in common."""
    reach = replace(kv_cache.reach, max_model_len=num_tokens)
    return sum(_blocks_at_peak(group.spec, requests, reach, 0) for group in kv_cache.groups)


def _workload_blocks(kv_cache: KVCache, workload: Workload, *, shares_prefixes: bool) -> int:
    """Each group for itself: whole blocks of a shared prefix are held once where the group can share them."""
    reach = replace(kv_cache.reach, max_model_len=workload.request_tokens)
    prefix = _shared_tokens(kv_cache, workload) if shares_prefixes else 0
    specs = [group.spec for group in kv_cache.groups]
    return sum(_blocks_at_peak(spec, workload.peak_concurrency, reach, prefix) for spec in specs)


def _shared_tokens(kv_cache: KVCache, workload: Workload) -> int:
    """A prefix is found again in whole blocks of every group at once (vLLM 0.32, `HybridKVCacheCoordinator`)."""
    step = lcm(*(group.spec.block_size or 1 for group in kv_cache.groups)) * kv_cache.reach.decode_context
    return min(workload.shared_prefix_tokens, workload.prompt_tokens) // step * step


def _blocks_at_peak(spec: KVCacheSpec, requests: int, reach: Reach, prefix: int) -> int:
    each = spec.blocks(reach)
    if isinstance(spec, SlidingWindowSpec | WindowMLASpec):
        return min(requests * each, _window_blocks(spec, requests - 1, reach) + each)
    shared = spec.blocks(replace(reach, max_model_len=prefix)) if prefix and spec.shares_prefixes else 0
    return requests * (each - shared) + shared


def _window_blocks(spec: SlidingWindowSpec | WindowMLASpec, requests: int, reach: Reach) -> int:
    """Windows of running requests: the tokens in flight are one batch's or two, however many requests share them.

    The request that comes next finds its whole reserve free, as vLLM asks before it admits one.
    """
    unaligned = spec.reach_back + spec.block_size - 1
    return cdiv(requests * unaligned + reach.in_flight_tokens, spec.block_size) + requests
