"""An UPDATE of an object that was admitted: the webhook says what the controller will do, whatever was learnt since."""

import copy
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from kvgate.budget import Calibration, CalibrationScope
from kvgate.rendering.admission import admission_status
from kvgate.webhook.review import Known, review
from support.admissions import admission_of
from support.starts import a_start

Json = dict[str, Any]
NewReview = Callable[..., Json]
NINE = {"vllm": {"maxNumSeqs": 9}}
LESS_MEMORY = Known(calibration=Calibration(starts=(a_start(-8, max_num_seqs=9),), scope=CalibrationScope.NAMESPACE))
"""After this start nine requests fit no more."""


def admitted(document: Json) -> Json:
    """The object as it is stored after its admission, before that start."""
    return {**document, "status": {"admission": admission_status(admission_of(document))}}


def updated(new_review: NewReview, old: Json, **spec: Any) -> Any:
    new = {**old, "spec": {**old["spec"], **spec}}
    body = new_review(request={"operation": "UPDATE", "object": new, "oldObject": old})
    return review(body, LESS_MEMORY)


def test_a_new_object_is_judged_by_what_is_known_today(new_review: NewReview) -> None:
    assert review(new_review(NINE), LESS_MEMORY).body["response"]["allowed"] is False


@pytest.mark.parametrize("spec", [{"replicas": 3}, {"replicas": 0}, {"admission": {"recalibrate": True}}])
def test_what_needs_no_verdict_gets_none(new_review: NewReview, spec: Json) -> None:
    old = admitted(new_review(NINE)["request"]["object"])
    answer = updated(new_review, old, **spec)
    assert (answer.decision, answer.body["response"]["allowed"]) == ("Admit", True)


def test_the_way_back_to_what_was_admitted_is_open(new_review: NewReview) -> None:
    old = admitted(new_review(NINE)["request"]["object"])
    edited = {**old, "spec": {**old["spec"], "vllm": {"maxNumSeqs": 64}}}
    assert updated(new_review, edited, **NINE).body["response"]["allowed"] is True


def test_reservations_are_repeated(new_review: NewReview) -> None:
    document = new_review({"model": {"name": "nobody/novel-7b"}})["request"]["object"]
    answer = updated(new_review, admitted(document), replicas=2)
    assert answer.decision == "AdmitWithWarning"
    (warning,) = answer.body["response"]["warnings"]
    assert warning.startswith("as admitted before: UnknownModel: model nobody/novel-7b")


def of_another_spec(old: Json) -> None:
    old["status"]["admission"]["specDigest"] = "0" * 64


def without_decision(old: Json) -> None:
    del old["status"]["admission"]["decision"]


@pytest.mark.parametrize(
    "change",
    [
        of_another_spec,
        without_decision,
        lambda old: old.update(status=[]),
        lambda old: old["status"].update(admission=1),
    ],
)
def test_what_no_admission_of_this_spec_is_counts_for_nothing(
    new_review: NewReview, change: Callable[[Json], None]
) -> None:
    stored = admitted(new_review(NINE)["request"]["object"])
    new = {**stored, "spec": {**stored["spec"], "replicas": 2}}
    old = copy.deepcopy(stored)
    change(old)
    body = new_review(request={"operation": "UPDATE", "object": new, "oldObject": old})
    assert review(body, LESS_MEMORY).body["response"]["allowed"] is False


def test_another_spec_is_judged(new_review: NewReview) -> None:
    old = admitted(new_review(NINE)["request"]["object"])
    assert updated(new_review, old, vllm={"maxNumSeqs": 9, "maxModelLen": 40000}).body["response"]["allowed"] is False
    annotated = {**old, "metadata": {**old["metadata"], "annotations": {"kvgate.io/skip-budget": "x"}}}
    body = new_review(request={"operation": "UPDATE", "object": annotated, "oldObject": old})
    assert "without an end although it does not fit: x" in " ".join(
        review(body, LESS_MEMORY).body["response"]["warnings"]
    )


def test_an_end_that_is_over_lets_pass_what_stands_with_a_warning_and_refuses_a_change(new_review: NewReview) -> None:
    now, end = datetime(2026, 12, 24, 19, tzinfo=UTC), "2026-12-24T18:00:00Z"
    ends = {"annotations": {"kvgate.io/skip-budget": "load test", "kvgate.io/skip-budget-until": end}}
    document = new_review({"vllm": {"maxNumSeqs": 64}}, metadata=ends)["request"]["object"]
    stored = {**admitted(document)}
    scaled = {**stored, "spec": {**stored["spec"], "replicas": 2}}
    answer = review(new_review(request={"operation": "UPDATE", "object": scaled, "oldObject": stored}), now=now)
    assert (answer.decision, answer.body["response"]["allowed"]) == ("Skipped", True)
    assert f"kvgate.io/skip-budget ended at {end}" in answer.body["response"]["warnings"]
    changed = {**stored, "spec": {**stored["spec"], "vllm": {"maxNumSeqs": 65}}}
    answer = review(new_review(request={"operation": "UPDATE", "object": changed, "oldObject": stored}), now=now)
    assert answer.decision == "Refuse"
    assert answer.body["response"]["status"]["message"].startswith(f"kvgate.io/skip-budget ended at {end}; ")
