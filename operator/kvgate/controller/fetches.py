"""The checkpoints that are fetched from the hub: their order, one fetch as a task of a worker process, and the ConfigMap that keeps them.

No namespace delays another one's first fetch, whatever it names, and all together ask the hub no more often than the limit says. The
webhook mounts the ConfigMap.
"""

import asyncio
import base64
import binascii
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kvgate.api.base import Document
from kvgate.api.conditions import Reason
from kvgate.checkpoint.published import ModelName, PublishedError
from kvgate.checkpoint.stored import MAX_ENTRY_BYTES, SUFFIX, EntryTooLarge, StoredModels, entry_key, packed, unpacked
from kvgate.cluster.client import CONFIG_MAPS, Cluster
from kvgate.cluster.errors import ApiError
from kvgate.controller.starts import ConfigMapName
from kvgate.fetching.limits import Limits as FetchBounds
from kvgate.runtime.background import Troubles
from kvgate.runtime.pool import Pool
from kvgate.runtime.worker import Limits, OutOfTime, TurnedAway, WorkerLost
from kvgate.text.inert import inert

WORKERS = Limits(workers=3, budget_seconds=30.0, max_waiting=8, memory_bytes=384 << 20)
"""Worker processes of fetches. The times are for one checkpoint with all its requests. A worker holds 45 MiB after a fetch, and 170 MiB
while it reads as much as one may have; its address space is larger, because each thread reserves some."""


BOUNDS = FetchBounds(max_seconds=25, max_bytes=64 << 20, num_parallel=2)
"""Bounds of what one fetch may take from the hub; it reports them itself, before its worker is ended."""


class FetchLimits(Struct, frozen=True, kw_only=True):
    per_minute: int = 30
    """Checkpoints that are asked for in a minute; one costs the hub some 5 requests, a large one as many as it has files."""
    burst: int = 6
    """Checkpoints that may be asked for at once after a pause."""
    at_once: int = 3
    at_once_per_namespace: int = 2
    """Less than `at_once`, so that one namespace's slow names never hold all workers."""
    waiting_per_namespace: int = 100
    """Names of one namespace that may wait; a further name is not fetched."""


@dataclass(kw_only=True, slots=True)
class _Tenant:
    """One namespace: the times from which its names may be fetched, in the order in which it asked."""

    due: dict[ModelName, float] = field(default_factory=dict)
    running: int = 0
    served: int = 0
    """Number of the last fetch that began for it; the smallest is next."""


class FetchQueue:
    """Names that wait, each under every namespace that asks for it. Times are those of the caller's clock, in seconds."""

    def __init__(self, limits: FetchLimits = FetchLimits()) -> None:  # noqa: B008 - it is frozen
        self._limits = limits
        self._tenants: dict[str, _Tenant] = {}
        self._running: dict[ModelName, str] = {}
        """Names that are being fetched, each with the namespace whose turn it took."""
        self._served = 0
        self._free_at = float("-inf")
        """Time of the next fetch if the hub was asked at the even pace of the limit; it may lie `burst` fetches in the past."""
        self._paused_until = float("-inf")

    def ask(self, namespace: str, name: ModelName, *, not_before: float = float("-inf")) -> bool:
        """Add a name, unless it waits already. Returns False where too many names of the namespace wait."""
        tenant = self._tenants.setdefault(namespace, _Tenant(served=self._served))
        if name in tenant.due:
            return True
        if len(tenant.due) >= self._limits.waiting_per_namespace:
            return False
        tenant.due[name] = not_before
        return True

    def withdraw(self, namespace: str, name: ModelName) -> None:
        if tenant := self._tenants.get(namespace):
            tenant.due.pop(name, None)
            self._forget_idle(namespace)

    def next(self, now: float) -> tuple[str, ModelName] | None:
        """Begin the next fetch: that of the namespace with the fewest fetches under way, then of the one served longest ago."""
        if len(self._running) >= self._limits.at_once or now < self._earliest:
            return None
        candidates = []
        for namespace, tenant in self._tenants.items():
            due = (name for name, at in tenant.due.items() if at <= now and name not in self._running)
            if tenant.running < self._limits.at_once_per_namespace and (name := next(due, None)) is not None:
                candidates.append((tenant.running, tenant.served, namespace, name))
        if not candidates:
            return None
        _, _, namespace, name = min(candidates, key=lambda each: each[:3])
        interval_seconds = 60 / self._limits.per_minute
        self._free_at = max(self._free_at, now - (self._limits.burst - 1) * interval_seconds) + interval_seconds
        self._served += 1
        self._running[name] = namespace
        tenant = self._tenants[namespace]
        tenant.running, tenant.served = tenant.running + 1, self._served
        return namespace, name

    def done(self, name: ModelName, *, again_at: float | None = None) -> None:
        """End a fetch: nobody asks for the name any more, or all who did ask again at that time."""
        namespace = self._running.pop(name)
        self._tenants[namespace].running -= 1
        for asking, tenant in tuple(self._tenants.items()):
            if name in tenant.due:
                del tenant.due[name]
                if again_at is not None:
                    tenant.due[name] = again_at
            self._forget_idle(asking)

    def pause(self, until: float) -> None:
        """Begin no fetch before that time, because the hub asks for a pause."""
        self._paused_until = max(self._paused_until, until)

    @property
    def waiting(self) -> int:
        """Number of names that wait or are being fetched, each once."""
        return len({name for tenant in self._tenants.values() for name in tenant.due} | set(self._running))

    def wait_seconds(self, now: float) -> float | None:
        """Return the time until `next` may begin a fetch; None where only a new name or the end of a fetch changes that."""
        if len(self._running) >= self._limits.at_once:
            return None
        due = [
            at
            for tenant in self._tenants.values()
            if tenant.running < self._limits.at_once_per_namespace
            for name, at in tenant.due.items()
            if name not in self._running
        ]
        return max(0.0, min(due) - now, self._earliest - now) if due else None

    @property
    def _earliest(self) -> float:
        return max(self._free_at, self._paused_until)

    def _forget_idle(self, namespace: str) -> None:
        tenant = self._tenants[namespace]
        if not tenant.due and not tenant.running:
            del self._tenants[namespace]


class Fetched(Struct, frozen=True, kw_only=True):
    """The facts that the hub has published, as they are stored."""

    entry: bytes
    commit: str
    source: str


class Failure(Struct, frozen=True, kw_only=True):
    """The reason why a checkpoint is not known, for the condition ModelResolved."""

    reason: Reason
    message: str
    is_temporary: bool = False


def fetched(name: str, revision: str) -> Iterator[Fetched | Failure]:
    """Fetch one checkpoint, in a worker: what a hub answers is read and packed there, so it may take no more than the worker's limits."""
    from kvgate.checkpoint.not_fetched import NotFetched
    from kvgate.fetching.fetch import fetch

    try:
        answer = fetch(name, revision, limits=BOUNDS)
    except RuntimeError as error:
        if "start new thread" in str(error):  # as Python says it where a thread finds no room for its stack
            raise MemoryError from error
        raise
    if isinstance(answer, NotFetched):
        yield Failure(reason=Reason(answer.reason), message=answer.message, is_temporary=answer.is_temporary)
        return
    published = replace(answer, name=name, revision=revision)  # a hub may know it under another name by now
    try:
        yield Fetched(entry=packed(published), commit=published.commit, source=published.source)
    except EntryTooLarge as error:
        yield Failure(reason=Reason.TOO_LARGE, message=f"{name} is too large: {error}")


async def fetch_in_worker(pool: Pool, namespace: str, wanted: ModelName) -> Fetched | Failure:
    try:
        outcome = await pool.run(namespace, fetched, wanted.name, wanted.revision)
    except (OutOfTime, TurnedAway) as error:
        return Failure(reason=Reason.TIME_OVER, message=f"{wanted} was not fetched: {error}", is_temporary=True)
    except WorkerLost:
        more = f"{WORKERS.memory_bytes >> 20} MiB"
        return Failure(reason=Reason.TOO_LARGE, message=f"{wanted} is too large: reading it took more than {more}")
    return outcome.value


ABOUT_SUFFIX = ".about.json"
"""End of the key under which an entry's origin stands, as text that people can read."""
MAX_ENTRIES = 400
MAX_BYTES = 800 << 10
"""Size of all entries. A ConfigMap holds 1 MiB, and the origins need up to 200 KiB of it."""
UNUSED_SECONDS = 24 * 3600.0
"""Time for which an entry stays that no object names any more: whoever deletes a refused object creates another one soon."""
_MAX_SHOWN = 200
"""Characters of a key that a message shows, and of a source or a commit; all come from the hub."""

_log = logging.getLogger(__name__)


class Origin(Struct, frozen=True, kw_only=True, omit_defaults=True):
    name: str
    revision: str = ""
    commit: str = ""
    source: str = ""
    fetched: str = ""
    """Time in UTC."""

    @classmethod
    def of(cls, wanted: ModelName, *, commit: str, source: str) -> "Origin":
        return cls(
            name=wanted.name,
            revision=wanted.revision,
            commit=inert(commit)[:_MAX_SHOWN],
            source=inert(source)[:_MAX_SHOWN],
            fetched=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        )

    def __str__(self) -> str:
        commit = f" at commit {self.commit}" if self.commit else ""
        return f"{ModelName(self.name, self.revision)}{commit} from {self.source or 'the hub'}"


class Stored(Struct, frozen=True, kw_only=True):
    entry: bytes
    origin: Origin


class ModelStore:
    """The entries that this process knows and that its ConfigMap holds."""

    def __init__(self, config_map: ConfigMapName | None) -> None:
        self.config_map = config_map
        self._known: dict[str, Stored] = {}
        self._written: dict[str, Stored] = {}
        """The entries of the ConfigMap, as far as this process knows."""
        self._logged: frozenset[str] = frozenset()
        self._turn = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, wanted: ModelName) -> Stored | None:
        return self._known.get(entry_key(wanted.key))

    def models(self, names: Iterable[ModelName]) -> StoredModels:
        keys = [entry_key(name.key) for name in names]
        return StoredModels({key: self._known[key].entry for key in keys if key in self._known})

    def put(self, wanted: ModelName, stored: Stored) -> None:
        self._known[entry_key(wanted.key)] = stored

    def drop(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._known.pop(key, None)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each entry, the oldest first."""
        return {key: len(stored.entry) for key, stored in self._known.items()}

    async def load(self, cluster: Cluster) -> None:
        """Read the ConfigMap; what is not written yet stays. Raises ApiError."""
        if self.config_map is None:
            return
        async with self._turn:
            found = await cluster.find(CONFIG_MAPS, self.config_map.namespace, self.config_map.name)
            stored, problems = await asyncio.to_thread(_read, found or {}, self._written)
            unwritten = {key: each for key, each in self._known.items() if self._written.get(key) is not each}
            self._known, self._written = {**stored, **unwritten}, stored
        for problem in sorted(frozenset(problems) - self._logged):
            _log.warning("ConfigMap %s: %s", self.config_map, problem)
        self._logged = frozenset(problems)

    async def try_load(self, cluster: Cluster, troubles: Troubles, *, loop: str) -> None:
        """Read the ConfigMap; where that fails, note it and keep the entries as they were."""
        try:
            await self.load(cluster)
        except Exception as error:  # noqa: BLE001 - verdicts that stand need no entry, so the work goes on
            troubles.note(loop, error, about="the fetched models", expected=ApiError)

    async def save(self, cluster: Cluster) -> None:
        """Write what the ConfigMap lacks, and remove what is no longer known. Raises ApiError."""
        if self.config_map is None:
            return
        async with self._turn:
            news = {key: each for key, each in self._known.items() if self._written.get(key) is not each}
            gone = [key for key in self._written if key not in self._known]
            if not news and not gone:
                return
            texts = {_about(key): json.dumps(msgspec.to_builtins(each.origin)) for key, each in news.items()}
            entries = {key: base64.b64encode(each.entry).decode() for key, each in news.items()}
            patch = {
                "data": {**texts, **dict.fromkeys(map(_about, gone))},
                "binaryData": {**entries, **dict.fromkeys(gone)},
            }
            await cluster.apply(CONFIG_MAPS, self.config_map.manifest())  # it may not be there yet, or no longer
            await cluster.merge(CONFIG_MAPS, self.config_map.namespace, self.config_map.name, patch)
            self._written = {key: each for key, each in self._written.items() if key not in gone} | news


def _read(config_map: Document, known: Mapping[str, Stored]) -> tuple[dict[str, Stored], list[str]]:
    """Return the entries of a ConfigMap, and the problems of those that cannot be read; an entry that is known is the same object."""
    found, problems = dict[str, Stored](), list[str]()
    origins = config_map.get("data") or {}
    for key, text in (config_map.get("binaryData") or {}).items():
        try:
            entry = base64.b64decode(text, validate=True)
            if (same := known.get(key)) is not None and same.entry == entry:
                found[key] = same
            else:
                found[key] = _stored(key, entry, origins.get(_about(key)))
        except (binascii.Error, PublishedError, msgspec.MsgspecError, ValueError) as error:
            problems.append(f"key {inert(key)[:_MAX_SHOWN]} cannot be read, and is left out: {inert(str(error))}")
    return found, problems


def _stored(key: str, entry: bytes, origin: str | None) -> Stored:
    if len(entry) > MAX_ENTRY_BYTES:
        raise PublishedError(f"it has {len(entry):,} bytes, and at most {MAX_ENTRY_BYTES:,} are read")
    published = unpacked(entry)
    wanted = ModelName(published.name, published.revision)
    if entry_key(wanted.key) != key:
        raise PublishedError(f"it is the entry of {inert(str(wanted))[:_MAX_SHOWN]}")
    given = msgspec.json.decode(origin, type=Origin) if origin else None
    return Stored(entry=entry, origin=given or Origin.of(wanted, commit=published.commit, source=published.source))


def _about(key: str) -> str:
    return key.removesuffix(SUFFIX) + ABOUT_SUFFIX


def superfluous(
    sizes: Mapping[str, int], users: Mapping[str, Collection[str]], unused_seconds: Callable[[str], float], *,
    max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES,
) -> Iterator[str]:  # fmt: skip
    """Yield the entries to drop: those long unused, and while there are too many, first others that nobody uses, the oldest first.

    Then it is the turn of the namespace that uses the most bytes alone. `sizes` are in the order of age; `users` are the
    namespaces whose objects name an entry.
    """
    left = dict(sizes)
    for key in [key for key in left if not users.get(key) and unused_seconds(key) > UNUSED_SECONDS]:
        del left[key]
        yield key
    while len(left) > max_entries or sum(left.values()) > max_bytes:
        unused = [key for key in left if not users.get(key)]
        key = max(unused, key=unused_seconds) if unused else _newest_of_the_greediest(left, users)
        del left[key]
        yield key


def _newest_of_the_greediest(sizes: Mapping[str, int], users: Mapping[str, Collection[str]]) -> str:
    alone = {key: next(iter(users[key])) for key in sizes if len(users[key]) == 1}
    if not alone:
        return next(reversed(list(sizes)))
    taken: dict[str, int] = {}
    for key, namespace in alone.items():
        taken[namespace] = taken.get(namespace, 0) + sizes[key]
    greediest = max(taken, key=lambda namespace: taken[namespace])
    return next(key for key in reversed(list(alone)) if alone[key] == greediest)
