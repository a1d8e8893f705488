"""Scaling a deployment whose workload is shared: the verdict stands, and a share that is too large is seen. Pure."""

from typing import Any

import pytest

from kvgate.api.base import Document
from kvgate.api.validation import parse_document
from kvgate.controller.decision import NO_CONFIG, Intent, Situation, assess_owner, decide, status_after
from kvgate.rendering.status import previous_status
from support.admissions import kept, standing_of
from support.manifests import a_document

WORKLOAD = {"peakConcurrency": 38, "promptTokens": 20000, "outputTokens": 500}
KIND = "ScaledBelowWorkload"


def run(document: Document) -> tuple[Intent, Document]:
    """Decide once, and write the status into the object."""
    owner = parse_document(document)
    situation = Situation(document=document, owner=owner, standing=standing_of(document))
    intent = decide(situation, assess_owner(situation.judged_owner, NO_CONFIG))
    kept(intent.admitted, document)
    before = previous_status(document, "2026-11-23T01:00:00Z")
    status = status_after(intent, name=owner.name, deployment=None, before=before, observation=None)
    document["status"] = status
    return intent, status


def scaled(document: Document, replicas: int) -> tuple[Intent, Document]:
    document["spec"]["replicas"] = replicas
    document["metadata"]["generation"] += 1
    return run(document)


def told(status: Document) -> dict[str, tuple[str, str, str]]:
    return {each["type"]: (each["status"], each["reason"], each["message"]) for each in status["conditions"]}


def an_object(**spec: Any) -> Document:
    vllm = {"maxModelLen": 40960, "maxNumSeqs": 64}
    document: Document = a_document(**({"vllm": vllm, "workload": WORKLOAD, "replicas": 2} | spec))
    document["metadata"]["generation"] = 1
    return document


def test_the_status_tells_the_share_that_was_judged() -> None:
    document = an_object()
    _, status = run(document)
    assert status["workloadShare"] == {"engines": 2, "requests": 19}
    assert "holds the workload (19 of 38 requests of 20500 tokens on each of 2 engines)" in told(status)["Accepted"][2]
    _, after = scaled(document, 1)
    assert after["workloadShare"] == {"engines": 2, "requests": 19}


def test_scaling_down_keeps_the_verdict_and_says_that_the_load_is_not_held() -> None:
    document = an_object()
    first, before = run(document)
    assert KIND not in told(before)
    intent, status = scaled(document, 1)
    assert (intent.is_kept, intent.template_hash) == (True, first.template_hash)
    assert told(status)["Accepted"] == told(before)["Accepted"]
    assert "PredictionOutdated" not in told(status)
    state, reason, message = told(status)[KIND]
    assert (state, reason) == ("True", "ShareTooLarge")
    assert "38 requests" in message
    assert "19 of 38 requests" in message
    _, again = scaled(document, 3)
    assert told(again)[KIND][:2] == ("False", "ShareHeld")


@pytest.mark.parametrize(
    ("spec", "replicas"),
    [
        ({"workload": {**WORKLOAD, "peakConcurrency": 10}}, 1),  # one engine holds all of it
        ({}, 0),  # nothing runs, and nothing is promised
        ({}, 3),
        ({"admission": {"guarantee": "Startup"}}, 1),
        ({"workload": None}, 1),
    ],
)
def test_a_share_that_is_held_or_not_promised_is_no_warning(spec: dict[str, Any], replicas: int) -> None:
    document = an_object(**spec)
    document["spec"] = {name: value for name, value in document["spec"].items() if value is not None}
    run(document)
    _, status = scaled(document, replicas)
    assert KIND not in told(status)


def test_requests_that_wait_for_a_sequence_are_a_warning_too() -> None:
    short = {"peakConcurrency": 80, "promptTokens": 100, "outputTokens": 10}
    document = an_object(workload=short)
    run(document)
    _, status = scaled(document, 1)
    assert told(status)[KIND][:2] == ("True", "ShareTooLarge")
    assert "holds them, and maxNumSeqs is 64" in told(status)[KIND][2]


def test_a_chosen_number_of_sequences_is_marked_in_status_and_message() -> None:
    document = an_object(workload=None, vllm={"maxModelLen": 40960})
    del document["spec"]["workload"]
    _, status = run(document)
    chosen = status["effective"]["maxNumSeqs"]
    assert status["effective"]["chosen"] == ["maxNumSeqs"]
    assert f"; maxNumSeqs {chosen} (chosen)" in told(status)["Accepted"][2]
    assert "chosen" not in run(an_object())[1]["effective"]
