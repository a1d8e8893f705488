"""One run per key at a time; whatever is asked during a run becomes one more run."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

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
