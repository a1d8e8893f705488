"""Static against paged allocation: what a slot of max_model_len tokens reserves, what blocks on demand take, what is wasted.

Static: every request reserves max_model_len when it begins. Paged: blocks as the request grows (vLLM 0.32,
`v1/core/kv_cache_manager.py`).
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.ground.units import cdiv, round_up
from kvgate.budget.kv_cache.capacity import KVCache, blocks_of_requests, largest
from kvgate.budget.kv_cache.spec import (
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MLASpec,
    StateSpec,
    WindowMLASpec,
)

BLOCK_SIZES = (16, 32, 64, 128, 256)
"""Block sizes that people try. They are rounded up to what the model's kernels take, and the blocks of hybrids are aligned beyond
that."""


class PagedRequest(Struct, frozen=True, kw_only=True):
    tokens: int
    blocks: int
    held_bytes: int
    """Bytes that its tokens and states take."""
    wasted_tokens: int
    """Places of the last block that stay empty, where a layer keeps every token."""
    wasted_bytes: int
    """Empty places, padding, and what a group with fewer layers leaves of a block."""
    requests: int | None
    """Requests of this length that fit at the same time; None where the pool is not known."""

    @property
    def wasted_share(self) -> Fraction:
        return Fraction(self.wasted_bytes, self.held_bytes) if self.held_bytes else Fraction(0)


class Paged(Struct, frozen=True, kw_only=True):
    block_size: int
    """Tokens of a block in a group that keeps every token, or in the first group where none does."""
    in_use: bool
    """True for the block size that the request gets as it stands."""
    bytes_per_block: int
    num_blocks: int | None
    slot_bytes: int
    """Bytes that a static slot reserves: a request of max_model_len."""
    static_slots: int | None
    """Requests at the same time where each reserves max_model_len."""
    static_concurrency: Fraction | None
    """The same as vLLM prints it, with the null block."""
    mean_wasted_tokens: Fraction
    """Mean over lengths that end anywhere in a block."""
    mean_wasted_bytes: Fraction
    requests: tuple[PagedRequest, ...]
    of_each: int | None
    """Requests of every length that fit at the same time, as many of one as of another."""

    @property
    def wasted_share(self) -> Fraction:
        held = sum(request.held_bytes for request in self.requests)
        return Fraction(sum(request.wasted_bytes for request in self.requests), held) if held else Fraction(0)


def default_lengths(max_model_len: int) -> tuple[int, ...]:
    """Lengths that people compare: a short request, one token more, a quarter and all of max_model_len."""
    short = max(1, max_model_len // 16)
    return tuple(sorted({short, min(short + 1, max_model_len), max(1, max_model_len // 4), max_model_len}))


def paging_of(budget: Budget, lengths: Sequence[int]) -> tuple[Paged, ...]:
    """Return every block size that comes out differently, the smallest first; none where there is no cache or no formula for it."""
    if budget.kv_cache is None or not budget.kv_cache.groups:
        return ()
    variants = {_block_sizes(budget): budget}  # vLLM turns some sizes into one that is there already
    for size in dict.fromkeys(round_up(size, budget.kv_cache.kernel_block) for size in BLOCK_SIZES):
        variant = plan(budget.request.with_settings(block_size=size))
        variants.setdefault(_block_sizes(variant), variant)
    sizes = [
        _paged(variant, variant.kv_cache, lengths, in_use=variant is budget)
        for variant in variants.values()
        if variant.kv_cache
    ]
    return tuple(sorted(sizes, key=lambda size: size.block_size))


def _block_sizes(budget: Budget) -> tuple[int, ...]:
    return tuple(group.spec.block_size for group in budget.kv_cache.groups) if budget.kv_cache else ()


def _paged(budget: Budget, kv_cache: KVCache, lengths: Sequence[int], *, in_use: bool) -> Paged:
    specs = [group.spec for group in kv_cache.groups]
    # blocks of a request that grow with its length to the end
    growing = next((spec for spec in specs if isinstance(spec, FullAttentionSpec | MLASpec)), None)
    block_size, ranks = (growing or specs[0]).block_size, kv_cache.reach.decode_context
    step = block_size * ranks if growing else 1  # tokens that one more block adds
    mean = Fraction(step - 1, 2)
    usable = budget.usable_blocks.expected if budget.usable_blocks else None
    requests = []
    for tokens in lengths:
        blocks, held = kv_cache.blocks_of(tokens), held_bytes(budget, tokens)
        requests.append(
            PagedRequest(
                tokens=tokens,
                blocks=blocks,
                held_bytes=held,
                wasted_tokens=-tokens % step,
                wasted_bytes=blocks * kv_cache.bytes_per_block - held,
                requests=_at_once(kv_cache, usable, (tokens,)),
            )
        )
    return Paged(
        block_size=block_size,
        in_use=in_use,
        bytes_per_block=kv_cache.bytes_per_block,
        num_blocks=budget.num_blocks.expected if budget.num_blocks else None,
        slot_bytes=kv_cache.request_bytes,
        static_slots=None if usable is None else max(0, usable) // kv_cache.request_blocks,
        static_concurrency=kv_cache.max_concurrency(budget.num_blocks.expected) if budget.num_blocks else None,
        mean_wasted_tokens=mean,
        mean_wasted_bytes=mean / ranks * token_bytes(budget),
        requests=tuple(requests),
        of_each=_at_once(kv_cache, usable, lengths),
    )


def _at_once(kv_cache: KVCache, usable: int | None, lengths: Sequence[int]) -> int | None:
    """Return the most requests of every length that the blocks hold together."""
    if usable is None:
        return None

    def fits(count: int) -> bool:
        return sum(blocks_of_requests(kv_cache, count, tokens) for tokens in lengths) <= usable

    return largest(max(0, usable), fits, guess=max(0, usable) // sum(kv_cache.blocks_of(tokens) for tokens in lengths))


def held_bytes(budget: Budget, tokens: int) -> int:
    """Bytes that the tokens and states of one request take, on a rank of the pipeline stage whose blocks are largest.

    Rounding, padding and empty places of blocks do not count.
    """
    if budget.kv_cache is None:
        return 0
    reach, held = replace(budget.kv_cache.reach, max_model_len=tokens), 0
    whole_tokens = cdiv(tokens, reach.decode_context)
    for spec, count in _caches(budget):
        if isinstance(spec, StateSpec):
            size = (spec.num_states + spec.states_of_blocks(tokens)) * spec.state_bytes
        elif isinstance(spec, MLASpec):
            size = cdiv(whole_tokens, spec.tokens_per_vector) * spec.vector_bytes
        elif isinstance(spec, FullAttentionSpec):
            size = whole_tokens * spec.token_bytes
        elif isinstance(spec, CrossAttentionSpec):
            size = reach.max_encoder_tokens * spec.token_bytes
        else:
            recent_tokens = min(spec.reach_back + reach.in_flight_tokens, tokens)
            size = recent_tokens * (spec.vector_bytes if isinstance(spec, WindowMLASpec) else spec.token_bytes)
        held += count * size
    return held


def token_bytes(budget: Budget) -> int:
    """Bytes of one more token of a long request, on the same rank."""
    return sum(
        count * spec.token_bytes for spec, count in _caches(budget) if isinstance(spec, FullAttentionSpec | MLASpec)
    )


def _caches(budget: Budget) -> Iterator[tuple[KVCacheSpec, int]]:
    """(spec, layers that have it) on the pipeline stage whose blocks are largest; drafts follow the last layer."""
    stage = max(budget.stages, key=lambda stage: stage.bytes_per_block, default=None)
    first, last = (stage.first, stage.last) if stage else (0, None)
    if last == len(budget.request.shape.layers):
        last = None
    for group in budget.kv_cache.groups if budget.kv_cache else ():
        for spec, layers in group.parts:
            yield spec, sum(first <= layer and (last is None or layer < last) for layer in layers)
