"""Waits for events: a clock that a test sets, turns of the event loop, and polls with a deadline for what has no event."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

DEADLINE_SECONDS = 100.0
"""A machine under load may be slow; a test that passes never waits that long."""
POLL_SECONDS = 0.01


@dataclass
class Clock:
    """A clock that stands still until a test moves it."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


async def turns(number: int = 1) -> None:
    """Let tasks that are ready run, this many times in a row."""
    for _ in range(number):
        await asyncio.sleep(0)


async def until(holds: Callable[[], bool | Awaitable[bool]]) -> None:
    """Wait until the condition holds, which has no event that could be awaited. Raises TimeoutError after the deadline."""
    async with asyncio.timeout(DEADLINE_SECONDS):
        while True:
            found = holds()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(POLL_SECONDS)
