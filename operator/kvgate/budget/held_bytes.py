"""Bytes that the tokens and states of a request take by themselves, without rounding, padding and empty places of blocks."""

from collections.abc import Iterator
from dataclasses import replace

from kvgate.budget.kv_cache_spec import (
    ChunkedLocalSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MLASpec,
    Reach,
    SlidingWindowSpec,
    StateSpec,
    WindowMLASpec,
)
from kvgate.budget.plan import Budget
from kvgate.budget.units import cdiv


def keeps_every_token(spec: KVCacheSpec) -> bool:
    """True where a request's blocks grow with its length to the end."""
    return isinstance(spec, FullAttentionSpec | MLASpec)


def held_bytes(budget: Budget, tokens: int) -> int:
    """Return the bytes of one request on a rank of the pipeline stage whose blocks are largest."""
    if budget.kv_cache is None:
        return 0
    reach = replace(budget.kv_cache.reach, max_model_len=tokens)
    return sum(count * _held(spec, reach) for spec, count in _caches(budget))


def token_bytes(budget: Budget) -> int:
    """One more token of a long request, on the same rank."""
    return sum(
        count * spec.token_bytes for spec, count in _caches(budget) if isinstance(spec, FullAttentionSpec | MLASpec)
    )


def _caches(budget: Budget) -> Iterator[tuple[KVCacheSpec, int]]:
    """(spec, layers) of that stage."""
    first, last = _largest_stage(budget)
    for group in budget.kv_cache.groups if budget.kv_cache else ():
        for spec, layers in group.parts:
            yield spec, sum(first <= layer and (last is None or layer < last) for layer in layers)


def _largest_stage(budget: Budget) -> tuple[int, int | None]:
    """Its layers; drafts follow the last one."""
    stage = max(budget.stages, key=lambda stage: stage.bytes_per_block, default=None)
    if stage is None:
        return 0, None
    return stage.first, stage.last if stage.last < len(budget.request.shape.layers) else None


def _held(spec: KVCacheSpec, reach: Reach) -> int:
    """On one layer."""
    if isinstance(spec, StateSpec):
        return spec.num_states * spec.state_bytes
    if isinstance(spec, MLASpec):
        return cdiv(cdiv(reach.max_model_len, reach.decode_context), spec.tokens_per_vector) * spec.vector_bytes
    if isinstance(spec, WindowMLASpec):
        return min(spec.reach_back + reach.in_flight_tokens, reach.max_model_len) * spec.vector_bytes
    return _kept_tokens(spec, reach) * spec.token_bytes


def _kept_tokens(
    spec: FullAttentionSpec | SlidingWindowSpec | ChunkedLocalSpec | CrossAttentionSpec, reach: Reach
) -> int:
    if isinstance(spec, CrossAttentionSpec):
        return reach.max_encoder_tokens
    if isinstance(spec, FullAttentionSpec):
        return cdiv(reach.max_model_len, reach.decode_context)
    return min(spec.reach_back + reach.in_flight_tokens, reach.max_model_len)
