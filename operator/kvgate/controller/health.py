"""Alive means that the loops turn and the resync comes round; ready means that the API server answers.

A replica that waits for another one of its installation is ready, or a rollout would wait for it for ever; one that waits for another
installation is not: that is a mistake which somebody must see.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

MAX_LAG_SECONDS = 10.0
"""Seconds without a beat of kopf's event loop: something blocks it."""
MAX_SILENCE_SECONDS = 30.0
"""Seconds without an answer of the API server."""


@dataclass(kw_only=True)
class Health:
    """Written by either thread, read by the probes; single assignments, so no lock."""

    resync_seconds: float
    clock: Callable[[], float] = time.monotonic
    is_working: bool = False
    """kopf's thread has been started."""
    beat_at: float = 0.0
    resynced_at: float = 0.0
    answered_at: float | None = None
    trouble: str = "starting"
    """Complaint of the last confirmation of the Lease, or of the start."""
    is_standby: bool = False
    """It waits for a replica of its own installation."""

    def begin(self) -> None:
        self.beat_at = self.resynced_at = self.clock()
        self.is_working = True

    def wait(self, reason: str, *, is_standby: bool) -> None:
        self.trouble, self.is_standby = reason, is_standby

    def beat(self) -> None:
        self.beat_at = self.clock()

    def resynced(self) -> None:
        self.resynced_at = self.clock()

    def answered(self) -> None:
        self.answered_at = self.clock()

    def livez(self) -> tuple[bool, str]:
        """A process that waits for the API server is alive: a restart would not help it."""
        now = self.clock()
        if not self.is_working:
            return True, "not working yet"
        if now - self.beat_at > MAX_LAG_SECONDS:
            return False, f"the event loop has not turned for {now - self.beat_at:.0f} s"
        stale = now - max(self.resynced_at, 0.0) > 3 * self.resync_seconds
        if stale and self.readyz()[0]:
            return False, f"no resync for {now - self.resynced_at:.0f} s although the API server answers"
        return True, "ok"

    def readyz(self) -> tuple[bool, str]:
        if not self.is_working:
            return self.is_standby, self.trouble
        if self.answered_at is None or self.clock() - self.answered_at > MAX_SILENCE_SECONDS:
            return False, self.trouble
        return True, "ok"
