"""A watch: the list first, then every change, from version to version until the API server has forgotten it."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration

from kvgate.cluster import client, following
from kvgate.cluster.client import PODS, Cluster
from kvgate.cluster.following import Follower
from kvgate.runtime.background import Troubles


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


async def followed(cluster: Cluster, *, fails: bool = False) -> tuple[list[tuple[str, dict[str, Any]]], list[str]]:
    """What a handler heard until the fourth pause, and the loops that failed; a handler may fail each time."""
    heard, failed, pauses = list[tuple[str, dict[str, Any]]](), list[str](), list[float]()

    def handler(type_: str, document: dict[str, Any]) -> None:
        heard.append((type_, document))
        if fails:
            raise ValueError("whatever an event may hold")

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            raise asyncio.CancelledError

    follower = Follower(cluster, PODS, handler, Troubles(failed.append), namespace="serving", label_selector="ours")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(following, "asyncio", SimpleNamespace(sleep=sleep, Event=asyncio.Event))
        with pytest.raises(asyncio.CancelledError):
            await follower.run_forever()
    return heard, [*failed, *map(str, pauses)]


async def test_the_list_comes_first_and_each_watch_goes_on_where_the_last_one_ended() -> None:
    first = event("ADDED", a_pod("c", 8)) + event("BOOKMARK", a_pod("", 20))
    second = event("MODIFIED", a_pod("c", 21)) + event("DELETED", a_pod("c", 22))
    too_old = event("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
    async with watched(first, second, too_old) as (cluster, queries):
        heard, _ = await followed(cluster)
    assert [(kind, each["metadata"]["name"]) for kind, each in heard][:7] == [
        ("LISTED", "a"), ("LISTED", "b"), ("ADDED", "c"), ("MODIFIED", "c"), ("DELETED", "c"), ("LISTED", "a"), ("LISTED", "b"),
    ]  # fmt: skip
    assert heard[0][1]["kind"] == "Pod", "a list leaves it out"
    assert [query.get("resourceVersion") for query in queries][:5] == [None, None, "7", "20", "22"]
    assert {query["labelSelector"] for query in queries} == {"ours"}
    assert queries[2]["allowWatchBookmarks"] == "true"


async def test_a_silent_watch_is_asked_anew_from_its_last_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "SILENCE_SECONDS", 0.05)
    async with watched(None, event("ADDED", a_pod("c", 8)), event("ERROR", {"code": 410})) as (cluster, queries):
        heard, pauses = await followed(cluster)
    assert [kind for kind, _ in heard][:3] == ["LISTED", "LISTED", "ADDED"]
    assert [query.get("resourceVersion") for query in queries][:5] == [None, None, "7", "7", "8"]
    assert pauses[0] == str(following.QUIET_SECONDS), "nothing failed"


async def test_after_an_event_that_never_ends_the_kind_is_listed_anew() -> None:
    async with watched(event("ADDED", a_pod("x" * (5 << 20)))) as (cluster, _):
        heard, told = await followed(cluster)
    assert [kind for kind, _ in heard][:4] == ["LISTED"] * 4
    assert told[0] == "watch of pods"


async def test_a_server_that_ends_each_watch_at_once_is_not_asked_without_a_pause() -> None:
    async with watched(b"", b"", event("ADDED", a_pod("c", 8)), event("ERROR", {"code": 410})) as (cluster, _):
        heard, pauses = await followed(cluster)
    assert [kind for kind, _ in heard][:3] == ["LISTED", "LISTED", "ADDED"]
    assert pauses[:2] == [str(following.QUIET_SECONDS)] * 2


async def test_an_event_that_cannot_be_understood_is_counted_and_the_next_one_comes() -> None:
    async with watched(event("ADDED", a_pod("c", 8)), event("ERROR", {"code": 410})) as (cluster, _):
        heard, failed = await followed(cluster, fails=True)
    assert [each["metadata"]["name"] for _, each in heard][:3] == ["a", "b", "c"]
    assert failed[:3] == ["watch of pods"] * 3


def test_the_pauses_of_a_watch_grow_to_half_a_minute() -> None:
    assert following.BACKOFF_SECONDS == (1, 2, 4, 8, 16, 30)
