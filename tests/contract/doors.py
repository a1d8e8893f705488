"""The doors: each takes a case's documents and tells what it decided, in the same words."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from click.testing import CliRunner

from kvgate.cli.main import main
from kvgate.webhook.review import INVALID, review


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a door says; None where it does not say it."""

    decision: str
    message: str
    verdict: str | None = None
    reason: str | None = None


Door = Callable[[Path], Outcome]
"""request.yaml → what became of its first InferenceDeployment."""


def command_line(request: Path) -> Outcome:
    """`kvgate check FILE -o json`."""
    result = CliRunner().invoke(main, ["check", str(request), "-o", "json"])
    assert not isinstance(result.exception, Exception), result.output
    answer = json.loads(result.output)["documents"][0]
    findings = "; ".join(f"{f['message']} ({f['remediation']})" for f in answer["findings"])
    message = f"{answer['message']}; {findings}"
    return Outcome(
        verdict=answer["verdict"] or "null", decision=answer["decision"], reason=answer["reason"], message=message
    )


def webhook(request: Path) -> Outcome:
    """The answer to the AdmissionReview of a create; a warning is as good as a message."""
    answer = review(_admission_review(_first_of_ours(request)))
    response = answer.body["response"]
    message = response.get("status", {}).get("message") or "; ".join(response.get("warnings", ()))
    return Outcome(decision="Refuse" if answer.decision == INVALID else answer.decision, message=message)


DOORS: Mapping[str, Door] = {"command_line": command_line, "webhook": webhook}


def _first_of_ours(request: Path) -> dict[str, Any]:
    documents = yaml.safe_load_all(request.read_text(encoding="utf-8"))
    return next(document for document in documents if document["kind"] == "InferenceDeployment")


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
