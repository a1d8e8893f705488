"""Reading a log through the API server: whatever a node sends, the answer is short, soon and text."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from kubernetes.aio.client import Configuration

from kvgate.cluster import client
from kvgate.cluster.client import LOG_BYTES, Cluster
from kvgate.cluster.errors import ApiError, Forbidden, NotFound, Rejected, Unavailable
from support.waiting import until

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def a_cluster(answer: Handler) -> AsyncIterator[Cluster]:
    app = web.Application()
    app.router.add_get("/api/v1/namespaces/serving/pods/qwen/log", answer)
    async with TestServer(app) as server:
        configuration = Configuration(host=str(server.make_url("")))
        async with Cluster(configuration, lambda *_: None) as cluster:
            yield cluster


async def log(answer: Handler) -> str:
    async with a_cluster(answer) as cluster:
        return await cluster.log("serving", "qwen", "vllm", of_previous=True)


async def test_it_asks_for_the_end_of_the_run_before_and_takes_what_is_no_text_as_well() -> None:
    asked: dict[str, str] = {}

    async def answer(request: web.Request) -> web.Response:
        asked.update(request.query)
        return web.Response(body=b"caf\xe9\n", content_type="text/plain")

    assert await log(answer) == "caf\N{REPLACEMENT CHARACTER}\n"
    assert asked == {"container": "vllm", "previous": "true", "tailLines": "400", "limitBytes": str(LOG_BYTES)}


async def test_of_a_log_without_end_no_more_is_taken_than_was_asked_for() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * LOG_BYTES)

    assert await log(answer) == "x" * LOG_BYTES


@pytest.mark.parametrize(
    ("status", "kind"), [(400, Rejected), (403, Forbidden), (404, NotFound), (500, Unavailable), (502, Unavailable)]
)
async def test_a_log_that_there_is_not_is_an_error_of_ours(status: int, kind: type[ApiError]) -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.json_response({"message": "no such log"}, status=status)

    with pytest.raises(kind, match="get pods/log: no such log"):
        await log(answer)


async def test_a_node_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LOG_TIMEOUT_SECONDS", 0.05)

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await until(lambda: request.transport is None)
        return response

    with pytest.raises(Unavailable, match=r"no answer within 0\.05 s"):
        await log(answer)
