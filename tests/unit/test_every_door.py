"""The questions to every door are whole, and a door that says something else is noticed."""

from dataclasses import replace

import pytest

from every_door.doors import DOORS, Answer
from every_door.page import disagreements, page
from every_door.question import FACTS, NAMESPACE, NEW_NAMESPACE, Question, flags_of, read_questions

QUESTIONS = read_questions()
WORDS = {
    "verdict": {"Fits", "MayNotFit", "DoesNotFit", "Unknown", "NotJudged"},
    "decides": {"starts", "holds"},
    "confidence": {"Known", "Assumed", "Contradictory"},
    "decision": {"Admit", "AdmitWithWarning", "AdmitAdjusted", "Refuse", "Skipped"},
}
FITS = QUESTIONS[0]
TRUE = Answer(
    command="kvgate check fits.yaml", facts=FITS.expected, exit_code=0, headroom_ratio=0.918, headroom_bytes=7
)


def test_at_least_fifteen_questions_state_their_promise() -> None:
    promises = [question.promise for question in QUESTIONS]
    assert len(set(promises) - {""}) >= 15
    assert len({question.id for question in QUESTIONS}) == len(QUESTIONS)


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.id)
def test_a_question_is_whole(question: Question) -> None:
    assert (question.spec is None) != (question.manifest is None)
    assert set(question.cannot) <= set(DOORS)
    assert set(question.expected) <= set(FACTS)
    assert "verdict" in question.expected
    if question.spec is not None:
        assert {"decides", "decision", "reason"} <= set(question.expected)
    for name, words in WORDS.items():
        assert question.expected.get(name) in {*words, None}
    deciding = question.expected.get(question.expected.get("decides", "verdict"))
    assert deciding == question.expected["verdict"], "the verdict is that of the answer that decides"


def test_every_verdict_and_every_decision_is_asked_for() -> None:
    for name in ("verdict", "decides", "confidence", "decision"):
        assert {question.expected.get(name) for question in QUESTIONS} - {None} == WORDS[name]


def test_flags_are_the_words_of_the_spec() -> None:
    workload = next(question for question in QUESTIONS if question.id == "workload")
    flags = flags_of(workload.options())
    assert flags[flags.index("--max-model-len") + 1] == "40960"
    assert flags[flags.index("--peak-concurrency") + 1] == "32"
    assert NAMESPACE != NEW_NAMESPACE


@pytest.mark.parametrize(
    ("door", "other", "told"),
    [
        ("explain", {"facts": {**FITS.expected, "verdict": "MayNotFit"}}, "verdict MayNotFit, expected Fits"),
        ("explain", {"headroom_ratio": 0.919}, "headroom 0.919"),
        ("explain", {"headroom_ratio": None, "headroom_bytes": None}, "no headroom"),
        ("sweep", {"headroom_ratio": None, "headroom_bytes": 8}, "headroom 8 bytes"),
        ("get", {"headroom_ratio": None, "headroom_bytes": None, "headroom_percent": 92}, "headroom 92 %"),
        ("apply", {"facts": {}, "admitted": False}, "refused"),
        ("check", {"exit_code": 1}, "exit code 1, expected 0"),
    ],
)
def test_a_door_that_says_something_else_is_named(door: str, other: dict[str, object], told: str) -> None:
    answers = {"check": TRUE, door: replace(TRUE, **other)}  # type: ignore[arg-type]
    (found,) = disagreements(FITS, answers)
    assert told in found
    assert DOORS[door][0] in found


def test_doors_that_agree_are_not_named_and_a_percentage_is_rounded_down() -> None:
    shown = replace(TRUE, facts={}, admitted=True, headroom_ratio=None, headroom_bytes=None, headroom_percent=91)
    cannot = "it takes an InferenceDeployment"
    answers = dict.fromkeys(DOORS, TRUE) | {"get": shown, "metric": cannot}
    assert list(disagreements(FITS, answers)) == []
    text = page({"fits": (FITS, answers)})
    assert f"cannot ask this: {cannot}" in text
    assert "Nowhere." in text
    assert f"**Promise:** {FITS.promise}" in text
