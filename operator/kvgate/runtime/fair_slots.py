"""Slots that tenants share: whoever holds fewest is next, so that one tenant's backlog does not hold up another's first object."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager


class FairSlots:
    """`limit` slots, of which one tenant holds three quarters at most. Whoever holds fewest is next; of several, who has waited longest."""

    def __init__(self, limit: int) -> None:
        self._free = limit
        self._most = max(1, limit - limit // 4)
        self._held: Counter[Hashable] = Counter()
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}

    async def acquire(self, tenant: Hashable) -> None:
        """Wait for a slot."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(turn)
        self._assign()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the slot came in the same moment
                self.release(tenant)
            else:
                self._forget(tenant, turn)
            raise

    def release(self, tenant: Hashable) -> None:
        """Give a slot back."""
        self._free += 1
        self._held[tenant] -= 1
        if not self._held[tenant]:
            del self._held[tenant]
        self._assign()

    @asynccontextmanager
    async def slot(self, tenant: Hashable) -> AsyncIterator[None]:
        """Hold a slot."""
        await self.acquire(tenant)
        try:
            yield
        finally:
            self.release(tenant)

    def _assign(self) -> None:
        while self._free:
            asking = [tenant for tenant in self._waiting if self._held[tenant] < self._most]
            if not asking:
                return
            tenant = min(asking, key=self._held.__getitem__)  # the first of several has waited longest
            turn = self._waiting[tenant][0]
            self._forget(tenant, turn)
            if not turn.done():
                self._free -= 1
                self._held[tenant] += 1
                turn.set_result(None)

    def _forget(self, tenant: Hashable, turn: "asyncio.Future[None]") -> None:
        """Take a turn from the queue; a tenant that waits on goes behind the others."""
        queue = self._waiting.pop(tenant, None)
        if queue is None:
            return
        if turn in queue:
            queue.remove(turn)
        if queue:
            self._waiting[tenant] = queue
