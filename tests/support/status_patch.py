"""What a JSON merge patch of the status makes of an object in memory, as the API server does it."""

import copy
from typing import Any


def merged(document: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """RFC 7396: null removes."""
    result = copy.deepcopy(document)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            result[key] = merged(result[key] if isinstance(result.get(key), dict) else {}, value)
        else:
            result[key] = copy.deepcopy(value)
    return result
