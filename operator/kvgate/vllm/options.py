"""Every option of `vllm serve` by release: names, types, choices, defaults, and the defaults that differ between two releases; and the
programs that hand words to vLLM's parser: how many words beside options they take, and which options are their own.

Releases are those that were read. A release between two of them may be as either: kvgate takes what one of them takes. Programs: vLLM 0.6.6
to 0.33 (`entrypoints/openai/cli_args.py`, `entrypoints/cli/serve.py`, `FlexibleArgumentParser.parse_args`, `docker/Dockerfile`).
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import Any

from msgspec import Struct
from msgspec.json import decode
from msgspec.structs import fields, replace

from kvgate import bundle
from kvgate.budget import BudgetRequest, EngineSettings, accounting_for, parse_patch, resolve_settings
from kvgate.vllm.arguments import Argument

Patch = tuple[int, int, int]
"""A release such as (0, 11, 1): options come and go with patch releases too."""
History = tuple[tuple[Patch, Any], ...]
"""Pairs (since, value), oldest first."""


class Option(Struct, frozen=True, kw_only=True):
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

    def read_without(self, value: Any, release: Patch) -> Patch | None:
        """Return a release beside one that was not read whose choices lack a value; None where none does, and for parsers, which plug-ins
        may bring."""
        if self.dest.endswith("_parser"):
            return None
        given = [str(each) for each in (value if isinstance(value, list | tuple) else [value])]
        around = read_around(release)
        lacking = (read for read in around if (choices := self.choices_in(read)) and not set(choices).issuperset(given))
        return next(lacking, None) if len(around) > 1 and self.choices else None

    def defaults_in(self, release: Patch) -> tuple[Any, ...]:
        return _as_of(self.defaults, release) or (None,)


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
    loaded: Mapping[str, Any] = decode(bundle.read("options.json"))
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
    return {
        row["flag"]: Option(
            flag=row["flag"],
            dest=row["dest"],
            since=parse_patch(row["since"]),
            absent_in=_read_before(row["since"]),
            until=_read_before(row["removed_in"]) if row.get("removed_in") else None,
            removed_in=parse_patch(row["removed_in"]) if row.get("removed_in") else None,
            types=_history(row, "type"),
            choices=_history(row, "choices"),
            defaults=_history(row, "default"),
            aliases=_history(row, "aliases"),
            negatable=_history(row, "has_no_form"),
            deprecated_since=parse_patch(row["deprecated_since"]) if "deprecated_since" in row else None,
            replacement=row.get("replacement", ""),
        )
        for row in _table()["options"]
    }


def _history(row: Mapping[str, Any], key: str) -> History:
    return tuple((parse_patch(since), value) for since, value in row.get(key, ()))


def _read_before(release: str) -> Patch | None:
    """Return the release that was read before another one."""
    index = releases_read().index(release)
    return parse_patch(releases_read()[index - 1]) if index else None


@lru_cache(maxsize=64)
def spellings(release: Patch) -> Mapping[str, Option]:
    """Return every name, short ones and `--no-…` included, of the options that the release has or may have."""
    names: dict[str, Option] = {}
    for option in options().values():
        if option.is_in(release) is False:
            continue
        aliases = (alias for each in _as_of(option.aliases, release) for alias in each or ())
        negative = (f"--no-{option.flag[2:]}",) if any(_as_of(option.negatable, release)) else ()
        for name in (option.flag, *aliases, *negative):
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


class Kind(Enum):
    """Who reads the words."""

    SERVE = "vllm serve"
    API_SERVER = "vllm.entrypoints.openai.api_server"
    OWN_IMAGE = "the entrypoint of vLLM's own image"
    OTHER = "another program, or one that is not known"


class _Rules(Struct, frozen=True, kw_only=True):
    """The way in which the programs of one release read words."""

    of_the_image: Kind = Kind.API_SERVER
    """Program that the entrypoint of vLLM's own image starts."""
    words_of_module: int = 0
    """Words beside options that the module takes; it refuses any before 0.10."""
    module_ignores_words: bool = False
    refuses_model_option: bool = False
    model_option_is_the_word: bool = False
    """True where `--model` is put into the place of the word."""


_CHANGES: tuple[tuple[Patch, dict[str, object]], ...] = (
    ((0, 8, 5), {"refuses_model_option": True}),
    ((0, 9, 3), {"words_of_module": 1}),
    ((0, 10, 0), {"module_ignores_words": True}),
    ((0, 11, 1), {"of_the_image": Kind.OTHER, "refuses_model_option": False}),
    ((0, 12, 0), {"of_the_image": Kind.SERVE, "model_option_is_the_word": True}),
)
"""Changes of each release. 0.9.2, 0.10.0, 0.11.0 and 0.12.0 were read; a release between two of them may be as either."""


@lru_cache(maxsize=256)
def _rules_of(release: Patch) -> _Rules:
    rules = _Rules()
    for since, changes in _CHANGES:
        if since <= release:
            rules = replace(rules, **changes)
    return rules


class Program(Struct, frozen=True, kw_only=True):
    kind: Kind = Kind.OTHER
    own_options: str = ""
    """Name in the table of the options that it takes for itself; empty where it has none."""
    is_unchanged: bool = False
    """True in vLLM's own image; another project's image may have another command line under the same release."""
    repeated: tuple[Argument, ...] = ()
    """Words that name a program once more, behind an entrypoint that starts one already: they are words of its command line."""

    def as_of(self, release: Patch) -> "Program":
        """Return the program that the entrypoint of vLLM's image starts in a release."""
        return replace(self, kind=_rules_of(release).of_the_image) if self.kind is Kind.OWN_IMAGE else self

    def num_words(self, release: Patch, *, has_model: bool) -> tuple[int, int]:
        """Return how many words beside options are surely taken, and how many may be. `has_model`: `--model` is given too."""
        rules = _rules_of(release)
        if self.kind is Kind.API_SERVER:
            return rules.words_of_module, rules.words_of_module
        if self.kind is Kind.SERVE:
            return (0, 0) if has_model and rules.model_option_is_the_word else (1, 1)
        return (0 if has_model else 1), 1

    def ignores_words(self, release: Patch) -> bool:
        """Return whether the program takes a word beside options and does nothing with it, as the module does."""
        return self.kind is Kind.API_SERVER and _rules_of(release).module_ignores_words

    def refuses_model_option(self, release: Patch) -> bool:
        """Return whether `--model X` ends the start: `vllm serve` takes the model as a word, or `--model=X`."""
        return self.kind is Kind.SERVE and _rules_of(release).refuses_model_option

    def words_of(self, name: str) -> str | None:
        """Return the number of words after an option of the program's own: `0`, `1`, `?`, `*`; None where it has no such option."""
        own = own_options().get(self.own_options, {}) if self.own_options else {}
        known = own.get(name)
        positive = own.get(f"--{name[5:]}") if name.startswith("--no-") else None
        return known if known is not None else "0" if positive == "0" else None


UNKNOWN_PROGRAM = Program()


@lru_cache(maxsize=1)
def own_options() -> Mapping[str, Mapping[str, str]]:
    """Return the options of programs around vLLM: program → option → number of words after it."""
    table: dict[str, dict[str, str]] = {}
    for line in bundle.lines("program_options.csv")[1:]:
        program, option, words, _ = line.split(",", 3)
        table.setdefault(program, {})[option] = words
    return table
