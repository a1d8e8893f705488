"""The join of worlds of which one holds: both answers, and how sure the facts are."""

from itertools import product

import pytest
from msgspec.structs import replace

from kvgate.budget import Guarantee, Verdict
from kvgate.judgement.assessment import (
    AcceleratorVerdict,
    Assessment,
    Confidence,
    World,
    joined,
    refuse_apart,
    refusing_nothing,
)
from kvgate.judgement.on_accelerators import joined as joined_on_accelerators
from support.tables import table

PAIRS = [(one, other) for one, other in product(Verdict, repeat=2) if one is not other]


def world(verdict: Verdict, starts: Verdict | None = None, confidence: Confidence = Confidence.KNOWN) -> World:
    return World(verdict=verdict, start_verdict=starts or verdict, confidence=confidence)


@pytest.mark.parametrize("verdict", Verdict)
def test_worlds_that_agree_have_their_verdict(verdict: Verdict) -> None:
    assert joined([world(verdict)] * 3) == world(verdict)


@table(("one", "other"), PAIRS)
def test_worlds_that_differ_leave_at_most_may_not_fit(one: Verdict, other: Verdict) -> None:
    assert joined([world(one), world(other)]) == world(Verdict.MAY_NOT_FIT), "also where one of them cannot be judged"
    on_gpus = [AcceleratorVerdict(name="L4-24GB", verdict=each) for each in (one, other)]
    (told,) = joined_on_accelerators(on_gpus[:1], on_gpus[1:])
    assert told.verdict is Verdict.MAY_NOT_FIT


def test_each_answer_is_joined_by_itself() -> None:
    worlds = [world(Verdict.DOES_NOT_FIT, Verdict.FITS), world(Verdict.FITS, Verdict.FITS, Confidence.ASSUMED)]
    assert joined(worlds) == world(Verdict.MAY_NOT_FIT, Verdict.FITS, Confidence.ASSUMED)
    worlds.append(world(Verdict.FITS, Verdict.DOES_NOT_FIT, Confidence.CONTRADICTORY))
    assert joined(worlds) == world(Verdict.MAY_NOT_FIT, Verdict.MAY_NOT_FIT, Confidence.CONTRADICTORY)


def test_an_assessment_takes_the_answers_of_a_world() -> None:
    plain = Assessment(verdict=Verdict.FITS, guarantee=Guarantee.WORKLOAD)
    assert plain.world == world(Verdict.FITS)
    answer = world(Verdict.DOES_NOT_FIT, Verdict.MAY_NOT_FIT, Confidence.ASSUMED)
    assert plain.in_world(answer).world == answer
    worse = replace(plain, verdict=Verdict.DOES_NOT_FIT, start_verdict=Verdict.FITS)
    assert worse.world.changed(refusing_nothing) == world(Verdict.MAY_NOT_FIT, Verdict.FITS)


def test_errors_stay_where_each_world_refuses_for_its_own_reason() -> None:
    assert refuse_apart(Verdict.DOES_NOT_FIT, is_error_common=False)
    assert not refuse_apart(Verdict.DOES_NOT_FIT, is_error_common=True)
    assert not any(refuse_apart(each, is_error_common=False) for each in Verdict if each is not Verdict.DOES_NOT_FIT)
