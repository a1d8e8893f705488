"""Every door of kvgate, as a real process, is asked the same questions: the page shows their answers, and they agree."""

from collections.abc import Mapping

import pytest

from every_door.__main__ import TARGET, ask_every_door
from every_door.doors import DOORS, Answer
from every_door.page import disagreements, page
from every_door.question import Question
from support.assets import require_assets

pytestmark = pytest.mark.cluster

Asked = Mapping[str, tuple[Question, Mapping[str, Answer | str]]]


@pytest.fixture(scope="module")
def asked(pytestconfig: pytest.Config) -> Asked:
    return ask_every_door(require_assets(pytestconfig))


def test_the_committed_page_has_todays_answers(asked: Asked) -> None:
    assert TARGET.read_text(encoding="utf-8") == page(asked), "run `make generate` and commit"


def test_every_door_answers_or_says_why_it_cannot(asked: Asked) -> None:
    for _, answers in asked.values():
        assert list(answers) == list(DOORS)
        assert all(answer if isinstance(answer, str) else answer.command for answer in answers.values())
    for key in DOORS:
        assert sum(isinstance(answers[key], Answer) for _, answers in asked.values()) >= 10, f"{key} is hardly asked"


def test_no_door_disagrees(asked: Asked) -> None:
    assert [text for question, answers in asked.values() for text in disagreements(question, answers)] == []
