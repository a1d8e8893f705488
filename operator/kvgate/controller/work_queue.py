"""Keys that want a reconcile: one run at a time each, again after a pause where the API server was the reason."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from kvgate.cluster.errors import ApiError, Forbidden
from kvgate.controller.single_flight import SingleFlight
from kvgate.controller.store import Key

MAX_CONCURRENT = 16
"""Reconciles at a time, of all objects together."""
FIRST_RETRY_SECONDS = 1.0
MAX_RETRY_SECONDS = 300.0
FORBIDDEN_RETRY_SECONDS = 60.0
"""A role does not change by itself."""

_log = logging.getLogger(__name__)


class RetryLater(Exception):
    """The same reconcile may succeed after `delay_seconds`; nothing about the object is wrong."""

    def __init__(self, message: str, delay_seconds: float) -> None:
        super().__init__(message)
        self.delay_seconds = delay_seconds


class WorkQueue:
    """Lives in kopf's event loop."""

    def __init__(self, run: Callable[[Key], Awaitable[None]]) -> None:
        self._run = run
        self._flight = SingleFlight(self._attempt, limit=MAX_CONCURRENT)
        self._failures: dict[Key, int] = {}
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def reconcile(self, key: Key) -> None:
        """Wait for a run that begins after now. Raises RetryLater: the caller asks again, or enqueues."""
        await self._flight(key)

    def enqueue(self, key: Key, *, delay_seconds: float = 0.0) -> None:
        """Reconcile then, and again with growing pauses until it succeeds; a later call replaces an earlier one."""
        earlier = self._timers.pop(key, None)
        if earlier is not None:
            earlier.cancel()
        self._timers[key] = asyncio.get_running_loop().call_later(delay_seconds, self._begin, key)

    def close(self) -> None:
        """Nothing is begun any more."""
        for timer in self._timers.values():
            timer.cancel()
        for task in self._tasks:
            task.cancel()

    def _begin(self, key: Key) -> None:
        del self._timers[key]
        task = asyncio.create_task(self._until_done(key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _until_done(self, key: Key) -> None:
        try:
            await self.reconcile(key)
        except RetryLater as later:
            self.enqueue(key, delay_seconds=later.delay_seconds)

    async def _attempt(self, key: Key) -> None:
        try:
            await self._run(key)
        except Forbidden as error:
            _log.error("forbidden: %s", error, extra={"fields": _fields(key, error)})
            self.enqueue(key, delay_seconds=_jittered(FORBIDDEN_RETRY_SECONDS))
        except ApiError as error:
            _log.warning("will try again: %s", error, extra={"fields": _fields(key, error)})
            raise RetryLater(str(error), self._pause_seconds(key)) from error
        except Exception as error:
            _log.exception("reconcile failed", extra={"fields": {"namespace": key[0], "name": key[1]}})
            raise RetryLater(repr(error), self._pause_seconds(key)) from error
        else:
            self._failures.pop(key, None)

    def _pause_seconds(self, key: Key) -> float:
        """1, 2, 4 … 300 s, so that an API server that comes back is not met by everybody at once."""
        failures = self._failures[key] = self._failures.get(key, -1) + 1
        return _jittered(min(FIRST_RETRY_SECONDS * 2.0 ** min(failures, 16), MAX_RETRY_SECONDS))


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(0.8, 1.2)  # noqa: S311 - spreads load, hides nothing


def _fields(key: Key, error: ApiError) -> dict[str, str]:
    return {"namespace": key[0], "name": key[1], "verb": error.verb, "resource": error.resource}
