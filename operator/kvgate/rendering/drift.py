"""Whether what is in the cluster still carries what was rendered; defaults and other managers' fields do not count."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvgate.api.quantity import parse_quantity


def carries(live: Any, wanted: Any) -> bool:
    """True where every field of `wanted` stands in `live` with the same value; the API server drops empty strings."""
    if isinstance(wanted, Mapping):
        return isinstance(live, Mapping) and all(carries(live.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, Sequence) and not isinstance(wanted, str):
        return isinstance(live, Sequence) and _carries_items(live, wanted)
    return live == wanted or (live is None and wanted == "") or _is_same_quantity(live, wanted)


def _carries_items(live: Sequence[Any], wanted: Sequence[Any]) -> bool:
    """By name where the items have one (containers, env, volumes, ports), else by position."""
    if all(isinstance(item, Mapping) and "name" in item for item in (*live, *wanted)):
        by_name = {item["name"]: item for item in live}
        return all(carries(by_name.get(item["name"]), item) for item in wanted)
    return len(live) == len(wanted) and all(carries(*pair) for pair in zip(live, wanted, strict=True))


def _is_same_quantity(live: Any, wanted: Any) -> bool:
    """The API server writes 1000m as 1 and 0.5 as 500m."""
    value = parse_quantity(wanted)
    return value is not None and parse_quantity(live) == value
