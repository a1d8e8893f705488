"""Layers that share a block table: the groups, and the bytes one block takes.

Formulas: vLLM 0.32, `v1/core/kv_cache_utils.py` (`get_kv_cache_groups`, `unify_kv_cache_spec_page_size`) and the block-size
alignment of hybrids in `platforms/interface.py`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvgate.budget.errors import UnmodelledKind
from kvgate.budget.kv_cache_spec import AttentionSpec, KVCacheSpec, MLASpec, Reach, StateSpec
from kvgate.budget.units import cdiv


@dataclass(frozen=True, kw_only=True, slots=True)
class KVCacheGroup:
    """Layers with one spec; a block of any group occupies the bytes of the fullest group."""

    spec: KVCacheSpec
    layers: tuple[int, ...]
    """Indices of the model's layers."""

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    def num_layers_between(self, first: int, last: int) -> int:
        """Layers of a pipeline stage that holds first ≤ i < last."""
        return sum(first <= layer < last for layer in self.layers)


Groups = tuple[KVCacheGroup, ...]


def form_groups(specs: Sequence[KVCacheSpec]) -> Groups:
    """Group the layers of the whole model (all pipeline stages together), after page sizes are made equal.

    `specs` holds one spec per layer, in layer order.
    """
    unified = unify_page_sizes(specs)
    buckets: dict[KVCacheSpec, list[int]] = {}
    for layer, spec in enumerate(unified):
        buckets.setdefault(spec, []).append(layer)
    size = _group_size([len(layers) for layers in buckets.values()])
    return tuple(group for spec, layers in buckets.items() for group in _deal_out(spec, layers, size))


def _group_size(bucket_sizes: Sequence[int]) -> int:
    """The smallest bucket, unless the largest is less than half as large again: then padding is the lesser waste."""
    smallest, largest = min(bucket_sizes), max(bucket_sizes)
    return largest if largest < 1.5 * smallest else smallest


def _deal_out(spec: KVCacheSpec, layers: list[int], size: int) -> list[KVCacheGroup]:
    """Strided, so that pipeline stages stay balanced."""
    count = cdiv(len(layers), size)
    return [KVCacheGroup(spec=spec, layers=tuple(layers[i::count])) for i in range(count)]


def unify_page_sizes(specs: Sequence[KVCacheSpec]) -> list[KVCacheSpec]:
    """Give every spec the largest page: states are padded, attention takes more tokens per block where that divides.

    Raises UnmodelledKind for an MLA page that does not divide: vLLM has no general rule there either.
    """
    largest = max(spec.page_size_bytes for spec in set(specs))
    return [_widened(spec, largest) for spec in specs]


def _widened(spec: KVCacheSpec, page_size_bytes: int) -> KVCacheSpec:
    if spec.page_size_bytes == page_size_bytes:
        return spec
    if isinstance(spec, StateSpec):
        return replace(spec, page_padded_bytes=page_size_bytes)
    if page_size_bytes % spec.page_size_bytes == 0:
        return spec.with_block_size(spec.block_size * (page_size_bytes // spec.page_size_bytes))  # type: ignore[return-value]
    if isinstance(spec, MLASpec):
        raise UnmodelledKind("MLA pages of sizes that do not divide each other")
    return replace(spec, page_padded_bytes=page_size_bytes)


def aligned_block_size(attention: AttentionSpec | MLASpec, state_bytes: int, *, kernel_block: int = 16) -> int:
    """Tokens of an attention block whose page is at least a recurrent state, in a hybrid model."""
    kernel_block = max(kernel_block, attention.block_size)
    return max(attention.block_size, kernel_block * cdiv(state_bytes, kernel_block * attention.token_bytes))


def bytes_per_block(groups: Groups, first: int = 0, last: int | None = None) -> int:
    """Bytes of one block id on a stage that holds first ≤ layer < last: the group that holds most decides."""
    if last is None:
        return max(group.num_layers * group.spec.page_size_bytes for group in groups)
    return max(group.num_layers_between(first, last) * group.spec.page_size_bytes for group in groups)


def request_blocks(groups: Groups, reach: Reach) -> int:
    """Blocks that one request needs over all groups."""
    return sum(group.spec.blocks(reach) for group in groups)
