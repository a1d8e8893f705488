"""kvgate answers as it did when the answers were frozen, or benchmarks/answers/causes.py says why not."""

from collections import defaultdict
from collections.abc import Iterator
from itertools import islice

import pytest
from msgspec.structs import replace

from answers.asking import ask
from answers.causes import Cause
from answers.comparison import Change, compare, markdown
from answers.questions import QUESTIONS
from answers.records import Question, Row, frozen

STEPS = {"check": 5, "contract": 1, "what-ifs": 10, "commands": 10}


def sample() -> Iterator[Question]:
    """`make answers` asks all of them."""
    for kind, step in STEPS.items():
        yield from islice(QUESTIONS[kind](), 0, None, step)


@pytest.mark.slow
def test_no_answer_changes_without_a_cause() -> None:
    compared = compare(sample())
    assert compared.num_rows > 700
    assert not compared.failures[:5], f"{len(compared.failures)} in all; see benchmarks/answers/causes.py"


def test_every_verdict_is_a_thirtieth_of_the_what_ifs() -> None:
    counts: defaultdict[str, int] = defaultdict(int)
    for row in frozen("what-ifs"):
        counts[row.verdict] += 1
    assert counts.keys() == {"Fits", "MayNotFit", "DoesNotFit", "Unknown"}
    assert min(counts.values()) >= sum(counts.values()) / 30


def test_a_change_is_seen_and_needs_a_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    questions = list(islice(QUESTIONS["what-ifs"](), 3))
    rows = list(ask(questions))
    changed = [replace(rows[0], verdict="Other"), replace(rows[1], rest="ledger=0000"), rows[2]]
    monkeypatch.setattr("answers.comparison.frozen", lambda _: iter(changed))
    compared = compare(questions, ())
    assert [change.before for change in compared.unexplained] == changed[:1]
    assert [change.before for change in compared.rest] == changed[1:2]
    assert "verdict Other → " in compared.failures[0]
    cause = Cause(
        name="other", sentence="Why.", explains=lambda _, before, __: bool(before and before.verdict == "Other")
    )
    idle = replace(cause, name="idle", explains=lambda *_: False)
    explained = compare(questions, (idle, cause))
    assert not explained.failures
    assert {cause.name: len(changes) for cause, changes in explained.by_cause.items()} == {"idle": 0, "other": 1}
    assert "| other: Why. | 1 | 0000~" in markdown(explained)


def test_an_engine_that_is_no_longer_found_is_a_change() -> None:
    question = next(QUESTIONS["check"]())
    change = Change(question=question, before=Row(key=f"{question.key}#engine", verdict="Fits"), after=None)
    assert not change.is_of_rest
    assert "verdict Fits → ∅" in change.text
