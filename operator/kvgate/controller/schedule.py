"""The times at which an object is reconciled: after an event, after a failure, while it waits for something, and every five minutes."""

import asyncio
import contextlib
import logging
import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

from kvgate.api.base import Document
from kvgate.cluster.client import ADMISSION_RECORDS, RESOURCE_CLAIM_TEMPLATES, Cluster
from kvgate.cluster.errors import ApiError, Forbidden
from kvgate.controller.decision import Awaited, Key
from kvgate.controller.live import CHILDREN, FAMILY
from kvgate.controller.memory import Memory
from kvgate.controller.model_store import ModelStore
from kvgate.controller.pace import Pace
from kvgate.controller.reconcile import Reconciler
from kvgate.controller.resolving import Resolver
from kvgate.controller.starts import ObservedStarts
from kvgate.rendering.labels import OWNER_LABEL
from kvgate.runtime.background import Troubles, repeat
from kvgate.runtime.fair_slots import FairSlots
from kvgate.runtime.worker import TurnedAway

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


_TENANT: ContextVar[Hashable] = ContextVar("tenant of the run")
MAX_ASIDE = 128
"""Runs that wait for their judgement and hold no place; half of those that may wait for a worker."""


class SingleFlight(Generic[K, T]):
    """One run per key at a time; calls during a run share one more run. A caller gets the answer of a run that began after its call."""

    def __init__(
        self, run: Callable[[K], Awaitable[T]], *, limit: int, tenant_of: Callable[[K], Hashable] = lambda key: key
    ) -> None:
        self._run = run
        self._tenant_of = tenant_of
        self._slots = FairSlots(limit)
        self._locks: WeakValueDictionary[K, asyncio.Lock] = WeakValueDictionary()
        self._waiting: dict[K, asyncio.Task[T]] = {}
        self._num_aside = 0

    async def __call__(self, key: K) -> T:
        turn = self._waiting.get(key)
        if turn is None:
            turn = self._waiting[key] = asyncio.create_task(self._turn(key), name=f"reconcile {key}")
        return await asyncio.shield(turn)  # a caller that gives up must not cancel the run of the others

    @contextlib.asynccontextmanager
    async def aside(self) -> AsyncIterator[None]:
        """Within a run: give its place to the run of another key until it goes on, before those that have not begun.

        Where MAX_ASIDE did so already, it keeps its place: what has begun ends first.
        """
        tenant = _TENANT.get()
        if self._num_aside >= MAX_ASIDE:
            yield
            return
        self._num_aside += 1
        self._slots.release(tenant)
        try:
            yield
        finally:
            self._num_aside -= 1
            await self._slots.acquire(tenant, first=True)

    def depth(self) -> int:
        """Return the number of keys that wait for a run which is due; any thread may ask."""
        return len(self._waiting)

    async def _turn(self, key: K) -> T:
        lock, tenant = self._locks.setdefault(key, asyncio.Lock()), self._tenant_of(key)
        _TENANT.set(tenant)
        async with contextlib.AsyncExitStack() as held:
            try:
                await held.enter_async_context(lock)
                await held.enter_async_context(self._slots.slot(tenant))
            finally:
                del self._waiting[key]  # a caller from now on may know of a change that this run does not see
            return await self._run(key)


MAX_LATER = 4
"""Reconciles at a time of objects that nobody changed; a part of MAX_CONCURRENT."""
MAX_CONCURRENT = 16
"""Reconciles at a time, of all objects together; one namespace has three quarters of them at most."""
FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 60.0
"""Longest pause after failures. After an outage, or a storm in which 7 of 10 requests fail, all is as it should be within 90 s."""
JUDGE_RETRY_SECONDS = 2.0
"""Pause of an object that found the queue of its namespace's judgements full."""
FORBIDDEN_RETRY_SECONDS = 60.0
"""Pause after a 403: a role does not change by itself."""
LOOK_AGAIN_SECONDS = 15.0
"""First pause before a look for changes that no watch reports; `kubectl apply` of a folder, or a deletion, takes seconds."""

_log = logging.getLogger(__name__)


class WorkQueue(SingleFlight[Key, None]):
    """Keys that want a reconcile, in the working thread's event loop. `run` returns what its object waits for."""

    def __init__(
        self, run: Callable[[Key], Awaitable[Awaited | None]], *, resync_seconds: float, troubles: Troubles
    ) -> None:
        super().__init__(self._attempt, limit=MAX_CONCURRENT, tenant_of=lambda key: key[0])
        self._reconcile = run
        self._troubles = troubles
        self._resync_seconds = resync_seconds
        self._failures: dict[Key, int] = {}
        self._broken: set[Key] = set()
        """Keys whose last run met a defect: they keep their pause, unless their owner changes the object."""
        self._waits: dict[Key, tuple[Awaited, float]] = {}
        """Key → the thing that its object waits for, and since when on the loop's clock."""
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._later: dict[Key, None] = {}
        """Keys that want a run when there is nothing better to do, in their order."""
        self._num_lanes = 0
        self.awaited_by_later = asyncio.Event()
        """They wait for this: without the pods, a first look would find another status than the last process left."""

    async def reconcile(self, key: Key) -> None:
        """Wait for the end of a run that begins after now. Where the run fails, another one is enqueued."""
        await self(key)

    def begin(self, key: Key) -> None:
        """Reconcile now, whatever pause the object has, because its owner changed it."""
        self._broken.discard(key)
        self.enqueue(key)

    def begin_later(self, key: Key) -> None:
        """Reconcile behind all that changed: after a start, each object is looked at that was settled when the last process ended."""
        self._later[key] = None
        if self._num_lanes < MAX_LATER:
            self._num_lanes += 1
            self._add_task(self._work_off())

    async def _work_off(self) -> None:
        await self.awaited_by_later.wait()
        while self._later:
            key = next(iter(self._later))
            del self._later[key]
            await self.reconcile(key)
        self._num_lanes -= 1

    def depth(self) -> int:
        """Return the number of keys that wait for a run which is due; any thread may ask."""
        return super().depth() + len(self._later)

    def enqueue(self, key: Key, *, delay_seconds: float = 0.0) -> None:
        """Reconcile after the delay, or earlier if an earlier time is planned. After a defect the planned pause stays."""
        loop, planned = asyncio.get_running_loop(), self._timers.get(key)
        if planned is not None and key in self._broken:
            return
        if planned is not None:
            if planned.when() <= loop.time() + delay_seconds:
                return
            planned.cancel()
        self._timers[key] = loop.call_later(delay_seconds, self._begin, key)

    def close(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _begin(self, key: Key) -> None:
        del self._timers[key]
        self._add_task(self.reconcile(key))

    def _add_task(self, run: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(run)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attempt(self, key: Key) -> None:
        try:
            awaited = await self._reconcile(key)
        except Forbidden as error:
            _log.error("forbidden: %s", error, extra={"fields": _fields(key, error)})
            self.enqueue(key, delay_seconds=_jittered(FORBIDDEN_RETRY_SECONDS))
        except ApiError as error:
            _log.warning(
                "a request failed, and the object is reconciled again later: %s",
                error,
                extra={"fields": _fields(key, error)},
            )
            self.enqueue(key, delay_seconds=self._pause_seconds(key))
        except TurnedAway as error:
            _log.warning("not judged yet: %s", error, extra={"fields": {"namespace": key[0], "name": key[1]}})
            self.enqueue(key, delay_seconds=_jittered(JUDGE_RETRY_SECONDS))
        except Exception as error:  # noqa: BLE001 - a defect of one object's run must not end the others'
            self._troubles.note("reconcile", error, about="/".join(key))
            self.enqueue(key, delay_seconds=self._pause_seconds(key))
            self._broken.add(key)
        else:
            self._failures.pop(key, None)
            self._broken.discard(key)
            self._troubles.over("reconcile", about="/".join(key))
            self._look_again(key, awaited)

    def _look_again(self, key: Key, awaited: Awaited | None) -> None:
        """Look again after 15, 15, 30, 60 … s, up to the resync's interval: after as long as the object has waited already."""
        if awaited is None:
            self._waits.pop(key, None)
            return
        now = asyncio.get_running_loop().time()
        known, since = self._waits.get(key, (None, now))
        if known != awaited:
            since = now
        self._waits[key] = awaited, since
        pause_seconds = min(max(now - since, LOOK_AGAIN_SECONDS), self._resync_seconds)
        self.enqueue(key, delay_seconds=_jittered(pause_seconds))

    def _pause_seconds(self, key: Key) -> float:
        """Return 1, 2, 4 … 60 s, so that an API server that comes back is not flooded."""
        failures = self._failures[key] = self._failures.get(key, -1) + 1
        return _jittered(min(FIRST_RETRY_SECONDS * 2.0 ** min(failures, 16), MAX_RETRY_SECONDS))


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.8, 1.2)  # noqa: S311 - spreads load, hides nothing


def _fields(key: Key, error: ApiError) -> dict[str, str]:
    return {"namespace": key[0], "name": key[1], "verb": error.verb, "resource": error.resource}


def claim_of(deployment: Document | None) -> str:
    """Return the name of the ResourceClaimTemplate that the pods of a Deployment refer to; empty where they have none."""
    pod = deployment["spec"]["template"]["spec"] if deployment else {}
    return next((str(each.get("resourceClaimTemplateName", "")) for each in pod.get("resourceClaims") or ()), "")


Connect = Callable[[], Cluster]
"""Makes a new connection, because the old one may be what is broken."""


class Resync:
    """Compares all objects with the cluster, which finds what a watch missed and changed ConfigMaps.

    It lists the objects instead of reading them one by one; only what is not settled is reconciled, with fresh reads.
    """

    def __init__(
        self,
        *,
        connect: Connect,
        namespaces: Sequence[str],
        reconciler: Reconciler,
        queue: WorkQueue,
        memory: Memory,
        starts: ObservedStarts,
        troubles: Troubles,
        models: ModelStore | None = None,
        resolver: Resolver | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._pace = pace or Pace()
        self._models = models
        self._resolver = resolver
        self._connect = connect
        self._namespaces: Sequence[str | None] = namespaces or (None,)
        self._reconciler = reconciler
        self._queue = queue
        self._memory = memory
        self._starts = starts
        self._troubles = troubles

    async def run_forever(self, interval_seconds: float, done: Callable[[], None]) -> None:
        """Call `done` after each round that came to its end."""

        async def round_() -> None:
            await self.run_once()
            done()

        await repeat(
            "resync", round_, interval_seconds=interval_seconds, troubles=self._troubles, spread=0.2, pauses_first=True,
            expected=ApiError,
        )  # fmt: skip

    async def run_once(self) -> None:
        known, seen, claims = self._memory.keys(), set(), dict[Key, str]()
        async with self._connect() as cluster:
            running = self._memory.running_images()
            await self._starts.try_load(cluster, self._troubles, loop="resync", running=running)
            if self._models is not None:
                await self._models.try_load(cluster, self._troubles, loop="resync")
            before, records = self._memory.records.names(), defaultdict[Key, dict[str, Document]](dict)
            for namespace in self._namespaces:
                async for record in cluster.list_metadata(ADMISSION_RECORDS, namespace):
                    metadata = record["metadata"]
                    owner = (metadata.get("labels") or {}).get(OWNER_LABEL, "")
                    records[metadata["namespace"], owner][metadata["name"]] = record
            live = self._reconciler.live
            for kind in reversed(FAMILY):
                await live.relist(cluster, kind, self._namespaces)
            self._pace.is_known = True
            for key in live.owners():
                document, *children = [await live.find(cluster, kind, key) for kind in FAMILY]
                if document is None:
                    continue
                seen.add(key)
                claims[key] = claim_of(children[0])
                if before.get(key, "") != self._memory.records.name(key):
                    continue  # a run stored its record during the list
                self._starts.note_revision((document.get("status") or {}).get("calibrationRevision"))
                await self._compare(key, document, children, records.get(key, {}))
                await self._memory.records.tidy(cluster, document, children[0], records.get(key, {}))
                await asyncio.sleep(0)  # others may run between two judgements
            await self._look_for_claims(cluster, claims)
            if self._resolver is not None:
                await self._resolver.tidy(cluster)
        for key in known - seen:
            self._queue.enqueue(key)

    async def _look_for_claims(self, cluster: Cluster, claims: Mapping[Key, str]) -> None:
        """Make templates of claims again that somebody deleted, because no watch reports them; `claims` has their names."""
        there = set[tuple[str, str]]()
        if not any(claims.values()):
            return
        for namespace in self._namespaces:
            async for found in cluster.list_metadata(RESOURCE_CLAIM_TEMPLATES, namespace, label_selector=OWNER_LABEL):
                there.add((found["metadata"]["namespace"], found["metadata"]["name"]))
        for key, name in claims.items():
            if name and (key[0], name) not in there:
                self._reconciler.claimless.add(key)
                self._queue.enqueue(key)

    async def load(self) -> None:
        """List children and records before the first reconcile. What cannot be listed is requested one by one until a round lists it."""
        try:
            async with self._connect() as cluster:
                await self._memory.records.load(cluster, self._namespaces)
                live = self._reconciler.live
                for kind in CHILDREN:
                    await live.relist(cluster, kind, self._namespaces)
                for key, deployment in live.deployments():
                    self._pace.note(key, deployment)
                    self._memory.expect(key, deployment)
                self._pace.is_known = True
        except ApiError as error:
            self._troubles.note("start", error, expected=ApiError)

    async def _compare(
        self, key: Key, document: Document, children: Sequence[Document | None], records: Mapping[str, Document]
    ) -> None:
        """Reconcile an object that is not settled. An error with one object does not stop the round: its own reconcile reports it."""
        if "deletionTimestamp" in document["metadata"]:
            return
        try:
            situation = await self._reconciler.situation(key, document, children, records)
            is_settled = self._reconciler.is_settled(key, situation)
        except Exception as error:  # noqa: BLE001 - the round goes on with the others
            self._troubles.note("resync", error, about="/".join(key), expected=ApiError)
            is_settled = False
        if not is_settled:
            self._queue.enqueue(key)
