"""Asks the hub for what InferenceDeployments name and the catalogue lacks, once per checkpoint, and lets the objects be judged again.

Only the controller does that, and only where `models.resolve` is `hub`: on the way of an admission nothing uses the network.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Collection

from msgspec import Struct
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter, Gauge

from kvgate.api.base import Document
from kvgate.api.conditions import Reason
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.checkpoint.published import ModelName
from kvgate.checkpoint.stored import entry_key
from kvgate.cluster.client import Cluster
from kvgate.cluster.errors import ApiError
from kvgate.controller.decision import Key
from kvgate.controller.fetches import Failure, Fetched, FetchQueue, Origin
from kvgate.controller.model_store import ModelStore, Stored, superfluous
from kvgate.controller.resolution import Resolution, Waiting, resolution, waiting_since
from kvgate.judgement.facts import names_to_fetch
from kvgate.metrics import exporter, registry
from kvgate.runtime.background import Troubles

Fetch = Callable[[str, ModelName], Awaitable[Fetched | Failure]]
"""Fetches a checkpoint in the turn of a namespace."""

FIRST_RETRY_SECONDS = 2.0
MAX_RETRY_SECONDS = 300.0
REFUSED_SECONDS = 600.0
"""Time for which a final answer, such as NotFound, is given to further objects; then the hub is asked again."""
PAUSE_SECONDS = 30.0
"""Pause of all fetches after the hub reported a rate limit; it doubles while that goes on."""
MAX_ANSWERS = 4096
"""Answers that are remembered; the oldest are forgotten."""
SLACK_SECONDS = 0.2
"""Time after the end of a wait at which the object is looked at."""


class ResolvingInstruments(Struct, frozen=True, kw_only=True):
    results: Counter
    waiting: Gauge
    stored: Gauge

    @classmethod
    def registered(cls, into: CollectorRegistry) -> "ResolvingInstruments":
        return cls(
            results=exporter.counter(registry.MODEL_RESOLUTIONS, into),
            waiting=exporter.gauge(registry.MODELS_WAITING, into),
            stored=exporter.gauge(registry.MODELS_STORED, into),
        )


class _Answer(Struct, frozen=True, kw_only=True):
    failure: Failure
    until: float
    """Time until which objects that come get this answer."""
    failures: int


class Resolver:
    """The models of all objects that the catalogue lacks; used in the working thread. Times are those of the wall clock, in seconds."""

    def __init__(
        self, store: ModelStore, fetch: Fetch, instruments: ResolvingInstruments, troubles: Troubles, *,
        resolve_seconds: float, queue: FetchQueue | None = None, clock: Callable[[], float] = time.time,
    ) -> None:  # fmt: skip
        self._store = store
        self._fetch = fetch
        self._instruments = instruments
        self._troubles = troubles
        self._resolve_seconds = resolve_seconds
        self._queue = queue or FetchQueue()
        self._clock = clock
        self._named: dict[Key, frozenset[ModelName]] = {}
        self._waiting: dict[Key, tuple[object, Waiting]] = {}
        """Each object's wait, with the uid and the generation that it is of."""
        self._turned_away: set[Key] = set()
        """Objects whose namespace had too many names waiting."""
        self._assumed: set[Key] = set()
        """Objects that were admitted on an assumption, and are judged anew as soon as the hub answers."""
        self._answers: dict[ModelName, _Answer] = {}
        self._used_at: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self.enqueue: Callable[[Key, float], object] = lambda key, delay_seconds: None  # noqa: ARG005 - nobody waits yet

    def look(self, key: Key, document: Document, owner: object) -> Resolution | None:
        """Return the state of an object's models; None where the hub need not be asked for any."""
        names = names_to_fetch(owner.spec) if isinstance(owner, InferenceDeployment) else ()
        if frozenset(names) != self._named.get(key, frozenset()):
            self.forget(key)
            if names:
                self._named[key] = frozenset(names)
        if not names:
            return None
        now = self._clock()
        metadata = document["metadata"]
        of = (metadata["uid"], metadata.get("generation", 1))
        known = self._waiting.get(key)
        if known is None or known[0] != of:
            self._turned_away.discard(key)
            since, was_found = waiting_since(document, now)
            wait = Waiting(since=since, seconds=self._resolve_seconds, was_found=was_found)
            known = self._waiting[key] = of, wait
        waiting = known[1]
        stored = {name: self._store.find(name) for name in names}
        missing = {name: self._failure(key, name, waiting) for name, each in stored.items() if each is None}
        found = {name: each.origin for name, each in stored.items() if each is not None}
        for name in found:
            self._used_at[entry_key(name.key)] = now
        if not missing and not waiting.was_found:
            self._waiting[key] = self._waiting[key][0], replace(waiting, was_found=True)
        return resolution(found, missing, self._store.models(names), waiting=waiting, now=now)

    def _failure(self, key: Key, name: ModelName, waiting: Waiting) -> Failure | None:
        """Return the answer about a name; one that was given too long before this object came does not count."""
        if key in self._turned_away:
            message = f"{name} is not fetched: too many models of namespace {key[0]} wait already"
            return Failure(reason=Reason.TOO_MANY_MODELS, message=message)
        answer = self._answers.get(name)
        return answer.failure if answer is not None and answer.until >= waiting.since else None

    def ask(self, key: Key, state: Resolution, *, is_assumed: bool = False) -> None:
        """Have the missing models of an object fetched while it waits, and the object looked at when the wait is over.

        `is_assumed`: it was admitted on an assumption, so it waits for no time, and the hub is asked until it gives a final answer.
        """
        (self._assumed.add if is_assumed else self._assumed.discard)(key)
        if not state.is_held and not is_assumed:
            return
        for name in sorted(self._named.get(key, frozenset())):
            answer = self._answers.get(name)
            is_final = answer is not None and not answer.failure.is_temporary and not state.is_held
            if is_final or self._store.find(name) is not None:
                continue
            if not self._queue.ask(key[0], name, not_before=answer.until if answer else 0.0):
                self._turned_away.add(key)
                self.enqueue(key, 0.0)
        if state.has_end and state.held_until is not None:
            self.enqueue(key, max(0.0, state.held_until - self._clock()) + SLACK_SECONDS)
        self._wake.set()

    def forget(self, key: Key) -> None:
        names = self._named.pop(key, frozenset())
        self._waiting.pop(key, None)
        self._turned_away.discard(key)
        self._assumed.discard(key)
        for name in names:
            if not any(other[0] == key[0] and name in wanted for other, wanted in self._named.items()):
                self._queue.withdraw(key[0], name)

    async def run_forever(self, cluster: Cluster) -> None:
        """Fetch what waits, as fast as the limits let it."""
        while True:
            try:
                await self._work(cluster)
            except Exception as error:  # noqa: BLE001 - whatever it is, the loop goes on
                self._troubles.note("models", error)
                await asyncio.sleep(FIRST_RETRY_SECONDS)

    async def _work(self, cluster: Cluster) -> None:
        """Begin the fetches that are due, and wait until another one may be."""
        self._wake.clear()
        while (turn := self._queue.next(self._clock())) is not None:
            task = asyncio.create_task(self._resolve(cluster, *turn))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._instruments.waiting.set(self._queue.waiting)
        self._instruments.stored.set(len(self._store))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._queue.wait_seconds(self._clock())):
                await self._wake.wait()

    def close(self) -> None:
        """End the fetches under way; a controller that starts anew begins them again."""
        for task in self._tasks:
            task.cancel()

    async def _resolve(self, cluster: Cluster, namespace: str, name: ModelName) -> None:
        try:
            answer = await self._fetch(namespace, name)
        except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
            self._troubles.note("models", error, about=str(name))
            answer = Failure(reason=Reason.BROKEN, message=f"{name} was not fetched because of a defect of kvgate")
        self._instruments.results.labels((answer.reason if isinstance(answer, Failure) else Reason.FOUND).value).inc()
        waiting = [key for key, names in self._named.items() if name in names]
        if isinstance(answer, Failure):
            self._note(name, answer, waiting)
        else:
            self._answers.pop(name, None)
            origin = Origin.of(name, commit=answer.commit, source=answer.source)
            self._store.put(name, Stored(entry=answer.entry, origin=origin))
            self._used_at[entry_key(name.key)] = self._clock()
            self._queue.done(name)
            await self.tidy(cluster)
        for key in waiting:
            self.enqueue(key, 0.0)
        self._wake.set()

    def _note(self, name: ModelName, failure: Failure, waiting: Collection[Key]) -> None:
        """Remember an answer. A temporary failure is tried again as long as an object is held back for it, or stands on an assumption."""
        now, last = self._clock(), self._answers.pop(name, None)
        failures = (last.failures if last else 0) + 1
        if not failure.is_temporary:
            pause_seconds = REFUSED_SECONDS
        else:
            pause_seconds = min(FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 16), MAX_RETRY_SECONDS)
        pause_seconds *= random.uniform(0.8, 1.2)  # noqa: S311 - spreads load, hides nothing
        self._answers[name] = _Answer(failure=failure, until=now + pause_seconds, failures=failures)
        while len(self._answers) > MAX_ANSWERS:
            del self._answers[next(iter(self._answers))]
        if failure.reason is Reason.RATE_LIMITED:
            self._queue.pause(now + min(PAUSE_SECONDS * 2.0 ** min(failures - 1, 16), MAX_RETRY_SECONDS))
        waits = [self._waiting[key][1] for key in waiting if key in self._waiting]
        is_held = any(wait.was_found or now < wait.since + wait.seconds for wait in waits)
        is_awaited = failure.is_temporary and (is_held or not self._assumed.isdisjoint(waiting))
        self._queue.done(name, again_at=now + pause_seconds if is_awaited else None)

    async def tidy(self, cluster: Cluster) -> None:
        """Drop what nobody needs or what there is no room for, and write the rest. A failure is noted, and the next call tries again."""
        now, users = self._clock(), dict[str, set[str]]()
        for key, names in self._named.items():
            for name in names:
                users.setdefault(entry_key(name.key), set()).add(key[0])
        sizes = self._store.sizes()
        self._used_at = {key: self._used_at.get(key, now) for key in sizes}
        dropped = frozenset(superfluous(sizes, users, lambda key: now - self._used_at[key]))
        self._store.drop(dropped)
        for name in {name for names in self._named.values() for name in names}:
            if entry_key(name.key) in dropped:
                message = f"{name} is not stored: there is no room for more models of its namespace"
                failure = Failure(reason=Reason.TOO_MANY_MODELS, message=message)
                self._answers[name] = _Answer(failure=failure, until=now + REFUSED_SECONDS, failures=1)
        try:
            await self._store.save(cluster)
        except Exception as error:  # noqa: BLE001 - the verdicts of this process use the entry all the same
            self._troubles.note("models", error, about="the ConfigMap", expected=ApiError)
