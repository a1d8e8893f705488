"""Objects in memory: which report counts, when the API server is asked, and what a list finds that a watch missed."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from kvgate.cluster.client import DEPLOYMENTS, INFERENCE_DEPLOYMENTS, Kind
from kvgate.controller.live import MAX_KEPT_BYTES, LiveObjects

KEY = ("serving", "qwen")


def an_object(version: str, uid: str = "uid-1", name: str = "qwen", **more: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "serving", "name": name, "uid": uid, "resourceVersion": version}, **more}


class CountingCluster:
    """A cluster that has these objects, and the requests that were made."""

    def __init__(self, *objects: dict[str, Any]) -> None:
        self.objects = {each["metadata"]["name"]: each for each in objects}
        self.requests: list[str] = []

    async def find(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        self.requests.append(f"get {kind.plural} {name}")
        return self.objects.get(name)

    async def list(self, kind: Kind, namespace: str | None = None, **_: Any) -> AsyncIterator[dict[str, Any]]:
        self.requests.append(f"list {kind.plural}")
        for each in self.objects.values():
            yield each


async def found(live: LiveObjects, cluster: CountingCluster, kind: Kind = DEPLOYMENTS) -> str | None:
    """Version of the object as a run sees it."""
    document = await live.find(cluster, kind, KEY)  # type: ignore[arg-type]
    return document["metadata"]["resourceVersion"] if document else None


@pytest.mark.parametrize(
    ("reports", "kept", "last_is_news"),
    [
        ([("9", "uid-1"), ("10", "uid-1")], "10", True),
        ([("10", "uid-1"), ("9", "uid-1")], "10", False),
        ([("10", "uid-1"), ("10", "uid-1")], "10", False),
        ([("10", "uid-1"), ("9", "uid-2")], "9", True),
        ([("b", "uid-1"), ("a", "uid-1")], "a", True),
    ],
    ids=["newer", "late", "echo", "made anew after a restore", "no numbers"],
)
async def test_the_newest_report_of_an_object_is_kept(
    reports: list[tuple[str, str]],
    kept: str,
    last_is_news: bool,  # noqa: FBT001
) -> None:
    live, cluster = LiveObjects(), CountingCluster()
    *_, last = [live.put(DEPLOYMENTS, an_object(*report)) for report in reports]
    assert (await found(live, cluster), last) == (kept, last_is_news)
    assert not cluster.requests


async def test_an_object_that_is_not_known_is_requested_until_its_kind_was_listed() -> None:
    live, cluster = LiveObjects(), CountingCluster()
    assert await found(live, cluster) is None
    await live.relist(cluster, DEPLOYMENTS, (None,))  # type: ignore[arg-type]
    assert await found(live, cluster) is None
    assert cluster.requests == ["get deployments qwen", "list deployments"]


async def test_an_object_in_doubt_is_requested_until_it_is_trusted_again() -> None:
    live, cluster = LiveObjects(), CountingCluster(an_object("12"))
    live.put(DEPLOYMENTS, an_object("7"))
    live.doubt(KEY)
    assert await found(live, cluster) == "12"
    live.trust(KEY)
    assert await found(live, cluster) == "12"
    assert cluster.requests == ["get deployments qwen"]


async def test_an_object_that_is_too_large_to_be_kept_is_requested_each_time() -> None:
    large = an_object("7", spec={"text": "x" * MAX_KEPT_BYTES})
    live, cluster = LiveObjects(), CountingCluster(large)
    assert live.put(DEPLOYMENTS, large)
    assert not live.put(DEPLOYMENTS, large), "its echo is known all the same"
    assert [await found(live, cluster) for _ in range(2)] == ["7", "7"]
    assert cluster.requests == ["get deployments qwen"] * 2


async def test_one_that_is_gone_when_it_is_requested_is_forgotten() -> None:
    live, cluster = LiveObjects(), CountingCluster()
    live.put(DEPLOYMENTS, an_object("7"))
    live.doubt(KEY)
    assert await found(live, cluster) is None
    live.trust(KEY)
    assert await found(live, cluster) is None


async def test_a_list_finds_what_a_watch_missed() -> None:
    cluster = CountingCluster(an_object("12"), an_object("3", name="new"))
    live = LiveObjects()
    for each in (an_object("7"), an_object("2", uid="uid-3", name="gone")):
        live.put(INFERENCE_DEPLOYMENTS, each)
    await live.relist(cluster, INFERENCE_DEPLOYMENTS, (None,))  # type: ignore[arg-type]
    assert sorted(live.owners()) == [("serving", "new"), ("serving", "qwen")]
    assert await found(live, cluster, INFERENCE_DEPLOYMENTS) == "12"


async def test_what_a_watch_reports_during_a_list_is_not_dropped_by_it() -> None:
    live = LiveObjects()

    class Slow(CountingCluster):
        async def list(self, kind: Kind, namespace: str | None = None, **_: Any) -> AsyncIterator[dict[str, Any]]:
            live.put(kind, an_object("8"))
            for each in self.objects.values():
                yield each

    live.put(DEPLOYMENTS, an_object("7"))
    await live.relist(Slow(), DEPLOYMENTS, (None,))  # type: ignore[arg-type]
    assert await found(live, CountingCluster()) == "8"


async def test_the_end_of_an_object_is_not_the_end_of_its_namesake() -> None:
    live, cluster = LiveObjects(), CountingCluster()
    live.put(DEPLOYMENTS, an_object("7", uid="uid-2"))
    live.drop(DEPLOYMENTS, an_object("6"))
    assert await found(live, cluster) == "7"
    live.drop(DEPLOYMENTS, an_object("8", uid="uid-2"))
    await live.relist(cluster, DEPLOYMENTS, (None,))  # type: ignore[arg-type]
    assert await found(live, cluster) is None
