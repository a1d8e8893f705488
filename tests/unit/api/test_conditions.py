"""Conditions: one per type, transition times that move with the status only, reasons that somebody gives."""

import re
from pathlib import Path

import pytest

import kvgate
from kvgate.api.conditions import ConditionType, Reason, set_condition
from kvgate.api.status import Condition
from support.hostile import TEXTS
from support.tables import table

SOURCES = [path for path in Path(kvgate.__file__).parent.rglob("*.py") if path.name != "conditions.py"]


def accepted(
    before: tuple[Condition, ...], *, status: bool | None, now: str, message: str = "m"
) -> tuple[Condition, ...]:
    return set_condition(
        before, ConditionType.ACCEPTED, status=status, reason=Reason.FITS, message=message, generation=7, now=now
    )


@pytest.mark.parametrize(("status", "text"), [(True, "True"), (False, "False"), (None, "Unknown")])
def test_a_status_is_one_of_three_words(status: bool | None, text: str) -> None:  # noqa: FBT001
    (condition,) = accepted((), status=status, now="t1")
    assert (condition.status, condition.reason, condition.observed_generation) == (text, "Fits", 7)


def test_the_transition_time_moves_with_the_status_only() -> None:
    first = accepted((), status=True, now="t1")
    again = accepted(first, status=True, now="t2", message="other")
    changed = accepted(again, status=None, now="t3")
    assert [c[0].last_transition_time for c in (first, again, changed)] == ["t1", "t1", "t3"]
    assert again[0].message == "other"


def test_other_conditions_stay_and_the_order_does_not_depend_on_history() -> None:
    def ready(before: tuple[Condition, ...]) -> tuple[Condition, ...]:
        return set_condition(
            before, ConditionType.READY, status=True, reason=Reason.REPLICAS_READY, message="", generation=1, now="t"
        )

    one, other = accepted(ready(()), status=True, now="t"), ready(accepted((), status=True, now="t"))
    assert one == other
    assert [condition.type for condition in one] == ["Accepted", "Ready"]


def test_a_message_of_any_length_fits_the_schema() -> None:
    (condition,) = accepted((), status=True, now="t", message="x" * 10_000)
    assert len(condition.message) == 4096


@table("reason", Reason)
def test_a_reason_is_given_somewhere(reason: Reason) -> None:
    assert any(re.search(rf"Reason\.{reason.name}\b", path.read_text(encoding="utf-8")) for path in SOURCES)


@table("word", [*Reason, *ConditionType])
def test_a_word_is_one_that_kubernetes_takes(word: str) -> None:
    assert re.fullmatch(r"[A-Z][A-Za-z]{1,62}", word)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
def test_a_message_is_inert(text: str) -> None:
    (condition,) = accepted((), status=False, now="t", message=text)
    assert condition.message.isprintable()
    assert not condition.message.lstrip().startswith("::")
