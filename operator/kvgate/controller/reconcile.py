"""Gather, decide, act for one object. Every trigger ends here, and in a settled cluster it writes nothing."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from prometheus_client import Counter, Histogram

from kvgate.api.base import Document
from kvgate.api.conditions import Reason
from kvgate.api.status import Condition
from kvgate.api.v1alpha1 import InferenceDeployment, KeyRef
from kvgate.cluster.client import CONFIG_MAPS, DEPLOYMENTS, INFERENCE_DEPLOYMENTS, SERVICES, Cluster
from kvgate.cluster.errors import ApiError, Conflict, Forbidden, NotFound, Rejected, Unavailable
from kvgate.cluster.events import EventRecorder
from kvgate.controller import observed as pure
from kvgate.controller.notices import notices
from kvgate.controller.observed import Awaited, Intent, Observed
from kvgate.controller.store import Key, Store
from kvgate.engine import Assessment
from kvgate.facts import ConfigMissing
from kvgate.rendering.observation import Crash, Engine
from kvgate.rendering.status import Before, Obstacle, before, halted_status, is_changed

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class Instruments:
    """What is measured of reconciles."""

    results: Counter
    durations: Histogram


@dataclass(frozen=True, kw_only=True, slots=True)
class _Outcome:
    """The result that is counted, and what is still missing."""

    result: str
    awaited: Awaited | None = None


OnStart = Callable[[InferenceDeployment, Assessment, Engine | Crash], Awaitable[str]]
"""Remembers what a pod of the current spec tells, once per pod and process; answers why it corrects nothing, if so."""


class Reconciler:
    """Raises ApiError where the API server kept it from finishing; what users did wrong becomes conditions."""

    def __init__(
        self, cluster: Cluster, recorder: EventRecorder, store: Store, instruments: Instruments,
        on_start: OnStart,
    ) -> None:  # fmt: skip
        self._cluster = cluster
        self._recorder = recorder
        self._store = store
        self._instruments = instruments
        self._on_start = on_start

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
            self._store.forget(key)
            return _Outcome(result="gone")
        try:
            observed = await self._gather(document)
        except Forbidden as error:
            await self._halt(document, error)
            raise
        return await self._settle(key, observed)

    async def _gather(self, document: Document) -> Observed:
        namespace, name = document["metadata"]["namespace"], document["metadata"]["name"]
        owner = pure.read_owner(document)
        deployment, service, config = await asyncio.gather(
            self._cluster.find(DEPLOYMENTS, namespace, name),
            self._cluster.find(SERVICES, namespace, name),
            self.config(namespace, pure.config_reference(owner)),
        )
        return Observed(document=document, owner=owner, config=config, deployment=deployment, service=service)

    async def config(self, namespace: str, reference: KeyRef | None) -> str | ConfigMissing:
        """The text behind configFrom; ConfigMaps are not watched: who misses one looks again, the resync sees changes."""
        if reference is None:
            return pure.NO_CONFIG
        return pure.config_text(reference, await self._cluster.find(CONFIG_MAPS, namespace, reference.name))

    def is_settled(self, key: Key, observed: Observed) -> bool:
        """Whether a run would write and learn nothing; shows its figures if so."""
        judged = self._store.judge(key, observed)
        intent = pure.decide(observed, judged)
        state = before(observed.document, _now())
        status = pure.status_after(
            intent, name=key[1], deployment=observed.own_deployment, before=state,
            observation=self._store.observation(key),
        )  # fmt: skip
        unlearnt = self._store.new_starts(key, intent.template_hash)
        settled = not intent.pending and not is_changed(state, status) and not unlearnt
        if settled:
            self._store.show(key, observed, intent, status, observed.own_deployment)
        return settled

    async def _settle(self, key: Key, observed: Observed) -> _Outcome:
        judged = self._store.judge(key, observed)
        intent, deployment, error = await self._apply(pure.decide(observed, judged), observed.own_deployment)
        await self._learn(key, intent)
        state = before(observed.document, _now())
        observation = self._store.observation(key)
        status = pure.status_after(intent, name=key[1], deployment=deployment, before=state, observation=observation)
        self._store.show(key, observed, intent, status, deployment)  # first: an older CRD may refuse the status
        written = await self._write_status(observed.document, state, status)
        if error is not None:
            raise error
        result = "written" if intent.pending or written else "unchanged"
        return _Outcome(result=result, awaited=pure.awaited_by(observed, intent))

    async def _learn(self, key: Key, intent: Intent) -> None:
        """What cannot be remembered holds nothing else up: the next run tries again."""
        starts = self._store.new_starts(key, intent.template_hash)
        if not starts or intent.judged is None or not isinstance(intent.owner, InferenceDeployment):
            return
        try:
            remarks = [await self._on_start(intent.owner, intent.judged.assessment, start) for start in starts]
        except ApiError as error:
            _log.warning("not remembered: %s", error)
        else:
            self._store.learnt(key, starts, next(filter(None, remarks), ""))

    async def _apply(
        self, intent: Intent, deployment: Document | None
    ) -> tuple[Intent, Document | None, ApiError | None]:
        """The intent with what stood in its way, the Deployment as it is now, and an error to be passed on."""
        try:
            if intent.deployment is not None:
                deployment = await self._cluster.apply(DEPLOYMENTS, intent.deployment)
            if intent.service is not None:
                await self._cluster.apply(SERVICES, intent.service)
        except (Forbidden, Unavailable) as error:
            reason = Reason.API_FORBIDDEN if isinstance(error, Forbidden) else Reason.API_UNAVAILABLE
            return replace(intent, obstacle=Obstacle(reason=reason, message=str(error))), deployment, error
        except (Rejected, NotFound) as error:
            return replace(intent, obstacle=Obstacle(reason=Reason.API_REJECTED, message=str(error))), deployment, None
        return intent, deployment, None

    async def _halt(self, document: Document, error: Forbidden) -> None:
        """Say it on the object itself, where at least that is allowed."""
        state = before(document, _now())
        status = halted_status(Obstacle(reason=Reason.API_FORBIDDEN, message=str(error)), state)
        await self._write_status(document, state, status)

    async def _write_status(self, document: Document, state: Before, status: Document) -> bool:
        """Only a change is written, to this very object and none that took its name; events follow the write."""
        if not is_changed(state, status):
            return False
        identity = {key: document["metadata"][key] for key in ("name", "namespace", "uid")}
        body = {key: document[key] for key in ("apiVersion", "kind")} | {"metadata": identity, "status": status}
        try:
            await self._cluster.apply_status(INFERENCE_DEPLOYMENTS, body)
        except NotFound:
            return False
        await self._tell(document, state, status)
        return True

    async def _tell(self, document: Document, state: Before, status: Document) -> None:
        """An event that cannot be written is logged, and holds nothing up."""
        for notice in notices(state.conditions, map(Condition.from_document, status["conditions"])):
            try:
                await self._recorder.record(document, notice)
            except ApiError as error:
                _log.warning("event %s not written: %s", notice.reason, error)


def _now() -> str:
    """As metav1.Time is written."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
