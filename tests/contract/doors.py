"""The doors: each takes a case's documents and tells what it decided, in the same words."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from kvgate.api.base import KeyRef
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.controller import decision as pure
from kvgate.rendering.status import previous_status
from kvgate.webhook.review import INVALID, review
from support.command_line import invoked

NOW = "2026-11-21T12:00:00Z"


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a door says; None where it does not say it."""

    decision: str
    message: str
    verdict: str | None = None
    reason: str | None = None
    effective: Mapping[str, Any] | None = None


Door = Callable[[Path], Outcome]
"""request.yaml → what became of its first InferenceDeployment."""


def command_line(request: Path) -> Outcome:
    """`kvgate check FILE -o json`."""
    result = invoked("check", str(request), "-o", "json")
    answer = json.loads(result.output)["documents"][0]
    findings = "; ".join(f"{f['message']} ({f['remediation']})" for f in answer["findings"])
    admission = answer["admission"]
    message = f"{admission['message']}; {findings}"
    return Outcome(
        verdict=answer["verdict"] or "null",
        decision=admission["decision"],
        reason=admission["reason"],
        message=message,
        effective=admission["effective"],
    )


def webhook(request: Path) -> Outcome:
    """The answer to the AdmissionReview of a create; a warning is as good as a message."""
    answer = review(_admission_review(_first_of_ours(request)), now=datetime.fromisoformat(NOW))
    response = answer.body["response"]
    message = response.get("status", {}).get("message") or "; ".join(response.get("warnings", ()))
    return Outcome(decision="Refuse" if answer.decision == INVALID else answer.decision, message=message)


def controller(request: Path) -> Outcome:
    """What a reconcile decides and writes into the condition Accepted; the webhook is not asked."""
    document = _first_of_ours(request)
    document["metadata"] |= {"uid": "00000000-0000-0000-0000-000000000001", "generation": 1}
    owner = pure.read_owner(document)
    reference = pure.config_reference(owner)
    config = pure.config_text(reference, _config_map(request, reference)) if reference else pure.NO_CONFIG
    situation = pure.Situation(document=document, owner=owner, config=config, now=datetime.fromisoformat(NOW))
    judged = pure.assess_owner(owner, config, skip=situation.skip) if isinstance(owner, InferenceDeployment) else None
    intent = pure.decide(situation, judged)
    status = pure.status_after(
        intent,
        name=document["metadata"]["name"],
        deployment=None,
        before=previous_status(document, NOW),
        observation=None,
    )
    accepted = next(condition for condition in status["conditions"] if condition["type"] == "Accepted")
    decision = judged.assessment.decision.value if judged else "Refuse"
    assert intent.pending == (decision != "Refuse" and judged is not None and judged.accelerator is not None)
    return Outcome(
        verdict=judged.assessment.verdict.value if judged else None,
        decision=decision,
        reason=accepted["reason"],
        message=accepted["message"],
        effective=status.get("effective"),
    )


DOORS: Mapping[str, Door] = {"command_line": command_line, "webhook": webhook, "controller": controller}


def _documents(request: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(request.read_text(encoding="utf-8")))


def _first_of_ours(request: Path) -> dict[str, Any]:
    return next(document for document in _documents(request) if document["kind"] == "InferenceDeployment")


def _config_map(request: Path, reference: KeyRef) -> dict[str, Any] | None:
    maps = (document for document in _documents(request) if document["kind"] == "ConfigMap")
    return next((found for found in maps if found["metadata"]["name"] == reference.name), None)


def _admission_review(document: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "00000000-0000-0000-0000-000000000001",
            "operation": "CREATE",
            "kind": {"group": "kvgate.io", "version": "v1alpha1", "kind": "InferenceDeployment"},
            "resource": {"group": "kvgate.io", "version": "v1alpha1", "resource": "inferencedeployments"},
            "namespace": document["metadata"]["namespace"],
            "name": document["metadata"]["name"],
            "object": document,
        },
    }
