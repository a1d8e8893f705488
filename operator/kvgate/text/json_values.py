"""JSON values that other people wrote: nested no deeper than a limit, and Unicode, so that they can be sent and stored.

JSON may escape half of a surrogate pair (`"\\ud800"`), which is no character.
"""

import json
from collections.abc import Mapping
from typing import Any

from kvgate.text.patterns import pattern

MAX_DEPTH = 64
"""Levels of a document. The fields that an API server manages take twenty; code that walks a document recurses."""


def is_nested_beyond(value: Any, levels: int) -> bool:
    """Return True where objects and lists are nested deeper than so many levels; this function does not recurse."""
    level = [value]
    for _ in range(levels + 1):
        parts = [
            each if isinstance(each, list) else each.values()
            for each in level
            if isinstance(each, dict | list | Mapping)
        ]
        level = [child for part in parts for child in part if isinstance(child, dict | list | Mapping)]
        if not level:
            return False
    return True


def merged_fields(under: Any, over: Any, levels: int = MAX_DEPTH) -> Any:
    """Return two values as one: objects field by field, as Helm and Flux merge them; any other value on top wins as a whole, null too."""
    if levels and isinstance(under, Mapping) and isinstance(over, Mapping):
        return {**under, **{name: merged_fields(under.get(name), value, levels - 1) for name, value in over.items()}}
    return over


_ESCAPED_SURROGATE = pattern(r"\\u[dD][89a-fA-F]")
NOT_UNICODE = "it holds half of a surrogate pair, which is no Unicode character"


def has_lone_surrogate(value: Any) -> bool:
    """Return True where any text of a JSON value, keys included, holds half of a surrogate pair."""
    try:
        json.dumps(value, ensure_ascii=False, default=str, skipkeys=True).encode()
    except UnicodeEncodeError:
        return True
    return False


def parsed_has_lone_surrogate(text: str, value: Any) -> bool:
    """Return the same for a value parsed from a JSON text; it is searched only where the text has such an escape or character."""
    return (not text.isascii() or _ESCAPED_SURROGATE.search(text) is not None) and has_lone_surrogate(value)
