"""Defaults that change for an engine which changes nothing but its release: those of options that it does not set."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import fields
from fractions import Fraction
from typing import Any

from kvgate.budget.request import BudgetRequest, EngineSettings
from kvgate.budget.settings import Resolved, resolve_settings
from kvgate.budget.versions import accounting_of, parse_patch
from kvgate.record import record
from kvgate.vllm.options import Option, options, read_around

_RESOLVED = (
    "gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "enable_prefix_caching",
)  # fmt: skip
"""Settings whose default vLLM makes at start, from the GPU and the model: its parser shows none, or only the first word."""
_ABOUT_MEMORY = frozenset(field.name for field in fields(EngineSettings))


@record
class ChangedDefault:
    """One option with its default in two releases; None where vLLM has none and decides at start."""

    flag: str
    before: Any
    after: Any


def changed_defaults(
    before: str, after: str, *, is_set: Collection[str], request: BudgetRequest | None
) -> tuple[ChangedDefault, ...]:
    """Return the changed defaults from one release to another, those that move memory first.

    `is_set` are the settings, by vLLM's names, that the engine gives; `request` is what it asks of the newer release, where that is
    known: with it come the defaults that depend on GPU and model. Raises UnknownVersion.
    """
    resolved = dict(_resolved(before, after, request)) if request else {}
    stated = (_stated(option, before, after) for option in options().values() if option.dest not in resolved)
    found = [*resolved.values(), *stated]
    names = {option.flag: option.dest for option in options().values()}
    told = [each for each in found if each and names[each.flag] not in is_set and not _is_same(each)]
    return tuple(sorted(told, key=lambda each: names[each.flag] not in _ABOUT_MEMORY))


def _resolved(before: str, after: str, request: BudgetRequest) -> Iterator[tuple[str, ChangedDefault | None]]:
    """The same question to both releases: what differs is the release's own."""
    olds, news = (_settings_in(release, request) for release in (before, after))
    flags = {option.dest: option.flag for option in options().values()}
    for name in _RESOLVED:
        old, new = ([_plain(getattr(each, name)) for each in side] for side in (olds, news))
        yield name, _changed(flags[name], old, new)


def _settings_in(release: str, request: BudgetRequest) -> list[Resolved]:
    """Return the settings as a release may resolve them."""
    around = (".".join(map(str, read)) for read in read_around(parse_patch(release)))
    return [resolve_settings(request, accounting_of(read)) for read in around]


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Fraction) else value


def _changed(flag: str, olds: Sequence[Any], news: Sequence[Any]) -> ChangedDefault | None:
    """None where one of them may be several: it changed between two releases that were read."""
    if any(value != values[0] for values in (olds, news) for value in values):
        return None
    return ChangedDefault(flag=flag, before=olds[0], after=news[0])


def _stated(option: Option, before: str, after: str) -> ChangedDefault | None:
    """Return the change by the parsers' defaults; None where one lacks the option, or takes it without an effect."""
    old, new = parse_patch(before), parse_patch(after)
    is_dying = any(option.deprecated_since and option.deprecated_since <= release for release in (old, new))
    if is_dying or not (option.is_in(old) and option.is_in(new)):
        return None
    return _changed(option.flag, option.defaults_in(old), option.defaults_in(new))


def _is_same(changed: ChangedDefault) -> bool:
    """Nothing at all is written in several ways: null, an empty text, no keys."""
    old, new = changed.before, changed.after
    return old == new or all(value is None or value in ("", [], {}) for value in (old, new))
