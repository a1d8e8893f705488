"""Keys that want a reconcile: one run at a time each, and another one where the API server or a user owes something."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

from kvgate.cluster.errors import ApiError, Forbidden
from kvgate.controller.observed import Awaited
from kvgate.controller.single_flight import SingleFlight
from kvgate.controller.store import Key
from kvgate.runtime.background import Troubles
from kvgate.runtime.workers import TurnedAway

MAX_CONCURRENT = 16
"""Reconciles at a time, of all objects together."""
FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 300.0
JUDGE_RETRY_SECONDS = 2.0
"""Pause of objects whose namespace has many that wait for a judgement."""
FORBIDDEN_RETRY_SECONDS = 60.0
"""A role does not change by itself."""
LOOK_AGAIN_SECONDS = 15.0
"""Pause before looking again for changes that no watch reports: `kubectl apply` of a folder, or a deletion, takes seconds."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Wait:
    awaited: Awaited
    since: float
    """Start of the wait on the loop's clock."""


class WorkQueue:
    """Lives in kopf's event loop; `run` says what its object waits for."""

    def __init__(
        self, run: Callable[[Key], Awaitable[Awaited | None]], *, resync_seconds: float, troubles: Troubles
    ) -> None:
        self._run = run
        self._troubles = troubles
        self._resync_seconds = resync_seconds
        self._flight = SingleFlight(self._attempt, limit=MAX_CONCURRENT)
        self._failures: dict[Key, int] = {}
        self._broken: set[Key] = set()
        """Those whose last run met a defect: they wait for their turn, unless their owner changes them."""
        self._waits: dict[Key, _Wait] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def reconcile(self, key: Key) -> None:
        """Wait for a run that begins after now; where it fails, another one is enqueued."""
        await self._flight(key)

    def begin(self, key: Key) -> None:
        """Reconcile now, whatever pause it had: its owner changed it."""
        self._broken.discard(key)
        self.enqueue(key)

    def aside(self) -> AbstractAsyncContextManager[None]:
        """Give the place of a waiting run to another key meanwhile."""
        return self._flight.aside()

    def enqueue(self, key: Key, *, delay_seconds: float = 0.0) -> None:
        """Reconcile then, or before if an earlier moment was asked for; what failed by a defect keeps its pause."""
        loop, planned = asyncio.get_running_loop(), self._timers.get(key)
        if planned is not None and key in self._broken:
            return
        if planned is not None:
            if planned.when() <= loop.time() + delay_seconds:
                return
            planned.cancel()
        self._timers[key] = loop.call_later(delay_seconds, self._begin, key)

    def close(self) -> None:
        """Nothing is begun any more."""
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _begin(self, key: Key) -> None:
        del self._timers[key]
        task = asyncio.create_task(self.reconcile(key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _attempt(self, key: Key) -> None:
        try:
            awaited = await self._run(key)
        except Forbidden as error:
            _log.error("forbidden: %s", error, extra={"fields": _fields(key, error)})
            self.enqueue(key, delay_seconds=_jittered(FORBIDDEN_RETRY_SECONDS))
        except ApiError as error:
            _log.warning("will try again: %s", error, extra={"fields": _fields(key, error)})
            self.enqueue(key, delay_seconds=self._pause_seconds(key))
        except TurnedAway as error:
            _log.warning("not judged yet: %s", error, extra={"fields": {"namespace": key[0], "name": key[1]}})
            self.enqueue(key, delay_seconds=_jittered(JUDGE_RETRY_SECONDS))
        except Exception as error:  # noqa: BLE001 - a defect of one object's run must not end the others'
            self._troubles.note("reconcile", error, about="/".join(key))
            self.enqueue(key, delay_seconds=self._pause_seconds(key))
            self._broken.add(key)
        else:
            self._failures.pop(key, None)
            self._broken.discard(key)
            self._troubles.over("reconcile", about="/".join(key))
            self._look_again(key, awaited)

    def _look_again(self, key: Key, awaited: Awaited | None) -> None:
        """15, 15, 30, 60 … s apart up to the resync's interval: as long as it has waited, however many runs that made."""
        if awaited is None:
            self._waits.pop(key, None)
            return
        now, wait = asyncio.get_running_loop().time(), self._waits.get(key)
        if wait is None or wait.awaited != awaited:
            wait = self._waits[key] = _Wait(awaited=awaited, since=now)
        pause_seconds = min(max(now - wait.since, LOOK_AGAIN_SECONDS), self._resync_seconds)
        self.enqueue(key, delay_seconds=_jittered(pause_seconds))

    def _pause_seconds(self, key: Key) -> float:
        """1, 2, 4 … 300 s, so that an API server that comes back is not met by everybody at once."""
        failures = self._failures[key] = self._failures.get(key, -1) + 1
        return _jittered(min(FIRST_RETRY_SECONDS * 2.0 ** min(failures, 16), MAX_RETRY_SECONDS))


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.8, 1.2)  # noqa: S311 - spreads load, hides nothing


def _fields(key: Key, error: ApiError) -> dict[str, str]:
    return {"namespace": key[0], "name": key[1], "verb": error.verb, "resource": error.resource}
