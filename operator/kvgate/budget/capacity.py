"""Blocks, tokens and full-length requests that a number of bytes holds.

Formulas: vLLM 0.32, `v1/core/kv_cache_utils.py` (`get_num_blocks`, `_check_enough_kv_cache_memory`, `_estimate_max_model_len`,
`get_max_concurrency_for_kv_cache_config`).
"""

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction

from kvgate.budget.kv_cache_dtype import KVCacheDtype
from kvgate.budget.kv_cache_groups import Groups, request_blocks
from kvgate.budget.kv_cache_spec import Reach
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
