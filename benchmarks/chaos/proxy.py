"""An HTTP proxy between a controller and the API server: what is wrong at the time decides what becomes of each request."""

import asyncio
import json
import random
import ssl
import threading
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import aiohttp
from aiohttp import web

Fault = Callable[[web.Request], Awaitable[web.StreamResponse | None]]
"""Answers a request in place of the API server, or returns None where the request goes on."""
HOP_BY_HOP = frozenset(
    {"host", "connection", "transfer-encoding", "content-length", "content-encoding", "accept-encoding"}
)
WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
CHANCE = random.Random(7)
SHARE = 0.7
"""Part of the requests that a storm hits."""


async def nothing(_: web.Request) -> None:
    """Let every request pass."""


async def latency(_: web.Request) -> None:
    await asyncio.sleep(2)


async def black_hole(_: web.Request) -> web.StreamResponse:
    """Take the request, and answer nothing as long as the client waits."""
    await asyncio.sleep(3600)
    return web.Response()


async def resets(request: web.Request) -> web.StreamResponse | None:
    return cut_off(request) if CHANCE.random() < SHARE else None


def cut_off(request: web.Request) -> web.Response:
    """Reset the connection; the answer goes nowhere."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()


def answers(
    code: int, reason: str, *, to: Callable[[web.Request], bool] = lambda _: True, share: float = SHARE
) -> Fault:
    """Return the fault that answers so many of these requests with a Status of Kubernetes."""
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "code": code,
        "message": reason,
    }

    async def answer(request: web.Request) -> web.Response | None:
        if not to(request) or CHANCE.random() >= share:
            return None
        return web.json_response(status, status=code, headers={"Retry-After": "1"} if code == 429 else {})

    return answer


def is_write(request: web.Request) -> bool:
    return request.method in WRITES


async def expired_watches(request: web.Request) -> web.StreamResponse | None:
    """End each watch with the event by which the API server says that its version is too old."""
    if not is_watch(request):
        return None
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": "Expired",
        "code": 410,
        "message": "too old",
    }
    return web.Response(text=json.dumps({"type": "ERROR", "object": status}) + "\n", content_type="application/json")


def is_watch(request: web.Request) -> bool:
    return request.query.get("watch") in ("1", "true", "True")


class Proxy:
    """One for each controller, on the loopback, without TLS towards the controller; it runs in a thread of its own."""

    def __init__(self, url: str, trust: ssl.SSLContext) -> None:
        self._url, self._trust = url, trust
        self.fault: Fault = nothing
        self.cut = 0
        """Streams that were open when it was raised deliver nothing more, and stay open: the other end has gone without a word."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._start(), self._loop).result()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _start(self) -> None:
        self._client = aiohttp.ClientSession(
            self._url,
            connector=aiohttp.TCPConnector(ssl=self._trust, limit=0),
            timeout=aiohttp.ClientTimeout(),
            auto_decompress=False,
        )
        application = web.Application(client_max_size=1 << 26)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = self._runner.addresses[0][1]

    async def _stop(self) -> None:
        await self._runner.cleanup()
        await self._client.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    def kubeconfig(self, of: Path, target: Path) -> Path:
        """Write the kubeconfig with this address in place of the API server's."""
        content = json.loads(of.read_text(encoding="utf-8"))
        content["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{self.port}"}
        target.write_text(json.dumps(content), encoding="utf-8")
        return target

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if (answer := await self.fault(request)) is not None:
            return answer
        headers = kept(request.headers)
        body = await request.read()
        try:
            async with self._client.request(request.method, request.rel_url, headers=headers, data=body) as upstream:
                answer = web.StreamResponse(status=upstream.status, headers=kept(upstream.headers))
                await answer.prepare(request)
                opened = self.cut
                async for chunk in upstream.content.iter_any():
                    if self.cut == opened:
                        await answer.write(chunk)
                if self.cut != opened:
                    await asyncio.sleep(3600)  # as long as the client waits
                return answer
        except (aiohttp.ClientError, ConnectionResetError):
            return cut_off(request)


def kept(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP}
