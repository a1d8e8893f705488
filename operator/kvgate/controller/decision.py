"""The observed state of one InferenceDeployment, and what follows from it: pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

from kvgate.api.base import Document, KeyRef
from kvgate.api.conditions import ConditionType, Reason
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.api.validation import InvalidDocument, parse_document
from kvgate.budget.calibration import NOTHING_OBSERVED, Calibration
from kvgate.budget.hardware import Accelerator
from kvgate.judge.assess import Assessment, assessments, undecided
from kvgate.judge.facts import ConfigMissing, Facts, gather, look_up_accelerator, text_of_key
from kvgate.rendering.drift import additions, differences
from kvgate.rendering.labels import HASH_ANNOTATION, is_owned_by
from kvgate.rendering.observation import Observation
from kvgate.rendering.standing import Admitted, config_digest, renewed, standing_of, with_budget
from kvgate.rendering.status import Obstacle, PreviousStatus, invalid_status, status_of
from kvgate.rendering.workload import NotRendered, Rendered, figures_of_verdict, manifests

NO_CONFIG = ConfigMissing(message="", remediation="")
"""Value for specs without configFrom."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Situation:
    """One object and its children, as the API server has them."""

    document: Document
    owner: InferenceDeployment | InvalidDocument
    config: str | ConfigMissing = NO_CONFIG
    """Text behind configFrom."""
    deployment: Document | None = None
    service: Document | None = None
    standing: Admitted | None = None
    """The spec that was admitted last, as far as it is known."""

    @property
    def stands(self) -> bool:
        """The present spec is the one that was admitted last: nothing is asked anew."""
        if self.standing is None or isinstance(self.owner, InvalidDocument):
            return False
        generation = self.document["metadata"].get("generation", 1)
        return self.standing.is_of(self.owner, generation, config_digest(self.config))

    @property
    def calibration_revision(self) -> int | None:
        """Revision of observed starts at the admission of this spec; None where the newest may be used.

        A verdict stands for its spec: else an engine's own report would change the prediction that it is held against, and under
        policy Adjust restart the engine.
        """
        if self.standing is None:
            return pinned_revision(self.document)
        return (self.standing.record.calibration_revision or 0) if self.stands else None

    @property
    def uid(self) -> str:
        return str(self.document["metadata"]["uid"])

    @property
    def own_deployment(self) -> Document | None:
        """The Deployment of that name, if it is ours."""
        return self.deployment if self.deployment and is_owned_by(self.deployment, self.uid) else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    """An assessment, and the accelerator that the pods go to."""

    assessment: Assessment
    accelerator: Accelerator | None
    calibration_revision: int
    """The newest observed start that it knew of."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChildChange:
    """Wanted state of a child, and its differences."""

    wanted: Document
    differs: tuple[str, ...] = ()
    """Paths of what is missing or other: it is applied. `MISSING` where there is no child."""
    added: tuple[str, ...] = ()
    """JSON pointers of what others added: it is removed."""

    @property
    def difference(self) -> tuple[str, ...]:
        """Key by which the same change is recognised."""
        return (self.wanted["metadata"]["annotations"][HASH_ANNOTATION], *self.differs, *self.added)

    def left_in(self, live: Document) -> "ChildChange":
        """Return the differences that are left after the change."""
        return ChildChange(wanted=self.wanted, differs=_differs(live, self.wanted), added=additions(live, self.wanted))


@dataclass(frozen=True, kw_only=True, slots=True)
class Intent:
    """Work that is to be done, and what the status will say about it."""

    owner: InferenceDeployment | InvalidDocument
    judged: Judged | None = None
    """None for an object that cannot be read."""
    left_out: NotRendered | None = None
    """Reason why the present spec is not rendered."""
    admitted: Admitted | None = None
    """The spec that is rendered: the present one, or the last one that was admitted."""
    is_kept: bool = False
    """The present spec had been admitted before, and its verdict stands."""
    obstacle: Obstacle | None = None
    drift: str = ""
    """Difference that stays, because it comes back after each correction."""
    template_hash: str = ""
    """Hash of the wanted pods; empty where nothing is rendered."""
    deployment: ChildChange | None = None
    """To be done; None where the cluster carries it already or nothing is rendered."""
    service: ChildChange | None = None

    @property
    def pending(self) -> bool:
        return self.deployment is not None or self.service is not None


@dataclass(frozen=True, kw_only=True, slots=True)
class Awaited:
    """Event that no watch reports; another generation waits anew."""

    uid: str
    generation: int
    message: str


def awaited_by(situation: Situation, intent: Intent) -> Awaited | None:
    """A ConfigMap that is to come, or a name that somebody may give back."""
    config, obstacle = situation.config, intent.obstacle
    if isinstance(config, ConfigMissing) and config is not NO_CONFIG:
        message = config.message
    elif obstacle is not None and obstacle.reason is Reason.NAME_TAKEN:
        message = obstacle.message
    else:
        return None
    return Awaited(uid=situation.uid, generation=situation.document["metadata"].get("generation", 1), message=message)


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
    """The same of a status without a record of what stands: an earlier release wrote it, or somebody edited the record."""
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
    *_, last = judgements(owner, config, calibration)
    return last


def judgements(
    owner: InferenceDeployment, config: str | ConfigMissing, calibration: Calibration = NOTHING_OBSERVED
) -> Iterator[Judged]:
    """That there is no verdict yet, then the verdict, then what would fit; each stands if there is no time for the next."""
    accelerator, findings = look_up_accelerator(owner.spec.accelerator.type)

    def judged(assessment: Assessment) -> Judged:
        return Judged(assessment=assessment, accelerator=accelerator, calibration_revision=calibration.revision)

    nothing_read = Facts(shape=None, accelerator=accelerator, findings=findings)
    yield judged(undecided(owner.spec, nothing_read, skip_reason=owner.skip_reason))
    facts = gather(owner.spec, lambda _: config, calibration)
    yield from map(judged, assessments(owner.spec, facts, skip_reason=owner.skip_reason))


def decide(situation: Situation, judged: Judged | None) -> Intent:
    """The present spec where it is admitted, else the last one that was; only what differs is changed, and nothing of somebody else's."""
    intent = _verdict(situation, judged)
    owner = _rendered_owner(situation, intent)
    if intent.admitted is None or owner is None:
        return intent
    rendered = manifests(owner, intent.admitted.figures)
    template = rendered.deployment["spec"]["template"]["metadata"]
    intent = replace(intent, template_hash=template["annotations"][HASH_ANNOTATION])
    foreign = [
        str(wanted["kind"])
        for live, wanted in _pairs(situation, rendered)
        if live is not None and not is_owned_by(live, situation.uid)
    ]
    if foreign:
        message = f"{' and '.join(foreign)} {owner.name} belong to somebody else; rename one or the other"
        return replace(intent, obstacle=Obstacle(reason=Reason.NAME_TAKEN, message=message))
    return replace(
        intent,
        deployment=_due(situation.deployment, rendered.deployment),
        service=_due(situation.service, rendered.service),
    )


def _verdict(situation: Situation, judged: Judged | None) -> Intent:
    """Return the admitted spec, or the reason why the present one is not admitted."""
    owner, standing = situation.owner, situation.standing
    if isinstance(owner, InvalidDocument) or judged is None:
        return Intent(owner=owner, admitted=with_budget(standing) if standing else None)
    if standing is not None and situation.stands:
        return Intent(owner=owner, judged=judged, admitted=renewed(standing, situation.document), is_kept=True)
    figures = figures_of_verdict(owner, judged.assessment, judged.accelerator)
    if isinstance(figures, NotRendered):
        admitted = with_budget(standing) if standing else None
        return Intent(owner=owner, judged=judged, left_out=figures, admitted=admitted)
    admitted = standing_of(
        situation.document, owner, judged.assessment, figures,
        calibration_revision=judged.calibration_revision, config=situation.config,
    )  # fmt: skip
    return Intent(owner=owner, judged=judged, admitted=admitted)


def _rendered_owner(situation: Situation, intent: Intent) -> InferenceDeployment | None:
    """The object as it is rendered: an earlier spec has as many replicas as the present one asks for."""
    if intent.left_out is None and not isinstance(intent.owner, InvalidDocument):
        return intent.owner if intent.judged else None
    spec = situation.document.get("spec")
    replicas = spec.get("replicas") if isinstance(spec, Mapping) else None
    return intent.admitted.scaled(replicas) if intent.admitted else None


def _pairs(situation: Situation, rendered: Rendered) -> tuple[tuple[Document | None, Document], ...]:
    return (situation.deployment, rendered.deployment), (situation.service, rendered.service)


def _due(live: Document | None, wanted: Document) -> ChildChange | None:
    """None where nothing is to be done; a child on its way out is waited for."""
    if live is None:
        return ChildChange(wanted=wanted, differs=(MISSING,))
    if "deletionTimestamp" in live["metadata"]:
        return None
    change = ChildChange(wanted=wanted, differs=_differs(live, wanted), added=additions(live, wanted))
    return change if change.differs or change.added else None


MISSING = "all of it"
"""The path that differs where there is no child: it may be made again as often as it is deleted."""
_MAX_PATHS = 8
"""Paths that are named of a child that differs."""


def _differs(live: Document, wanted: Document) -> tuple[str, ...]:
    return tuple(islice(differences(live, wanted), _MAX_PATHS))


def status_after(
    intent: Intent, *, name: str, deployment: Document | None, before: PreviousStatus, observation: Observation | None
) -> Document:
    """The status once the intent was acted upon; the observation is None until the pods were looked at."""
    if isinstance(intent.owner, InvalidDocument) or intent.judged is None:
        findings = intent.owner.findings if isinstance(intent.owner, InvalidDocument) else ()
        return invalid_status(
            name, findings, deployment=deployment, before=before, observation=observation, template_hash=intent.template_hash,
            obstacle=intent.obstacle, admitted=intent.admitted, drift=intent.drift,
        )  # fmt: skip
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
        admitted=intent.admitted,
        is_kept=intent.is_kept,
        drift=intent.drift,
    )
