"""Keys that want a reconcile: one run at a time each, and another one where the API server or a user owes something."""

import asyncio
import contextlib
import logging
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

from kvgate.api.base import Document
from kvgate.cluster.client import DEPLOYMENTS, INFERENCE_DEPLOYMENTS, SERVICES, Cluster, Kind
from kvgate.cluster.errors import ApiError, Forbidden
from kvgate.controller.decision import Awaited
from kvgate.controller.memory import Key, Memory
from kvgate.controller.reconcile import Reconciler
from kvgate.controller.starts import ObservedStarts
from kvgate.rendering.labels import OWNER_LABEL
from kvgate.runtime.background import Troubles, repeat
from kvgate.runtime.workers import TurnedAway

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")


class SingleFlight(Generic[K, T]):
    """Calls `run(key)`; a caller's answer is that of a run which began after it called."""

    def __init__(self, run: Callable[[K], Awaitable[T]], *, limit: int) -> None:
        self._run = run
        self._limit = asyncio.Semaphore(limit)
        self._locks: WeakValueDictionary[K, asyncio.Lock] = WeakValueDictionary()
        self._waiting: dict[K, asyncio.Task[T]] = {}

    async def __call__(self, key: K) -> T:
        turn = self._waiting.get(key)
        if turn is None:
            turn = self._waiting[key] = asyncio.create_task(self._turn(key), name=f"reconcile {key}")
        return await asyncio.shield(turn)  # a caller that gives up must not take the others' run with it

    @contextlib.asynccontextmanager
    async def aside(self) -> AsyncIterator[None]:
        """Within a run: give its place to another key's until it goes on."""
        self._limit.release()
        try:
            yield
        finally:
            await self._limit.acquire()

    async def _turn(self, key: K) -> T:
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with contextlib.AsyncExitStack() as held:
            try:
                await held.enter_async_context(lock)
                await held.enter_async_context(self._limit)
            finally:
                del self._waiting[key]  # whoever asks from now on may know more than this run will see
            return await self._run(key)


MAX_CONCURRENT = 16
"""Reconciles at a time, of all objects together."""
FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 300.0
JUDGE_RETRY_SECONDS = 2.0
"""Pause of objects whose namespace has many that wait for a judgement."""
FORBIDDEN_RETRY_SECONDS = 60.0
"""A role does not change by itself."""
LOOK_AGAIN_SECONDS = 15.0
"""Pause before looking again for changes that no watch reports: `kubectl apply` of a folder, or a deletion, takes seconds."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wait:
    awaited: Awaited
    since: float
    """Start of the wait on the loop's clock."""


class WorkQueue:
    """Lives in kopf's event loop; `run` says what its object waits for."""

    def __init__(
        self, run: Callable[[Key], Awaitable[Awaited | None]], *, resync_seconds: float, troubles: Troubles
    ) -> None:
        self._run = run
        self._troubles = troubles
        self._resync_seconds = resync_seconds
        self._flight = SingleFlight(self._attempt, limit=MAX_CONCURRENT)
        self._failures: dict[Key, int] = {}
        self._broken: set[Key] = set()
        """Those whose last run met a defect: they wait for their turn, unless their owner changes them."""
        self._waits: dict[Key, _Wait] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def reconcile(self, key: Key) -> None:
        """Wait for a run that begins after now; where it fails, another one is enqueued."""
        await self._flight(key)

    def begin(self, key: Key) -> None:
        """Reconcile now, whatever pause it had: its owner changed it."""
        self._broken.discard(key)
        self.enqueue(key)

    def aside(self) -> AbstractAsyncContextManager[None]:
        """Give the place of a waiting run to another key meanwhile."""
        return self._flight.aside()

    def enqueue(self, key: Key, *, delay_seconds: float = 0.0) -> None:
        """Reconcile then, or before if an earlier moment was asked for; what failed by a defect keeps its pause."""
        loop, planned = asyncio.get_running_loop(), self._timers.get(key)
        if planned is not None and key in self._broken:
            return
        if planned is not None:
            if planned.when() <= loop.time() + delay_seconds:
                return
            planned.cancel()
        self._timers[key] = loop.call_later(delay_seconds, self._begin, key)

    def close(self) -> None:
        """Nothing is begun any more."""
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _begin(self, key: Key) -> None:
        del self._timers[key]
        task = asyncio.create_task(self.reconcile(key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attempt(self, key: Key) -> None:
        try:
            awaited = await self._run(key)
        except Forbidden as error:
            _log.error("forbidden: %s", error, extra={"fields": _fields(key, error)})
            self.enqueue(key, delay_seconds=_jittered(FORBIDDEN_RETRY_SECONDS))
        except ApiError as error:
            _log.warning("will try again: %s", error, extra={"fields": _fields(key, error)})
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
        """15, 15, 30, 60 … s apart up to the resync's interval: as long as it has waited, however many runs that made."""
        if awaited is None:
            self._waits.pop(key, None)
            return
        now, wait = asyncio.get_running_loop().time(), self._waits.get(key)
        if wait is None or wait.awaited != awaited:
            wait = self._waits[key] = _Wait(awaited=awaited, since=now)
        pause_seconds = min(max(now - wait.since, LOOK_AGAIN_SECONDS), self._resync_seconds)
        self.enqueue(key, delay_seconds=_jittered(pause_seconds))

    def _pause_seconds(self, key: Key) -> float:
        """1, 2, 4 … 300 s, so that an API server that comes back is not met by everybody at once."""
        failures = self._failures[key] = self._failures.get(key, -1) + 1
        return _jittered(min(FIRST_RETRY_SECONDS * 2.0 ** min(failures, 16), MAX_RETRY_SECONDS))


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.8, 1.2)  # noqa: S311 - spreads load, hides nothing


def _fields(key: Key, error: ApiError) -> dict[str, str]:
    return {"namespace": key[0], "name": key[1], "verb": error.verb, "resource": error.resource}


Connect = Callable[[], Cluster]
"""A new connection: the old one may be what is broken."""


class Resync:
    """Lists instead of reading one by one; only what is not settled is reconciled, with fresh reads."""

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
    ) -> None:
        self._connect = connect
        self._namespaces: Sequence[str | None] = namespaces or (None,)
        self._reconciler = reconciler
        self._queue = queue
        self._memory = memory
        self._starts = starts
        self._troubles = troubles

    async def run_forever(self, interval_seconds: float, done: Callable[[], None]) -> None:
        """`done` is called after every round that came to its end."""

        async def round_() -> None:
            await self.run_once()
            done()

        await repeat(
            "resync", round_, interval_seconds=interval_seconds, troubles=self._troubles, spread=0.2, pauses_first=True,
            expected=ApiError,
        )  # fmt: skip

    async def run_once(self) -> None:
        known, seen = self._memory.keys(), set()
        async with self._connect() as cluster:
            await self._load_starts(cluster)
            for namespace in self._namespaces:
                children = [await _by_key(cluster, kind, namespace) for kind in (DEPLOYMENTS, SERVICES)]
                async for document in cluster.list(INFERENCE_DEPLOYMENTS, namespace):
                    key = _key(document)
                    seen.add(key)
                    await self._compare(key, document, *(found.get(key) for found in children))
                    await asyncio.sleep(0)  # others may run between two judgements
        for key in known - seen:
            self._queue.enqueue(key)

    async def _load_starts(self, cluster: Cluster) -> None:
        """Observed starts that cannot be read stay as they were; they hold no comparison up."""
        try:
            await self._starts.load(cluster)
        except Exception as error:  # noqa: BLE001 - see above
            self._troubles.note("resync", error, about="the observed starts", expected=ApiError)

    async def _compare(
        self, key: Key, document: Document, deployment: Document | None, service: Document | None
    ) -> None:
        """One object's trouble is that object's and no other's: its own reconcile says it there, and tries again less and less."""
        try:
            is_settled = await self._is_settled(key, document, deployment, service)
        except Exception as error:  # noqa: BLE001 - the round goes on with the others
            self._troubles.note("resync", error, about="/".join(key), expected=ApiError)
            is_settled = False
        if not is_settled:
            self._queue.enqueue(key)

    async def _is_settled(
        self, key: Key, document: Document, deployment: Document | None, service: Document | None
    ) -> bool:
        if "deletionTimestamp" in document["metadata"]:
            return True
        situation = await self._reconciler.situation(key, document, deployment, service)
        return self._reconciler.is_settled(key, situation)


async def _by_key(cluster: Cluster, kind: Kind, namespace: str | None) -> dict[Key, Document]:
    return {_key(item): item async for item in cluster.list(kind, namespace, label_selector=OWNER_LABEL)}


def _key(document: Document) -> Key:
    return document["metadata"]["namespace"], document["metadata"]["name"]
