"""Differences between the cluster and what was rendered: changed and missing fields, and fields that others added.

Defaults of the API server, and fields that an admission webhook adds to kvgate's own writes, do not count: nobody could undo them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kvgate.api import FIELD_MANAGER
from kvgate.api.quantity import is_same_amount

AMOUNTS = frozenset({"resources", "sizeLimit"})
"""Fields whose values are quantities or contain them."""
_RUNS = ("spec", "template", "spec")
"""The part of a Deployment that decides what a pod runs; anybody may add labels and annotations (`kubectl rollout restart`)."""


def differences(live: Any, wanted: Any, path: str = "", *, is_amount: bool = False) -> Iterator[str]:
    """Yield the paths of rendered fields that are missing or have another value; the API server drops empty strings."""
    if isinstance(wanted, Mapping):
        there = live if isinstance(live, Mapping) else {}
        if there is not live:
            yield path
            return
        for key, value in wanted.items():
            inside = f"{path}.{key}" if path else str(key)
            yield from differences(there.get(key), value, inside, is_amount=is_amount or key in AMOUNTS)
    elif isinstance(wanted, Sequence) and not isinstance(wanted, str):
        if isinstance(live, Sequence) and not isinstance(live, str):
            yield from _item_differences(live, wanted, path, is_amount=is_amount)
        else:
            yield path
    elif not (live == wanted or (live is None and wanted == "") or (is_amount and is_same_amount(live, wanted))):
        yield path


def _item_differences(live: Sequence[Any], wanted: Sequence[Any], path: str, *, is_amount: bool) -> Iterator[str]:
    """Compare items by name where all have one (containers, env, volumes, ports), else by position."""
    if all(isinstance(item, Mapping) and "name" in item for item in (*live, *wanted)):
        by_name = {item["name"]: item for item in live}
        for item in wanted:
            name = item["name"]
            yield from differences(by_name.get(name), item, f"{path}[{name}]", is_amount=is_amount)
    elif len(live) != len(wanted):
        yield path
    else:
        for index, pair in enumerate(zip(live, wanted, strict=True)):
            yield from differences(*pair, f"{path}[{index}]", is_amount=is_amount)


def additions(live: Mapping[str, Any], wanted: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the JSON pointers of what others added, if it changes what runs or who is served.

    In a Service these are keys of its selector. In a Deployment these are `paused`, and what other field managers set in the pods' spec.
    """
    if wanted["kind"] == "Service":
        more = set(live.get("spec", {}).get("selector") or {}) - set(wanted["spec"]["selector"])
        return tuple(f"/spec/selector/{_escaped(key)}" for key in sorted(more))
    paused = ("/spec/paused",) if live.get("spec", {}).get("paused") else ()
    pod = live.get("spec", {}).get("template", {}).get("spec", {})
    pointers = (_pointer(path, pod) for path in _added_fields(live))
    found = sorted({pointer for pointer in pointers if pointer is not None}, key=_from_the_end)
    return (*paused, *("/spec/template/spec" + pointer for pointer in found))


def _added_fields(live: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yield the fields of the pods' spec that others own and kvgate does not, as steps of managedFields."""
    entries = [
        entry for entry in live.get("metadata", {}).get("managedFields", ()) if entry.get("subresource") != "status"
    ]
    ours = [_of_pods(entry) for entry in entries if entry.get("manager") == FIELD_MANAGER]
    for entry in entries:
        if entry.get("manager") != FIELD_MANAGER:
            yield from _beyond(_of_pods(entry), ours)


def _of_pods(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    fields: Any = entry.get("fieldsV1") or {}
    for step in _RUNS:
        fields = fields.get(f"f:{step}") or {}
    return fields if isinstance(fields, Mapping) else {}


def _beyond(theirs: Mapping[str, Any], ours: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    for step, inside in theirs.items():
        if step == ".":
            continue
        known = [fields[step] for fields in ours if step in fields]
        if not known:
            yield (step,)
        elif inside and all(known):  # otherwise one of ours owns the whole field
            yield from ((step, *deeper) for deeper in _beyond(inside, known))


def _pointer(steps: Sequence[str], node: Any) -> str | None:
    """Return the JSON pointer for steps of managedFields; None where the field is gone, or is one value of a set."""
    pointer = ""
    for step in steps:
        kind, _, name = step.partition(":")
        if kind == "f" and isinstance(node, Mapping) and name in node:
            node, pointer = node[name], f"{pointer}/{_escaped(name)}"
        elif kind == "k" and isinstance(node, Sequence):
            key = json.loads(name)
            at = next((i for i, item in enumerate(node) if has_key(item, key)), None)
            if at is None:
                return None
            node, pointer = node[at], f"{pointer}/{at}"
        else:
            return None
    return pointer


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def has_key(item: Any, key: Mapping[str, Any]) -> bool:
    """Return True where managedFields name this item of a list by this key; a port's protocol has a default."""
    return isinstance(item, Mapping) and key.items() <= {"protocol": "TCP", **item}.items()


def _from_the_end(pointer: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key that puts later items of a list first, because a removal moves the items after it."""
    return tuple((-int(part), "") if part.isdigit() else (1, part) for part in pointer.split("/"))
