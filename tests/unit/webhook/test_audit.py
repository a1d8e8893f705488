"""The audit mode admits what would be refused, and says so everywhere."""

from collections.abc import Callable
from typing import Any

import pytest

from kvgate.api.status import Condition
from kvgate.controller.decision import NO_CONFIG, assess_owner, judgements, read_owner
from kvgate.controller.notices import notices
from kvgate.judgement.assessment import Decision
from kvgate.judgement.summary import accepted
from kvgate.rendering.workload import NotRendered, figures_of_verdict
from kvgate.webhook.review import Known, review
from support.manifests import a_document

NewReview = Callable[..., dict[str, Any]]
TOO_BIG = {"accelerator": {"type": "L4-24GB"}, "vllm": {"maxNumSeqs": 64}}
AUDITS = Known(audits=True)


@pytest.mark.parametrize("policy", ["Reject", "Adjust"])
def test_a_refusal_becomes_warnings(new_review: NewReview, policy: str) -> None:
    floors = {"policy": policy, "adjust": {"minMaxModelLen": 40960, "minMaxNumSeqs": 64}} if policy == "Adjust" else {}
    body = new_review({**TOO_BIG, **({"admission": floors} if floors else {})})
    refused, audited = review(body), review(body, AUDITS)
    assert (refused.decision, audited.decision) == ("Refuse", "WouldRefuse")
    response = audited.body["response"]
    assert response["allowed"] is True
    first, *others = response["warnings"]
    assert first == "would be refused (admission.mode is Audit)"
    assert any("needs 5.62 GiB of KV cache per GPU" in line for line in others)


def test_an_object_that_cannot_be_read_is_admitted_with_what_is_wrong(new_review: NewReview) -> None:
    body = new_review({"vllm": {"maxNumSeqs": -1}})
    assert review(body).body["response"]["allowed"] is False
    audited = review(body, AUDITS)
    assert (audited.decision, audited.body["response"]["allowed"]) == ("WouldRefuse", True)
    assert "maxNumSeqs" in audited.body["response"]["warnings"][1]


@pytest.mark.parametrize("spec", [{}, {**TOO_BIG, "admission": {"policy": "Warn"}}])
def test_what_is_not_refused_is_answered_as_ever(new_review: NewReview, spec: dict[str, Any]) -> None:
    assert review(new_review(spec), AUDITS) == review(new_review(spec))


def test_the_controller_renders_it_and_tells_each_change_once() -> None:
    document = a_document()
    document["spec"] |= TOO_BIG
    owner = read_owner(document)
    refused = assess_owner(owner, NO_CONFIG)  # type: ignore[arg-type]
    *_, audited = judgements(owner, NO_CONFIG, audits=True)  # type: ignore[arg-type]
    assert refused.assessment.decision is Decision.REFUSE
    figures = figures_of_verdict(owner, audited.assessment, audited.accelerator)  # type: ignore[arg-type]
    assert not isinstance(figures, NotRendered)
    status, reason, message = accepted(audited.assessment)
    assert (status, reason) == (True, "WouldBeRefused")
    assert message.startswith("would be refused (admission.mode is Audit): ")
    assert audited.assessment.decision.recorded == "AdmitWithWarning", "for other releases, and for the time after"

    def condition(generation: int) -> Condition:
        found = {"type": "Accepted", "status": "True", "reason": reason, "message": message}
        return Condition.from_document(
            {**found, "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": generation}
        )

    first, second = condition(1), condition(2)
    assert [each.reason for each in notices([], [first])] == ["WouldBeRefused"]
    assert not list(notices([first], [first]))
    assert [each.kind for each in notices([first], [second])] == ["Warning"]
