"""Base configurations under what is written, as Kubernetes' strategic merge does: named list items are the same item."""

from collections.abc import Mapping
from typing import Any

_KEYS = ("name", "mountPath", "containerPort")
"""Fields by which items of a list are told apart."""


def merged(base: Any, own: Any) -> Any:
    """Merge a base under an own configuration: the own values win, and items of its lists come before the base's."""
    if isinstance(base, Mapping) and isinstance(own, Mapping):
        return {**base, **{key: merged(base.get(key), value) for key, value in own.items()}}
    if isinstance(base, list) and isinstance(own, list) and (key := _key_of(base, own)):
        named = {item[key]: item for item in base}
        mine = [merged(named.get(item[key]), item) for item in own]
        taken = {item[key] for item in own}
        return [*mine, *(item for item in base if item[key] not in taken)]
    return base if own is None else own


def _key_of(base: list[Any], own: list[Any]) -> str | None:
    items = [*base, *own]
    for key in _KEYS:
        if items and all(isinstance(item, Mapping) and isinstance(item.get(key), str) for item in items):
            return key
    return None
