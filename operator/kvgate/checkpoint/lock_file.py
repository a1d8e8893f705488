"""The file of published models that a repository commits, so that a verdict rests on the same facts tomorrow."""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw, Struct

from kvgate.checkpoint.published import Published, PublishedError, from_json, name_key, to_json
from kvgate.text.inert import inert
from kvgate.text.json_values import MAX_DEPTH, NOT_UNICODE, is_nested_beyond, parsed_has_lone_surrogate

SCHEMA = "kvgate-models/1"
"""Form of the file; a later kvgate that needs another one writes another number."""
MAX_BYTES = 64 << 20
"""Bytes of a file; an entry has 5 to 100 KB."""
MAX_ENTRIES = 2000
_MAX_PROBLEMS = 10
_WIDTH = 140
"""Characters of a value that stays on one line."""
_ANEW = "write it anew with `kvgate models lock`"


class LockFileError(ValueError):
    """A file that cannot be used; the message has every problem, and says what to do."""


def lock_text(entries: Iterable[Published]) -> str:
    """Return the text of a file: the same entries give the same text, in the order of their names."""
    values = []
    for each in sorted(entries, key=lambda each: name_key(each.name, each.revision)):
        entry = to_json(each)  # its fields keep their order, and what its publisher wrote is sorted
        theirs = {name: json.loads(json.dumps(entry[name], sort_keys=True)) for name in _THEIRS if name in entry}
        values.append(entry | theirs)
    return _written({"schema": SCHEMA, "models": values}, 0) + "\n"


_THEIRS = ("config", "adapter")


def _written(value: Any, indent: int) -> str:
    """Return JSON in which a value that is short stands on one line."""
    text = json.dumps(value)
    if not isinstance(value, dict | list) or not value or (len(text) + indent <= _WIDTH and indent):
        return text
    inner = " " * (indent + 2)
    if isinstance(value, dict):
        parts = [f"{inner}{json.dumps(key)}: {_written(child, indent + 2)}" for key, child in value.items()]
        return "{\n" + ",\n".join(parts) + "\n" + " " * indent + "}"
    parts = [f"{inner}{_written(child, indent + 2)}" for child in value]
    return "[\n" + ",\n".join(parts) + "\n" + " " * indent + "]"


def read_lock(text: str) -> tuple[Published, ...]:
    """Read the text of a file. Raises LockFileError with everything that is wrong."""
    entries, problems = [], []
    for place, value in enumerate(_values(text)):
        try:
            entries.append(from_json(value))
        except PublishedError as error:
            name = value.get("name") if isinstance(value, dict) else None
            called = f" ({inert(name[:100])})" if isinstance(name, str) else ""
            problems.append(f"models[{place}]{called}: {error}".partition("; write the entry")[0])
    seen = set()
    for each in entries:
        if (key := name_key(each.name, each.revision)) in seen:
            problems.append(f"{inert(key[:100])} stands twice")
        seen.add(key)
    if problems:
        more = f"; and {len(problems) - _MAX_PROBLEMS} more" if len(problems) > _MAX_PROBLEMS else ""
        raise LockFileError(f"{'; '.join(problems[:_MAX_PROBLEMS])}{more}; {_ANEW}")
    return tuple(entries)


def entry_lines(text: str) -> Iterator[int]:
    """Yield the line on which each entry of a file that `read_lock` took begins, from 1; nothing where the entries are not found."""
    text = text.removeprefix("\ufeff")
    line, end = 1, 0
    for entry in (bytes(each).decode() for each in msgspec.json.decode(text, type=_Entries).models):
        begin = text.find(entry, end)
        if begin < 0:
            return
        line += text.count("\n", end, begin)
        yield line
        line += entry.count("\n")
        end = begin + len(entry)


class _Entries(Struct):
    models: list[Raw]


def _values(text: str) -> list[Any]:
    """Return the entries as JSON values. Raises LockFileError."""
    try:
        value = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as error:
        raise LockFileError(f"it is not JSON ({error}); {_ANEW}") from None
    schema = value.get("schema") if isinstance(value, Mapping) else None
    if schema != SCHEMA:
        stated = f"its schema is {inert(str(schema)[:40])}" if schema else "it has no schema"
        raise LockFileError(f"{stated}, and this kvgate reads {SCHEMA}; {_ANEW}, or use the kvgate that wrote it")
    if is_nested_beyond(value, MAX_DEPTH + 4):
        raise LockFileError(f"it is nested deeper than {MAX_DEPTH} levels; {_ANEW}")
    if parsed_has_lone_surrogate(text, value):
        raise LockFileError(f"{NOT_UNICODE}; {_ANEW}")
    models = value.get("models")
    if not isinstance(models, list) or len(models) > MAX_ENTRIES:
        raise LockFileError(f"models is not a list of at most {MAX_ENTRIES} entries; {_ANEW}")
    return models
