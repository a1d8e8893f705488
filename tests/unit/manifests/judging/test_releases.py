"""Verdicts and findings of the oldest and the newest release that an engine may be, joined to one answer."""

from pathlib import Path

import pytest
import yaml
from msgspec.structs import replace

from kvgate.budget import Verdict
from kvgate.findings.finding import Located, Place, Rule, Scope, Severity, located
from kvgate.judgement.possible_worlds import joined_ends
from kvgate.manifests import read_manifests
from kvgate.manifests.engines import find_engines
from kvgate.manifests.judging.engine_budget import Defaults
from kvgate.manifests.judging.judgement import JudgedEngine, judge_engine
from kvgate.manifests.judging.releases import releases_of, usable_releases
from kvgate.statement.engine import Releases, newest_understood
from kvgate.vllm.images import Strength
from kvgate.vllm.options import releases_read
from support.tables import table

FITS, MAY, NOT, UNKNOWN = Verdict.FITS, Verdict.MAY_NOT_FIT, Verdict.DOES_NOT_FIT, Verdict.UNKNOWN
RULE = Rule(id="R", severities=(Severity.ERROR, Severity.WARNING, Severity.INFO), scope=Scope.COMMAND_LINE, title="T.")
LOW, HIGH = "0.10.0", "0.20.0"


@pytest.fixture
def plain(tmp_path: Path) -> JudgedEngine:
    pod = {"containers": [{"name": "a", "image": "vllm/vllm-openai:v0.20.0", "args": ["--model=Qwen/Qwen3-0.6B"]}]}
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": pod}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    (engine,) = find_engines(read_manifests([str(tmp_path)])).engines
    return judge_engine(engine, Defaults())


def findings(text: str) -> tuple[Located, ...]:
    """`error a` → a finding of this severity about the setting `a`, and `error a@p` at another path."""
    told = []
    for each in text.split("; ") if text else []:
        severity, _, about = each.partition(" ")
        name, _, path = about.partition("@")
        told.append(located(RULE, Place(name=name, path=path), "m", severity=Severity(severity)))
    return tuple(told)


@pytest.mark.parametrize(
    ("low", "high", "verdicts", "verdict", "expected"),
    [
        ("", "", (FITS, FITS), FITS, []),
        ("error a", "error a", (NOT, NOT), NOT, ["error a: m"]),
        ("error a", "error b", (NOT, NOT), NOT, ["error b: high", "error a: low"]),
        ("error a; error b", "error a; error c", (NOT, NOT), NOT, ["error a: m", "warning c: high", "warning b: low"]),
        ("error a", "error a@p", (NOT, NOT), NOT, ["error a@p: high", "error a: low"]),
        ("warning a; error b", "error a", (NOT, NOT), NOT, ["error a: high", "error b: low"]),
        ("error a", "warning a; error b", (NOT, NOT), NOT, ["warning a: high", "error b: high"]),
        ("warning a", "warning a; warning b", (MAY, MAY), MAY, ["warning a: m", "warning b: high"]),
        ("info a; info b", "info a; info c", (FITS, FITS), FITS, ["info a: m", "info c: m"]),
        ("info a", "warning a", (FITS, FITS), FITS, ["warning a: high"]),
        ("", "error a", (FITS, NOT), MAY, ["warning a: high", "info vllm_version"]),
        ("error a", "", (NOT, FITS), MAY, ["warning a: low", "info vllm_version"]),
        ("error a", "", (NOT, UNKNOWN), MAY, ["warning a: low", "info vllm_version"]),
        ("", "error a", (UNKNOWN, NOT), MAY, ["warning a: high", "info vllm_version"]),
        ("", "", (MAY, FITS), MAY, ["info vllm_version"]),
        ("error a", "error a", (NOT, UNKNOWN), MAY, ["error a: m", "warning vllm_version"]),
    ],
)  # fmt: skip
def test_two_releases_are_one_answer(
    plain: JudgedEngine, low: str, high: str, verdicts: tuple[Verdict, Verdict], verdict: Verdict, expected: list[str]
) -> None:
    older = replace(plain, assessment=None, vllm_version=LOW, verdict=verdicts[0], findings=findings(low))
    newer = replace(plain, assessment=None, vllm_version=HIGH, verdict=verdicts[1], findings=findings(high))
    joined = joined_ends([newer, older], "spec.containers[0].image")
    assert (joined.verdict, joined.vllm_version) == (verdict, HIGH)
    sides = {"m": "m", f"with vLLM {LOW}: m": "low", f"with vLLM {HIGH}: m": "high"}
    told = []
    for each in joined.findings:
        about = f"{each.finding.field}@{each.path}" if each.path and each.finding.rule == RULE else each.finding.field
        side = f": {sides[each.finding.message]}" if each.finding.rule == RULE else ""
        told.append(f"{each.finding.severity.value} {about}{side}")
    assert told == expected
    if told and told[-1].endswith("vllm_version"):
        last = joined.findings[-1]
        assert (last.finding.rule.id, last.path) == ("ReleaseDecides", "spec.containers[0].image")
        assert f"with vLLM {LOW} it is {verdicts[0].value}, with {HIGH} {verdicts[1].value}" in last.finding.message


def test_one_release_is_the_answer_itself(plain: JudgedEngine) -> None:
    assert joined_ends([plain]) is plain


@table(
    ("strength", "release", "expected"),
    [
        (Strength.STRONG, "0.10.2", True),
        (Strength.STRONG, "0.9.2", False),
        (Strength.STRONG, "0.11.1", False),
        (Strength.WEAK, "0.9.2", True),
        (Strength.WEAK, "0.8.5", True),
        (Strength.WEAK, "0.8.4", False),
        (Strength.WEAK, "0.20.0", True),
        (Strength.WEAK, newest_understood(), True),
        (Strength.WEAK, "99.0.0", False),
        (Strength.STRONG, "0.10.0", False),
        (Strength.WEAK, "0.11.0", False),
    ],
)
def test_weak_evidence_leaves_every_release_that_people_use(
    strength: Strength, release: str, *, expected: bool
) -> None:
    """The two ends are no other releases."""
    assert Releases(low="0.10.0", high="0.11.0", strength=strength).may_be(release) is expected


def test_an_engine_is_no_older_than_the_class_and_the_options_that_it_is_written_for() -> None:
    inferred = Releases(low="0.10.0", high="0.11.0", strength=Strength.WEAK, is_inferred=True)
    assert [inferred.may_be(release) for release in ("0.9.2", "0.10.2", "0.20.0")] == [False, True, True]


@pytest.mark.parametrize(
    ("flags", "has", "lacks"),
    [
        ((), ("0.8.5", newest_understood()), ()),
        (("--no-such-option",), ("0.8.5", newest_understood()), ()),
        (("--max-model",), ("0.8.5", newest_understood()), ()),
        (("--swap-space",), ("0.8.5",), (newest_understood(),)),
        (("--swap-space", "--no-such-option"), ("0.8.5",), (newest_understood(),)),
        (("--nnodes",), (newest_understood(),), ("0.8.5",)),
        (("--nnodes", "--async-scheduling", "--num-scheduler-steps"), (newest_understood(),), ("0.8.5",)),
    ],
)
def test_releases_are_those_that_know_most_of_the_options(
    flags: tuple[str, ...], has: tuple[str, ...], lacks: tuple[str, ...]
) -> None:
    found = usable_releases(frozenset(flags), releases_read())
    assert set(has) <= set(found)
    assert set(lacks).isdisjoint(found)
    assert list(found) == [each for each in releases_read() if each in found]


def test_a_release_without_the_class_of_a_sibling_by_name_is_none_of_them(tmp_path: Path) -> None:
    """Qwen3.6's class came with 0.17.1; the image says nothing, and a stated release stays what it is."""
    images = {"guessed": "registry.example/my-server:3", "stated": "vllm/vllm-openai:v0.9.1"}
    for name, image in images.items():
        pod = {
            "containers": [{"name": "a", "image": image, "command": ["vllm", "serve", "someone/Qwen3.6-27B-AWQ-INT4"]}]
        }
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": pod}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    engines = find_engines(read_manifests([str(tmp_path)])).engines
    lowest = {each.name: releases_of(each, "someone/Qwen3.6-27B-AWQ-INT4", None).low for each in engines}
    assert lowest == {"guessed": "0.17.1", "stated": "0.9.1"}


@pytest.mark.parametrize(
    ("arguments", "low", "is_narrowed"),
    [
        ((), "0.11.1", False),
        (("--mamba-ssm-cache-dtype=float16",), "0.13.0", True),
        (("--no-such-option",), "0.11.1", False),
        (("--swap-space=4",), "0.11.1", False),
    ],
)
def test_a_range_of_an_image_begins_where_it_has_what_the_manifest_is_written_for(
    tmp_path: Path, arguments: tuple[str, ...], low: str, *, is_narrowed: bool
) -> None:
    """NVIDIA's 26.01 is 0.11.1 to 0.13.0 by the table; an option that is gone in the newest of a range moves nothing."""
    container = {
        "name": "a",
        "image": "nvcr.io/nvidia/vllm:26.01-py3",
        "command": ["vllm", "serve", "Qwen/Qwen3-8B", *arguments],
    }
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [container]}}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    (engine,) = find_engines(read_manifests([str(tmp_path)])).engines
    found = releases_of(engine, "Qwen/Qwen3-8B", None)
    assert (found.low, found.high) == (low, "0.13.0")
    assert ("is the first that takes its options" in found.why) is is_narrowed


def test_the_class_of_a_model_is_surer_than_an_option_that_is_gone_before_it(tmp_path: Path) -> None:
    """Concurrent partial prefills are gone in every release that has Qwen3.6's class: none excuses them."""
    container = {
        "name": "a",
        "image": "registry.example/my-server:3",
        "command": ["vllm", "serve", "Qwen/Qwen3.6-27B", "--swap-space=4", "--num-scheduler-steps=8"],
    }
    document = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": [container]}}
    (tmp_path / "x.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    (engine,) = find_engines(read_manifests([str(tmp_path)])).engines
    assert releases_of(engine, "Qwen/Qwen3.6-27B", None).low == "0.17.1"
    refused = [
        each.finding for each in judge_engine(engine, Defaults()).findings if each.finding.rule.id == "OptionRemoved"
    ]
    assert Severity.ERROR in {each.severity for each in refused if "--num-scheduler-steps" in each.message}
