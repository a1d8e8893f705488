"""Things that tenants share fairly: whoever used least is next, so that one tenant's backlog does not hold up another's first object."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

MAX_KNOWN_TENANTS = 1024
"""Tenants whose use is remembered while they hold nothing and wait for nothing."""


@dataclass(kw_only=True, eq=False, slots=True)
class Tenant(Generic[T]):
    """One of those who share: a namespace."""

    waiting: "deque[asyncio.Future[T]]" = field(default_factory=deque)
    held: int = 0
    used_seconds: float = 0.0
    """Time of what it held, on the virtual clock of all."""


class FairQueue(Generic[T]):
    """Equal things, of which one tenant holds `most`. Who used least is next; of several, who holds fewest, then who has waited longest."""

    def __init__(self, most: int) -> None:
        self._most = max(1, most)
        self._free: list[T] = []
        self._tenants: dict[Hashable, Tenant[T]] = {}
        self._clock_seconds = 0.0

    def tenant(self, name: Hashable) -> Tenant[T]:
        """Return the tenant; one that is new, or comes back, gets no credit for the time in which it did nothing."""
        if name not in self._tenants and len(self._tenants) >= MAX_KNOWN_TENANTS:
            self._tenants = {name: each for name, each in self._tenants.items() if each.waiting or each.held}
        tenant = self._tenants.setdefault(name, Tenant())
        if not (tenant.waiting or tenant.held):
            tenant.used_seconds = max(tenant.used_seconds, self._clock_seconds)
        return tenant

    def add(self, thing: T) -> None:
        """Share one more."""
        self._free.append(thing)
        self._assign()

    async def acquire(self, name: Hashable, wait_seconds: float | None = None, *, first: bool = False) -> T:
        """Wait for one, behind or before the others of the tenant. Raises TimeoutError."""
        tenant = self.tenant(name)
        if not tenant.waiting:
            self._tenants[name] = self._tenants.pop(name)  # behind all who wait
        turn: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        (tenant.waiting.appendleft if first else tenant.waiting.append)(turn)
        self._assign()
        try:
            async with asyncio.timeout(wait_seconds):
                return await turn
        except (TimeoutError, asyncio.CancelledError):
            if turn.done() and not turn.cancelled():  # it came in the same moment, and goes to the next
                self.release(name, turn.result())
            elif turn in tenant.waiting:
                tenant.waiting.remove(turn)
            raise

    def release(self, name: Hashable, thing: T | None, *, used_seconds: float = 0.0) -> None:
        """Give one back, or say that it is gone."""
        tenant = self._tenants[name]
        tenant.held -= 1
        tenant.used_seconds += used_seconds
        self._free += [] if thing is None else [thing]
        self._assign()

    def cancel(self) -> None:
        """Cancel all who wait."""
        for tenant in self._tenants.values():
            while tenant.waiting:
                tenant.waiting.popleft().cancel()

    def _assign(self) -> None:
        while self._free:
            asking = [name for name, each in self._tenants.items() if each.waiting and each.held < self._most]
            if not asking:
                return
            name = min(asking, key=lambda each: (self._tenants[each].used_seconds, self._tenants[each].held))
            tenant = self._tenants[name] = self._tenants.pop(name)  # behind the others
            turn = tenant.waiting.popleft()
            if not turn.done():
                self._clock_seconds = max(self._clock_seconds, tenant.used_seconds)
                tenant.held += 1
                turn.set_result(self._free.pop())


class FairSlots:
    """`limit` slots, of which one tenant holds three quarters at most."""

    def __init__(self, limit: int) -> None:
        self._slots = FairQueue[bool](limit - limit // 4)
        for _ in range(limit):
            self._slots.add(True)  # noqa: FBT003 - a slot is nothing but there

    async def acquire(self, tenant: Hashable, *, first: bool = False) -> None:
        """Wait for a slot, behind or before the others of the tenant."""
        await self._slots.acquire(tenant, first=first)

    def release(self, tenant: Hashable) -> None:
        """Give a slot back."""
        self._slots.release(tenant, True)  # noqa: FBT003 - as above

    @asynccontextmanager
    async def slot(self, tenant: Hashable) -> AsyncIterator[None]:
        """Hold a slot."""
        await self.acquire(tenant)
        try:
            yield
        finally:
            self.release(tenant)
