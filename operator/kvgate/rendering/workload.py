"""The Deployment and the Service of an InferenceDeployment, from its spec and the figures of its verdict, or why there are none."""

from msgspec import Struct

from kvgate.api.base import Document
from kvgate.api.conditions import Reason
from kvgate.api.status import Effective, Placement
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.budget import Accelerator
from kvgate.judge.assess import effective_values
from kvgate.judge.assessment import Assessment, Decision
from kvgate.judge.summary import accepted
from kvgate.rendering.labels import PREDICTED_TOKENS_ANNOTATION, hashed, metadata, selector
from kvgate.rendering.pod import PORT, image_of, load_budget_seconds, placement_of, pod_template
from kvgate.rules.facts import UNKNOWN_ACCELERATOR


def service(owner: InferenceDeployment) -> Document:
    """Return the Service `http://NAME.NAMESPACE:8000`. Its port states TCP, because server-side apply would list it twice without."""
    port = {"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}
    return hashed({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(owner),
        "spec": {"selector": selector(owner.name), "ports": [port]},
    })  # fmt: skip


ROLLOUT_SLACK_SECONDS = 600
"""Time on top of the load budget for scheduling the pod and pulling the image."""


class NotRendered(Struct, frozen=True, kw_only=True):
    """The reason why nothing is rendered; pods that run already keep running."""

    reason: Reason
    message: str
    is_waiting: bool = False
    """True where kvgate itself ends this soon: nothing is wrong with the spec."""


class Rendered(Struct, frozen=True, kw_only=True):
    """The manifests of one InferenceDeployment."""

    deployment: Document
    service: Document


class PodFigures(Struct, frozen=True, kw_only=True):
    """All that the rendering needs beside the spec."""

    effective: Effective
    placement: Placement
    load_seconds: int
    predicted_tokens: int | None


def render(
    owner: InferenceDeployment, assessment: Assessment, accelerator: Accelerator | None
) -> Rendered | NotRendered:
    """Render a spec with the figures of this verdict."""
    figures = figures_of_verdict(owner, assessment, accelerator)
    return figures if isinstance(figures, NotRendered) else rendered(owner, figures)


def figures_of_verdict(
    owner: InferenceDeployment, assessment: Assessment, accelerator: Accelerator | None
) -> PodFigures | NotRendered:
    """Return the figures of a verdict. An unknown model is rendered as written; pods for an unknown GPU cannot be placed."""
    if assessment.decision is Decision.REFUSE:
        _, reason, message = accepted(assessment)
        return NotRendered(reason=reason, message=message)
    if accelerator is None:
        finding = next(f for f in assessment.findings if f.rule == UNKNOWN_ACCELERATOR)
        return NotRendered(reason=Reason.UNKNOWN_ACCELERATOR, message=f"{finding.message}; {finding.remediation}")
    if image_of(owner.spec, accelerator.vendor) is None:
        message = f"vLLM publishes no image for {accelerator.vendor} accelerators; set spec.vllm.image"
        return NotRendered(reason=Reason.NOT_RENDERED, message=message)
    return PodFigures(
        effective=effective_values(owner.spec, assessment),
        placement=placement_of(owner.spec, accelerator),
        load_seconds=load_budget_seconds(assessment.effective),
        predicted_tokens=predicted_tokens(assessment),
    )


def rendered(owner: InferenceDeployment, figures: PodFigures) -> Rendered:
    """Return the manifests that run the spec with these figures."""
    template = pod_template(
        owner,
        image=image_of(owner.spec, figures.placement.vendor) or "",
        placement=figures.placement,
        effective=figures.effective,
        load_seconds=figures.load_seconds,
    )
    tokens = figures.predicted_tokens
    annotations = {} if tokens is None else {"annotations": {PREDICTED_TOKENS_ANNOTATION: str(tokens)}}
    deployment = hashed({
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {**metadata(owner), **annotations},
        "spec": {
            "replicas": owner.spec.replicas,
            "selector": {"matchLabels": selector(owner.name)},
            "revisionHistoryLimit": 3,
            "progressDeadlineSeconds": figures.load_seconds + ROLLOUT_SLACK_SECONDS,
            "strategy": {  # there are no spare GPUs for a surge
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1},
            },
            "template": template,
        },
    })  # fmt: skip
    return Rendered(deployment=deployment, service=service(owner))


def predicted_tokens(assessment: Assessment) -> int | None:
    """Return the expected size of the KV cache in tokens; None where it could not be computed."""
    budget = assessment.effective
    return budget.num_tokens.expected if budget and budget.num_tokens else None
