"""Groups of the block-outermost layout, in which a block holds pages of several sizes (DeepSeek-V4).

Formulas: vLLM 0.32, `v1/core/kv_cache_utils.py`.
"""

from collections.abc import Sequence

from kvgate.budget.errors import UnmodelledKind
from kvgate.budget.kv_cache_spec import KVCacheSpec
from kvgate.budget.units import cdiv

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
