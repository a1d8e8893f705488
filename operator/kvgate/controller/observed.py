"""What is seen of one InferenceDeployment, and what follows from it: pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kvgate.api.base import Document
from kvgate.api.conditions import ConditionType, Reason
from kvgate.api.v1alpha1 import InferenceDeployment, KeyRef
from kvgate.api.validation import InvalidDocument, parse_document
from kvgate.budget.accelerator import Accelerator
from kvgate.budget.calibration import NOTHING_OBSERVED, Calibration
from kvgate.engine import Assessment, assess
from kvgate.facts import ConfigMissing, gather, text_of_key
from kvgate.rendering.drift import carries
from kvgate.rendering.labels import HASH_ANNOTATION, is_owned_by
from kvgate.rendering.observation import Observation
from kvgate.rendering.status import Before, Obstacle, invalid_status, status_of
from kvgate.rendering.workload import Manifests, NotRendered, render

NO_CONFIG = ConfigMissing(message="", remediation="")
"""For specs that ask for none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Observed:
    """One object and its children, as the API server has them."""

    document: Document
    owner: InferenceDeployment | InvalidDocument
    config: str | ConfigMissing = NO_CONFIG
    """What stands behind configFrom."""
    deployment: Document | None = None
    service: Document | None = None

    @property
    def uid(self) -> str:
        return str(self.document["metadata"]["uid"])

    @property
    def own_deployment(self) -> Document | None:
        """Of that name and ours."""
        return self.deployment if self.deployment and is_owned_by(self.deployment, self.uid) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """An assessment, and the accelerator that the pods go to."""

    assessment: Assessment
    accelerator: Accelerator | None
    calibration_revision: int
    """The newest observed start that it knew of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Intent:
    """What is to be done, and what the status will say of it."""

    owner: InferenceDeployment | InvalidDocument
    judged: Judged | None = None
    """None for an object that cannot be read."""
    left_out: NotRendered | None = None
    obstacle: Obstacle | None = None
    template_hash: str = ""
    """Of the pods that are wanted; empty where nothing is rendered."""
    deployment: Document | None = None
    """To be applied; None where the cluster carries it already or nothing is rendered."""
    service: Document | None = None

    @property
    def pending(self) -> bool:
        return self.deployment is not None or self.service is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Awaited:
    """What may come without a change of anything that is watched; another generation waits anew."""

    uid: str
    generation: int
    message: str


def awaited_by(observed: Observed, intent: Intent) -> Awaited | None:
    """A ConfigMap that is to come, or a name that somebody may give back."""
    config, obstacle = observed.config, intent.obstacle
    if isinstance(config, ConfigMissing) and config is not NO_CONFIG:
        message = config.message
    elif obstacle is not None and obstacle.reason is Reason.NAME_TAKEN:
        message = obstacle.message
    else:
        return None
    return Awaited(uid=observed.uid, generation=observed.document["metadata"].get("generation", 1), message=message)


def read_owner(document: Document) -> InferenceDeployment | InvalidDocument:
    """The object as its owner wrote it, or why it cannot be read."""
    try:
        return parse_document(document)
    except InvalidDocument as invalid:
        return invalid


def config_reference(owner: InferenceDeployment | InvalidDocument) -> KeyRef | None:
    """The ConfigMap key to read before judging."""
    if isinstance(owner, InvalidDocument) or owner.spec.model.config_from is None:
        return None
    return owner.spec.model.config_from.config_map_key_ref


def config_text(reference: KeyRef, config_map: Mapping[str, Any] | None) -> str | ConfigMissing:
    """The text of the key, or what is missing."""
    if config_map is None:
        return ConfigMissing(
            message=f"ConfigMap {reference.name} does not exist", remediation="create it in the same namespace"
        )
    return text_of_key(reference, config_map.get("data") or {}, names_keys=False)


def pinned_revision(document: Document) -> int | None:
    """What was known of observed starts when this generation was accepted; None where it may be judged by the newest.

    A verdict stands for its generation: else an engine's own report would change the prediction that it is held against, and
    under policy Adjust restart the engine.
    """  # fmt: skip
    status = document.get("status") or {}
    accepted = {"type": ConditionType.ACCEPTED.value, "status": "False"}
    refused = any(accepted.items() <= condition.items() for condition in status.get("conditions", ()))
    if refused or status.get("observedGeneration") != document["metadata"].get("generation"):
        return None
    revision = status.get("calibrationRevision", 0)
    return revision if isinstance(revision, int) else 0


def assess_owner(
    owner: InferenceDeployment, config: str | ConfigMissing, calibration: Calibration = NOTHING_OBSERVED
) -> Judged:
    """The one engine, with the facts of the cluster."""
    facts = gather(owner.spec, lambda _: config, calibration)
    return Judged(
        assessment=assess(owner.spec, facts, skip_reason=owner.skip_reason),
        accelerator=facts.accelerator,
        calibration_revision=calibration.revision,
    )


def decide(observed: Observed, judged: Judged | None) -> Intent:
    """Only what differs is applied; what belongs to somebody else is left alone."""
    owner = observed.owner
    if isinstance(owner, InvalidDocument) or judged is None:
        return Intent(owner=owner)
    rendered = render(owner, judged.assessment, judged.accelerator)
    if isinstance(rendered, NotRendered):
        return Intent(owner=owner, judged=judged, left_out=rendered)
    template = rendered.deployment["spec"]["template"]["metadata"]
    intent = Intent(owner=owner, judged=judged, template_hash=template["annotations"][HASH_ANNOTATION])
    foreign = [
        str(wanted["kind"])
        for live, wanted in _pairs(observed, rendered)
        if live is not None and not is_owned_by(live, observed.uid)
    ]
    if foreign:
        message = f"{' and '.join(foreign)} {owner.name} belong to somebody else; rename one or the other"
        return replace(intent, obstacle=Obstacle(reason=Reason.NAME_TAKEN, message=message))
    return replace(
        intent,
        deployment=_due(observed.deployment, rendered.deployment),
        service=_due(observed.service, rendered.service),
    )


def _pairs(observed: Observed, rendered: Manifests) -> tuple[tuple[Document | None, Document], ...]:
    return (observed.deployment, rendered.deployment), (observed.service, rendered.service)


def _due(live: Document | None, wanted: Document) -> Document | None:
    """None where nothing is to be done; a child on its way out is waited for."""
    if live is not None and ("deletionTimestamp" in live["metadata"] or carries(live, wanted)):
        return None
    return wanted


def status_after(
    intent: Intent, *, name: str, deployment: Document | None, before: Before, observation: Observation | None
) -> Document:
    """The status once the intent was acted upon; the observation is None until the pods were looked at."""
    if isinstance(intent.owner, InvalidDocument) or intent.judged is None:
        findings = intent.owner.findings if isinstance(intent.owner, InvalidDocument) else ()
        return invalid_status(name, findings, deployment=deployment, before=before, observation=observation)
    return status_of(
        intent.owner,
        intent.judged.assessment,
        calibration_revision=intent.judged.calibration_revision,
        left_out=intent.left_out,
        obstacle=intent.obstacle,
        deployment=deployment,
        before=before,
        observation=observation,
        template_hash=intent.template_hash,
    )
