"""Every option of `vllm serve` by release: names, types, choices, defaults, and the defaults that differ between two releases.

Releases are those that were read. A release between two of them may be as either: kvgate takes what one of them takes.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

from msgspec import Struct
from msgspec.json import decode
from msgspec.structs import fields, replace

from kvgate.budget import BudgetRequest, EngineSettings, accounting_for, parse_patch, resolve_settings

_TABLE = Path(__file__).parent / "data" / "options.json"
Patch = tuple[int, int, int]
"""A release such as (0, 11, 1): options come and go with patch releases too."""
History = tuple[tuple[Patch, Any], ...]
"""Pairs (since, value), oldest first."""


class Option(Struct, frozen=True, kw_only=True):
    """One option over all releases."""

    flag: str
    dest: str
    """vLLM's name of the setting."""
    since: Patch
    absent_in: Patch | None
    """The last release that was read before the option came; None: the oldest one has it."""
    until: Patch | None
    removed_in: Patch | None
    """The first release that was read after the option went."""
    types: History
    choices: History
    defaults: History
    aliases: History
    negatable: History
    """True in releases where `--no-…` exists as well."""
    deprecated_since: Patch | None
    replacement: str

    def is_in(self, release: Patch) -> bool | None:
        """Return whether a release has the option; None: it lies between one with the option and one without."""
        if release >= self.since:
            if self.removed_in is None or self.until is None or release <= self.until:
                return True
            return False if release >= self.removed_in else None
        return False if self.absent_in is not None and release <= self.absent_in else None

    def types_in(self, release: Patch) -> tuple[str, ...]:
        """Return types such as `int`, `json`, `int(1k,1K)|auto`. `str(a-B)` takes any spelling of a_b; with `?` at the end None is null."""
        return tuple(str(kind or "str") for kind in _as_of(self.types, release)) or ("str",)

    def choices_in(self, release: Patch) -> tuple[str, ...]:
        """Return the values that the option takes; empty: any text."""
        lists = _as_of(self.choices, release)
        return tuple(dict.fromkeys(str(choice) for each in lists for choice in each)) if all(lists) else ()

    def defaults_in(self, release: Patch) -> tuple[Any, ...]:
        return _as_of(self.defaults, release) or (None,)

    def aliases_in(self, release: Patch) -> tuple[str, ...]:
        return tuple(alias for each in _as_of(self.aliases, release) for alias in each or ())

    def is_negatable_in(self, release: Patch) -> bool:
        return any(_as_of(self.negatable, release))


def _as_of(history: History, release: Patch) -> tuple[Any, ...]:
    """Return the values that a history may have in a release."""
    values = []
    for read in read_around(release) if history else ():
        known = [value for since, value in history if since <= read] or [history[0][1]]
        if known[-1] not in values:
            values.append(known[-1])
    return tuple(values)


@lru_cache(maxsize=64)
def read_around(release: Patch) -> tuple[Patch, ...]:
    """Return the releases on both sides that were read; the release itself where it was read, or lies beyond them all."""
    read = [parse_patch(each) for each in releases_read()]
    index = bisect_left(read, release)
    is_between = 0 < index < len(read) and read[index] != release
    return (read[index - 1], read[index]) if is_between else (release,)


@lru_cache(maxsize=1)
def _table() -> Mapping[str, Any]:
    loaded: Mapping[str, Any] = decode(_TABLE.read_bytes())
    return loaded


@lru_cache(maxsize=1)
def releases_read() -> tuple[str, ...]:
    """Return the releases that the table was read from, oldest first."""
    return tuple(_table()["about"]["releases"])


def newest_read() -> Patch:
    """Return the newest release that was read. Options and values that came later are not known."""
    return parse_patch(releases_read()[-1])


@lru_cache(maxsize=1)
def options() -> Mapping[str, Option]:
    """Return all options by their long name."""
    return {row["flag"]: _option(row) for row in _table()["options"]}


def _option(row: Mapping[str, Any]) -> Option:
    removed_in = row.get("removed_in")
    return Option(
        flag=row["flag"],
        dest=row["dest"],
        since=parse_patch(row["since"]),
        absent_in=_neighbour(row["since"], -1),
        until=_neighbour(removed_in, -1) if removed_in else None,
        removed_in=parse_patch(removed_in) if removed_in else None,
        types=_history(row, "type"),
        choices=_history(row, "choices"),
        defaults=_history(row, "default"),
        aliases=_history(row, "aliases"),
        negatable=_history(row, "has_no_form"),
        deprecated_since=parse_patch(row["deprecated_since"]) if "deprecated_since" in row else None,
        replacement=row.get("replacement", ""),
    )


def _history(row: Mapping[str, Any], key: str) -> History:
    return tuple((parse_patch(since), value) for since, value in row.get(key, ()))


def _neighbour(release: str, step: int) -> Patch | None:
    """Return the release that was read before another one, or after it."""
    index = releases_read().index(release) + step
    return parse_patch(releases_read()[index]) if 0 <= index < len(releases_read()) else None


@lru_cache(maxsize=64)
def spellings(release: Patch) -> Mapping[str, Option]:
    """Return every name, short ones and `--no-…` included, of the options that the release has or may have."""
    names: dict[str, Option] = {}
    for option in options().values():
        if option.is_in(release) is False:
            continue
        negative = (f"--no-{option.flag[2:]}",) if option.is_negatable_in(release) else ()
        for name in (option.flag, *option.aliases_in(release), *negative):
            names.setdefault(name, option)
    return names


_RESOLVED = (
    "gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching",
)  # fmt: skip
"""Settings whose default vLLM computes when it starts, from the GPU and the model: its parser has none, or only a placeholder."""
_ABOUT_MEMORY = frozenset(field.name for field in fields(EngineSettings))


class ChangedDefault(Struct, frozen=True, kw_only=True):
    """One option with its default in two releases. None: vLLM has no default and decides when it starts."""

    flag: str
    before: Any
    after: Any


def changed_defaults(
    before: str, after: str, *, is_set: Collection[str], request: BudgetRequest | None
) -> tuple[ChangedDefault, ...]:
    """Return the changed defaults from one release to another, those that move memory first.

    `is_set` are the settings, by vLLM's names, that the engine gives. `request` is its question for the newer release, where that is
    known: the defaults that depend on GPU and model come with it. Raise UnknownVersion.
    """
    resolved = dict(_resolved_changes(before, after, request)) if request else {}
    stated = (_stated_change(option, before, after) for option in options().values() if option.dest not in resolved)
    names = {option.flag: option.dest for option in options().values()}
    found = [each for each in (*resolved.values(), *stated) if each and names[each.flag] not in is_set]
    return tuple(sorted(found, key=lambda each: names[each.flag] not in _ABOUT_MEMORY))


def _resolved_changes(before: str, after: str, request: BudgetRequest) -> Iterator[tuple[str, ChangedDefault | None]]:
    """Resolve the same question for both releases: the differences are those of the releases."""
    sides = []
    for release in (before, after):
        around = (".".join(map(str, read)) for read in read_around(parse_patch(release)))
        sides.append(
            [
                resolve_settings(each, accounting_for(each))
                for each in (replace(request, vllm_version=read) for read in around)
            ]
        )
    flags = {option.dest: option.flag for option in options().values()}
    for name in _RESOLVED:
        old, new = ([getattr(each, name) for each in side] for side in sides)
        yield name, _changed(flags[name], old, new)


def _stated_change(option: Option, before: str, after: str) -> ChangedDefault | None:
    """Return the change by the parsers' defaults; None where one lacks the option, or takes it without an effect."""
    old, new = parse_patch(before), parse_patch(after)
    is_dying = any(option.deprecated_since and option.deprecated_since <= release for release in (old, new))
    if is_dying or not (option.is_in(old) and option.is_in(new)):
        return None
    return _changed(option.flag, option.defaults_in(old), option.defaults_in(new))


def _changed(flag: str, olds: Sequence[Any], news: Sequence[Any]) -> ChangedDefault | None:
    """Compare two defaults. None: they are the same, or one of them changed between two releases that were read."""
    if any(value != values[0] for values in (olds, news) for value in values):
        return None
    old, new = (float(value) if isinstance(value, Fraction) else value for value in (olds[0], news[0]))
    # Parsers write nothing at all in several ways: null, an empty text, no keys.
    if old == new or all(value is None or value in ("", [], {}) for value in (old, new)):
        return None
    return ChangedDefault(flag=flag, before=old, after=new)
