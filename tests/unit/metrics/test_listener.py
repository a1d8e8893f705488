"""A port that strangers may reach: what they may hold, for how long, and who makes room at the cap."""

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from msgspec.structs import replace

from controlplane.certificates import write_certificates
from kvgate.metrics.listener import Listener, PortLimits, listen, listening_beside
from support.waiting import turns, until

SHORT = 0.15
LONG = PortLimits(connections=4, handshake_seconds=20, headers_seconds=20, request_seconds=20, idle_seconds=20)
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"


class Port:
    """A listening application whose only page waits for `gate`, and raw connections to it."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.listener: Listener
        self.trust: ssl.SSLContext | None = None
        self.writers: list[asyncio.StreamWriter] = []

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection(*self.listener.addresses[0][:2], ssl=self.trust)
        self.writers.append(writer)
        return reader, writer

    async def asked(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A connection that had an answer."""
        reader, writer = await self.connect()
        writer.write(REQUEST)
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        assert await reader.readexactly(4) == b"fine"
        return reader, writer

    async def has(self, num_connections: int) -> None:
        await until(lambda: self.listener.num_connections == num_connections)


@contextlib.asynccontextmanager
async def open_port(limits: PortLimits, tls: ssl.SSLContext | None = None, **options: Any) -> AsyncIterator[Port]:
    port = Port()
    port.gate.set()

    async def page(_: web.Request) -> web.Response:
        await port.gate.wait()
        return web.Response(text="fine")

    app = web.Application()
    app.router.add_get("/", page)
    port.listener = await listen(app, "127.0.0.1", 0, tls=tls, limits=limits, **options)
    try:
        yield port
    finally:
        for writer in port.writers:
            writer.transport.abort()
        await port.listener.cleanup()
        await turns()


async def is_closed(reader: asyncio.StreamReader) -> bool:
    try:
        async with asyncio.timeout(5):
            return await reader.read() == b""
    except ConnectionError:
        return True


@pytest.fixture
def tls(tmp_path: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    write_certificates(tmp_path)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    client = ssl.create_default_context(cafile=tmp_path / "ca.crt")
    client.check_hostname = False
    return server, client


@pytest.mark.parametrize("sent", [b"", REQUEST[:20]])
async def test_who_sends_no_complete_headers_in_time_is_closed(sent: bytes) -> None:
    async with open_port(replace(LONG, headers_seconds=SHORT)) as port:
        reader, writer = await port.connect()
        writer.write(sent)
        assert await is_closed(reader)
        await port.has(0)


async def test_headers_that_trickle_in_are_closed_in_time_too() -> None:
    async with open_port(replace(LONG, headers_seconds=SHORT)) as port:
        reader, writer = await port.asked()
        closed, started = asyncio.create_task(is_closed(reader)), time.monotonic()
        for byte in REQUEST:
            if closed.done():
                break
            writer.write(bytes([byte]))
            await asyncio.sleep(SHORT / 10)  # time is the subject: one byte at a time
        assert await closed
        assert time.monotonic() - started < 10 * SHORT


async def test_a_connection_that_asks_nothing_more_is_closed() -> None:
    async with open_port(replace(LONG, idle_seconds=SHORT)) as port:
        reader, _ = await port.asked()
        assert await is_closed(reader)
        await port.has(0)


async def test_a_handshake_has_its_time(tls: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    async with open_port(replace(LONG, handshake_seconds=SHORT), tls[0]) as port:
        reader, _ = await port.connect()
        assert await is_closed(reader)
        await port.has(0)
        port.trust = tls[1]
        await port.asked()


async def test_a_request_has_its_time() -> None:
    async with open_port(replace(LONG, request_seconds=SHORT)) as port:
        port.gate.clear()
        reader, writer = await port.connect()
        writer.write(REQUEST)
        assert await is_closed(reader)


async def test_a_slow_answer_is_not_cut_by_the_other_limits() -> None:
    async with open_port(PortLimits(headers_seconds=SHORT, idle_seconds=SHORT)) as port:
        port.gate.clear()
        reader, writer = await port.connect()
        writer.write(REQUEST)
        await asyncio.sleep(2 * SHORT)  # time is the subject: longer than the other limits
        port.gate.set()
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")


async def test_at_the_cap_the_oldest_that_asked_nothing_makes_room() -> None:
    async with open_port(LONG) as port:
        known = [await port.asked()]
        strangers = [await port.connect() for _ in range(3)]
        await port.has(4)
        for number in range(3):
            await port.asked()
            assert await is_closed(strangers[number][0])
        assert port.listener.num_connections == 4
        known[0][1].write(REQUEST)
        assert b"200 OK" in await known[0][0].readuntil(b"\r\n\r\n")


async def test_without_strangers_the_longest_idle_makes_room_and_never_one_with_a_request() -> None:
    async with open_port(LONG) as port:
        connections = [await port.asked() for _ in range(4)]
        connections[0][1].write(REQUEST)
        assert b"fine" in await connections[0][0].readuntil(b"fine")
        port.gate.clear()
        connections[1][1].write(REQUEST)
        await until(lambda: any(each.is_under_way for each in port.listener.known.values()))
        await port.connect()
        assert await is_closed(connections[2][0])
        port.gate.set()
        for reader, _ in (connections[1],):
            assert b"fine" in await reader.readuntil(b"fine")


async def test_with_a_request_on_every_connection_a_new_one_is_sent_away() -> None:
    async with open_port(LONG) as port:
        port.gate.clear()
        busy = [await port.connect() for _ in range(4)]
        for _, writer in busy:
            writer.write(REQUEST)
        await until(lambda: sum(each.is_under_way for each in port.listener.known.values()) == 4)
        reader, _ = await port.connect()
        assert await is_closed(reader)
        port.gate.set()
        for reader, _ in busy:
            assert b"fine" in await reader.readuntil(b"fine")


async def test_a_flood_of_idle_connections_keeps_nobody_from_an_answer(
    tls: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    async with open_port(LONG, tls[0]) as port:
        for _ in range(20):
            await port.connect()  # never begins its handshake
        port.trust = tls[1]
        await port.asked()
        assert port.listener.num_connections <= 4


async def test_a_peer_that_is_not_accepted_gets_no_answer() -> None:
    async with open_port(LONG, accepts=bool) as port:
        reader, writer = await port.connect()
        writer.write(REQUEST)
        assert await is_closed(reader)


async def test_a_port_beside_answers_while_the_event_loop_stands_still() -> None:
    app = web.Application()

    async def page(_: web.Request) -> web.Response:
        return web.Response(text="fine")

    app.router.add_get("/", page)
    async with listening_beside(app, "127.0.0.1", 0) as listener:
        with socket.create_connection(listener.addresses[0][:2], timeout=5) as connection:
            connection.sendall(REQUEST)  # this thread, and with it the loop, waits for the answer
            assert b"200 OK" in connection.recv(1000)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(listener.addresses[0][:2], timeout=5)


async def test_what_is_not_http_is_answered_and_closed() -> None:
    async with open_port(LONG) as port:
        reader, writer = await port.connect()
        writer.write(b"\x16\x03\x01 nonsense\r\n\r\n")
        async with asyncio.timeout(5):
            assert b"400 Bad Request" in await reader.read()
        await port.has(0)


async def test_it_listens_on_every_address_of_a_name() -> None:
    async with open_port(LONG) as port:
        assert port.listener.addresses[0][0] == "127.0.0.1"
        async with aiohttp.ClientSession() as client:
            for _ in range(3):
                url = f"http://127.0.0.1:{port.listener.addresses[0][1]}/"
                async with client.get(url) as response:
                    assert await response.text() == "fine"
