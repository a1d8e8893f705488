"""The tables that depend on releases: read from the repository, one release put into them, written again."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_release.facts import BatchTier, ReleaseFacts
from vllm_release.options import OptionFacts
from vllm_release.spans import History, Span, Spans, following, previous, put_names, put_value, value_at

ROOT = Path(__file__).resolve().parents[2]
_PACKAGE = ROOT / "operator" / "kvgate"
OPTIONS = _PACKAGE / "vllm" / "data" / "options.json"
PARSERS = _PACKAGE / "vllm" / "data" / "tool_parsers.csv"
MODEL_CLASSES = _PACKAGE / "catalogue" / "data" / "model_classes.csv"
METRICS = _PACKAGE / "vllm" / "data" / "metric_names.csv"
BUDGET_TABLES = _PACKAGE / "budget" / "releases" / "tables.py"
FINGERPRINTS = Path(__file__).parent / "fingerprints.json"
BY_HAND = Path(__file__).parent / "by_hand.json"
"""All files of the repository that this program knows; it writes all of them but the last."""

Minor = tuple[int, int]


def in_order(versions: Iterable[str]) -> list[str]:
    """Oldest first."""
    return sorted(set(versions), key=_numbers)


def minor(version: str) -> Minor:
    """(0, 33) of 0.33.1."""
    return _numbers(version)[:2]  # type: ignore[return-value]


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:3])


# Options


_COLUMNS: tuple[tuple[str, str, Any], ...] = (
    ("type", "type", None),
    ("choices", "choices", None),
    ("default", "default", None),
    ("aliases", "aliases", []),
    ("has_no_form", "is_negatable", False),
)
"""(key of the table, attribute of OptionFacts, value that needs no writing)."""
_ORDER = (
    "flag", "dest", "since", "removed_in", "type", "choices", "default", "aliases", "has_no_form", "deprecated_since", "replacement",
)  # fmt: skip


def put_options(
    rows: Mapping[str, Mapping[str, Any]], options: Mapping[str, OptionFacts], release: str, releases: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """The rows of all options, those of the release as it has them."""
    spans = put_names({flag: _span(row) for flag, row in rows.items()}, options, release, releases)
    found = {}
    for flag, span in spans.items():
        row = dict(rows.get(flag, {"flag": flag}))
        row |= {"since": span.since, "removed_in": span.removed_in}
        if flag in options:
            row |= _columns(row, options[flag], span, release, releases)
        found[flag] = {key: row[key] for key in _ORDER if row.get(key) not in (None, [])}
    return found


def _columns(
    row: Mapping[str, Any], option: OptionFacts, span: Span, release: str, releases: Sequence[str]
) -> dict[str, Any]:
    found: dict[str, Any] = {"dest": option.dest}
    for key, attribute, absent in _COLUMNS:
        value = getattr(option, attribute)
        written = list(value) if isinstance(value, tuple) else value
        found[key] = put_value(row.get(key, []), span, written, release, releases, absent)
    since = row.get("deprecated_since")
    if option.is_deprecated and (since is None or releases.index(release) < releases.index(since)):
        found["deprecated_since"] = release
    elif not option.is_deprecated and since == release:
        found["deprecated_since"] = following(release, releases)
    return found


def _span(row: Mapping[str, Any]) -> Span:
    return Span(row["since"], row.get("removed_in"))


def options_of(rows: Mapping[str, Mapping[str, Any]], release: str, releases: Sequence[str]) -> dict[str, OptionFacts]:
    """Return the options that the table has for one release."""
    return {flag: _option(row, release, releases) for flag, row in rows.items() if _span(row).holds(release, releases)}


def _option(row: Mapping[str, Any], release: str, releases: Sequence[str]) -> OptionFacts:
    values = {attribute: value_at(row.get(key, []), release, releases, absent) for key, attribute, absent in _COLUMNS}
    since = row.get("deprecated_since")
    return OptionFacts(
        flag=row["flag"],
        dest=row["dest"],
        **values | {"aliases": tuple(values["aliases"]), "choices": _tuple(values["choices"])},
        is_deprecated=since is not None and releases.index(since) <= releases.index(release),
    )


def _tuple(values: Sequence[Any] | None) -> tuple[Any, ...] | None:
    return None if values is None else tuple(values)


# Fingerprints


@dataclass(frozen=True, kw_only=True)
class Fingerprints:
    """Those of the functions that the budget follows, by release."""

    sources: Mapping[str, str]
    """sha256 of the source distribution by release."""
    functions: Mapping[str, Sequence[Sequence[str]]]
    """Histories by `path:name`."""

    @property
    def releases(self) -> list[str]:
        return in_order(self.sources)

    def of(self, release: str) -> dict[str, str]:
        """All fingerprints of one release."""
        return {name: value_at(history, release, self.releases) for name, history in self.functions.items()}


def put_fingerprints(table: Fingerprints, version: str, sha256: str, read: Mapping[str, str]) -> Fingerprints:
    """The table with those of one release; functions that are no longer followed fall out."""
    sources = {each: {**table.sources, version: sha256}[each] for each in in_order([*table.sources, version])}
    whole = Span(next(iter(sources)))
    functions = {
        name: put_value(table.functions.get(name, []), whole, value, version, list(sources))
        for name, value in read.items()
    }
    return Fingerprints(sources=sources, functions=functions)


def read_fingerprint_table() -> Fingerprints:
    """From the repository."""
    table = json.loads(FINGERPRINTS.read_text(encoding="utf-8"))
    return Fingerprints(sources=table["sources"], functions=table["functions"])


def fingerprints_text(table: Fingerprints) -> str:
    """One line per function."""
    rows = ",\n".join(f"{json.dumps(name)}: {json.dumps(history)}" for name, history in sorted(table.functions.items()))
    return f'{{"sources": {json.dumps(table.sources, indent=1)},\n"functions": {{\n{rows}\n}}}}\n'


# Files


@dataclass(frozen=True, kw_only=True)
class Tables:
    """All tables, as they stand in the repository."""

    about: Mapping[str, Any]
    options: Mapping[str, Mapping[str, Any]]
    parsers: Mapping[str, Mapping[str, Span]]
    model_classes: Mapping[str, Span]
    metrics: Mapping[tuple[str, str], Span]
    """By (name, kind)."""
    kv_cache_dtypes: Mapping[str, Span]
    """Spans of minor releases."""
    plain_caches: Mapping[tuple[str, str], Span]
    """By (model class, condition); spans of minor releases."""
    batch_tiers: History
    """[minor release, tiers]."""

    @property
    def releases(self) -> list[str]:
        """Those that were read, oldest first."""
        return list(self.about["releases"])

    @property
    def minors(self) -> list[Minor]:
        return list(dict.fromkeys(minor(release) for release in self.releases))


def put_release(tables: Tables, facts: ReleaseFacts) -> Tables:
    """The tables with the release as it was read, wherever it belongs in time."""
    version = facts.version
    releases = in_order([*tables.releases, version])
    minors = list(dict.fromkeys(minor(release) for release in releases))
    of_minor = minor(version)
    is_last_of_minor = not any(minor(each) == of_minor and _numbers(each) > _numbers(version) for each in releases)
    dtypes, plain, tiers = tables.kv_cache_dtypes, tables.plain_caches, tables.batch_tiers
    if is_last_of_minor:
        dtypes = put_names(dtypes, facts.kv_cache_dtypes, of_minor, minors)
        plain = put_names(plain, facts.plain_caches, of_minor, minors)  # type: ignore[arg-type]
        tiers = put_value(tiers, Span(minors[0]), facts.batch_tiers, of_minor, minors, absent=())
    return Tables(
        about={**tables.about, "releases": releases},
        options=put_options(tables.options, facts.options, version, releases),
        parsers={
            option: put_names(tables.parsers.get(option, {}), names, version, releases)
            for option, names in facts.parsers.items()
        },
        model_classes=put_names(tables.model_classes, facts.model_classes, version, releases),
        metrics=put_names(tables.metrics, list(facts.metrics.items()), version, releases),  # type: ignore[arg-type]
        kv_cache_dtypes=dtypes,
        plain_caches=plain,  # type: ignore[arg-type]
        batch_tiers=tiers,
    )


def facts_of(tables: Tables, release: str) -> ReleaseFacts:
    """Return the facts that the tables have for one release."""
    releases, of_minor = tables.releases, minor(release)
    return ReleaseFacts(
        version=release,
        options=options_of(tables.options, release, releases),
        parsers={option: frozenset(_held(spans, release, releases)) for option, spans in tables.parsers.items()},
        model_classes=frozenset(_held(tables.model_classes, release, releases)),
        metrics=dict(_held(tables.metrics, release, releases)),
        kv_cache_dtypes=tuple(_held(tables.kv_cache_dtypes, of_minor, tables.minors)),
        plain_caches=frozenset(_held(tables.plain_caches, of_minor, tables.minors)),
        batch_tiers=value_at(tables.batch_tiers, of_minor, tables.minors, absent=()),
    )


def _held(spans: Mapping[Any, Span], release: Any, releases: Sequence[Any]) -> list[Any]:
    return [name for name, span in spans.items() if span.holds(release, releases)]


def read_tables() -> Tables:
    """From the repository."""
    options = json.loads(OPTIONS.read_text(encoding="utf-8"))
    parsers: dict[str, Spans] = {}
    for option, name, since, removed_in in _rows(PARSERS):
        parsers.setdefault(option, {})[name] = Span(since, removed_in or None)
    constants = _constants(BUDGET_TABLES)
    return Tables(
        about=options["about"],
        options={row["flag"]: row for row in options["options"]},
        parsers=parsers,
        model_classes={name: Span(since, gone or None) for name, _, since, _, gone in _rows(MODEL_CLASSES)},
        metrics={(name, kind): Span(since, gone or None) for name, kind, since, gone in _rows(METRICS)},  # type: ignore[misc]
        kv_cache_dtypes={name: Span(since, gone) for name, since, gone in constants["KV_CACHE_DTYPES"]},
        plain_caches={(name, test): Span(since, gone) for name, test, since, gone in constants["PLAIN_CACHES"]},
        batch_tiers=[[since, tuple(BatchTier(*tier) for tier in tiers)] for since, tiers in constants["BATCH_TIERS"]],
    )


def _rows(path: Path) -> list[list[str]]:
    """Without comments and the line of names."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    return [line.split(",") for line in lines[1:]]


def _constants(path: Path) -> dict[str, Any]:
    """Constants of a Python file, which is not imported."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        node.target.id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value
    }


def texts_of(tables: Tables) -> dict[Path, str]:
    """The files as they are written."""
    parsers = {(option, name): span for option, spans in tables.parsers.items() for name, span in spans.items()}
    classes = sorted(tables.model_classes.items())
    return {
        OPTIONS: options_text(tables),
        PARSERS: _PARSERS_HEAD + "".join(_row(*key, *_two_ends(span)) for key, span in sorted(parsers.items())),
        MODEL_CLASSES: _CLASSES_HEAD
        + "".join(_row(name, *_four_ends(span, tables.releases)) for name, span in classes),
        METRICS: _METRICS_HEAD + "".join(_row(*key, *_two_ends(span)) for key, span in sorted(tables.metrics.items())),
        BUDGET_TABLES: budget_text(tables),
    }


def _row(*cells: str) -> str:
    return ",".join(cells) + "\n"


def _two_ends(span: Span) -> tuple[str, str]:
    return span.since, span.removed_in or ""


def options_text(tables: Tables) -> str:
    """One line per option, so that a difference is read at a glance."""
    rows = ",\n".join(json.dumps(row, ensure_ascii=False) for _, row in sorted(tables.options.items()))
    return f'{{"about": {json.dumps(tables.about)},\n"options": [\n{rows}\n]}}\n'


def budget_text(tables: Tables) -> str:
    """A Python module: the budget reads no files."""
    dtypes = sorted(tables.kv_cache_dtypes.items(), key=lambda item: (item[1].since, item[0]))
    lines = [f"    ({json.dumps(name)}, {span.since}, {span.removed_in}),\n" for name, span in dtypes]
    plain = [
        f"    ({json.dumps(name)}, {json.dumps(test)}, {span.since}, {span.removed_in}),\n"
        for (name, test), span in sorted(tables.plain_caches.items())
    ]
    tiers = []
    for since, of_release in tables.batch_tiers:
        rows = "".join(f"        {_tier(tier)},\n" for tier in of_release)
        tiers.append(f"    ({since}, (\n{rows}    )),\n" if of_release else f"    ({since}, ()),\n")
    return _BUDGET_TEXT.format(dtypes="".join(lines), plain="".join(plain), tiers="".join(tiers))


def _tier(tier: BatchTier) -> str:
    names = "".join(f"{json.dumps(name)}, " for name in tier.excluded)
    excluded = f"({names.rstrip() if len(tier.excluded) == 1 else names.rstrip(', ')})"
    return f"({tier.from_gib}, {tier.max_num_batched_tokens}, {tier.max_num_seqs}, {excluded})"


def _four_ends(span: Span, releases: Sequence[str]) -> list[str]:
    until = previous(span.removed_in, releases) if span.removed_in else ""
    return [previous(span.since, releases) or "", span.since, until, span.removed_in or ""]


_PARSERS_HEAD = """\
# Parsers that vLLM brings along, by the option that names them: read in the registries of the releases in options.json.
# `since`: the first release read with it; `removed_in`: the first read without it again. Plug-ins may add others.
option,name,since,removed_in
"""
_CLASSES_HEAD = """\
# Model classes of vLLM's registry: read in the source of the releases in options.json.
# `absent_in`: the last release read without the class before it came; `since`, `until`: the first and last release read with it;
# `removed_in`: the first read without it again.
class,absent_in,since,until,removed_in
"""
_METRICS_HEAD = """\
# Metrics of vLLM's engine, without the prefix `vllm:`: read in the loggers and the KV connectors of the releases in options.json.
# A counter ends in `_total` as it is scraped; a histogram is without its suffixes. `since` and `removed_in` as in tool_parsers.csv.
name,kind,since,removed_in
"""
_BUDGET_TEXT = '''\
"""KV cache dtypes, who takes them, and batch limits of each release of vLLM, by its source. Written by `make vllm-release`."""

# fmt: off
KV_CACHE_DTYPES: tuple[tuple[str, tuple[int, int], tuple[int, int] | None], ...] = (
{dtypes})
"""(value of --kv-cache-dtype, first minor release with it, first one without it again)."""

PLAIN_CACHES: tuple[tuple[str, str, tuple[int, int], tuple[int, int] | None], ...] = (
{plain})
"""(model class, tests in its source, first minor release, first one without it again): where the tests hold, or where there are none, the
class builds attention layers without `cache_config`."""

BATCH_TIERS: tuple[tuple[tuple[int, int], tuple[tuple[int, int, int, tuple[str, ...]], ...]], ...] = (
{tiers})
"""(first minor release, tiers), a tier being (GiB of memory from which on it counts, max_num_batched_tokens, max_num_seqs, devices
that it leaves out); the first one that fits counts."""
'''
