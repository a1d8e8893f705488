"""The bodies of requests: each within a size and a time, and all of them together within a number of bytes."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from aiohttp import web

MAX_BODY_BYTES = 8 << 20
"""An API server sends the object twice, each at most 1.5 MiB in etcd; JSON may double that."""
MAX_BYTES_IN_FLIGHT = 24 << 20
"""Bytes of all bodies that were received and not answered yet; a copy of each is on its way to a worker."""
BODY_SECONDS = 5.0
"""Seconds from the last header to the last byte of the body; an API server sends both at once."""


class BodyError(Exception):
    """The body was not received; the message says why."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(eq=False, slots=True)
class _Body:
    """One that is in memory."""

    received: bytearray
    deadline: asyncio.Timeout | None = None
    """While the rest is awaited."""
    is_shed: bool = False


class Bodies:
    """Bodies in flight. Beyond the limit the largest one that is not complete gives way; small ones never do."""

    def __init__(self, *, most_bytes: int = MAX_BYTES_IN_FLIGHT, seconds: float = BODY_SECONDS) -> None:
        self._most_bytes = most_bytes
        self._seconds = seconds
        self._bodies: set[_Body] = set()
        self.bytes_in_flight = 0

    @contextlib.asynccontextmanager
    async def read(self, request: web.Request) -> AsyncIterator[bytes]:
        """The whole body, which counts as in flight until the block ends. Raises BodyError."""
        body = _Body(bytearray())
        self._bodies.add(body)
        try:
            yield await self._received(request, body)
        finally:
            self._bodies.discard(body)
            self.bytes_in_flight -= len(body.received)

    async def _received(self, request: web.Request, body: _Body) -> bytes:
        if (request.content_length or 0) > MAX_BODY_BYTES:
            raise _too_large()
        try:
            async with asyncio.timeout(self._seconds) as body.deadline:
                async for chunk in request.content.iter_any():
                    self._add(body, chunk)
        except TimeoutError:
            if body.is_shed:
                raise BodyError(503, f"more than {self._most_bytes} bytes of requests are in flight") from None
            raise BodyError(408, f"the body was not complete within {self._seconds:g} s") from None
        except (OSError, web.RequestPayloadError) as error:
            raise BodyError(400, f"the body ended early: {error}") from None
        finally:
            body.deadline = None
        return bytes(body.received)

    def _add(self, body: _Body, chunk: bytes) -> None:
        body.received += chunk
        self.bytes_in_flight += len(chunk)
        if len(body.received) > MAX_BODY_BYTES:
            raise _too_large()
        leaving = sum(len(each.received) for each in self._bodies if each.is_shed)
        if not body.is_shed and self.bytes_in_flight - leaving > self._most_bytes:
            self._shed()

    def _shed(self) -> None:
        unfinished = [
            (len(each.received), each, each.deadline) for each in self._bodies if each.deadline and not each.is_shed
        ]
        _, largest, deadline = max(unfinished, key=lambda each: each[0])
        largest.is_shed = True
        deadline.reschedule(asyncio.get_running_loop().time())


def _too_large() -> BodyError:
    return BodyError(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
