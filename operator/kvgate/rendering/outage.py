"""The warning before an edit that replaces pods, where a rollout leaves too few of them. Pure."""

from typing import Any

from pydantic import ValidationError

from kvgate.api.status import Effective
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.api.validation import InvalidDocument, parse_document
from kvgate.judgement.assess import effective_values
from kvgate.judgement.assessment import Assessment
from kvgate.judgement.replicas import missing_in_rollout, replicas_needed
from kvgate.rendering.workload import image_of, load_budget_seconds, placement_of, pod_template


def outage_warning(old: Any, deployment: InferenceDeployment, assessment: Assessment) -> str:
    """Return the warning about an edit; empty where it replaces no pod, or leaves as many replicas as are needed.

    `old` is the object before the edit, with the values in its status that its pods were rendered from.
    """
    spec = deployment.spec
    left = spec.replicas - missing_in_rollout(spec)
    needed = max(1, replicas_needed(spec, assessment.effective))
    if not spec.wanted_replicas or left >= needed or not _replaces_pods(old, deployment, assessment):
        return ""
    wait = f"up to {load_budget_seconds(assessment.effective) // 60} minutes"
    if left:
        effect = f"while it rolls out, {left} of {spec.replicas} replicas run, and the workload needs {needed}"
    else:
        effect = f"no replica answers until the model is loaded, {wait}"
    return f"this edit replaces pods: {effect}; maxSurge 1 with a free GPU, or more replicas, avoid that"


def _replaces_pods(old: Any, deployment: InferenceDeployment, assessment: Assessment) -> bool:
    """Return whether the pods would be rendered otherwise than before; False where the object had none."""
    try:
        before = parse_document(old)
        effective = old["status"]["effective"]
        ran = Effective.from_document({name: value for name, value in effective.items() if name != "chosen"})
    except (InvalidDocument, ValidationError, KeyError, TypeError, AttributeError):
        return False
    if not before.spec.wanted_replicas or assessment.effective is None:
        return False
    if before.spec.accelerator != deployment.spec.accelerator:
        return True
    accelerator, seconds = assessment.effective.request.accelerator, load_budget_seconds(assessment.effective)
    was, becomes = (
        pod_template(
            owner, image=image_of(owner.spec, accelerator.vendor) or "", placement=placement_of(owner.spec, accelerator),
            effective=values, load_seconds=seconds,
        )
        for owner, values in ((before, ran), (deployment, effective_values(deployment.spec, assessment)))
    )  # fmt: skip
    return was != becomes
