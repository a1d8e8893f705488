"""The short form of `make fuzz`: fixed seeds of every kind, and every input that once broke a promise."""

import json
from pathlib import Path

import pytest

from fuzz import configs, documents, reviews
from fuzz.cases import failure_of, judged

KEPT = Path(__file__).parent / "kept"
SEED = 1
CASES = {"documents": 320, "reviews": 500, "configs": 1_500, "expositions": 1_500}
"""Seeds of each kind, in parts of twentieths: 2,560 documents, 500 reviews, 1,500 configs, 1,500 expositions in half a minute."""
PARTS = 20


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize("kind", CASES)
def test_hostile_input_is_answered(kind: str, part: int) -> None:
    failures = [failure_of(kind, SEED * 10**7 + index) for index in range(CASES[kind])[part::PARTS]]
    assert [failure.text() for failure in failures if failure] == []


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.yaml")), ids=lambda path: path.stem)
@pytest.mark.parametrize("gpu", [None, "L4-24GB"])
def test_a_stream_that_broke_a_promise_keeps_it_now(path: Path, gpu: str | None, tmp_path: Path) -> None:
    """The file is put between the two documents that fit."""
    first, last = map(documents.sentinel, documents.SENTINELS)
    stream = b"\n---\n".join([first.encode(), path.read_bytes(), last.encode()])
    failure = judged("documents", 0, lambda _: list(documents.violations(stream, tmp_path, gpu)))
    assert failure is None, failure.text()


@pytest.mark.parametrize("path", sorted(KEPT.glob("*.json")), ids=lambda path: path.stem)
def test_a_review_that_broke_a_promise_keeps_it_now(path: Path, tmp_path: Path) -> None:
    kept = json.loads(path.read_text(encoding="utf-8"))
    case = reviews.Case(document=kept["object"], config=kept["config"], body=reviews.review_of(kept["object"]))
    failure = judged("reviews", 0, lambda _: list(reviews.violations(case, tmp_path)))
    assert failure is None, failure.text()


def test_a_seed_means_one_case() -> None:
    assert documents.stream_of(7) == documents.stream_of(7)
    assert reviews.case_of(7) == reviews.case_of(7)
    assert documents.stream_of(7) != documents.stream_of(8)


def test_broken_promises_are_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The fuzzers themselves: a document that is not read, a text that is a command, and doors that disagree are found."""
    stream = b"a: [\n" + documents.sentinel(documents.SENTINELS[0]).encode()
    assert any("in place of Fits" in problem for problem in documents.violations(stream, tmp_path))
    monkeypatch.setattr("kvgate.cli.reports.text.render", lambda _: "\n::error::forged\x07")
    problems = list(documents.violations(documents.stream_of(1), tmp_path))
    assert {problem for problem in problems if problem.startswith("text")} == {
        "text holds '\\x07'",
        "text holds 1 commands for GitHub, 0 of them its own",
    }
    assert configs.violations.__module__ == "fuzz.configs"


def test_a_field_that_only_one_door_reads_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it was before documents were read by the CRD's names alone."""
    document = reviews.examples()[0] | {"metadata": {"name": "fuzzed", "namespace": "fuzz"}}
    document["spec"] = {
        "model": {"name": "Qwen/Qwen3-8B"},
        "accelerator": {"type": "L4-24GB"},
        "vllm": {"max_model_len": 4096},
    }
    case = reviews.Case(document=document, config=None, body=reviews.review_of(document))
    assert list(reviews.violations(case, tmp_path)) == []
    monkeypatch.setattr(
        "kvgate.api.base.ApiModel.from_document", classmethod(lambda cls, value: cls.model_validate(value))
    )
    assert any("the doors decide" in problem for problem in reviews.violations(case, tmp_path))
