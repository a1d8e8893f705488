"""Gather, decide, act for one object. Every trigger ends here, and in a settled cluster it writes nothing."""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from prometheus_client import Counter, Histogram

from kvgate.api.base import Document, KeyRef
from kvgate.api.conditions import ConditionType, Reason
from kvgate.api.status import Condition
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.cluster.client import CONFIG_MAPS, DEPLOYMENTS, INFERENCE_DEPLOYMENTS, SERVICES, Cluster, Kind
from kvgate.cluster.errors import ApiError, Conflict, Denied, Forbidden, NotFound, OverQuota, Rejected, Unavailable
from kvgate.cluster.events import EventRecorder, Notice
from kvgate.controller import decision as pure
from kvgate.controller.decision import MISSING, Awaited, ChildChange, Intent, Judged, Situation
from kvgate.controller.memory import Corrections, Key, Memory
from kvgate.judge.assess import Assessment, effective_values
from kvgate.judge.facts import ConfigMissing
from kvgate.rendering.observation import Crash, RunningEngine
from kvgate.rendering.status import (
    Obstacle,
    PreviousStatus,
    failed_status,
    halted_status,
    is_changed,
    previous_status,
    status_patch,
)
from kvgate.runtime.workers import TurnedAway

_TOLD = {
    ConditionType.ACCEPTED: "Assess",
    ConditionType.STALLED: "Apply",
    ConditionType.DRIFTED: "Apply",
    ConditionType.PREDICTION_DRIFT: "Observe",
}
"""Conditions that an owner wants to hear of, each with kvgate's action; the others follow the pods up and down."""


def notices(before: Iterable[Condition], after: Iterable[Condition]) -> Iterator[Notice]:
    """A stall that repeats the refusal's reason is not told twice."""
    was = {condition.type: condition.reason for condition in before}
    now = {condition.type: condition for condition in after}
    told = set()
    for kind, action in _TOLD.items():
        condition = now.get(kind)
        if condition is None or condition.reason == was.get(kind) or condition.reason in told:
            continue
        if kind is not ConditionType.ACCEPTED and condition.status != "True":
            continue
        told.add(condition.reason)
        good = (
            kind is ConditionType.ACCEPTED and condition.status == "True" and condition.reason in ("Fits", "Adjusted")
        )
        yield Notice(
            kind="Normal" if good else "Warning",
            reason=condition.reason,
            action=action,
            note=condition.message,
        )


_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReconcileInstruments:
    """Measurements of reconciles."""

    results: Counter
    durations: Histogram


@dataclass(frozen=True, kw_only=True, slots=True)
class _Outcome:
    """The result that is counted, and what is still missing."""

    result: str
    awaited: Awaited | None = None


OnStart = Callable[[InferenceDeployment, Assessment, RunningEngine | Crash], Awaitable[str]]
"""Remembers what a pod of the current spec tells, once per pod and process; answers why it corrects nothing, if so."""


class Reconciler:
    """Raises ApiError where the API server kept it from finishing; what users did wrong becomes conditions."""

    def __init__(
        self, cluster: Cluster, recorder: EventRecorder, memory: Memory, instruments: ReconcileInstruments,
        on_start: OnStart,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._recorder = recorder
        self._memory = memory
        self._instruments = instruments
        self._on_start = on_start
        self.aside: Callable[[], contextlib.AbstractAsyncContextManager[None]] = contextlib.nullcontext
        """Entered while an object waits for its judgement, so that others are reconciled meanwhile."""

    async def __call__(self, key: Key) -> Awaited | None:
        """One measured run, and what the object waits for that no watch will tell of."""
        result = "failed"
        with self._instruments.durations.time():
            try:
                outcome = await self._run(key)
                result = outcome.result
            except Forbidden:
                result = "forbidden"
                raise
            except Conflict:
                result = "conflict"
                raise
            except ApiError:
                result = "unavailable"
                raise
            finally:
                self._instruments.results.labels(result).inc()
        return outcome.awaited

    async def _run(self, key: Key) -> _Outcome:
        document = await self._cluster.find(INFERENCE_DEPLOYMENTS, *key)
        if document is None or "deletionTimestamp" in document["metadata"]:
            self._memory.forget(key)
            return _Outcome(result="gone")
        try:
            return await self._settle(key, await self._gather(key, document))
        except (ApiError, TurnedAway):
            raise
        except Exception as error:
            await self._give_up(key, document, error)
            raise

    async def _gather(self, key: Key, document: Document) -> Situation:
        try:
            children = await asyncio.gather(*(self._cluster.find(kind, *key) for kind in (DEPLOYMENTS, SERVICES)))
            return await self.situation(key, document, *children)
        except Forbidden as error:
            await self._halt(key, document, error)
            raise

    async def situation(
        self, key: Key, document: Document, deployment: Document | None, service: Document | None
    ) -> Situation:
        """The object with all that its verdict hangs on."""
        owner = pure.read_owner(document)
        config = await self._config(key[0], pure.config_reference(owner))
        standing = self._memory.standing(key, document)
        return Situation(
            document=document, owner=owner, config=config, deployment=deployment, service=service, standing=standing
        )

    async def _config(self, namespace: str, reference: KeyRef | None) -> str | ConfigMissing:
        """The text behind configFrom; ConfigMaps are not watched: who misses one looks again, the resync sees changes."""
        if reference is None:
            return pure.NO_CONFIG
        return pure.config_text(reference, await self._cluster.find(CONFIG_MAPS, namespace, reference.name))

    def is_settled(self, key: Key, situation: Situation) -> bool:
        """True where a run would write and learn nothing; its figures are shown then. What must be judged first is not settled."""
        judged = self._memory.judged(key, situation)
        if judged is None and isinstance(situation.owner, InferenceDeployment):
            return False
        intent = self._decide(key, situation, judged)
        state = self._before(key, situation.document)
        status = pure.status_after(
            intent, name=key[1], deployment=situation.own_deployment, before=state,
            observation=self._memory.observation(key),
        )  # fmt: skip
        unlearnt = self._memory.new_starts(key, intent.template_hash)
        settled = not intent.pending and not is_changed(state, status) and not unlearnt
        if settled:
            self._memory.show(key, situation, intent, status, situation.own_deployment)
        return settled

    async def _settle(self, key: Key, situation: Situation) -> _Outcome:
        judged = await self._judge(key, situation)
        intent = self._decide(key, situation, judged)
        was_pending = intent.pending
        intent, deployment, error = await self._apply(key, situation, intent)
        await self._learn(key, intent)
        state = self._before(key, situation.document)
        observation = self._memory.observation(key)
        status = pure.status_after(intent, name=key[1], deployment=deployment, before=state, observation=observation)
        self._memory.show(key, situation, intent, status, deployment)  # first: an older CRD may refuse the status
        written = await self._write_status(situation.document, state, status)
        if error is not None:
            raise error
        self._memory.settled(key, situation.document, status)
        result = "written" if was_pending or written else "unchanged"
        return _Outcome(result=result, awaited=pure.awaited_by(situation, intent))

    def _before(self, key: Key, document: Document) -> PreviousStatus:
        return previous_status(document, _now(), self._memory.written(key, document))

    def _decide(self, key: Key, situation: Situation, judged: Judged | None) -> Intent:
        """Decide, without changes that were corrected often enough or refused: the status says so instead."""
        intent, corrections = pure.decide(situation, judged), self._memory.corrections(key)
        if intent.deployment is not None:
            intent = replace(
                _tried(intent, corrections, intent.deployment), deployment=_open(corrections, intent.deployment)
            )
        if intent.service is not None:
            intent = replace(_tried(intent, corrections, intent.service), service=_open(corrections, intent.service))
        return intent

    async def _judge(self, key: Key, situation: Situation) -> Judged | None:
        if (known := self._memory.judged(key, situation)) is not None:
            return known
        async with self.aside():
            return await self._memory.judge(key, situation)

    async def _learn(self, key: Key, intent: Intent) -> None:
        """Learn from new starts; a failure holds nothing else up, and the next run tries again."""
        starts = self._memory.new_starts(key, intent.template_hash)
        if not starts or intent.judged is None or not isinstance(intent.owner, InferenceDeployment):
            return
        runs, judged = intent.admitted, effective_values(intent.owner.spec, intent.judged.assessment)
        if intent.left_out is not None or runs is None or runs.record.effective != judged:
            self._memory.learnt(key, starts, "")  # the verdict of now is not about what runs
            return
        try:
            remarks = [await self._on_start(intent.owner, intent.judged.assessment, start) for start in starts]
        except ApiError as error:
            _log.warning("not remembered: %s", error)
        else:
            self._memory.learnt(key, starts, next(filter(None, remarks), ""))

    async def _apply(
        self, key: Key, situation: Situation, intent: Intent
    ) -> tuple[Intent, Document | None, ApiError | None]:
        """The intent with what stood in its way, the Deployment as it is now, and an error to be passed on."""
        deployment, corrections = situation.own_deployment, self._memory.corrections(key)
        for kind, live, change in (
            (DEPLOYMENTS, deployment, intent.deployment),
            (SERVICES, situation.service, intent.service),
        ):
            if change is None:
                continue
            try:
                corrected = await self._correct(kind, live, change)
            except (Rejected, NotFound, OverQuota, Denied) as error:
                obstacle = _obstacle(error)
                corrections.note(kind.kind, change.difference, obstacle=obstacle)
                return replace(intent, obstacle=obstacle), deployment, None
            except (Forbidden, Unavailable) as error:
                return replace(intent, obstacle=_obstacle(error)), deployment, error
            left = change.left_in(corrected)
            if change.differs != (MISSING,) or left.differs or left.added:
                corrections.note(
                    kind.kind, change.difference, left=left.difference if left.differs or left.added else ()
                )
            deployment = corrected if kind is DEPLOYMENTS else deployment
            intent = _tried(intent, corrections, left) if left.differs or left.added else intent
        return intent, deployment, None

    async def _correct(self, kind: Kind, live: Document | None, change: ChildChange) -> Document:
        """The child as it is after that."""
        if change.differs or live is None:
            live = await self._cluster.apply(kind, change.wanted)
        added = change.left_in(live).added
        return await self._cluster.remove(kind, live["metadata"], added) if added else live

    async def _halt(self, key: Key, document: Document, error: Forbidden) -> None:
        """Say it on the object itself, where at least that is allowed."""
        state = self._before(key, document)
        await self._write_status(document, state, halted_status(_obstacle(error), state))

    async def _give_up(self, key: Key, document: Document, error: Exception) -> None:
        """A defect of ours is told on the object; should even that fail, the first error is the one that counts."""
        state = self._before(key, document)
        try:
            await self._write_status(document, state, failed_status(state, error))
        except Exception as second:  # noqa: BLE001 - see above
            _log.warning("status not written: %s", second)

    async def _write_status(self, document: Document, state: PreviousStatus, status: Document) -> bool:
        """Only a change is written, to this very object and none that took its name; events follow the write."""
        if not is_changed(state, status):
            return False
        try:
            await self._cluster.patch_status(INFERENCE_DEPLOYMENTS, document["metadata"], status_patch(state, status))
        except NotFound:
            return False
        await self._tell(document, state, status)
        return True

    async def _tell(self, document: Document, state: PreviousStatus, status: Document) -> None:
        """An event that cannot be written is logged, and holds nothing up."""
        for notice in notices(state.conditions, map(Condition.from_document, status["conditions"])):
            try:
                await self._recorder.record(document, notice)
            except ApiError as error:
                _log.warning("event %s not written: %s", notice.reason, error)


def _obstacle(error: ApiError) -> Obstacle:
    reasons = {
        OverQuota: Reason.QUOTA_EXCEEDED,
        Denied: Reason.ADMISSION_DENIED,
        Forbidden: Reason.API_FORBIDDEN,
        Unavailable: Reason.API_UNAVAILABLE,
    }
    return Obstacle(reason=reasons.get(type(error), Reason.API_REJECTED), message=str(error))


def _open(corrections: Corrections, change: ChildChange) -> ChildChange | None:
    """The change where it may be tried."""
    is_gone = change.differs == (MISSING,)
    kind = str(change.wanted["kind"])
    if is_gone and corrections.obstacle(kind, change.difference) is None:
        return change
    return change if corrections.may_try(kind, change.difference) else None


def _tried(intent: Intent, corrections: Corrections, change: ChildChange) -> Intent:
    """Add the status of a change that is not tried any more."""
    if _open(corrections, change) is not None:
        return intent
    kind = str(change.wanted["kind"])
    obstacle = corrections.obstacle(kind, change.difference)
    if obstacle is not None:
        return replace(intent, obstacle=obstacle)
    paths = ", ".join((*change.differs, *change.added))
    text = f"{kind} {change.wanted['metadata']['name']}: {paths} comes back after each correction; somebody, or a webhook, wants it so"
    return replace(intent, drift="; ".join(filter(None, (intent.drift, text))))


def _now() -> str:
    """Return the time as metav1.Time is written."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
