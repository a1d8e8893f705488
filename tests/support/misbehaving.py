"""A server on the loopback that answers one way, whatever it is asked: bytes, or nothing at all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(kw_only=True)
class Served:
    """Where it listens, and what it was asked."""

    port: int = 0
    requests: list[bytes] = field(default_factory=list)
    sent_bytes: int = 0


@asynccontextmanager
async def serving(answer: bytes, *, times: int = 1, hangs: bool = False) -> AsyncIterator[Served]:
    """Sends `answer` so many times, then closes, or never does."""
    served, tasks = Served(), set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        try:
            served.requests.append(await reader.readuntil(b"\r\n\r\n"))
            for _ in range(times):
                writer.write(answer)
                await writer.drain()
                served.sent_bytes += len(answer)
            if hangs:
                await asyncio.Event().wait()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has had enough
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    served.port = server.sockets[0].getsockname()[1]
    try:
        yield served
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def http(body: bytes, *headers: str, status: str = "200 OK", content_type: str = "text/plain; version=0.0.4") -> bytes:
    """One answer, whose end is the end of the connection."""
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", "Connection: close", *headers, "", ""]
    return "\r\n".join(lines).encode() + body
