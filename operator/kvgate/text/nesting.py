"""Limit of how deep objects and lists stand within each other in other people's texts."""

from collections.abc import Mapping
from typing import Any

MAX_DEPTH = 64
"""Levels of a document; the fields that an API server manages take twenty, and everything that walks one recurses."""


def is_nested_beyond(value: Any, levels: int) -> bool:
    """True where objects and lists stand within each other more often than that; it does not recurse."""
    level = [value]
    for _ in range(levels + 1):
        parts = [
            each.values() if isinstance(each, Mapping) else each for each in level if isinstance(each, Mapping | list)
        ]
        level = [child for part in parts for child in part if isinstance(child, Mapping | list)]
        if not level:
            return False
    return True
