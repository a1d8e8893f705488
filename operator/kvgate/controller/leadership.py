"""Several controllers do no harm to each other: one holds the Lease and writes, and every other one waits and writes nothing.

A controller looks for rivals before it writes its Lease, and again after that, because a rival with other namespaces may have looked at
the same moment. Where two see each other, both step back. The Lease is valid for a time only: WRITE_SECONDS after the last confirmation
was sent, nothing is written any more, and others take over after DURATION_SECONDS at the earliest. So a process that was frozen finds the
gate shut when it continues.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress

from kvgate.cluster.errors import ApiError, Conflict, NotFound
from kvgate.cluster.leases import Claim, Lease, Leases

RENEW_SECONDS = 2.0
WAIT_SECONDS = 1.0
"""Time between two looks of a controller that waits; it takes over at most 17 s after the holder was killed."""
WRITE_SECONDS = 10.0
"""Time after a confirmation in which writes are allowed. The rest of the Lease's duration is longer than a request takes to arrive."""
REQUEST_SECONDS = 4.0
"""Time limit of a request about the Lease; two tries fit into WRITE_SECONDS."""
STEP_BACK_SECONDS = (0.5, 3.0)
"""Range of the random pause after two controllers saw each other."""

_log = logging.getLogger(__name__)


class LeaseLost(Exception):
    """Another controller may write now; this process must end."""


def seconds_since_boot() -> float:
    """Read a clock that continues while the machine sleeps, if the system has one: a laptop must not wake up as the holder."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Gate:
    """The permission of this process to write. The main thread sets it, and every request of either thread reads it."""

    def __init__(self, clock: Callable[[], float] = seconds_since_boot) -> None:
        self.clock = clock
        self._shuts_at = float("-inf")

    def is_open(self) -> bool:
        return self.clock() < self._shuts_at

    def open_from(self, sent_at: float) -> None:
        """Allow writes for WRITE_SECONDS from the time at which the confirming request was sent."""
        self._shuts_at = sent_at + WRITE_SECONDS

    def shut(self) -> None:
        self._shuts_at = float("-inf")


class Elector:
    """Takes, confirms and releases the Lease of a claim, and opens the gate while it is held."""

    def __init__(
        self,
        leases: Leases,
        claim: Claim,
        gate: Gate,
        *,
        random_seconds: Callable[[float, float], float] = random.uniform,
    ) -> None:
        self._leases = leases
        self._claim = claim
        self._gate = gate
        self._random_seconds = random_seconds
        self._held: Lease | None = None
        self._held_at = float("-inf")
        """Time at which the request was sent whose answer is `_held`."""
        self._seen: dict[str, tuple[Lease, float]] = {}
        """Every Lease as it was seen last, and since when it has been like that, by this process's own clock."""

    async def take(self) -> Lease | None:
        """Try once to take the Lease. Returns None where it is ours now, else the Lease that must be waited for. Raises ApiError."""
        found = await self._look()
        own = found.get(self._claim.lease)
        rival = self._rival(found)
        if rival is not None:
            return rival
        sent_at = self._gate.clock()
        try:
            self._held = await self._leases.hold(self._claim, own, timeout_seconds=REQUEST_SECONDS)
            self._held_at = sent_at
        except Conflict:
            rival = self._rival(await self._look())  # somebody was faster
            if rival is None:
                raise
            return rival
        rival = self._rival(await self._look())
        if rival is not None:
            await self.release()
            await asyncio.sleep(self._random_seconds(*STEP_BACK_SECONDS))
            return rival
        self._gate.open_from(sent_at)
        return None

    async def confirm(self) -> None:
        """Confirm the Lease; called every RENEW_SECONDS. Raises LeaseLost, or ApiError where a later try may succeed."""
        held = self._held
        if held is None:
            raise LeaseLost("the Lease was never taken")
        sent_at = self._gate.clock()
        try:
            self._held = await self._leases.hold(self._claim, held, timeout_seconds=REQUEST_SECONDS)
        except (Conflict, NotFound):
            own = (await self._look()).get(self._claim.lease)
            if own is None or own.holder != self._claim.holder:
                raise self._lost(own) from None
            self._held = own  # somebody has edited it
            return
        self._held_at = sent_at
        if not self._gate.is_open():  # it took too long: others may have begun, under Leases of their own
            rival = self._rival(await self._look())
            if rival is not None:
                raise self._lost(rival)
        self._gate.open_from(sent_at)

    def holds_lease(self) -> bool:
        """Return True while the Lease itself names this process: as the API server answered last, and for the time that it is valid."""
        held = self._held
        if held is None or held.holder != self._claim.holder:
            return False
        return self._gate.clock() < self._held_at + held.duration_seconds

    def abandon(self) -> None:
        """Write nothing from now on, and let the Lease expire, because a write of this process may still be under way."""
        self._gate.shut()
        self._held = None

    async def release(self) -> None:
        """Write nothing from now on, and let a controller that waits begin at once."""
        self._gate.shut()
        held, self._held = self._held, None
        if held is not None:
            with suppress(ApiError):
                await self._leases.release(self._claim, held, timeout_seconds=REQUEST_SECONDS)

    def describe(self, rival: Lease) -> str:
        since = self._gate.clock() - self._seen[rival.name][1] if rival.name in self._seen else 0.0
        return (
            f"waiting for Lease {self._leases.namespace}/{rival.name}: {rival.holder} ({rival.instance or 'unknown'}) holds it for "
            f"{rival.served} and confirmed it {since:.0f} s ago; two controllers must not serve the same namespaces: stop that one, or "
            "serve others (--namespace, watchNamespaces)"
        )

    def pause_seconds(self, rival: Lease) -> float:
        """Return the time until the next look, which is no later than the rival counts as gone."""
        since = self._seen[rival.name][1] if rival.name in self._seen else self._gate.clock()
        return min(WAIT_SECONDS, max(0.05, since + rival.duration_seconds - self._gate.clock()))

    def is_replica(self, rival: Lease) -> bool:
        """Return True for a rival of the same installation, for which waiting is right."""
        return (rival.name, rival.instance) == (self._claim.lease, self._claim.instance)

    async def _look(self) -> dict[str, Lease]:
        found, now = await self._leases.list(), self._gate.clock()
        self._seen = {
            name: self._seen[name] if name in self._seen and self._seen[name][0] == lease else (lease, now)
            for name, lease in found.items()
        }
        return found

    def _rival(self, found: dict[str, Lease]) -> Lease | None:
        """Return another holder whose Lease has not expired yet."""
        now = self._gate.clock()
        for name, lease in sorted(found.items()):
            is_other = lease.holder not in ("", self._claim.holder)
            if is_other and self._claim.overlaps(lease) and now - self._seen[name][1] < lease.duration_seconds:
                return lease
        return None

    def _lost(self, rival: Lease | None) -> LeaseLost:
        self.abandon()
        who = f"{rival.holder or 'nobody'} holds {rival.name} now" if rival else "it was deleted"
        return LeaseLost(
            f"lost the Lease {self._leases.namespace}/{self._claim.lease}: {who}; nothing is written any more"
        )
