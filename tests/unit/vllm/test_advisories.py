"""Known defects of vLLM: every row fires where its conditions hold, and is silent in the release that has it no more."""

import re
from datetime import date
from typing import Any

import pytest

from kvgate.budget import parse_patch
from kvgate.catalogue import find_model_class
from kvgate.vllm.advisories import Advisory, Effect, advisories, advisories_of
from kvgate.vllm.options import options
from support.tables import table

KINDS = {"experts", "latent", "states", "windows", "encoder", "nvfp4", "v1-runner", "v2-runner"}
ROWS = advisories()


def holding(advisory: Advisory) -> dict[str, Any]:
    """Return settings that meet the conditions of a row."""
    chosen: dict[str, Any] = {}
    for each in advisory.conditions:
        if not each.is_not:
            above = float(each.operand) + 1 if each.sign == ">" else 0
            chosen[each.name] = {"": "1", "=": each.operand, "~": f"x{each.operand}x", ">": above}[each.sign]
    return chosen


def engine(advisory: Advisory, **instead: Any) -> dict[str, Any]:
    """Return an engine that meets a row, with something else instead."""
    capability = advisory.capability.split()[0] if advisory.capability else "9.0"
    major, minor = map(int, capability.split("."))
    return {
        "architecture": advisory.classes.split()[0] if advisory.classes else "LlamaForCausalLM",
        "kinds": {kind for kind in advisory.kinds.split() if not kind.startswith("!")},
        "vendor": advisory.vendor or "nvidia",
        "capability": (major, minor),
    } | instead


def release_after(release: str) -> str:
    numbers = [int(part) for part in release.split(".")]
    return ".".join(map(str, [*numbers[:-1], numbers[-1] + 1])) + (".0" if len(numbers) == 2 else "")


@table("advisory", ROWS)
def test_every_row_fires_where_its_conditions_hold(advisory: Advisory) -> None:
    assert advisory.concerns(**engine(advisory))
    assert advisory.is_met(holding(advisory))


@table("advisory", ROWS)
def test_every_row_is_silent_where_one_condition_does_not_hold(advisory: Advisory) -> None:
    values = holding(advisory)
    for each in advisory.conditions:
        without = {key: value for key, value in values.items() if key != each.name}
        assert not advisory.is_met(without | ({each.name: "1"} if each.is_not else {})), each.name
    for kind in advisory.kinds.split():
        assert not advisory.concerns(**engine(advisory, kinds=engine(advisory)["kinds"] ^ {kind.lstrip("!")})), kind
    if advisory.classes:
        assert not advisory.concerns(**engine(advisory, architecture="OPTForCausalLM"))
    if advisory.vendor:
        assert not advisory.concerns(**engine(advisory, vendor="unknown"))
    if advisory.capability:
        assert not advisory.concerns(**engine(advisory, capability=(8, 0)))
        assert not advisory.concerns(**engine(advisory, capability=None))


@table("advisory", ROWS)
def test_every_row_is_silent_in_the_release_that_has_it_no_more(advisory: Advisory) -> None:
    assert advisory in advisories_of(advisory.since if advisory.since.count(".") > 1 else f"{advisory.since}.0")
    assert advisory in advisories_of(advisory.until if advisory.until.count(".") > 1 else f"{advisory.until}.0")
    after = advisory.fixed or release_after(advisory.until)
    assert advisory not in advisories_of(after if after.count(".") > 1 else f"{after}.0")


def test_a_row_of_a_minor_release_is_about_each_of_its_patches() -> None:
    (advisory,) = (each for each in ROWS if each.id == "graphs-without-reserve-v2")
    assert all(advisory.is_in(release) for release in ("0.22.0", "0.25.1", "0.28.0", "0.28.1"))
    assert not any(advisory.is_in(release) for release in ("0.21.0", "0.29.0", "0.33.0"))


def test_the_table_is_in_order() -> None:
    assert len({each.id for each in ROWS}) == len(ROWS) >= 40
    for each in ROWS:
        assert parse_patch(each.since) <= parse_patch(each.until), each.id
        assert not each.fixed or parse_patch(each.until) < parse_patch(each.fixed), each.id
        assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", each.source), each.id
        day = each.day if len(each.day) == 10 else f"{each.day}-01"
        assert date.fromisoformat(day) < date(2026, 11, 29), each.id
        assert each.effect in Effect, each.id
        assert {kind.lstrip("!") for kind in each.kinds.split()} <= KINDS, each.id
        assert each.says[0].islower() or each.says.split()[0] in {"FlashInfer", "FlashInfer's", "AITER's", "Model"}, (
            each.id
        )
        assert not each.says.endswith("."), each.id
        assert not each.decides_start or each.effect is Effect.STARTS, each.id


def test_classes_and_settings_are_vllms_own_names() -> None:
    known = options()
    for each in ROWS:
        assert all(find_model_class(name) for name in each.classes.split()), each.id
        named = {*re.findall(r"\{(\w+)\}", each.says + each.remedy), *(each.name for each in each.conditions)}
        assert {f"--{name.replace('_', '-')}" for name in named} <= set(known), each.id


@pytest.mark.parametrize("word", ["enforce-eager", "max_num_seqs>=3", "", "!!enforce_eager"])
def test_a_condition_that_cannot_be_read_is_a_mistake_of_the_table(word: str) -> None:
    advisory = Advisory(
        id="a",
        since="0.8",
        until="0.8",
        settings=word or "?",
        effect=Effect.STARTS,
        says="a",
        remedy="b",
        source="",
        day="",
    )
    with pytest.raises(ValueError, match="no condition"):
        _ = advisory.conditions
