"""The committed tables are what the program writes: for every release that they hold, and for one that comes next."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from kvgate.budget.releases.accounting import DEVICES
from kvgate.budget.releases.versions import accounting_of, parse_patch
from kvgate.vllm.options import options, releases_read
from support.tables import table
from support.vllm_source import new_source
from vllm_release import __main__ as program
from vllm_release import tables
from vllm_release.fingerprints import FOLLOWED, GONE
from vllm_release.options import OptionFacts
from vllm_release.spans import Span

TABLES = tables.read_tables()
PRINTS = tables.read_fingerprint_table()


def test_files_are_as_the_program_writes_them() -> None:
    for path, text in tables.texts_of(TABLES).items():
        assert path.read_text(encoding="utf-8") == text, path.name
    assert tables.FINGERPRINTS.read_text(encoding="utf-8") == tables.fingerprints_text(PRINTS)


@table("release", TABLES.releases)
def test_a_release_that_is_read_again_changes_nothing(release: str) -> None:
    again = tables.put_release(TABLES, tables.facts_of(TABLES, release))
    assert tables.texts_of(again) == tables.texts_of(TABLES)


def test_the_newest_release_is_added_to_the_tables_of_the_one_before_it_as_they_stand() -> None:
    """Out of the tables and in again."""
    newest = TABLES.releases[-1]
    without = without_the_newest(TABLES)
    assert without.releases == TABLES.releases[:-1]
    assert tables.texts_of(without) != tables.texts_of(TABLES)
    assert tables.texts_of(tables.put_release(without, tables.facts_of(TABLES, newest))) == tables.texts_of(TABLES)


def without_the_newest(table: tables.Tables) -> tables.Tables:
    newest, of_minor = table.releases[-1], table.minors[-1]

    def spans(each: Mapping[Any, Span], release: Any) -> dict[Any, Span]:
        return {
            name: replace(span, removed_in=None) if span.removed_in == release else span
            for name, span in each.items()
            if span.since != release
        }

    def history(entries: Any) -> Any:
        return [entry for entry in entries if entry[0] not in (newest, of_minor)]

    rows = {flag: dict(row) for flag, row in table.options.items() if row["since"] != newest}
    for row in rows.values():
        row |= {key: history(value) for key, value in row.items() if isinstance(value, list)}
        for key in ("removed_in", "deprecated_since"):
            if row.get(key) == newest:
                del row[key]
    return tables.Tables(
        about={**table.about, "releases": table.releases[:-1]},
        options=rows,
        parsers={option: spans(names, newest) for option, names in table.parsers.items()},
        model_classes=spans(table.model_classes, newest),
        metrics=spans(table.metrics, newest),
        kv_cache_dtypes=spans(table.kv_cache_dtypes, of_minor),
        plain_caches=spans(table.plain_caches, of_minor),
        batch_tiers=history(table.batch_tiers),
    )


def test_options_with_the_values_of_one_release_are_those_that_the_parser_has_of_it() -> None:
    """The program and kvgate read the table alike."""
    newest = releases_read()[-1]
    found = tables.options_of(TABLES.options, newest, TABLES.releases)
    release = parse_patch(newest)
    assert found.keys() == {flag for flag, option in options().items() if option.is_in(release)}
    for flag, option in found.items():
        assert options()[flag].types_in(release) == (option.type,)
        assert options()[flag].defaults_in(release) == (option.default,)


@table("release", TABLES.releases)
def test_the_default_share_of_memory_is_that_of_the_option(release: str) -> None:
    option = tables.options_of(TABLES.options, release, TABLES.releases)["--gpu-memory-utilization"]
    assert float(accounting_of(release).gpu_memory_utilization) == option.default


@table("release", TABLES.releases)
def test_the_cache_formats_of_the_budget_are_the_choices_of_the_option(release: str) -> None:
    """Where the parser states them."""
    choices = tables.options_of(TABLES.options, release, TABLES.releases)["--kv-cache-dtype"].choices
    assert choices is None or set(choices) == accounting_of(release).kv_cache_dtypes


def test_every_device_that_batch_limits_leave_out_is_known() -> None:
    assert {name for _, tiers in TABLES.batch_tiers for tier in tiers for name in tier.excluded} <= DEVICES.keys()


def test_every_followed_function_is_in_the_newest_release() -> None:
    found = PRINTS.of(PRINTS.releases[-1])
    assert found.keys() == {f"{path}:{name}" for functions in FOLLOWED.values() for path, name in functions}
    assert GONE not in found.values()
    assert PRINTS.releases[-1] == TABLES.releases[-1]


def test_what_is_kept_by_hand_fills_what_the_source_does_not_show() -> None:
    facts = program.read_release(new_source("0.34.0"))
    rows = [
        {"flag": "--device", "what": "choices", "since": "0.30.0", "until": "0.33.0", "value": ["old"], "reason": ""},
        {
            "flag": "--device",
            "what": "choices",
            "since": "0.34.0",
            "until": None,
            "value": ["cpu", "cuda"],
            "reason": "",
        },
    ]
    found = program.with_what_is_kept(facts, TABLES, rows).options["--device"]
    assert (found.choices, found.unread) == (("cpu", "cuda"), ())


def test_what_nobody_knows_stays_as_the_release_before_had_it_and_is_reported() -> None:
    facts = program.read_release(new_source("0.34.0"))
    row = {
        "flag": "--device",
        "dest": "device",
        "since": TABLES.releases[0],
        "choices": [[TABLES.releases[0], ["auto", "gpu"]]],
    }
    found = program.with_what_is_kept(facts, replace(TABLES, options={"--device": row}), []).options["--device"]
    assert (found.choices, found.unread) == (("auto", "gpu"), ("choices",))


def test_kept_values_name_options_and_say_why() -> None:
    for row in program.kept_by_hand():
        assert row["flag"] in TABLES.options
        assert row["what"] in OptionFacts.__dataclass_fields__
        assert row["reason"]


def test_a_release_is_one_command(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """All files are rewritten, the second time none is; what is new is said, and what a person has to do."""
    for name in ("OPTIONS", "PARSERS", "MODEL_CLASSES", "METRICS", "BUDGET_TABLES", "FINGERPRINTS"):
        path = getattr(tables, name)
        (tmp_path / path.name).write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
        monkeypatch.setattr(tables, name, tmp_path / path.name)
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    report = "\n".join(program.put(new_source("7.3.0"), "0" * 64))
    assert "AForCausalLM is new; kvgate has no row for it" in report
    assert "LlamaForCausalLM is gone" in report
    assert "KV cache dtype tiny_2bit has no formula" in report
    assert "metric vllm:kv_cache_usage_perc is gone, and kvgate reads it" in report
    assert "--gpu-memory-utilization is gone (decides memory)" in report
    assert "option --device: its choices depend on more than the source" in report
    assert "vllm/utils/mem_utils.py: memory_profiling is gone" in report
    assert "add its row to _CHANGES in budget/releases/versions.py" in report
    assert "Written: " in report
    after = tables.read_tables()
    assert after.releases == [*TABLES.releases, "7.3.0"]
    assert after.options["--gpu-memory-utilization"]["removed_in"] == "7.3.0"
    again = list(program.put(new_source("7.3.0"), "0" * 64))
    assert again[-1] == "Every table was as it is read: nothing is written."
