"""A listening port that strangers may reach. The number of connections is limited, and so is the time that each may wait.

aiohttp waits for ever for the headers of a first request, and asyncio accepts every connection; so both processes accept connections here.
At the limit a new connection replaces one that has not sent a request yet, or else the one that has been idle for longest.
"""

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar, cast

from aiohttp import web
from aiohttp.typedefs import Handler
from msgspec import Struct

SHUTDOWN_SECONDS = 1.0
"""Time in which an answer may still be sent when the server closes."""
BACKLOG = 128
"""Connections that the kernel holds until they are accepted."""
ACCEPT_PAUSE_SECONDS = 0.5
"""Pause after an error of `accept`, such as too many open files."""
_LINGERING_SECONDS = 0.5
"""Time in which the unread rest of a request is received after its answer, so that the peer can read the answer."""

_log = logging.getLogger(__name__)

T = TypeVar("T")

Peer = dict[str, Any]
"""The client's certificate, as `ssl` describes it; empty where there is none."""


class PortLimits(Struct, frozen=True, kw_only=True):
    connections: int = 200
    """Most connections. TLS needs a quarter of a MiB for each; an API server opens one for each review under way and keeps some."""
    handshake_seconds: float = 5.0
    headers_seconds: float = 5.0
    """Time from the beginning of a request, or of a new connection, to its last header."""
    request_seconds: float = 30.0
    """Time from the last header of a request until its answer was sent."""
    idle_seconds: float = 120.0
    """Time between two requests. It is longer than the 90 s after which an API server closes a connection, so that no request is lost."""


DEFAULT_LIMITS = PortLimits()


async def listen(
    app: web.Application,
    host: str,
    port: int,
    *,
    tls: ssl.SSLContext | None = None,
    limits: PortLimits = DEFAULT_LIMITS,
    accepts: Callable[[Peer], bool] = lambda _: True,
) -> "Listener":
    """Serve until `cleanup()` of the listener. Raises OSError where the address is not available."""
    listener = Listener(limits, tls, accepts)
    app.middlewares.insert(0, listener.note_requests)
    await listener.start(app, host, port)
    return listener


@contextlib.asynccontextmanager
async def listening_beside(app: web.Application, host: str, port: int) -> "AsyncIterator[Listener]":
    """Listen in a thread with an event loop of its own, which answers even while this loop is busy."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="probes", daemon=True)
    thread.start()

    async def there(work: Coroutine[Any, Any, T]) -> T:
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, loop))

    try:
        listener = await there(listen(app, host, port))
        try:
            yield listener
        finally:
            await there(listener.cleanup())
    finally:
        await there(loop.shutdown_default_executor())
        loop.call_soon_threadsafe(loop.stop)
        await asyncio.to_thread(thread.join)
        loop.close()


class Listener:
    def __init__(self, limits: PortLimits, tls: ssl.SSLContext | None, accepts: Callable[[Peer], bool]) -> None:
        self.addresses: list[Any] = []
        self.limits = limits
        self.accepts = accepts
        self._tls = tls
        self._runner: web.AppRunner | None = None
        self._sockets: list[socket.socket] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._arriving: dict[asyncio.Task[None], socket.socket] = {}
        """Connections during their handshake, the oldest first."""
        self.strangers: dict[asyncio.BaseTransport, _Connection] = {}
        """Connections without a request so far, the oldest first."""
        self.known: dict[asyncio.BaseTransport, _Connection] = {}
        """Connections that have had a request, the longest idle first."""

    async def start(self, app: web.Application, host: str, port: int) -> None:
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=SHUTDOWN_SECONDS, lingering_time=_LINGERING_SECONDS,
            keepalive_timeout=self.limits.idle_seconds, auto_decompress=False,
        )  # fmt: skip
        await self._runner.setup()
        try:
            self._sockets = await _bound(host, port)
        except OSError:
            await self._runner.cleanup()
            raise
        self.addresses = [each.getsockname() for each in self._sockets]
        self._tasks = [asyncio.create_task(self._accept(each)) for each in self._sockets]

    @property
    def num_connections(self) -> int:
        """Number of all connections, those during their handshake included."""
        return len(self._arriving) + len(self.strangers) + len(self.known)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for each in self._sockets:
            each.close()
        self._tasks, self._sockets = [], []

    async def cleanup(self) -> None:
        await self.stop()
        if self._runner is not None:
            await self._runner.cleanup()
        for task in tuple(self._arriving):
            task.cancel()
        for connection in (*self.strangers.values(), *self.known.values()):
            connection.abort()
        await asyncio.gather(*self._arriving, return_exceptions=True)

    async def _accept(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(listening)
            except ConnectionError:
                continue
            except OSError as error:
                _log.error("cannot accept connections: %s", error)
                await asyncio.sleep(ACCEPT_PAUSE_SECONDS)
                continue
            if self.num_connections >= self.limits.connections and not self._make_room():
                accepted.close()
                continue
            task = asyncio.create_task(self._greet(accepted))
            self._arriving[task] = accepted
            task.add_done_callback(self._arriving.pop)

    def _make_room(self) -> bool:
        """False where every connection has a request under way."""
        if self.strangers:
            next(iter(self.strangers.values())).abort()
        elif self._arriving:
            next(iter(self._arriving)).cancel()
        else:
            idle = next((each for each in self.known.values() if not each.is_under_way), None)
            if idle is None:
                return False
            idle.abort()
        return True

    async def _greet(self, accepted: socket.socket) -> None:
        """Make the handshake; where it fails, the connection is closed without a word in the log."""
        timeout = self.limits.handshake_seconds if self._tls else None
        try:
            if (server := self._runner.server if self._runner else None) is None:
                raise ConnectionAbortedError("the port is closed")
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: _Connection(server(), self), accepted, ssl=self._tls, ssl_handshake_timeout=timeout,
                ssl_shutdown_timeout=timeout and SHUTDOWN_SECONDS,
            )  # fmt: skip
        except (OSError, TimeoutError):
            accepted.close()
        except asyncio.CancelledError:
            accepted.close()
            raise

    @web.middleware
    async def note_requests(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Note a request from its last header to its answer: its handler decides how long that may take."""
        transport = request.transport
        connection = (self.strangers.get(transport) or self.known.get(transport)) if transport else None
        if connection is None:
            return await handler(request)
        connection.begin()
        try:
            return await handler(request)
        finally:
            connection.end()


async def _bound(host: str, port: int) -> list[socket.socket]:
    """Return a listening socket for every address of the host, all with the same port."""
    found: list[socket.socket] = []
    infos = await asyncio.get_running_loop().getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    try:
        for family, _, _, _, address in dict.fromkeys(infos):
            taken = found[0].getsockname()[1] if found else port
            found.append(socket.create_server((address[0], taken, *address[2:]), family=family, backlog=BACKLOG))
            found[-1].setblocking(False)  # noqa: FBT003 - of the standard library
    except OSError as error:
        for each in found:
            each.close()
        reason = os.strerror(error.errno).lower() if error.errno else "cannot be had"
        raise OSError(error.errno, f"address {host} port {port}: {reason}") from error
    return found


class _Connection(asyncio.Protocol):
    """Passes everything on to aiohttp's handler, and closes the connection of a peer that is too slow."""

    def __init__(self, handler: asyncio.Protocol, listener: Listener) -> None:
        self._handler = handler
        self._listener = listener
        self._transport: asyncio.Transport
        self._deadline: asyncio.TimerHandle | None = None
        self._awaits_headers = True
        self.is_under_way = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._listener.strangers[self._transport] = self
        self._handler.connection_made(transport)
        self._close_after(self._listener.limits.headers_seconds)
        if not self._listener.accepts(transport.get_extra_info("peercert") or {}):
            self.abort()

    def data_received(self, data: bytes) -> None:
        if not (self.is_under_way or self._awaits_headers):
            self._awaits_headers = True
            self._close_after(self._listener.limits.headers_seconds)
        self._handler.data_received(data)

    def begin(self) -> None:
        """Note that the headers of a request have arrived."""
        self.is_under_way, self._awaits_headers = True, False
        self._close_after(self._listener.limits.request_seconds)
        if self._transport in self._listener.strangers:
            del self._listener.strangers[self._transport]
            self._listener.known[self._transport] = self

    def end(self) -> None:
        """Note that the request is answered, and put the connection at the end of the idle ones."""
        self.is_under_way = False
        if self._transport in self._listener.known:
            self._listener.known[self._transport] = self._listener.known.pop(self._transport)
            self._close_after(self._listener.limits.idle_seconds)

    def _close_after(self, seconds: float) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = asyncio.get_running_loop().call_later(seconds, self.abort)

    def abort(self) -> None:
        """Close the connection and free its place at once, before the event loop does it."""
        self._leave()
        self._transport.abort()

    def _leave(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
        for connections in (self._listener.strangers, self._listener.known):
            connections.pop(self._transport, None)

    def eof_received(self) -> bool | None:
        return self._handler.eof_received()

    def pause_writing(self) -> None:
        self._handler.pause_writing()

    def resume_writing(self) -> None:
        self._handler.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        with contextlib.suppress(ConnectionError):
            self._handler.connection_lost(exc)
