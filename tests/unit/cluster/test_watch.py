"""A watch: the list first, then every change, from version to version until the API server has forgotten it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from kvgate.cluster import client
from kvgate.cluster.client import PODS, Cluster
from kvgate.cluster.errors import Unavailable


def a_pod(name: str, version: int = 1) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": str(version)}}


def event(kind: str, document: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": document}).encode() + b"\n"


@asynccontextmanager
async def watched(*streams: bytes | None) -> AsyncIterator[tuple[Cluster, list[dict[str, str]]]]:
    """A connection to a server with two pages of pods, whose watches answer with these bytes; None stays silent. And all queries."""
    queries, left = list[dict[str, str]](), iter(streams)

    async def answer(request: web.Request) -> web.StreamResponse:
        queries.append(dict(request.query))
        if "watch" not in request.query:
            is_last = "continue" in request.query
            metadata = {"resourceVersion": "7", **({} if is_last else {"continue": "more"})}
            return web.json_response({"metadata": metadata, "items": [a_pod("b" if is_last else "a")]})
        response, text = web.StreamResponse(), next(left, None)
        await response.prepare(request)
        pieces = (text or b"")[:50], (text or b"")[50:]  # the first ends anywhere
        for piece in filter(None, pieces):
            await response.write(piece)
        if text is None:
            await asyncio.sleep(0.3)
        return response

    app = web.Application()
    app.router.add_get("/api/v1/namespaces/serving/pods", answer)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        host = f"http://127.0.0.1:{runner.addresses[0][1]}"
        async with Cluster(Configuration(host=host), lambda *_: None) as cluster:
            yield cluster, queries
    finally:
        await runner.cleanup()


async def test_the_list_comes_first_and_each_watch_goes_on_where_the_last_one_ended() -> None:
    first = event("ADDED", a_pod("c", 8)) + event("BOOKMARK", a_pod("", 20))
    second = event("MODIFIED", a_pod("c", 21)) + event("DELETED", a_pod("c", 22))
    too_old = event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
    async with watched(first, second, too_old) as (cluster, queries):
        found = [(kind, each) async for kind, each in cluster.changes(PODS, "serving", label_selector="ours")]
    assert [(kind, each["metadata"]["name"]) for kind, each in found] == [
        ("LISTED", "a"), ("LISTED", "b"), ("ADDED", "c"), ("MODIFIED", "c"), ("DELETED", "c"),
    ]  # fmt: skip
    assert found[0][1]["kind"] == "Pod", "a list leaves it out"
    assert [query.get("resourceVersion") for query in queries] == [None, None, "7", "20", "22"]
    assert {query["labelSelector"] for query in queries} == {"ours"}
    assert queries[2]["allowWatchBookmarks"] == "true"


async def test_a_silent_connection_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SILENCE_SECONDS", 0.05)
    async with watched(None) as (cluster, _):
        with pytest.raises(Unavailable, match="watch pods"):
            async for _ in cluster.changes(PODS, "serving"):
                pass


async def test_an_event_that_never_ends_is_not_kept() -> None:
    async with watched(event("ADDED", a_pod("x" * (5 << 20)))) as (cluster, _):
        with pytest.raises(Unavailable, match="watch pods"):
            async for _ in cluster.changes(PODS, "serving"):
                pass


async def test_a_server_that_ends_each_watch_at_once_is_not_asked_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pauses = list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(client.asyncio, "sleep", sleep)
    async with watched(b"", b"", event("ADDED", a_pod("c", 8)), event("ERROR", {"code": 410})) as (cluster, _):
        assert [kind async for kind, _ in cluster.changes(PODS, "serving")] == ["LISTED", "LISTED", "ADDED"]
    assert pauses.count(client.QUIET_SECONDS) == 2
