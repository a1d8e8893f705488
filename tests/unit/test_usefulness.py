"""benchmarks/usefulness: what counts as a right answer, and the questions that it is about."""

from typing import Any

import pytest

from usefulness.grades import CANNOT_SAY, PARTLY, RIGHT, WRONG, grade
from usefulness.questions import Cause, Expected, Number, Question, Said, read_causes, read_questions

CAUSES = {
    "kv-too-small": Cause(means="", said_as=["KVCacheTooSmall"]),
    "graph-oom": Cause(means="", said_as=["GraphsTooLarge"]),
    "capacity": Cause(means=""),
    "not-vllm": Cause(means="", said_as=["OtherEngine"]),
    "cannot-say": Cause(means=""),
}


def question(cause: str, **expected: Any) -> Question:
    return Question(
        id="a",
        url="",
        date="2026-01-01",
        form="log",
        question="",
        given="",
        observed="",
        command="kvgate why FILE",
        expected=Expected(cause=cause, by="reader", says="", **expected),
    )


def said(rule: str = "", *, message: str = "", severity: str = "error", **fields: Any) -> Said:
    findings = [{"rule": rule, "severity": severity, "message": message}] if rule else []
    return Said(exit_code=0, document={"findings": findings, **fields}, text=message)


LENGTH = Number(means="longest", value=34736, unit="tokens", tolerance=0.01)
CACHE = Number(means="cache", value=8.5, unit="GiB", tolerance=0.01, at="kv.bytes")


@pytest.mark.parametrize(
    ("asked", "answer", "expected"),
    [
        (question("kv-too-small"), said("KVCacheTooSmall"), RIGHT),
        (question("kv-too-small", fixes=[["--max-model-len"]]), said("KVCacheTooSmall"), PARTLY),
        (
            question("kv-too-small", fixes=[["--max-model-len"]]),
            said("KVCacheTooSmall", message="lower max_model_len"),
            RIGHT,
        ),
        (question("kv-too-small", numbers=[LENGTH]), said("KVCacheTooSmall", message="34,736 fit"), RIGHT),
        (question("kv-too-small", numbers=[LENGTH]), said("KVCacheTooSmall", message="35,500 fit"), PARTLY),
        (question("kv-too-small"), said("GraphsTooLarge"), WRONG),
        (question("kv-too-small"), said("KVCacheTooSmall", severity="info"), CANNOT_SAY),
        (question("kv-too-small", verdict=["DoesNotFit"]), said("KVCacheTooSmall", verdict="Fits"), WRONG),
        (question("kv-too-small"), said(verdict="Unknown"), CANNOT_SAY),
        (
            question("capacity", verdict=["Fits"], numbers=[CACHE]),
            said(verdict="Fits", kv={"bytes": 8.5 * 2**30}),
            RIGHT,
        ),
        (
            question("capacity", verdict=["Fits"], numbers=[CACHE]),
            said(verdict="Fits", kv={"bytes": 9.5 * 2**30}),
            WRONG,
        ),
        (question("cannot-say"), said(), RIGHT),
        (question("cannot-say"), said("GraphsTooLarge"), WRONG),
        (question("not-vllm"), said("OtherEngine"), RIGHT),
        (question("not-vllm"), said(verdict="NotJudged"), RIGHT),
        (question("not-vllm"), said("GraphsTooLarge"), WRONG),
    ],
)
def test_an_answer_is_right_only_with_its_cause_its_numbers_and_a_fix(
    asked: Question, answer: Said, expected: str
) -> None:
    assert grade(asked, answer, CAUSES) == expected


def test_every_question_has_a_cause_of_the_vocabulary_and_something_to_be_held_to() -> None:
    questions, causes = read_questions(), read_causes()
    assert len({each.id for each in questions}) == len(questions) >= 64
    assert {each.expected.cause for each in questions} <= set(causes)
    open_ended = {"cannot-say", "not-vllm"}
    for each in questions:
        assert each.expected.cause in open_ended or each.expected.numbers or each.expected.fixes, each.id
        assert each.url.startswith("https://"), each.id
        assert " FILE" in each.command or each.form in {"command", "question in words"}, each.id


def test_at_least_half_of_the_questions_are_about_a_log() -> None:
    questions = read_questions()
    assert sum(each.form == "log" for each in questions) * 2 >= len(questions)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"outcome": "CauseUnknown", "verdict": "Fits"}, RIGHT),
        ({"outcome": "CauseFound", "verdict": "Fits", "happened": {"id": "IllegalMemoryAccess"}}, RIGHT),
        ({"outcome": "CauseFound", "verdict": "Fits", "happened": {"id": "KVCacheTooSmall"}}, WRONG),
        ({"outcome": "CauseFound", "verdict": "DoesNotFit", "why": ["KVCacheTooSmall: it needs more"]}, WRONG),
        ({"outcome": "NothingWrong", "verdict": None}, WRONG),
        ({"outcome": "NotJudged", "verdict": None}, RIGHT),
    ],
)
def test_that_why_cannot_say(answer: dict[str, Any], expected: str) -> None:
    assert grade(question("cannot-say"), said(answers=[answer]), CAUSES) == expected
