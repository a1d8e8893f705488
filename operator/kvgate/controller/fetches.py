"""The checkpoints that are fetched from the hub: their order, and one fetch as a task of a worker process.

No namespace delays another one's first fetch, whatever it names, and all together ask the hub no more often than the limit says.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from kvgate.api.conditions import Reason
from kvgate.checkpoint.published import ModelName
from kvgate.checkpoint.stored import EntryTooLarge, packed
from kvgate.fetching.limits import Limits as FetchBounds
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


MAX_SHOWN = 200
"""Characters of a key that a message shows, and of a source or a commit; all come from the hub."""


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
            commit=inert(commit)[:MAX_SHOWN],
            source=inert(source)[:MAX_SHOWN],
            fetched=f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        )

    def __str__(self) -> str:
        commit = f" at commit {self.commit}" if self.commit else ""
        return f"{ModelName(self.name, self.revision)}{commit} from {self.source or 'the hub'}"
