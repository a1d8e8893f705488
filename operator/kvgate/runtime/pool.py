"""A pool of worker processes beside a process's event loop: fair between tenants, and workers that die are replaced.

A thread cannot be interrupted, and it would share the interpreter's lock with the event loop; a process can be killed.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import replace

from kvgate.runtime.worker import Limits, Outcome, Shared, Steps, TurnedAway, Worker

T = TypeVar("T")

WAIT_FOR_START_SECONDS = 60.0
"""Time for the first worker, which waits until the catalogues are read; other pods may use the node's processors too."""
MAX_KNOWN_TENANTS = 1024
"""Tenants whose use of the workers is remembered while they have no tasks."""

_log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False, slots=True)
class _Tenant:
    """One of those who share the workers: a namespace."""

    waiting: "deque[asyncio.Future[Worker]]" = field(default_factory=deque)
    running: int = 0
    used_seconds: float = 0.0
    """Time of workers that it used, on the pool's virtual clock; the tenant that used least is next."""


class Pool:
    """Worker processes for tasks of many tenants; `async with` starts and ends them."""

    def __init__(self, limits: Limits, *, preload: Sequence[str] = (), by_content: tuple[type, ...] = ()) -> None:
        """`preload` are modules to import before workers are forked; of the types in `by_content`, answers share equal instances."""
        self._limits = limits
        self._preload = tuple(preload)
        self._by_content = by_content
        self._tenants: dict[Hashable, _Tenant] = {}
        self._free: list[Worker] = []
        self._all: set[Worker] = set()
        self._replacing: set[asyncio.Task[None]] = set()
        self._clock_seconds = 0.0
        self._shared = Shared()
        self._contents: WeakValueDictionary[bytes, object] = WeakValueDictionary()
        self._is_open = False

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Start the workers and return when all are ready; tasks may come before."""
        self._is_open = True
        async with asyncio.timeout(WAIT_FOR_START_SECONDS):
            for _ in range(self._limits.workers):
                await self._add_worker()

    async def close(self) -> None:
        """End the workers, whatever they are doing."""
        self._is_open = False
        for task in self._replacing:
            task.cancel()
        await asyncio.gather(*self._replacing, return_exceptions=True)
        for tenant in self._tenants.values():
            while tenant.waiting:
                tenant.waiting.popleft().cancel()
        await asyncio.gather(*(worker.end() for worker in tuple(self._all)))

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Ids of the workers' processes, for measurements."""
        return tuple(worker.process_id for worker in self._all if worker.is_running)

    def share(self, value: object) -> None:
        """Send this object to each worker once instead of with every task that contains it; it replaces the last one."""
        if value is not self._shared.value:
            self._shared = Shared(self._shared.number + 1, value)

    async def run(
        self, tenant: Hashable, steps: Steps[T], *arguments: object, wait_seconds: float | None = None
    ) -> Outcome[T]:
        """Return the last result of `steps(*arguments)`. With `wait_seconds`, the time for which it waited counts in the limit of
        wall time. Raises NoAnswer."""
        since = time.monotonic()
        worker = await self._worker_for(tenant, wait_seconds)
        started = time.monotonic()
        limits = self._limits
        if wait_seconds is not None:
            limits = replace(limits, wall_seconds=limits.wall_seconds - (started - since))
        try:
            return await worker.answer(steps, arguments, self._shared, limits)
        finally:
            self._release(worker, tenant, time.monotonic() - started)

    async def _worker_for(self, name: Hashable, wait_seconds: float | None) -> "Worker":
        tenant = self._tenant(name)
        if len(tenant.waiting) >= self._limits.max_waiting:
            raise TurnedAway(f"{len(tenant.waiting)} assessments of {name or 'this tenant'} wait already")
        turn: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        tenant.waiting.append(turn)
        self._assign()
        try:
            async with asyncio.timeout(wait_seconds):
                return await turn
        except (TimeoutError, asyncio.CancelledError) as error:
            if (
                turn.done() and not turn.cancelled()
            ):  # a worker that was assigned in the same moment goes to the next task
                tenant.running -= 1
                self._free.append(turn.result())
                self._assign()
            elif turn in tenant.waiting:
                tenant.waiting.remove(turn)
            if isinstance(error, TimeoutError):
                raise TurnedAway(f"no worker had time for {name or 'this tenant'} within {wait_seconds:g} s") from None
            raise

    def _tenant(self, name: Hashable) -> _Tenant:
        """Return the tenant; one that is new, or comes back, gets no credit for the time in which it did nothing."""
        tenant = self._tenants.get(name)
        if tenant is None:
            if len(self._tenants) >= MAX_KNOWN_TENANTS:
                idle = [name for name, each in self._tenants.items() if not (each.waiting or each.running)]
                for forgotten in idle:
                    del self._tenants[forgotten]
            tenant = self._tenants[name] = _Tenant()
        if not (tenant.waiting or tenant.running):
            tenant.used_seconds = max(tenant.used_seconds, self._clock_seconds)
        return tenant

    def _assign(self) -> None:
        """Give free workers to the tenants that used least; one tenant never has all of them."""
        most = max(1, self._limits.workers - 1)
        while self._free:
            asking = [tenant for tenant in self._tenants.values() if tenant.waiting and tenant.running < most]
            if not asking:
                return
            tenant = min(asking, key=lambda each: (each.used_seconds, each.running))
            turn = tenant.waiting.popleft()
            if not turn.done():
                self._clock_seconds = max(self._clock_seconds, tenant.used_seconds)
                tenant.running += 1
                turn.set_result(self._free.pop())

    def _release(self, worker: "Worker", name: Hashable, seconds: float) -> None:
        tenant = self._tenants[name]
        tenant.running -= 1
        tenant.used_seconds += seconds
        if worker.is_usable:
            self._free.append(worker)
        else:
            task = asyncio.create_task(self._replace(worker))
            self._replacing.add(task)
            task.add_done_callback(self._replacing.discard)
        self._assign()

    async def _replace(self, worker: "Worker") -> None:
        """End a worker and start a new one; a node without memory may refuse that for a while."""
        await worker.end()
        self._all.discard(worker)
        pause_seconds = 0.1
        while self._is_open:
            try:
                await self._add_worker()
            except (OSError, EOFError) as error:
                _log.error("a new worker could not be started, the next try follows: %s", error)
                await asyncio.sleep(pause_seconds)
                pause_seconds = min(2 * pause_seconds, 5.0)
            else:
                return

    async def _add_worker(self) -> None:
        worker = await Worker.start(self._limits, self._preload, self._by_content, self._contents)
        self._all.add(worker)
        self._free.append(worker)
        self._assign()
