"""`make vllm-release VERSION=0.34.0`: put one release of vLLM into every table, and say what it changes."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllm_release import index, tables, words
from vllm_release.facts import ReleaseFacts, read_release
from vllm_release.fingerprints import read_fingerprints
from vllm_release.options import OptionFacts
from vllm_release.source import NotRead, Source, read_archive


def main(arguments: Sequence[str]) -> None:
    """Fetch, read, write, report."""
    stated = re.fullmatch(r"v?((\d+\.\d+\.\d+)(\.post\d+)?)", arguments[0] if arguments else "")
    if stated is None:
        known = ", ".join(index.available_versions()[-3:])
        sys.exit(f"state a final release: make vllm-release VERSION=0.34.0 (the newest of the index are {known})")
    try:
        archive = index.fetch(stated[1], index.default_cache())
        source = read_archive(stated[2], archive.path)
        for line in put(source, archive.sha256):
            print(line)
    except (index.NoSource, NotRead) as error:
        sys.exit(f"vllm-release: {error}")


def put(source: Source, sha256: str) -> Iterator[str]:
    """Rewrite the tables; the report, line by line."""
    version = source.version
    before, prints = tables.read_tables(), tables.read_fingerprint_table()
    facts = with_what_is_kept(read_release(source), before, kept_by_hand())
    after = tables.put_release(before, facts)
    new_prints = tables.put_fingerprints(prints, version, sha256, read_fingerprints(source))
    written = list(_written({**tables.texts_of(after), tables.FINGERPRINTS: tables.fingerprints_text(new_prints)}))
    yield f"vLLM {version}, sha256 {sha256}"
    if version != after.releases[0]:
        yield from _report(tables.facts_of(after, _before(version, after.releases)), facts, new_prints, known())
    yield f"Written: {', '.join(written)}" if written else "Every table was as it is read: nothing is written."


def _before(version: str, releases: Sequence[str]) -> str:
    return releases[max(releases.index(version) - 1, 0)]


def _report(
    before: ReleaseFacts, facts: ReleaseFacts, prints: tables.Fingerprints, knows: words.Known
) -> Iterator[str]:
    yield f"Changes since {before.version}:"
    yield from (f"  {line}" for line in words.changes(before, facts, knows))
    earlier = [each for each in prints.releases if tables.in_order([each, facts.version])[0] == each != facts.version]
    pair = (prints.of(earlier[-1]), prints.of(facts.version)) if earlier else ({}, {})
    lines = list(words.to_look_at(before, facts, knows, pair))
    yield "A person has to look at:" if lines else "Nothing is left for a person to look at."
    yield from (f"  {line}" for line in lines)
    if tables.minor(facts.version) > newest_accounting():
        yield (
            "The budget counts this release as newer than it knows. When the functions above are understood, add its row to _CHANGES in "
            "budget/releases/versions.py (an empty one where they change no byte), and then DEFAULT_VERSION."
        )


def _written(texts: Mapping[Path, str]) -> Iterator[str]:
    for path, text in texts.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            yield str(path.relative_to(tables.ROOT))


def with_what_is_kept(
    facts: ReleaseFacts, known_before: tables.Tables, by_hand: Sequence[Mapping[str, Any]]
) -> ReleaseFacts:
    """Options with what the syntax tree does not show, from the file that is kept by hand, else as the table has it."""
    releases = tables.in_order([*known_before.releases, facts.version])
    reference = facts.version if facts.version in known_before.releases else _before(facts.version, releases)
    as_before = (
        tables.options_of(known_before.options, reference, known_before.releases)
        if reference in known_before.releases
        else {}
    )
    options = {
        flag: _kept(option, as_before.get(flag), [row for row in by_hand if _is_for(row, flag, facts.version)])
        for flag, option in facts.options.items()
    }
    return replace(facts, options=options)


def kept_by_hand() -> list[dict[str, Any]]:
    """Values of options that the source does not show, each with the reason."""
    rows: list[dict[str, Any]] = json.loads(tables.BY_HAND.read_text(encoding="utf-8"))
    return rows


def _is_for(row: Mapping[str, Any], flag: str, version: str) -> bool:
    around = [row["since"], version, *([row["until"]] if row["until"] else [])]
    return row["flag"] == flag and tables.in_order(around) == list(dict.fromkeys(around))


def _kept(option: OptionFacts, before: OptionFacts | None, by_hand: Sequence[Mapping[str, Any]]) -> OptionFacts:
    stated = {row["what"]: tuple(row["value"]) if isinstance(row["value"], list) else row["value"] for row in by_hand}
    values = {name: stated[name] if name in stated else getattr(before, name, None) for name in option.unread}
    return replace(option, **values, unread=tuple(name for name in option.unread if name not in stated))


def known() -> words.Known:
    """Gather what kvgate makes of names of vLLM's; only this function and the next one import it."""
    from msgspec.structs import fields

    from kvgate.budget.engine.request import EngineSettings
    from kvgate.budget.kv_cache.dtype import formats_known
    from kvgate.budget.releases.accounting import DEVICES
    from kvgate.hf_config.architectures import classes_read
    from kvgate.hf_config.layers.attention import TESTS_OF_CLASSES
    from kvgate.vllm.metric_names import SCRAPED_NAMES

    return words.Known(
        model_classes=classes_read(),
        metrics=frozenset(name.removeprefix("vllm:") for name in SCRAPED_NAMES),
        kv_cache_dtypes=formats_known(),
        devices=DEVICES.keys(),
        tests={(name, test) for name, tests in TESTS_OF_CLASSES.items() for test in tests},
        settings=frozenset(field.name for field in fields(EngineSettings)),
    )


def newest_accounting() -> tables.Minor:
    """The newest release whose accounting the budget knows."""
    from kvgate.budget.releases.versions import NEWEST

    return NEWEST


if __name__ == "__main__":
    main(sys.argv[1:])
