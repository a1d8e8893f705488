"""While the gate is shut nothing of a request that writes leaves the process; reading goes on."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from kvgate.cluster.client import CONFIG_MAPS, Cluster, MayNotWrite, request_trace
from kvgate.cluster.errors import Unavailable

WRITES = ("post", "put", "patch", "delete")


@asynccontextmanager
async def server() -> AsyncIterator[tuple[str, list[str]]]:
    """Its address, and the methods that reached it."""
    seen: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(request.method)
        return web.json_response({"metadata": {}})

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", seen
    finally:
        await runner.cleanup()


def session_of(may_write: Callable[[], bool]) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(trace_configs=[request_trace(lambda *_: None, may_write)])


@pytest.mark.parametrize("method", WRITES)
async def test_a_session_writes_nothing_while_the_gate_is_shut(method: str) -> None:
    async with server() as (host, seen), session_of(lambda: False) as session:
        await session.get(f"{host}/x")
        with pytest.raises(MayNotWrite, match="does not hold the Lease"):
            await session.request(method, f"{host}/x", json={})
        assert seen == ["GET"]


@pytest.mark.parametrize("method", WRITES)
async def test_a_gate_that_shuts_while_the_request_waits_for_a_connection_holds_it_back(method: str) -> None:
    answers = iter((True, False))
    async with server() as (host, seen), session_of(lambda: next(answers)) as session:
        with pytest.raises(MayNotWrite):
            await session.request(method, f"{host}/x", json={})
        assert seen == []


async def test_the_controllers_own_requests_pass_the_same_gate() -> None:
    is_open = True
    body = {"metadata": {"namespace": "a", "name": "b", "uid": "1"}}
    async with server() as (host, seen):
        cluster = Cluster(Configuration(host=host), lambda *_: None, may_write=lambda: is_open)
        async with cluster:
            await cluster.apply(CONFIG_MAPS, body)
            is_open = False
            for write in (cluster.apply, cluster.create, cluster.update):
                with pytest.raises(Unavailable, match="does not hold the Lease"):
                    await write(CONFIG_MAPS, body)
            with pytest.raises(Unavailable, match="does not hold the Lease"):
                await cluster.merge(CONFIG_MAPS, "a", "b", {})
            with pytest.raises(Unavailable, match="does not hold the Lease"):
                await cluster.patch_status(CONFIG_MAPS, body["metadata"], {})
            await cluster.find(CONFIG_MAPS, "a", "b")
        assert seen == ["PATCH", "GET"]
