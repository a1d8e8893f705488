"""A pool of worker processes beside a process's event loop: fair between tenants, and workers that die are replaced.

A thread cannot be interrupted, and it would share the interpreter's lock with the event loop; a process can be killed.
"""

import asyncio
import logging
import time
from collections.abc import Hashable, Sequence
from typing import Self, TypeVar
from weakref import WeakValueDictionary

from msgspec.structs import replace

from kvgate.runtime.fair_slots import FairQueue
from kvgate.runtime.worker import Limits, Outcome, Shared, Steps, TurnedAway, Worker

T = TypeVar("T")

WAIT_FOR_START_SECONDS = 60.0
"""Time for the first worker, which waits until the catalogues are read; other pods may use the node's processors too."""

_log = logging.getLogger(__name__)


class Pool:
    """Worker processes for tasks of many tenants; `async with` starts and ends them."""

    def __init__(self, limits: Limits, *, preload: Sequence[str] = (), by_content: tuple[type, ...] = ()) -> None:
        """`preload` are modules to import before workers are forked; of the types in `by_content`, answers share equal instances."""
        self._limits = limits
        self._preload = tuple(preload)
        self._by_content = by_content
        self._workers = FairQueue[Worker](limits.workers - 1)
        self._all: set[Worker] = set()
        self._replacing: set[asyncio.Task[None]] = set()
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
        self._workers.cancel()
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
        whose, since = tenant or "this tenant", time.monotonic()
        if (waiting := len(self._workers.tenant(tenant).waiting)) >= self._limits.max_waiting:
            raise TurnedAway(f"{waiting} assessments of {whose} wait already")
        try:
            worker = await self._workers.acquire(tenant, wait_seconds)
        except TimeoutError:
            raise TurnedAway(f"no worker had time for {whose} within {wait_seconds:g} s") from None
        started = time.monotonic()
        limits = self._limits
        if wait_seconds is not None:
            limits = replace(limits, wall_seconds=limits.wall_seconds - (started - since))
        try:
            return await worker.answer(steps, arguments, self._shared, limits)
        finally:
            used_seconds = time.monotonic() - started
            self._workers.release(tenant, worker if worker.is_usable else None, used_seconds=used_seconds)
            if not worker.is_usable:
                task = asyncio.create_task(self._replace(worker))
                self._replacing.add(task)
                task.add_done_callback(self._replacing.discard)

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
        self._workers.add(worker)
