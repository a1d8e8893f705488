"""Grades of answers. An answer is right only where cause, numbers and a fix are named."""

import re
from collections.abc import Mapping

from usefulness.questions import Cause, Expected, Number, Question, Said

RIGHT, PARTLY, WRONG, CANNOT_SAY = "right", "partly", "wrong", "cannot say"
GRADES = (RIGHT, PARTLY, WRONG, CANNOT_SAY)
_OPEN = frozenset({"", "Unknown", "NotJudged"})
_NOT_JUDGED = "NotJudged"


def grade(question: Question, said: Said, causes: Mapping[str, Cause]) -> str:
    """Return the grade; a confident answer to what cannot be said is wrong."""
    expected = question.expected
    says_nothing = _says_nothing(said, causes)
    if expected.cause == "cannot-say":
        return RIGHT if says_nothing else WRONG
    if expected.cause == "not-vllm":
        is_left = said.verdict == _NOT_JUDGED or bool(said.ids & {*causes["not-vllm"].said_as})
        return RIGHT if is_left else CANNOT_SAY if says_nothing else WRONG
    if not _names_cause(expected, said, causes):
        return CANNOT_SAY if says_nothing else WRONG
    is_whole = all(_states(number, said) for number in expected.numbers) and all(
        _names_any(names, said.text) for names in expected.fixes
    )
    return RIGHT if is_whole else PARTLY


def _says_nothing(said: Said, causes: Mapping[str, Cause]) -> bool:
    return not _names_any_cause(said, causes) and said.verdict in _OPEN


def _names_any_cause(said: Said, causes: Mapping[str, Cause]) -> bool:
    return bool(said.ids & {name for cause in causes.values() for name in cause.said_as})


def _names_cause(expected: Expected, said: Said, causes: Mapping[str, Cause]) -> bool:
    """Tell whether the cause is named; where it has no id of its own, the verdict and the numbers are the answer."""
    if expected.verdict and said.verdict not in expected.verdict:
        return False
    names = causes[expected.cause].said_as
    if names:
        return bool(said.ids & {*names})
    is_open = bool(expected.verdict) or not _names_any_cause(said, causes)
    return is_open and any(_states(number, said) for number in expected.numbers)


def _states(number: Number, said: Said) -> bool:
    if number.at:
        found = said.at(number.at)
        return found is not None and number.is_near(found)
    return any(number.is_near(found) for found in said.numbers)


def _names_any(names: list[str], text: str) -> bool:
    return any(re.search(_spellings(name), text, re.IGNORECASE) for name in names)


def _spellings(name: str) -> str:
    """Match --max-model-len also as max_model_len and maxModelLen, as whole words."""
    words = re.split(r"[-_]", name.removeprefix("--"))
    return rf"(?<![\w-])(?:--)?{'[-_]?'.join(map(re.escape, words))}(?![\w-])"
