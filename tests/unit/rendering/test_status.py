"""The status document, from an assessment and what is seen of the pods."""

from typing import Any

import pytest

from kvgate.api.conditions import Reason
from kvgate.api.status import InferenceDeploymentStatus
from kvgate.api.validation import InvalidDocument, parse_document
from kvgate.controller.observed import assess_owner
from kvgate.rendering.status import Obstacle, before, halted_status, invalid_status, is_changed, status_of
from kvgate.rendering.workload import NotRendered, render
from support.manifests import NOW, a_deployment, a_document, an_owner

LATER = "2026-11-21T13:00:00Z"
TOO_MANY = {"maxNumSeqs": 64}


def status(
    deployment: dict[str, Any] | None = None, *, previous: dict[str, Any] | None = None, now: str = NOW,
    obstacle: Obstacle | None = None, **spec: Any,
) -> dict[str, Any]:  # fmt: skip
    document = a_document(**spec) | ({"status": previous} if previous else {})
    owner = an_owner(**spec)
    judged = assess_owner(owner, "")
    rendered = render(owner, judged.assessment, judged.accelerator)
    found = status_of(
        owner, judged.assessment, left_out=rendered if isinstance(rendered, NotRendered) else None, obstacle=obstacle,
        deployment=deployment, before=before(document, now),
    )  # fmt: skip
    InferenceDeploymentStatus.model_validate(found)
    return found


def conditions(found: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {c["type"]: (c["status"], c["reason"]) for c in found["conditions"]}


@pytest.mark.parametrize(
    ("deployment", "ready", "reconciling", "stalled"),
    [
        (None, ("False", "ReplicasNotReady"), ("True", "RollingOut"), "False"),
        (a_deployment(), ("True", "ReplicasReady"), ("False", "UpToDate"), "False"),
        (a_deployment(available=1), ("False", "ReplicasNotReady"), ("True", "RollingOut"), "False"),
        (a_deployment(updated=1), ("False", "ReplicasNotReady"), ("True", "RollingOut"), "False"),
        (a_deployment(observed=0), ("False", "ReplicasNotReady"), ("True", "RollingOut"), "False"),
        (a_deployment(existing=3), ("False", "ReplicasNotReady"), ("True", "RollingOut"), "False"),
        (
            a_deployment(available=0, stuck="has timed out"),
            ("False", "ReplicasNotReady"),
            ("False", "ProgressDeadlineExceeded"),
            "True",
        ),
        (
            a_deployment(wanted=0, existing=0, available=0, updated=0),
            ("True", "ReplicasReady"),
            ("False", "UpToDate"),
            "False",
        ),
    ],
)
def test_the_rollout_is_told_in_three_conditions(
    deployment: dict[str, Any] | None, ready: tuple[str, str], reconciling: tuple[str, str], stalled: str
) -> None:
    told = conditions(status(deployment, replicas=2))
    assert (told["Ready"], told["Reconciling"], told["Stalled"][0]) == (ready, reconciling, stalled)


def test_a_refusal_keeps_the_effective_values_of_what_still_runs() -> None:
    old = status(a_deployment())
    refused = status(a_deployment(), previous=old, vllm=TOO_MANY)
    told = conditions(refused)
    assert told["Accepted"] == ("False", "BudgetExceeded")
    assert told["Stalled"] == ("True", "BudgetExceeded")
    assert told["Ready"] == ("False", "NotRendered")
    assert told["Adjusted"] == ("False", "NotRendered")
    assert refused["effective"] == old["effective"]
    assert refused["budget"]["verdict"] == "DoesNotFit"
    assert refused["budget"]["headroomBytes"]["high"] < 0


def test_an_adjustment_shows_the_budget_of_what_is_rendered() -> None:
    adjusted = status(vllm=TOO_MANY, admission={"policy": "Adjust"})
    assert conditions(adjusted)["Adjusted"] == ("True", "Adjusted")
    assert adjusted["effective"]["maxNumSeqs"] == 9
    assert adjusted["budget"]["verdict"] == "Fits"


def test_the_break_glass_reason_is_a_condition() -> None:
    found = status(vllm=TOO_MANY, annotations={"kvgate.io/skip-budget": "because"})
    assert conditions(found)["Accepted"] == ("True", "BudgetSkipped")
    assert found["effective"]["maxNumSeqs"] == 64


def test_an_unknown_model_has_no_budget_and_says_why() -> None:
    found = status(model={"name": "nobody/x"})
    assert conditions(found)["Accepted"] == ("Unknown", "UnknownModel")
    assert conditions(found)["Predicted"] == ("False", "UnknownModel")
    assert "budget" not in found


def test_an_obstacle_stalls_without_changing_the_verdict() -> None:
    told = conditions(status(obstacle=Obstacle(reason=Reason.API_FORBIDDEN, message="no")))
    assert told["Accepted"] == ("True", "Fits")
    assert told["Stalled"] == ("True", "ApiForbidden")


def test_seeing_the_same_again_changes_nothing() -> None:
    first = status(a_deployment(), replicas=2)
    again = status(a_deployment(), replicas=2, previous=first, now=LATER)
    assert again == first
    assert not is_changed(before({"metadata": {}, "status": first | {"observed": {"by": "others"}}}, LATER), again)


def test_a_transition_time_moves_with_the_status_alone() -> None:
    first = status(replicas=2)
    second = status(a_deployment(available=1), replicas=2, previous=first, now=LATER)
    third = status(a_deployment(), replicas=2, previous=second, now=LATER)
    times = [{c["type"]: c["lastTransitionTime"] for c in found["conditions"]} for found in (second, third)]
    assert times[0]["Ready"] == NOW
    assert times[1]["Ready"] == LATER
    assert times[1]["Accepted"] == NOW
    assert is_changed(before({"metadata": {}, "status": first}, LATER), second)


def test_an_object_that_cannot_be_read_is_told_every_finding() -> None:
    document = a_document(vllm={"maxModelLen": "x", "maxNumSeqs": "y"})
    with pytest.raises(InvalidDocument) as invalid:
        parse_document(document)
    found = invalid_status("qwen", invalid.value.findings, deployment=a_deployment(), before=before(document, NOW))
    InferenceDeploymentStatus.model_validate(found)
    accepted = next(c for c in found["conditions"] if c["type"] == "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "InvalidSpec")
    assert "maxModelLen" in accepted["message"]
    assert "maxNumSeqs" in accepted["message"]
    assert found["readyReplicas"] == 2


def test_a_halt_keeps_what_was_said_before() -> None:
    first = status(a_deployment(), replicas=2)
    state = before(a_document() | {"status": first}, LATER)
    halted = halted_status(Obstacle(reason=Reason.API_FORBIDDEN, message="no"), state)
    assert conditions(halted)["Stalled"] == ("True", "ApiForbidden")
    assert conditions(halted)["Accepted"] == ("True", "Fits")
    assert halted["budget"] == first["budget"]


def test_conditions_that_cannot_be_read_are_written_anew() -> None:
    found = status(previous={"conditions": [{"type": "Accepted"}]})
    assert conditions(found)["Accepted"] == ("True", "Fits")
