"""The decision about one InferenceDeployment: the situation in the cluster, and the changes and the status that follow. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvgate.api.allowed import NOTHING_ALLOWED, AllowedPods, parse_allowed
from kvgate.api.base import Document, KeyRef
from kvgate.api.conditions import Reason
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.api.validation import InvalidDocument
from kvgate.budget import NOTHING_OBSERVED, Accelerator, Calibration, Verdict
from kvgate.checkpoint.published import NO_MODELS, PublishedModels
from kvgate.controller.adopting import changes_of, obstacle_to
from kvgate.controller.resolution import Resolution
from kvgate.judgement.assess import assessments, undecided
from kvgate.judgement.assessment import Assessment, Confidence, Decision
from kvgate.judgement.facts import ConfigMissing, Facts, gather, look_up_accelerator, text_of_key
from kvgate.judgement.replicas import replicas_needed
from kvgate.judgement.skipping import Skip, skip_of
from kvgate.nodes.offer import Offer, findings_of, offered, with_decided
from kvgate.rendering.admission import Admitted, Lost, admitted_now, config_digest
from kvgate.rendering.adoption import wants_adoption, with_selector_of
from kvgate.rendering.drift import Drift, drift_of
from kvgate.rendering.earlier_formats import earlier_template
from kvgate.rendering.hindrances import Hindrance
from kvgate.rendering.labels import HASH_ANNOTATION, PassedOn, is_owned_by, was_ours
from kvgate.rendering.live_deployment import additions, annotated, as_it_runs, differences, held, replaced_by
from kvgate.rendering.observation import Observation, Obstacle, Statement, rollout_of
from kvgate.rendering.recalibration import recalibrated, recalibrated_from, taking_over
from kvgate.rendering.rollout import disruption_budget
from kvgate.rendering.status import PreviousStatus, invalid_status, status_of
from kvgate.rendering.workload import NotRendered, figures_of_verdict, rendered
from kvgate.statement.deployment import gpu_name, statement_of

Key = tuple[str, str]
"""(namespace, name) of an InferenceDeployment."""


def key_of(document: Document) -> Key:
    return document["metadata"]["namespace"], document["metadata"]["name"]


NO_CONFIG = ConfigMissing(message="", remediation="")
MISSING = "all of it"
"""The path that differs where there is no child. A missing child is made again as often as somebody deletes it."""
_MAX_PATHS = 8
"""Most paths that are named of a child that differs."""


class Situation(Struct, frozen=True, kw_only=True):
    """One InferenceDeployment and its children, as the API server has them."""

    document: Document
    owner: InferenceDeployment | InvalidDocument
    config: str | ConfigMissing = NO_CONFIG
    deployment: Document | None = None
    service: Document | None = None
    budget: Document | None = None
    """The PodDisruptionBudget of this name."""
    standing: Admitted | None = None
    """The spec that was admitted last, if its record is known."""
    lost: Lost | None = None
    """The Deployment's own statement about a record that is gone."""
    recalibrated: object = None
    """Today's prediction as the status has it, or as this process wrote it last."""
    offer: Offer | None = None
    """The GPUs that the nodes have for the spec; None where nodes are not watched, or not listed yet."""
    resolution: Resolution | None = None
    """The state of the models that the catalogue lacks; None where the hub is not asked for any."""
    passed_on: PassedOn = PassedOn()
    is_under_way: bool = False
    """True where an edit was admitted, and a run could not change the pods yet."""
    now: datetime = datetime.min.replace(tzinfo=UTC)
    """The time by which a break glass has ended or not; without it none has."""
    max_skip_days: int = 0
    """Days for which a break glass may last; 0: for ever."""

    @property
    def models(self) -> PublishedModels:
        return PublishedModels(fetched=self.resolution.models) if self.resolution else NO_MODELS

    @property
    def stands(self) -> bool:
        """True where the present spec is the one that was admitted last; its verdict then stands."""
        if self.standing is None or isinstance(self.owner, InvalidDocument):
            return False
        return self.standing.is_of(self.owner, config_digest(self.config))

    @property
    def judged_owner(self) -> InferenceDeployment | InvalidDocument:
        """The object to judge.

        A verdict that stands was given for the replicas of its admission, and scaling changes nothing in it. Where it was given on an
        assumption, the next one is about the sequences that run.
        """
        standing, owner = self.standing, self.owner
        if standing is None or standing.owner is None or isinstance(owner, InvalidDocument) or not self.stands:
            return owner
        update: dict[str, object] = {"replicas": standing.owner.spec.replicas}
        if standing.record.model_assumed and owner.spec.vllm.max_num_seqs is None:
            running = {"max_num_seqs": standing.record.effective.max_num_seqs}
            update["vllm"] = owner.spec.vllm.model_copy(update=running)
        return owner.model_copy(update={"spec": owner.spec.model_copy(update=update)})

    @property
    def skip_now(self) -> Skip | None:
        """The break-glass annotation as it would count for another spec."""
        return None if isinstance(self.owner, InvalidDocument) else skip_of(self.owner, self.now, self.max_skip_days)

    @property
    def skip(self) -> Skip | None:
        """The break-glass annotation as it counts for this spec: a verdict that stands was made while it counted."""
        skip = self.skip_now
        return skip.as_admitted() if skip is not None and self.stands else skip

    @property
    def calibration_revision(self) -> int | None:
        """Revision of the observed starts at the admission of this spec, also where its record is gone; None where the newest are used.

        A verdict stands for its spec. Otherwise an engine's own report would change the prediction that it is compared with, and
        under the policy Adjust it would restart the engine.
        """
        if self.standing is None:
            return self.lost.calibration_revision if self.lost else None
        return (self.standing.record.calibration_revision or 0) if self.stands else None

    @property
    def is_unedited(self) -> bool:
        """True where neither the spec nor another thing that its author states has changed since it was admitted, or since its status."""
        if self.standing is not None:
            return self.stands
        metadata, status = self.document["metadata"], self.document.get("status") or {}
        return bool(status.get("observedGeneration") == metadata.get("generation", 1))

    @property
    def uid(self) -> str:
        return str(self.document["metadata"]["uid"])

    @property
    def own_deployment(self) -> Document | None:
        return self.deployment if self.deployment and self.owns(self.deployment) else None

    @property
    def own_budget(self) -> Document | None:
        return self.budget if self.budget and self.owns(self.budget) else None

    def owns(self, child: Document) -> bool:
        """Return True for a child of this object, and for one of the object that had its name before a restore from a backup."""
        return is_owned_by(child, self.uid) or was_ours(child, self.document["metadata"]["name"])


class Judged(Struct, frozen=True, kw_only=True, weakref=True):
    """An assessment, and the accelerator that the pods go to."""

    assessment: Assessment
    accelerator: Accelerator | None
    calibration_revision: int
    """Revision of the newest observed start that was known."""
    newest: "Judged | None" = None
    """The judgement with the newest observed starts, where this one is as of the admission and the newest starts may change it."""

    @property
    def today(self) -> "Judged":
        return self.newest or self


class ChildChange(Struct, frozen=True, kw_only=True):
    """The wanted state of a child, and how the child in the cluster differs from it."""

    wanted: Document
    differs: tuple[str, ...] = ()
    """Paths of the fields that are missing or have another value, which are applied; `MISSING` where there is no child."""
    added: tuple[str, ...] = ()
    """JSON pointers of the fields that others added, which are removed."""
    drift: Drift | None = None
    """Who made the difference, where kvgate wants what it wanted before."""

    @property
    def difference(self) -> tuple[str, ...]:
        """Key by which the same change is recognised."""
        return (self.wanted["metadata"]["annotations"][HASH_ANNOTATION], *self.differs, *self.added)

    @classmethod
    def between(cls, live: Document, wanted: Document) -> "ChildChange":
        """Compare a child with what is wanted; at most _MAX_PATHS differences are named."""
        differs, added = tuple(islice(differences(live, wanted), _MAX_PATHS)), additions(live, wanted)
        drift = drift_of(live, wanted, differs, added) if differs or added else None
        return cls(wanted=wanted, differs=differs, added=added, drift=drift)


class Intent(Struct, frozen=True, kw_only=True):
    """The changes to make, and what the status reports about them."""

    owner: InferenceDeployment | InvalidDocument
    judged: Judged | None = None
    """None for an object that cannot be read."""
    left_out: NotRendered | None = None
    """Reason why the present spec is not rendered."""
    admitted: Admitted | None = None
    """The spec that is rendered: the present one, or the last one that was admitted."""
    is_kept: bool = False
    """True where the present spec was admitted before, and its verdict stands."""
    recalibration: Document | None = None
    """Today's prediction, where it differs from the admitted one: status.recalibrated."""
    skip_ended: str = ""
    """Why the break glass that admitted the spec counts no more; empty where it does, or where none did."""
    obstacle: Obstacle | None = None
    adopts: str = ""
    """Changes, in words, of children that somebody else made and that become the object's own; empty where there are none."""
    is_paced: bool = False
    """True where pods are replaced that nobody edited: that takes its turn."""
    awaits_turn: Statement | None = None
    """The condition of that wait; the pods stay meanwhile."""
    resolved: Statement | None = None
    """The condition ModelResolved of the present spec."""
    offer: Offer | None = None
    """The GPUs that the nodes have for the spec."""
    drift: str = ""
    """Differences that stay, because they come back after each correction."""
    corrects: Drift | None = None
    """A change by somebody else that is taken back."""
    template_hash: str = ""
    """Hash of the wanted pods; empty where nothing is rendered."""
    replaced: str = ""
    """Name of the record that another one takes the place of; empty where there is none."""
    deployment: ChildChange | None = None
    """None where the Deployment needs no change, or where nothing is rendered."""
    service: ChildChange | None = None
    budget: ChildChange | None = None
    """None where the PodDisruptionBudget needs no change, or where there should be none."""
    drops_budget: bool = False
    """True where a PodDisruptionBudget of the object's own must go."""
    claim: Document | None = None
    """ResourceClaimTemplate of the wanted pods; None where they have none."""

    @property
    def told_drift(self) -> tuple[Reason, str] | None:
        """Reason and message of Drifted, where there is something to tell."""
        if self.drift:
            return Reason.CORRECTION_UNDONE, self.drift
        told = self.corrects
        return (told.reason, f"{told.message}; kvgate takes that back: {told.remedy}") if told else None

    @property
    def pending(self) -> bool:
        is_change = (each is not None for each in (self.deployment, self.service, self.budget))
        return self.drops_budget or any(is_change)


class Awaited(Struct, frozen=True, kw_only=True):
    """Something that an object waits for and that no watch reports; another generation starts a new wait."""

    uid: str
    generation: int
    message: str


def awaited_by(situation: Situation, intent: Intent) -> Awaited | None:
    """Return what the object waits for: a ConfigMap, or a name that belongs to another object."""
    config, obstacle = situation.config, intent.obstacle
    if isinstance(config, ConfigMissing) and config is not NO_CONFIG:
        message = config.message
    elif obstacle is not None and obstacle.reason is Reason.NAME_TAKEN:
        message = obstacle.message
    else:
        return None
    return Awaited(uid=situation.uid, generation=situation.document["metadata"].get("generation", 1), message=message)


def read_owner(document: Document, allowed: AllowedPods = NOTHING_ALLOWED) -> InferenceDeployment | InvalidDocument:
    """Return the object, or all that is wrong with it; `allowed` are the parts of pods that the administrator allows."""
    try:
        return parse_allowed(document, allowed)
    except InvalidDocument as invalid:
        return invalid


def config_reference(owner: InferenceDeployment | InvalidDocument) -> KeyRef | None:
    if isinstance(owner, InvalidDocument) or owner.spec.model.config_from is None:
        return None
    return owner.spec.model.config_from.config_map_key_ref


def config_text(reference: KeyRef, config_map: Mapping[str, Any] | None) -> str | ConfigMissing:
    if config_map is None:
        return ConfigMissing(
            message=f"ConfigMap {reference.name} does not exist", remediation="create it in the same namespace"
        )
    return text_of_key(reference, config_map.get("data") or {}, names_keys=False)


def assess_owner(
    owner: InferenceDeployment, config: str | ConfigMissing, calibration: Calibration = NOTHING_OBSERVED,
    models: PublishedModels = NO_MODELS, skip: Skip | None = None, offer: Offer | None = None,
) -> Judged:  # fmt: skip
    """Judge the object with the facts of the cluster; `skip` is its break-glass annotation as it counts."""
    *_, last = judgements(owner, config, calibration, models, skip, offer)
    return last


def judgements(
    owner: InferenceDeployment, config: str | ConfigMissing, calibration: Calibration = NOTHING_OBSERVED,
    models: PublishedModels = NO_MODELS, skip: Skip | None = None, offer: Offer | None = None, *, audits: bool = False,
) -> Iterator[Judged]:  # fmt: skip
    """Yield the judgement without a verdict, then the one with the verdict, then the one with alternatives that would fit.

    Each one stands if there is no time for the next.
    """
    spec = with_decided(owner.spec, offer)
    accelerator, findings = look_up_accelerator(gpu_name(spec.accelerator) or "")

    def judged(assessment: Assessment) -> Judged:
        return Judged(assessment=assessment, accelerator=accelerator, calibration_revision=calibration.revision)

    nothing_read = Facts(shape=None, accelerator=accelerator, findings=findings)
    yield judged(undecided(spec, nothing_read))
    facts = gather(statement_of(spec), lambda _: config, calibration, models)
    if offer is not None and facts.accelerator is not None:
        beside = (*facts.findings, *findings_of(offer))
        facts = replace(facts, accelerator=offered(facts.accelerator, offer), findings=beside)
    yield from map(judged, assessments(spec, facts, skip=skip, audits=audits))


def decide(situation: Situation, judged: Judged | None, release: str = "") -> Intent:
    """Decide what is rendered (the present spec where it is admitted, else the last admitted one), and which children to change.

    A child that belongs to somebody else is never changed, unless the object's annotation says that it becomes its own.
    """
    intent = replace(_verdict(situation, judged), offer=situation.offer)
    owner = _rendered_owner(situation, intent)
    if intent.admitted is None or owner is None:
        return intent
    wanted, live = rendered(owner, intent.admitted.figures), situation.own_deployment
    if situation.deployment is not None:
        wanted = with_selector_of(wanted, situation.deployment)
    if live is not None and _hash_of_pods(live) != _hash_of_pods(wanted.deployment):
        # another release may have rendered these pods
        digest = intent.admitted.template_digest
        is_earlier_spec = owner is not intent.owner  # a refused edit changes nothing of what runs
        if digest is None and (situation.is_unedited or is_earlier_spec):
            digest = earlier_template(live, wanted.deployment["spec"]["template"])
        wanted = as_it_runs(wanted, live, digest)
    is_other = live is not None and _hash_of_pods(live) not in ("", _hash_of_pods(wanted.deployment))
    is_edit = situation.is_under_way or not situation.is_unedited
    is_paced = is_other and live is not None and not is_edit and rollout_of(live).available > 0
    by = release if is_paced else "" if is_other else replaced_by(live)
    wanted = annotated(wanted, intent.admitted, replaced_by=by)
    metadata = situation.document["metadata"]
    wanted = replace(
        wanted,
        deployment=situation.passed_on.on(wanted.deployment, metadata),
        service=situation.passed_on.on(wanted.service, metadata),
    )
    intent = replace(intent, template_hash=_hash_of_pods(wanted.deployment), is_paced=is_paced, claim=wanted.claim)
    pairs = (situation.deployment, wanted.deployment), (situation.service, wanted.service)
    foreign = [(live, child) for live, child in pairs if live is not None and not situation.owns(live)]
    if foreign:
        if message := obstacle_to(foreign, wants_adoption=wants_adoption(situation.document)):
            return replace(intent, obstacle=Obstacle(reason=Reason.NAME_TAKEN, message=message))
        intent = replace(intent, adopts=changes_of(foreign))
    budget = _wanted_budget(situation, intent, owner, wanted.deployment["spec"]["selector"])
    is_free = situation.budget is None or situation.own_budget is not None
    return replace(
        intent,
        deployment=_due(situation.deployment, wanted.deployment),
        service=_due(situation.service, wanted.service),
        budget=_due(situation.budget, budget) if budget is not None and is_free else None,
        drops_budget=budget is None and situation.own_budget is not None,
    )


def _wanted_budget(
    situation: Situation, intent: Intent, owner: InferenceDeployment, selector: Document
) -> Document | None:
    """Return the PodDisruptionBudget that the object should have. While another spec runs than the present one, ours stays as it is."""
    judged, live = intent.judged, situation.own_budget
    if judged is not None and intent.left_out is None:
        return disruption_budget(owner, replicas_needed(owner.spec, judged.assessment.effective), selector)
    wanted = disruption_budget(owner, 0, selector)
    return wanted if wanted is None or live is None else live


def _verdict(situation: Situation, judged: Judged | None) -> Intent:
    """Decide which spec is admitted, and why the present one is not where it is refused."""
    owner, standing = situation.owner, situation.standing
    if isinstance(owner, InvalidDocument) or judged is None:
        return Intent(owner=owner, admitted=standing)
    if standing is not None and situation.stands:
        known = judged.today.assessment
        is_resolved = known.confidence is not Confidence.ASSUMED and known.verdict is not Verdict.UNKNOWN
        # a verdict that would change pods is reported in status.recalibrated, as for every standing verdict
        changes_pods = known.decision is Decision.ADMIT_ADJUSTED
        if standing.record.model_assumed and is_resolved and not changes_pods:
            return _verdict_of_resolved(situation, owner, standing, judged.today)
        return _standing_verdict(situation, owner, standing, judged)
    resolved = situation.resolution.statement if situation.resolution else None
    fresh = _fresh(situation, owner, judged)
    if situation.lost is not None and not (isinstance(fresh, Admitted) and fresh.digest == situation.lost.digest):
        judged = judged.today
        fresh = _fresh(situation, owner, judged)
    if isinstance(fresh, NotRendered):
        return Intent(owner=owner, judged=judged, left_out=fresh, admitted=standing, resolved=resolved)
    return Intent(owner=owner, judged=judged, admitted=fresh, resolved=resolved)


def _fresh(situation: Situation, owner: InferenceDeployment, judged: Judged) -> Admitted | NotRendered:
    """Return the admission of a spec that is judged anew, or why there is none."""
    state = situation.resolution
    figures = figures_of_verdict(owner, judged.assessment, judged.accelerator)
    if isinstance(figures, NotRendered):
        return figures
    skips_wait = situation.skip is not None and situation.skip.counts
    if state is not None and state.is_held and not skips_wait:
        return NotRendered(reason=Reason.RESOLVING, message=state.message, is_waiting=state.has_end)
    return admitted_now(
        situation.document, owner, judged.assessment, figures,
        calibration_revision=judged.calibration_revision, config=situation.config, model_source=state.origin if state else "",
    )  # fmt: skip


def _standing_verdict(situation: Situation, owner: InferenceDeployment, standing: Admitted, judged: Judged) -> Intent:
    """Keep what was admitted, and report today's prediction; where the spec wants that, a better prediction takes its place."""
    today, skip = judged.today, situation.skip_now
    ended = skip.problem if skip is not None and standing.record.reason == Reason.BUDGET_SKIPPED else ""
    better = None
    if owner.spec.admission.recalibrate and not ended:
        figures = figures_of_verdict(owner, today.assessment, today.accelerator)
        if not isinstance(figures, NotRendered):
            better = taking_over(owner, standing, today.assessment, figures, revision=today.calibration_revision)
    if better is None:
        shown = recalibrated(owner, standing, judged.assessment, today.assessment, situation.recalibrated)
        return Intent(
            owner=owner, judged=judged, admitted=standing, is_kept=True, recalibration=shown, skip_ended=ended
        )
    admitted = admitted_now(
        situation.document, owner, today.assessment, better,
        calibration_revision=today.calibration_revision, config=situation.config, model_source=standing.record.model_source or "",
    )  # fmt: skip
    return Intent(owner=owner, judged=today, admitted=recalibrated_from(admitted, standing))


def _verdict_of_resolved(situation: Situation, owner: InferenceDeployment, standing: Admitted, today: Judged) -> Intent:
    """Return the verdict on a spec that was admitted on an assumption, with the facts of its own model; its pods stay as they are."""
    state, record = situation.resolution, standing.record
    resolved = state.statement if state else None
    figures = figures_of_verdict(owner, today.assessment, today.accelerator)
    if isinstance(figures, NotRendered):
        return Intent(owner=owner, judged=today, left_out=figures, admitted=standing, resolved=resolved)
    running = {"effective": record.effective, "placement": record.placement, "load_seconds": record.load_seconds}
    admitted = admitted_now(
        situation.document, owner, today.assessment, replace(figures, **running),
        calibration_revision=today.calibration_revision, config=situation.config, model_source=state.origin if state else "",
    )  # fmt: skip
    return Intent(owner=owner, judged=today, admitted=recalibrated_from(admitted, standing), resolved=resolved)


def _hash_of_pods(deployment: Mapping[str, Any]) -> str:
    metadata = deployment.get("spec", {}).get("template", {}).get("metadata") or {}
    return str((metadata.get("annotations") or {}).get(HASH_ANNOTATION, ""))


def _rendered_owner(situation: Situation, intent: Intent) -> InferenceDeployment | None:
    """Return the object to render; an earlier spec gets as many replicas as the present one requests."""
    if intent.left_out is None and not isinstance(intent.owner, InvalidDocument):
        return intent.owner if intent.judged else None
    spec = situation.document.get("spec")
    wish = spec if isinstance(spec, Mapping) else {}
    is_suspended = wish.get("suspend") is True
    return intent.admitted.scaled(wish.get("replicas"), is_suspended=is_suspended) if intent.admitted else None


def waiting(situation: Situation, intent: Intent, turn: Statement) -> Intent:
    """Return the intent of an object that waits for its turn: its Deployment is scaled, and else stays as it is."""
    live, change = situation.own_deployment, intent.deployment
    if live is None or change is None:
        return replace(intent, awaits_turn=turn)
    scales = live["spec"].get("replicas") != change.wanted["spec"]["replicas"]
    left = ChildChange.between(live, held(change.wanted, live)) if scales else None
    return replace(intent, awaits_turn=turn, deployment=left, template_hash=_hash_of_pods(live))


def _due(live: Document | None, wanted: Document) -> ChildChange | None:
    """Return the change that a child needs, if any; the end of a child that is being deleted is waited for."""
    if live is None:
        return ChildChange(wanted=wanted, differs=(MISSING,))
    if "deletionTimestamp" in live["metadata"]:
        return None
    change = ChildChange.between(live, wanted)
    return change if change.differs or change.added else None


def status_after(
    intent: Intent, *, name: str, deployment: Document | None, before: PreviousStatus, observation: Observation | None,
    hindrances: Sequence[Hindrance] = (),
) -> Document:  # fmt: skip
    """Return the status after the changes were made; the observation is None until the pods were read."""
    if isinstance(intent.owner, InvalidDocument) or intent.judged is None:
        findings = intent.owner.findings if isinstance(intent.owner, InvalidDocument) else ()
        return invalid_status(
            name, findings, deployment=deployment, before=before, observation=observation, template_hash=intent.template_hash,
            obstacle=intent.obstacle, admitted=intent.admitted, drift=intent.told_drift,
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
        hindrances=hindrances,
        template_hash=intent.template_hash,
        admitted=intent.admitted,
        is_kept=intent.is_kept,
        skip_ended=intent.skip_ended,
        recalibration=intent.recalibration,
        drift=intent.told_drift,
        resolved=intent.resolved,
        nodes=intent.offer.statement if intent.offer else None,
        awaits_turn=intent.awaits_turn,
    )
