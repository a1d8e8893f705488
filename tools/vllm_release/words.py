"""Words for the changes of a release, and for what a person has to look at."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vllm_release.facts import BatchTier, ReleaseFacts
from vllm_release.fingerprints import FOLLOWED, GONE
from vllm_release.options import OptionFacts

_COLUMNS = ("type", "default", "choices", "aliases", "is_negatable", "dest")


@dataclass(frozen=True, kw_only=True)
class Known:
    """Names of vLLM's that kvgate does something with, gathered from the package."""

    model_classes: Collection[str]
    """Those whose config.json it reads."""
    metrics: Collection[str]
    """Those that it scrapes, as in the table."""
    kv_cache_dtypes: Collection[str]
    """Those that have a formula."""
    devices: Collection[str]
    """Those that batch limits may leave out."""
    tests: Collection[tuple[str, str]]
    """(model class, tests in its source) that a reader of the class decides."""
    settings: Collection[str]
    """Options that decide memory, by vLLM's names."""


def changes(before: ReleaseFacts, after: ReleaseFacts, known: Known) -> Iterator[str]:
    """One line each, by table."""
    yield from _section("Options", _option_changes(before.options, after.options, known))
    for option, names in after.parsers.items():
        yield from _section(f"Names for {option}", _came_and_went(before.parsers.get(option, ()), names))
    yield from _section(
        "Model classes", _came_and_went(before.model_classes, after.model_classes, lambda name: _read(name, known))
    )
    yield from _section("Metrics", _came_and_went(before.metrics, after.metrics))
    yield from _section("KV cache dtypes", _came_and_went(before.kv_cache_dtypes, after.kv_cache_dtypes))
    plain = (
        [f"{name}{f' where {test}' if test else ''}" for name, test in each.plain_caches] for each in (before, after)
    )
    yield from _section("Classes whose layers ignore the KV cache dtype", _came_and_went(*plain))
    if before.batch_tiers != after.batch_tiers:
        yield from _section("Batch limits", (f"{_tiers(before.batch_tiers)} → {_tiers(after.batch_tiers)}",))


def to_look_at(
    before: ReleaseFacts, after: ReleaseFacts, known: Known, fingerprints: tuple[Mapping[str, str], Mapping[str, str]]
) -> Iterator[str]:
    """List what this program cannot decide, most important first."""
    yield from _functions(*fingerprints, before.version, after.version)
    devices = {name for tier in after.batch_tiers for name in tier.excluded} - set(known.devices)
    yield from (
        f"batch limits leave out {name}: say in DEVICES of budget/releases/accounting.py which device that is"
        for name in sorted(devices)
    )
    new_dtypes = set(after.kv_cache_dtypes) - set(before.kv_cache_dtypes) - {*known.kv_cache_dtypes, "auto"}
    yield from (
        f"KV cache dtype {name} has no formula: add one to budget/kv_cache/dtype.py, or it is Unknown"
        for name in sorted(new_dtypes)
    )
    undecided = {row for row in after.plain_caches - before.plain_caches - set(known.tests) if all(row)}
    yield from (
        f"{name} ignores the KV cache dtype where {test}: say in hf_config/layers/attention.py which configs those are"
        for name, test in sorted(undecided)
        if name in known.model_classes
    )
    gone = set(before.metrics) - set(after.metrics)
    yield from (
        f"metric vllm:{name} is gone, and kvgate reads it: find what took its place"
        for name in sorted(gone & set(known.metrics))
    )
    came = [flag for flag in after.options if flag not in before.options]
    if came:
        yield (
            f"{len(came)} options are new ({', '.join(came)}): does one decide memory, listen, or reach beyond its pod? "
            "POD_OPTIONS and HARMLESS of the command line classify those, and their test counts all options"
        )
    for flag, option in before.options.items():
        now = after.options.get(flag)
        if now is None or (now.is_deprecated and not option.is_deprecated):
            state = "gone" if now is None else "deprecated"
            yield f"option {flag} is {state}: where another one took its place, write it as `replacement` into its row"
    for option in after.options.values():
        if option.unread:
            yield f"option {option.flag}: its {' and '.join(option.unread)} depend on more than the source; the table keeps what it had"


def _functions(before: Mapping[str, str], after: Mapping[str, str], old: str, new: str) -> Iterator[str]:
    for what, functions in FOLLOWED.items():
        states = ((f"{path}: {name}", _state(before, after, f"{path}:{name}")) for path, name in functions)
        lines = [f"{name}{state}" for name, state in states if state]
        yield from _section(f"functions that differ between {old} and {new}, for {what}", lines)


def _state(before: Mapping[str, str], after: Mapping[str, str], name: str) -> str:
    """Empty for a function that is as it was."""
    one, other = before.get(name, GONE), after.get(name, GONE)
    if one == other:
        return ""
    return " is gone" if other == GONE else " is new" if one == GONE else " has changed"


def _section(title: str, lines: Collection[str] | Iterator[str]) -> Iterator[str]:
    lines = list(lines)
    if lines:
        yield f"{title}:"
        yield from (f"  {line}" for line in lines)


def _option_changes(before: Mapping[str, OptionFacts], after: Mapping[str, OptionFacts], known: Known) -> Iterator[str]:
    for flag in sorted({*before, *after}):
        old, new = before.get(flag), after.get(flag)
        weight = " (decides memory)" if (new or old).dest in known.settings else ""  # type: ignore[union-attr]
        if old is None and new is not None:
            yield f"{flag} is new: {new.type}, default {_shown(new.default)}{_choices(new)}{weight}"
        elif new is None:
            yield f"{flag} is gone{weight}"
        elif old is not None:
            yield from (f"{flag}: {line}{weight}" for line in _differences(old, new))


def _differences(old: OptionFacts, new: OptionFacts) -> Iterator[str]:
    for name in _COLUMNS:
        one, other = getattr(old, name), getattr(new, name)
        if one == other:
            continue
        if name in ("choices", "aliases") and one and other:
            yield f"{name} {_moved(one, other)}"
        else:
            yield f"{name} {_shown(one)} → {_shown(other)}"
    if new.is_deprecated and not old.is_deprecated:
        yield "deprecated"


def _moved(one: Sequence[Any], other: Sequence[Any]) -> str:
    came, went = ([str(each) for each in a if each not in b] for a, b in ((other, one), (one, other)))
    parts = [f"+ {', '.join(came)}"] * bool(came) + [f"- {', '.join(went)}"] * bool(went)
    return "; ".join(parts) or "in another order"


def _came_and_went(before: Collection[str], after: Collection[str], remark: Any = lambda _: "") -> Iterator[str]:
    yield from (f"{name} is new{remark(name)}" for name in sorted(set(after) - set(before)))
    yield from (f"{name} is gone" for name in sorted(set(before) - set(after)))


def _read(name: str, known: Known) -> str:
    return (
        "; kvgate reads it" if name in known.model_classes else "; kvgate has no row for it: what it needs is Unknown"
    )


def _choices(option: OptionFacts) -> str:
    return f", one of {', '.join(map(str, option.choices))}" if option.choices else ""


def _shown(value: Any) -> str:
    return "none" if value is None or value == () else str(list(value)) if isinstance(value, tuple) else repr(value)


def _tiers(tiers: Sequence[BatchTier]) -> str:
    return ", ".join(
        f"{tier.max_num_batched_tokens} tokens and {tier.max_num_seqs} sequences from {tier.from_gib} GiB"
        + (f" without {', '.join(tier.excluded)}" if tier.excluded else "")
        for tier in tiers
    )
