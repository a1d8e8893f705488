"""Groups of layers that share a block table, and the bytes that one block takes.

Formulas: vLLM 0.32, `v1/core/kv_cache_utils.py` (`get_kv_cache_groups`, `unify_kv_cache_spec_page_size`).
"""

from collections.abc import Callable, Hashable, Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.ground.interval import UnmodelledKind
from kvgate.budget.ground.units import cdiv
from kvgate.budget.kv_cache.spec import (
    FullAttentionSpec,
    KVCacheSpec,
    MLASpec,
    Reach,
    SlidingWindowSpec,
    StateSpec,
    WindowMLASpec,
    as_full,
)

Cache = tuple[int, KVCacheSpec]
"""(index of the layer, spec of what it keeps); a layer may keep several caches."""
Part = tuple[KVCacheSpec, tuple[int, ...]]
"""(spec, layers that have it)."""


class KVCacheGroup(Struct, frozen=True, kw_only=True):
    """Caches with one block table; a block of any group occupies the bytes of the fullest group."""

    parts: tuple[Part, ...]
    """One part, unless caches of one kind have pages of several sizes (vLLM's `UniformTypeKVCacheSpecs`)."""

    @property
    def spec(self) -> KVCacheSpec:
        """Spec of the first part; all parts take the same blocks for a request."""
        return self.parts[0][0]

    @property
    def layers(self) -> tuple[int, ...]:
        """Indices of the model's layers, once for every cache."""
        return tuple(layer for _, layers in self.parts for layer in layers)

    @property
    def num_layers(self) -> int:
        return sum(len(layers) for _, layers in self.parts)

    @property
    def page_size_bytes(self) -> int:
        """Bytes of a page of one layer; where pages differ, the bytes of all of them together, as vLLM counts it."""
        return self.spec.page_size_bytes if len(self.parts) == 1 else self.bytes_between(0, None)

    def bytes_between(self, first: int, last: int | None) -> int:
        """Bytes of one block on a pipeline stage that holds first ≤ layer < last; None: to the end."""
        return sum(
            spec.page_size_bytes * sum(first <= layer and (last is None or layer < last) for layer in layers)
            for spec, layers in self.parts
        )


Groups = tuple[KVCacheGroup, ...]


def form_groups(caches: Sequence[Cache], *, packed: bool = False) -> Groups:
    """Group the caches of the whole model, all pipeline stages together; no groups where nothing is kept.

    `packed` is the block-outermost layout, which holds pages of several sizes (DeepSeek-V4).
    """
    if not caches:
        return ()
    if len({spec.family for _, spec in caches}) == 1:
        return (KVCacheGroup(parts=_parts(caches)),)
    if packed and len({spec.page_size_bytes for _, spec in caches}) > 1:
        return tuple(KVCacheGroup(parts=_parts(group)) for group in pack(caches))
    try:
        unified = unify_page_sizes(caches)
    except UnmodelledKind:
        # vLLM has a way out for MLA beside plain sliding windows only: it keeps the windows as full attention
        if {type(spec) for _, spec in caches} != {MLASpec, SlidingWindowSpec}:
            raise
        return form_groups(without_local_caches(caches))
    return _equal_groups(unified)


def _parts(caches: Iterable[Cache]) -> tuple[Part, ...]:
    """Group caches by spec, in the order of first appearance."""
    return tuple((group[0][1], tuple(layer for layer, _ in group)) for group in _collected(caches, lambda spec: spec))


def _equal_groups(caches: Sequence[Cache]) -> Groups:
    """Return groups of about the same number of layers, whose pages are all of one size."""
    parts = _parts(caches)
    sizes = [len(layers) for _, layers in parts]
    # the size of the smallest part, unless the largest is less than half as large again: then padding wastes less
    size = max(sizes) if max(sizes) < 1.5 * min(sizes) else min(sizes)
    groups: list[KVCacheGroup] = []
    for spec, layers in parts:
        count = cdiv(len(layers), size)
        # every count-th layer, so that pipeline stages stay balanced
        groups += [KVCacheGroup(parts=((spec, layers[i::count]),)) for i in range(count)]
    return tuple(groups)


def unify_page_sizes(caches: Sequence[Cache]) -> list[Cache]:
    """Give every spec the largest page: states are padded, attention takes more tokens per block where that divides the page.

    Raises UnmodelledKind for an MLA page that does not divide it, because vLLM has no general rule there either.
    """
    largest = max(spec.page_size_bytes for _, spec in caches)
    widened = {spec: _widened(spec, largest) for _, spec in caches}
    return [(layer, widened[spec]) for layer, spec in caches]


def _widened(spec: KVCacheSpec, page_size_bytes: int) -> KVCacheSpec:
    if spec.page_size_bytes == page_size_bytes:
        return spec
    if isinstance(spec, StateSpec):
        return replace(spec, page_padded_bytes=page_size_bytes)
    if page_size_bytes % spec.page_size_bytes == 0:
        return replace(spec, block_size=spec.block_size * (page_size_bytes // spec.page_size_bytes))
    if isinstance(spec, MLASpec | WindowMLASpec):
        raise UnmodelledKind("MLA pages of sizes that do not divide each other")
    return replace(spec, page_padded_bytes=page_size_bytes)


def without_local_caches(caches: Sequence[Cache]) -> list[Cache]:
    """Keep windows and chunks beside full attention as full attention, which vLLM does if its hybrid KV cache manager is off."""
    full = next((spec for _, spec in caches if isinstance(spec, FullAttentionSpec | MLASpec)), None)
    if full is None:
        return list(caches)
    return [(layer, as_full(spec, full.block_size)) for layer, spec in caches]


def pack(caches: Sequence[Cache]) -> list[list[Cache]]:
    """Group the caches of one family; families whose pages repeat evenly are split into groups of about one width.

    Raises UnmodelledKind where no family has pages of several sizes that repeat evenly, because vLLM then chooses the width otherwise.
    """
    families = _collected(caches, lambda spec: spec.family)
    by_page = [_collected(family, lambda spec: spec.page_size_bytes) for family in families]
    width = _width([[len(layers) for layers in pages] for pages in by_page])
    groups: list[list[Cache]] = []
    for pages in by_page:
        counts = {len(layers) for layers in pages}
        count = cdiv(max(counts), width) if len(counts) == 1 else 1  # a family whose pages repeat unevenly stays whole
        # every count-th layer, so that pipeline stages stay balanced
        groups += [[cache for layers in pages for cache in layers[i::count]] for i in range(count)]
    return groups


def _collected(caches: Iterable[Cache], key: Callable[[KVCacheSpec], Hashable]) -> list[list[Cache]]:
    found: dict[Hashable, list[Cache]] = {}
    for cache in caches:
        found.setdefault(key(cache[1]), []).append(cache)
    return list(found.values())


def _width(families: list[list[int]]) -> int:
    """Return the repetitions per group that pad the least, the wider of equals; `families` are numbers of layers by page size."""
    balanced = [counts for counts in families if len(set(counts)) == 1]
    mixed = [counts[0] for counts in balanced if len(counts) > 1]
    if not mixed:
        raise UnmodelledKind("packed caches without a repeating pattern")
    repetitions = [counts[0] for counts in balanced]

    def padding(width: int) -> int:
        return sum(cdiv(count, width) * width - count for count in repetitions)

    return min(range(max(mixed), max(repetitions) + 1), key=lambda width: (padding(width), -width))


def bytes_per_block(groups: Groups, first: int = 0, last: int | None = None) -> int:
    """Bytes of one block id on a stage that holds first ≤ layer < last: the group that holds most decides."""
    return max((group.bytes_between(first, last) for group in groups), default=0)


def request_blocks(groups: Groups, reach: Reach) -> int:
    return sum(group.spec.blocks(reach) for group in groups)
