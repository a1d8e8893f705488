"""Layers that share a block table: the groups, and the bytes one block takes.

Formulas: vLLM 0.32, `v1/core/kv_cache_utils.py` (`get_kv_cache_groups`, `unify_kv_cache_spec_page_size`).
"""

from collections.abc import Iterable, Sequence

from kvgate.budget.errors import UnmodelledKind
from kvgate.budget.kv_cache_spec import (
    FullAttentionSpec,
    KVCacheSpec,
    LocalSpec,
    MLASpec,
    Reach,
    SlidingWindowSpec,
    StateSpec,
    WindowMLASpec,
    as_full,
)
from kvgate.budget.units import cdiv
from kvgate.record import record

_Caches = list[tuple[int, KVCacheSpec]]


def pack(caches: Sequence[tuple[int, KVCacheSpec]]) -> list[_Caches]:
    """Caches of one family together; families whose pages repeat evenly are split into groups of about one width.

    Raises UnmodelledKind where no family has pages of several sizes that repeat evenly: the width is then chosen otherwise.
    """
    families: dict[object, _Caches] = {}
    for cache in caches:
        families.setdefault(cache[1].family, []).append(cache)
    by_page = [_by_page_size(family) for family in families.values()]
    width = _width([[len(layers) for layers in pages] for pages in by_page])
    return [group for pages in by_page for group in _split(pages, width)]


def _by_page_size(family: _Caches) -> list[_Caches]:
    pages: dict[int, _Caches] = {}
    for cache in family:
        pages.setdefault(cache[1].page_size_bytes, []).append(cache)
    return list(pages.values())


def _width(families: list[list[int]]) -> int:
    """Repetitions per group that pad the least, the wider of equals; `families` are layers by page size."""
    balanced = [counts for counts in families if len(set(counts)) == 1]
    mixed = [counts[0] for counts in balanced if len(counts) > 1]
    if not mixed:
        raise UnmodelledKind("packed caches without a repeating pattern")
    repetitions = [counts[0] for counts in balanced]
    return min(range(max(mixed), max(repetitions) + 1), key=lambda width: (_padding(repetitions, width), -width))


def _padding(repetitions: list[int], width: int) -> int:
    return sum(cdiv(count, width) * width - count for count in repetitions)


def _split(pages: list[_Caches], width: int) -> list[_Caches]:
    """Strided, so that pipeline stages stay balanced; a family whose pages repeat unevenly stays whole."""
    counts = {len(layers) for layers in pages}
    groups = cdiv(max(counts), width) if len(counts) == 1 else 1
    return [[cache for layers in pages for cache in layers[i::groups]] for i in range(groups)]


Cache = tuple[int, KVCacheSpec]
"""(index of the layer, what it keeps); a layer may keep several."""
Part = tuple[KVCacheSpec, tuple[int, ...]]
"""(spec, layers that have it)."""


@record
class KVCacheGroup:
    """Caches with one block table; a block of any group occupies the bytes of the fullest group."""

    parts: tuple[Part, ...]
    """One, unless caches of one kind have pages of several sizes (vLLM's `UniformTypeKVCacheSpecs`)."""

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
        """Bytes of a page of one layer; where pages differ, of all of them together, as vLLM counts it."""
        return self.spec.page_size_bytes if len(self.parts) == 1 else self.bytes_between(0, None)

    def bytes_between(self, first: int, last: int | None) -> int:
        """Bytes of one block on a pipeline stage that holds first ≤ layer < last; None: to the end."""
        return sum(spec.page_size_bytes * _count(layers, first, last) for spec, layers in self.parts)


def _count(layers: tuple[int, ...], first: int, last: int | None) -> int:
    return sum(first <= layer and (last is None or layer < last) for layer in layers)


Groups = tuple[KVCacheGroup, ...]


def form_groups(caches: Sequence[Cache], *, packed: bool = False) -> Groups:
    """Group the caches of the whole model, all pipeline stages together; none where nothing is kept.

    `packed` is the block-outermost layout, which holds pages of several sizes.
    """
    if not caches:
        return ()
    if len({spec.family for _, spec in caches}) == 1:
        return (KVCacheGroup(parts=_parts(caches)),)
    if packed and len({spec.page_size_bytes for _, spec in caches}) > 1:
        return tuple(KVCacheGroup(parts=_parts(group)) for group in pack(caches))
    try:
        return _equal_groups(unify_page_sizes(caches))
    except UnmodelledKind:
        if not _can_widen_windows(spec for _, spec in caches):
            raise
    return form_groups(without_local_caches(caches))


def _parts(caches: Iterable[Cache]) -> tuple[Part, ...]:
    """Group caches by spec, in the order of first appearance."""
    layers: dict[KVCacheSpec, list[int]] = {}
    for layer, spec in caches:
        layers.setdefault(spec, []).append(layer)
    return tuple((spec, tuple(indices)) for spec, indices in layers.items())


def _equal_groups(caches: Sequence[Cache]) -> Groups:
    """Groups of about the same number of layers, whose pages are all of one size."""
    parts = _parts(caches)
    size = _group_size([len(layers) for _, layers in parts])
    return tuple(group for spec, layers in parts for group in _deal_out(spec, layers, size))


def _group_size(bucket_sizes: Sequence[int]) -> int:
    """The smallest bucket, unless the largest is less than half as large again: then padding is the lesser waste."""
    smallest, largest = min(bucket_sizes), max(bucket_sizes)
    return largest if largest < 1.5 * smallest else smallest


def _deal_out(spec: KVCacheSpec, layers: tuple[int, ...], size: int) -> list[KVCacheGroup]:
    """Strided, so that pipeline stages stay balanced."""
    count = cdiv(len(layers), size)
    return [KVCacheGroup(parts=((spec, layers[i::count]),)) for i in range(count)]


def unify_page_sizes(caches: Sequence[Cache]) -> list[Cache]:
    """Give every spec the largest page: states are padded, attention takes more tokens per block where that divides.

    Raises UnmodelledKind for an MLA page that does not divide: vLLM has no general rule there either.
    """
    specs = {spec for _, spec in caches}
    largest = max(spec.page_size_bytes for spec in specs)
    widened = {spec: _widened(spec, largest) for spec in specs}
    return [(layer, widened[spec]) for layer, spec in caches]


def _widened(spec: KVCacheSpec, page_size_bytes: int) -> KVCacheSpec:
    if spec.page_size_bytes == page_size_bytes:
        return spec
    if isinstance(spec, StateSpec):
        return spec.padded_to(page_size_bytes)
    if page_size_bytes % spec.page_size_bytes == 0:
        return spec.with_block_size(spec.block_size * (page_size_bytes // spec.page_size_bytes))
    if isinstance(spec, MLASpec | WindowMLASpec):
        raise UnmodelledKind("MLA pages of sizes that do not divide each other")
    return spec.padded_to(page_size_bytes)


def _can_widen_windows(specs: Iterable[KVCacheSpec]) -> bool:
    """vLLM's only way out: MLA beside plain sliding windows."""
    return {type(spec) for spec in specs} == {MLASpec, SlidingWindowSpec}


def without_local_caches(caches: Sequence[Cache]) -> list[Cache]:
    """Windows and chunks beside full attention as full attention: the hybrid KV cache manager is off."""
    full = next((spec for _, spec in caches if isinstance(spec, FullAttentionSpec | MLASpec)), None)
    if full is None:
        return list(caches)
    return [(layer, as_full(spec, full.block_size) if isinstance(spec, LocalSpec) else spec) for layer, spec in caches]


def bytes_per_block(groups: Groups, first: int = 0, last: int | None = None) -> int:
    """Bytes of one block id on a stage that holds first ≤ layer < last: the group that holds most decides."""
    return max((group.bytes_between(first, last) for group in groups), default=0)


def request_blocks(groups: Groups, reach: Reach) -> int:
    """Blocks that one request needs over all groups."""
    return sum(group.spec.blocks(reach) for group in groups)
