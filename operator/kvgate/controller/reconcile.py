"""One object's reconcile: gather, decide, act. Every trigger ends here, and in a settled cluster it writes nothing."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter, Histogram

from kvgate.api.allowed import NOTHING_ALLOWED, AllowedPods
from kvgate.api.base import Document
from kvgate.api.conditions import ConditionType, Reason
from kvgate.api.status import Condition
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.cluster.client import (
    CONFIG_MAPS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    INFERENCE_DEPLOYMENTS,
    RESOURCE_CLAIM_TEMPLATES,
    SERVICES,
    Cluster,
    Kind,
)
from kvgate.cluster.errors import ApiError, Conflict, Denied, Forbidden, NotFound, OverQuota, Rejected, Unavailable
from kvgate.cluster.events import EventRecorder, Notice
from kvgate.controller import decision as pure
from kvgate.controller.decision import MISSING, Awaited, ChildChange, Intent, Judged, Key, Situation
from kvgate.controller.disruption import OtherBudgets
from kvgate.controller.live import CHILDREN, LiveObjects
from kvgate.controller.live_nodes import LiveNodes
from kvgate.controller.memory import Corrections, Memory
from kvgate.controller.notices import notices
from kvgate.controller.pace import Pace
from kvgate.controller.records import Listed
from kvgate.controller.resolving import Resolver
from kvgate.judgement.assess import effective_values
from kvgate.judgement.assessment import Assessment
from kvgate.judgement.facts import ConfigMissing
from kvgate.metrics import exporter, registry
from kvgate.nodes.offer import Offer
from kvgate.rendering.adoption import is_of_others, taken_over
from kvgate.rendering.expectations import expected_seconds, next_step_seconds
from kvgate.rendering.hindrances import Hindrance, with_nodes
from kvgate.rendering.labels import is_owned_by, owner_reference
from kvgate.rendering.live_deployment import lost_record
from kvgate.rendering.observation import Crash, Obstacle, RunningEngine
from kvgate.rendering.status import (
    PreviousStatus,
    failed_status,
    halted_status,
    is_changed,
    previous_status,
    status_patch,
)
from kvgate.runtime.worker import TurnedAway

_log = logging.getLogger(__name__)


class ReconcileInstruments(Struct, frozen=True, kw_only=True):
    results: Counter
    durations: Histogram

    @classmethod
    def registered(cls, into: CollectorRegistry) -> "ReconcileInstruments":
        return cls(
            results=exporter.counter(registry.RECONCILES, into),
            durations=exporter.histogram(registry.RECONCILE_DURATION, into),
        )


_REFUSALS = (Rejected, NotFound, OverQuota, Denied)
"""Answers of the API server to a change that it will not make."""
_FAILED = ((Forbidden, "forbidden"), (Conflict, "conflict"), (ApiError, "unavailable"), (Exception, "failed"))
"""Values of the label `result` for runs that end in an error."""
MAX_PAUSE_SECONDS = 3600.0
CAUSE_SECONDS = 3.0
"""Time that a lost replica has to get a cause before an event says that there is none: Deployments and pods have watches of their own."""
_Outcome = tuple[str, Awaited | None]
"""Value of the label `result` for a run without an error, and what its object waits for."""
OnStart = Callable[[InferenceDeployment, Assessment, RunningEngine | Crash], Awaitable[str]]
"""Learns from a start of the current spec, once per pod and process. Returns the reason why it corrects no prediction, or ""."""


class Reconciler:
    """Reconciles one object per call. Mistakes of users become conditions; an ApiError means that the API server prevented the end."""

    def __init__(
        self, cluster: Cluster, recorder: EventRecorder, memory: Memory, instruments: ReconcileInstruments,
        on_start: OnStart, resolver: Resolver | None = None, nodes: LiveNodes | None = None,
        allowed: AllowedPods = NOTHING_ALLOWED, pace: Pace | None = None, max_skip_days: int = 0,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._recorder = recorder
        self._memory = memory
        self._instruments = instruments
        self._on_start = on_start
        self._resolver = resolver
        self._nodes = nodes
        self._allowed = allowed
        self._max_skip_days = max_skip_days
        self._pace = pace or Pace()
        self.live = LiveObjects()
        self.aside: Callable[[], contextlib.AbstractAsyncContextManager[None]] = contextlib.nullcontext
        """Entered while an object waits for its judgement, so that others are reconciled meanwhile."""
        self.look_again: Callable[[Key, float], object] = lambda _, __: None
        """Plans a run for the time at which an engine that loads becomes slow, which no watch reports."""
        self._other_budgets = OtherBudgets()
        self._lost_since: dict[Key, float] = {}
        self._edits = set[Key]()
        """Objects whose edit is admitted, and whose Deployment is not changed yet: a retry must not take it for a change by kvgate."""
        """Objects whose lost replica has no cause yet and no event, by the loop's time."""
        self.claimless: set[Key] = set()
        """Objects whose ResourceClaimTemplate a resync did not find."""

    async def __call__(self, key: Key) -> Awaited | None:
        """Run once, measured, and return what the object waits for if no watch reports that."""
        result = "failed"
        with exporter.timed(self._instruments.durations, dict(zip(registry.OWNER_LABELS, key, strict=True))):
            try:
                result, awaited = await self._run(key)
            except Exception as error:
                result = next(name for kind, name in _FAILED if isinstance(error, kind))
                self.live.doubt(key)
                raise
            finally:
                self._instruments.results.labels(result).inc()
        return awaited

    async def _run(self, key: Key) -> _Outcome:
        """Run on what is in memory, and where the API server contradicts that, once more on what it has."""
        try:
            return await self._attempt(key)
        except Conflict:
            self.live.doubt(key)
            return await self._attempt(key)

    async def _attempt(self, key: Key) -> _Outcome:
        document = await self.live.find(self._cluster, INFERENCE_DEPLOYMENTS, key)
        if document is None or "deletionTimestamp" in document["metadata"]:
            self.forget(key)
            return "gone", None
        try:
            return await self._settle(key, await self._gather(key, document))
        except (ApiError, TurnedAway):
            raise
        except Exception as error:
            state = self._before(key, document)
            try:
                await self._write_status(document, state, failed_status(state, error))
            except Exception as second:  # noqa: BLE001 - the first error is the one that counts
                _log.warning("the status was not written: %s", second)
            raise

    async def _gather(self, key: Key, document: Document) -> Situation:
        """Read all that the decision needs. A missing permission is reported in the object's own status, if that can be written."""
        try:
            children = await asyncio.gather(*(self.live.find(self._cluster, kind, key) for kind in CHILDREN))
            return await self.situation(key, document, children)
        except Forbidden as error:
            state = self._before(key, document)
            await self._write_status(document, state, halted_status(_obstacle(error), state))
            raise

    async def situation(
        self, key: Key, document: Document, children: Sequence[Document | None], listed: Listed | None = None
    ) -> Situation:
        """Return the object with all that its verdict depends on; `listed` are its records where they were listed.

        ConfigMaps are not watched: an object whose ConfigMap is missing looks again, and a resync sees a changed one.
        """
        owner = pure.read_owner(document, self._allowed)
        deployment, service, budget = children
        config: str | ConfigMissing = pure.NO_CONFIG
        if (reference := pure.config_reference(owner)) is not None:
            config = pure.config_text(reference, await self._cluster.find(CONFIG_MAPS, key[0], reference.name))
        situation = Situation(
            document=document, owner=owner, config=config, deployment=deployment, service=service, budget=budget,
            recalibrated=(self._memory.written(key, document) or document.get("status") or {}).get("recalibrated"),
            resolution=self._resolver.look(key, document, owner) if self._resolver else None, now=datetime.now(UTC),
            passed_on=self._memory.passed_on, max_skip_days=self._max_skip_days, is_under_way=key in self._edits,
        )  # fmt: skip
        own = situation.own_deployment
        standing = await self._memory.records.standing(self._cluster, document, owner, own, listed)
        situation = replace(situation, standing=standing, lost=None if standing else lost_record(own))
        return replace(situation, offer=self._offer(key, situation))

    def _offer(self, key: Key, situation: Situation) -> Offer | None:
        """Return what the nodes have for the spec; a GPU that they decided stays the one that was admitted."""
        if self._nodes is None or not isinstance(situation.owner, InferenceDeployment):
            return None
        admitted = situation.standing if situation.stands else None
        decided = (admitted.record.placement.accelerator or "") if admitted else ""
        return self._nodes.offer(key, situation.owner.spec, decided)

    def _hindrances(self, key: Key, intent: Intent) -> tuple[Hindrance, ...]:
        """Return why pods are not ready, with the GPUs of the nodes beside the words of the scheduler."""
        found = self._memory.hindrances(key, intent.template_hash)
        if self._nodes is None or intent.admitted is None or intent.admitted.owner is None:
            return found
        if not found:
            return ()
        room = self._nodes.room(key, intent.admitted.owner.spec.vllm.num_gpus)
        return tuple(with_nodes(each, room, self._nodes.taints(key)) for each in found)

    def forget(self, key: Key) -> None:
        self._memory.forget(key)
        self._pace.forget(key)
        self._lost_since.pop(key, None)
        self._edits.discard(key)
        self._other_budgets.found.pop(key, None)
        self.live.trust(key)
        if self._nodes:
            self._nodes.forget(key)
        if self._resolver:
            self._resolver.forget(key)

    def is_settled(self, key: Key, situation: Situation) -> bool:
        """Return True where a run would write nothing and learn nothing, and show the figures; False for what is not judged yet."""
        judged = self._memory.judged(key, situation)
        if judged is None and isinstance(situation.owner, InferenceDeployment):
            return False
        self._ask_for_models(key, situation)
        intent = self._decide(key, situation, judged)
        state = self._before(key, situation.document)
        status = pure.status_after(
            intent, name=key[1], deployment=situation.own_deployment, before=state,
            observation=self._memory.observation(key), hindrances=self._hindrances(key, intent),
        )  # fmt: skip
        unlearnt = self._memory.new_starts(key, intent.template_hash)
        is_recorded = self._memory.records.is_stored(key, intent.admitted)
        settled = is_recorded and not intent.pending and not is_changed(state, status) and not unlearnt
        if settled:
            self._show(key, situation, intent, status, situation.own_deployment)
        return settled

    def _show(
        self, key: Key, situation: Situation, intent: Intent, status: Document, deployment: Document | None
    ) -> None:
        self._memory.show(key, situation, intent, status, deployment)
        stalled = any(
            (each["type"], each["status"]) == (ConditionType.STALLED, "True") for each in status["conditions"]
        )
        self._pace.note(key, deployment, is_stalled=stalled)

    def _ask_for_models(self, key: Key, situation: Situation) -> None:
        """Have the hub asked for the models of an object that waits for them, or that stands on an assumption about them."""
        standing = situation.standing if situation.stands else None
        is_assumed = standing is not None and bool(standing.record.model_assumed)
        if self._resolver and situation.resolution and (standing is None or is_assumed):
            self._resolver.ask(key, situation.resolution, is_assumed=is_assumed)

    async def _settle(self, key: Key, situation: Situation) -> _Outcome:
        self._ask_for_models(key, situation)
        judged = self._memory.judged(key, situation)
        if judged is None:
            async with self.aside():
                judged = await self._memory.judge(key, situation)
        intent = self._decide(key, situation, judged)
        was_pending = intent.pending or not self._memory.records.is_stored(key, intent.admitted)
        intent, deployment, error = await self._apply(key, situation, intent)
        await self._learn(key, intent)
        state = self._before(key, situation.document)
        status = pure.status_after(
            intent, name=key[1], deployment=deployment, before=state, observation=self._memory.observation(key),
            hindrances=self._hindrances(key, intent),
        )  # fmt: skip
        self._show(key, situation, intent, status, deployment)  # first: an older CRD may refuse the status
        self._memory.settled(key, situation.document, status)  # first as well: the echo may come before the answer
        written = await self._write_status(situation.document, state, status)
        await self._tell_of_loss(key, situation.document, status)
        self._look_at_loads_again(key, intent, state.now)
        if error is not None:
            raise error
        if intent.replaced and intent.obstacle is None:
            await self._memory.records.remove(self._cluster, key[0], intent.replaced)
        if intent.obstacle is None:
            self.live.trust(key)
        else:
            self.live.doubt(key)  # it ends where no watch of ours may look
        return "written" if was_pending or written else "unchanged", pure.awaited_by(situation, intent)

    async def _tell_of_loss(self, key: Key, document: Document, status: Document) -> None:
        """Write the event of a lost replica that has waited for its cause, unless there is a cause by now, or the replica is back."""
        since = self._lost_since.get(key)
        if since is None:
            return
        conditions = (each for each in status["conditions"] if each["type"] == ConditionType.DEGRADED)
        lost = next((each for each in conditions if each["reason"] == Reason.REPLICA_LOST), None)
        left = since + CAUSE_SECONDS - asyncio.get_running_loop().time()
        if lost is not None and left > 0:
            self.look_again(key, left)
            return
        del self._lost_since[key]
        if lost is not None:
            told = Notice(kind="Warning", reason=Reason.REPLICA_LOST, action="Observe", note=lost["message"])
            await self._report(document, told)

    def _look_at_loads_again(self, key: Key, intent: Intent, now: str) -> None:
        if intent.judged is None or not isinstance(intent.owner, InferenceDeployment):
            return
        runs = intent.admitted.owner if intent.admitted and intent.admitted.owner else intent.owner
        expected = expected_seconds(runs.spec, intent.judged.assessment.effective)
        loads = [each for each in self._memory.hindrances(key, intent.template_hash) if each.since]
        steps = [step for each in loads if (step := next_step_seconds(each.since, expected, now)) is not None]
        if steps:
            self.look_again(key, min(min(pause for _, pause in steps) + 1.0, MAX_PAUSE_SECONDS))

    def _before(self, key: Key, document: Document) -> PreviousStatus:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")  # the format of metav1.Time
        return previous_status(document, now, self._memory.written(key, document), self._memory.dropped)

    def _decide(self, key: Key, situation: Situation, judged: Judged | None) -> Intent:
        """Decide, and leave out changes that were made too often or refused; the status reports those."""
        intent, corrections = pure.decide(situation, judged, self._pace.release), self._memory.corrections(key)
        if intent.budget is not None and self._other_budgets.of(key, situation.document):
            intent = replace(intent, budget=None)
        if intent.deployment is None:
            self._edits.discard(key)
            self._pace.rest(key)
        elif not intent.is_paced:
            self._edits.add(key)
            self._pace.rest(key)
        elif turn := self._pace.turn(key):
            intent = pure.waiting(situation, intent, turn)
        for child, change in (
            ("deployment", intent.deployment),
            ("service", intent.service),
            ("budget", intent.budget),
        ):
            if change is not None:
                intent, left = _tried(intent, corrections, change)
                corrects = change.drift if left is not None and change.drift is not None else intent.corrects
                intent = replace(intent, **{child: left}, corrects=corrects)
        return intent

    async def _learn(self, key: Key, intent: Intent) -> None:
        """Learn from new starts. A failure of that stops nothing else, and the next run tries again."""
        starts = self._memory.new_starts(key, intent.template_hash)
        if not starts or intent.judged is None or not isinstance(intent.owner, InferenceDeployment):
            return
        runs, judged = intent.admitted, effective_values(intent.owner.spec, intent.judged.assessment)
        if intent.left_out is not None or runs is None or runs.record.effective != judged:
            self._memory.learnt(key, starts, "")  # the present verdict is about other values than those that run
            return
        try:
            remarks = [await self._on_start(intent.owner, intent.judged.assessment, start) for start in starts]
        except ApiError as error:
            _log.warning("an observed start was not stored: %s", error)
        else:
            self._memory.learnt(key, starts, next(filter(None, remarks), ""))

    async def _apply(
        self, key: Key, situation: Situation, intent: Intent
    ) -> tuple[Intent, Document | None, ApiError | None]:
        """Store the record of what is rendered, and only then make the changes.

        Returns the intent with its obstacle, the Deployment as it is now, and an error to raise after the status.
        """
        deployment = situation.own_deployment
        try:
            intent = await self._prepare(key, situation, intent)
            for kind, live, change in (
                (DEPLOYMENTS, situation.deployment, intent.deployment),
                (SERVICES, situation.service, intent.service),
                (DISRUPTION_BUDGETS, situation.budget, intent.budget),
            ):
                if change is not None:
                    intent, corrected = await self._change(key, situation, intent, kind, live, change)
                    deployment = corrected if kind is DEPLOYMENTS else deployment
            if intent.drops_budget and situation.budget is not None:
                await self._cluster.delete(DISRUPTION_BUDGETS, *key)
                self.live.drop(DISRUPTION_BUDGETS, situation.budget)
        except _REFUSALS as error:
            return replace(intent, obstacle=_obstacle(error)), deployment, None
        except (Forbidden, Unavailable) as error:
            return replace(intent, obstacle=_obstacle(error)), deployment, error
        return intent, deployment, None

    async def _prepare(self, key: Key, situation: Situation, intent: Intent) -> Intent:
        """Store what must stand before the children: the record, and the template of the claims; and say what is adopted."""
        if intent.admitted is not None:
            replaced = await self._memory.records.keep(self._cluster, situation.document, intent.admitted)
            intent = replace(intent, replaced=replaced)
        if intent.claim is not None and (intent.deployment is not None or key in self.claimless):
            await self._cluster.apply(RESOURCE_CLAIM_TEMPLATES, intent.claim)
            self.claimless.discard(key)
        if intent.adopts and (intent.deployment or intent.service):
            await self._report(
                situation.document,
                Notice(kind="Warning", reason=Reason.ADOPTED, action="Apply", note=intent.adopts),
            )
        return intent

    async def _change(
        self, key: Key, situation: Situation, intent: Intent, kind: Kind, live: Document | None, change: ChildChange
    ) -> tuple[Intent, Document | None]:
        """Make one change, and return what the intent is then, and the child. Raises ApiError where it is refused."""
        corrections = self._memory.corrections(key)
        if kind is DISRUPTION_BUDGETS and live is None:
            pods = intent.deployment.wanted if intent.deployment else situation.own_deployment
            if pods and (other := await self._other_budgets.look(self._cluster, key, situation.document, pods)):
                note = f"PodDisruptionBudget {other} selects the pods, and two would make every eviction fail: kvgate makes none"
                found = Notice(kind="Normal", reason=Reason.OTHER_DISRUPTION_BUDGET, action="Apply", note=note)
                await self._report(situation.document, found)
                return intent, None
        try:
            corrected = await self._corrected(key, situation.uid, kind, live, change)
        except _REFUSALS as error:
            corrections.note(kind.kind, change.difference, obstacle=_obstacle(error))
            raise
        left = ChildChange.between(corrected, change.wanted)
        still_differs = bool(left.differs or left.added)
        if change.differs != (MISSING,) or still_differs:
            corrections.note(kind.kind, change.difference, left=left.difference if still_differs else ())
        return (_tried(intent, corrections, left)[0] if still_differs else intent), corrected

    async def _corrected(self, key: Key, uid: str, kind: Kind, live: Document | None, change: ChildChange) -> Document:
        """Correct one child, and return it as the API server has it then; one of before a restore becomes a child of this object."""
        becomes_ours = live is not None and not is_owned_by(live, uid)
        if live is not None and becomes_ours:
            await self._cluster.merge(kind, *key, {"metadata": taken_over(live, owner_reference(key[1], uid))})
        if change.differs or becomes_ours or live is None:
            is_first = live is None
            live = await self._cluster.apply(kind, change.wanted, is_first=is_first)
            if is_first and is_of_others(live):  # with equal values, so that there was no conflict
                bare = {name: change.wanted[name] for name in ("apiVersion", "kind")}
                await self._cluster.apply(
                    kind, {**bare, "metadata": dict(zip(("namespace", "name"), key, strict=True))}
                )
                raise Conflict("patch", kind.resource, f"{key[1]} exists already")
        if added := ChildChange.between(live, change.wanted).added:
            live = await self._cluster.remove(kind, live["metadata"], added)
        self.live.put(kind, live)
        return live

    async def _write_status(self, document: Document, state: PreviousStatus, status: Document) -> bool:
        """Write a changed status to this very object (the same uid), then the events that follow from it.

        Returns True where something was written.
        """
        if not is_changed(state, status):
            return False
        try:
            patch = status_patch(state, status)
            stored = await self._cluster.patch_status(INFERENCE_DEPLOYMENTS, document["metadata"], patch)
        except NotFound:
            return False
        self.live.put(INFERENCE_DEPLOYMENTS, stored)
        sent, kept = frozenset(status), frozenset(stored.get("status") or status)
        # fields that an older CRD drops; one object may lack a field that others have
        self._memory.dropped = (self._memory.dropped - sent) | (sent - kept)
        for notice in notices(state.conditions, map(Condition.from_document, status["conditions"])):
            if notice.reason == Reason.REPLICA_LOST:
                metadata = document["metadata"]
                self._lost_since[metadata["namespace"], metadata["name"]] = asyncio.get_running_loop().time()
            else:
                await self._report(document, notice)
        return True

    async def _report(self, document: Document, notice: Notice) -> None:
        """Write an event. One that cannot be written is logged."""
        try:
            await self._recorder.record(document, notice)
        except ApiError as error:
            _log.warning("the event %s was not written: %s", notice.reason, error)


def _obstacle(error: ApiError) -> Obstacle:
    if isinstance(error, NotFound) and error.resource == RESOURCE_CLAIM_TEMPLATES.resource:
        said = f"spec.accelerator.resourceClaim needs resource.k8s.io/v1, which the API server does not serve: {error}"
        return Obstacle(reason=Reason.CLAIMS_NOT_SERVED, message=said)
    reasons = {
        OverQuota: Reason.QUOTA_EXCEEDED,
        Denied: Reason.ADMISSION_DENIED,
        Forbidden: Reason.API_FORBIDDEN,
        Unavailable: Reason.API_UNAVAILABLE,
    }
    return Obstacle(reason=reasons.get(type(error), Reason.API_REJECTED), message=str(error))


def _tried(intent: Intent, corrections: Corrections, change: ChildChange) -> tuple[Intent, ChildChange | None]:
    """Return the change if it may be tried, else the obstacle or the drift; a deleted child is made again however often that happens."""
    kind = str(change.wanted["kind"])
    obstacle, is_gone = corrections.obstacle(kind, change.difference), change.differs == (MISSING,)
    if obstacle is not None:
        return replace(intent, obstacle=obstacle), None
    if is_gone or corrections.may_try(kind, change.difference):
        return intent, change
    paths = ", ".join((*change.differs, *change.added))
    name, drift = change.wanted["metadata"]["name"], change.drift
    whose = f"set by {drift.who}: {drift.remedy}" if drift and drift.who else "find out who or which webhook sets it"
    text = f"{kind} {name}: {paths} comes back after each correction; {whose}"
    return replace(intent, drift="; ".join(filter(None, (intent.drift, text)))), None
