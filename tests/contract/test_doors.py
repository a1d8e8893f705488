"""One case folder, every door: they must agree on what becomes of an object, and why."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from contract.doors import DOORS

CASES = sorted(path.parent for path in Path(__file__).parent.glob("*/request.yaml"))


def expected_of(case: Path, door: str) -> dict[str, Any]:
    """What every door says, with what this one cannot know."""
    expected: dict[str, Any] = yaml.safe_load((case / "expected.yaml").read_text(encoding="utf-8"))
    return {**expected, **expected.get("doors", {}).get(door, {})}


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_door_decides_alike(case: Path, door: str) -> None:
    expected = expected_of(case, door)
    outcome = DOORS[door](case / "request.yaml")
    assert outcome.decision == expected["decision"], outcome.message
    assert outcome.verdict in (None, str(expected["verdict"] or "null")), outcome.message
    assert outcome.reason in (None, expected["reason"]), outcome.message


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_command_line_says_why(case: Path) -> None:
    message = DOORS["command_line"](case / "request.yaml").message
    for words in expected_of(case, "command_line").get("message", ()):
        assert words in message


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_webhook_says_why_where_it_does_not_simply_admit(case: Path) -> None:
    outcome = DOORS["webhook"](case / "request.yaml")
    assert (outcome.message != "") == (outcome.decision != "Admit")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_controller_alone_refuses_with_the_words_of_kubectl(case: Path) -> None:
    told = DOORS["webhook"](case / "request.yaml")
    alone = DOORS["controller"](case / "request.yaml")
    if told.decision == "Refuse" and alone.verdict is not None:
        assert alone.message == told.message


def test_the_cases_cover_every_decision_and_verdict() -> None:
    answers = [expected_of(case, "command_line") for case in CASES]
    assert {answer["decision"] for answer in answers} == {"Admit", "AdmitWithWarning", "AdmitAdjusted", "Refuse"}
    assert {answer["verdict"] for answer in answers} == {"Fits", "MayNotFit", "DoesNotFit", "Unknown", None}
