"""Nodes in memory: what is kept of them, what a heartbeat changes, who must hear of a change, and what a refusal means."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from kvgate.cluster.client import Kind
from kvgate.cluster.errors import ApiError, Forbidden, NotFound, Unavailable
from kvgate.controller.live_nodes import LiveNodes, follow
from kvgate.nodes.node import NodeObject
from kvgate.runtime.background import Troubles
from support.manifests import an_owner
from support.nodes import H100, a_slice

KEY = ("serving", "qwen")


def node_document(name: str, labels: dict[str, str], *, version: int = 1, beat: str = "12:00") -> dict[str, Any]:
    """A Node with what a kubelet adds: conditions with times, and the names of fifty images."""
    digest = "sha256:" + "0123456789abcdef" * 4
    images = [
        {"names": [f"registry.example/{name}/{number}@{digest}", f"registry.example/{number}:v1"]}
        for number in range(50)
    ]
    amounts = {"nvidia.com/gpu": "8", "cpu": "192"}
    return {
        "metadata": {"name": name, "labels": labels, "resourceVersion": str(version)},
        "status": {
            "allocatable": amounts, "capacity": amounts, "images": images,
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": f"2026-11-28T{beat}:00Z"}],
        },
    }  # fmt: skip


def line(kind: str, document: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": document}).encode()


class FakeCluster:
    """Answers lists, and each watch with the next lines; then it hangs."""

    def __init__(self, nodes: list[dict[str, Any]] | ApiError, slices: list[dict[str, Any]] | ApiError) -> None:
        self.objects = {"nodes": nodes, "resourceslices": slices}
        self.events: dict[str, list[list[bytes]]] = {"nodes": [], "resourceslices": []}
        self.lists: list[tuple[str, str]] = []

    async def read_page(self, kind: Kind, *, limit: int, following: str = "", **_: object) -> bytes:
        self.lists.append((kind.plural, following))
        found = self.objects[kind.plural]
        if isinstance(found, ApiError):
            raise found
        start = int(following or 0)
        rest = str(start + limit) if start + limit < len(found) else ""
        return json.dumps({
            "metadata": {"resourceVersion": "7", "continue": rest}, "items": found[start : start + limit],
        }).encode()  # fmt: skip

    async def watch(self, kind: Kind, version: str, **_: object) -> AsyncIterator[bytes]:
        assert version
        if not self.events[kind.plural]:
            await asyncio.Event().wait()
        for each in self.events[kind.plural].pop(0):
            yield each


async def followed(cluster: FakeCluster, nodes: LiveNodes, seconds: float = 0.05) -> tuple[list[Any], list[str]]:
    """Follow for a moment; the keys that were enqueued, and the loops that failed."""
    enqueued, failed = list[Any](), list[str]()
    task = asyncio.create_task(follow(cluster, nodes, Troubles(failed.append), enqueued.append))  # type: ignore[arg-type]
    await nodes.first_list()
    await asyncio.sleep(seconds)
    task.cancel()
    return enqueued, failed


async def test_nodes_are_listed_page_by_page_and_kept_without_what_is_not_read() -> None:
    nodes = LiveNodes()
    cluster = FakeCluster([node_document(f"gpu-{number}", H100) for number in range(250)], [a_slice("s")])
    assert nodes.offer(("serving", "early"), an_owner("early").spec) is None
    enqueued, _ = await followed(cluster, nodes, 1.2)
    assert enqueued == [("serving", "early")], "it was judged before the nodes were known"
    assert [following for plural, following in cluster.lists if plural == "nodes"] == ["", "100", "200"]
    assert nodes.is_known
    offer = nodes.offer(KEY, an_owner().spec)
    assert offer is not None
    assert offer.differs is False


async def test_a_heartbeat_concerns_nobody_and_a_lesser_memory_concerns_those_who_want_the_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvgate.controller.live_nodes.PAUSE_SECONDS", 0.0)
    nodes = LiveNodes()
    cluster = FakeCluster([node_document("gpu-0", H100)], [])
    await followed(cluster, nodes)
    other = an_owner("other", accelerator={"type": "L4-24GB"}, template={"nodeSelector": {"pool": "x"}})
    assert nodes.offer(KEY, an_owner().spec) == nodes.offer(("serving", "same"), an_owner("same").spec)
    nodes.offer(("serving", "other"), other.spec)
    beat = line("MODIFIED", node_document("gpu-0", H100, version=8, beat="12:05"))
    cluster.events["nodes"] = [[beat]]
    assert await followed(cluster, nodes) == ([], [])
    less = {**H100, "nvidia.com/gpu.memory": "76000"}
    cluster.events["nodes"] = [
        [beat, line("BOOKMARK", {"metadata": {"resourceVersion": "9"}}), line("ADDED", node_document("gpu-1", less))]
    ]
    enqueued, _ = await followed(cluster, nodes)
    assert sorted(enqueued) == [KEY, ("serving", "same")]
    nodes.forget(KEY)
    nodes.offer(("serving", "same"), an_owner("same").spec)
    cluster.events["nodes"] = [[line("DELETED", node_document("gpu-1", less)), line("ERROR", {"code": 410})]]
    enqueued, _ = await followed(cluster, nodes)
    assert enqueued == [("serving", "same")]


@pytest.mark.parametrize("kind", [Forbidden, NotFound, Unavailable])
async def test_what_cannot_be_listed_is_noted_once_and_leaves_the_catalogue_alone(kind: type[ApiError]) -> None:
    nodes = LiveNodes()
    refusal = kind("list", "nodes", "as the test says")
    _, failed = await followed(FakeCluster(refusal, refusal), nodes)
    assert failed == ["watch of nodes", "watch of resourceslices"]
    assert nodes.offer(KEY, an_owner().spec) is None
    assert nodes.room(KEY, 8) == ""


async def test_an_object_that_is_not_what_its_kind_says_is_left_out() -> None:
    nodes = LiveNodes()
    odd = {"metadata": {"name": "odd", "labels": ["not", "a", "map"]}, "status": {"allocatable": 7}}
    _, failed = await followed(FakeCluster([odd, node_document("gpu-0", H100)], []), nodes)
    assert failed == []
    assert nodes.offer(KEY, an_owner().spec) is not None


def test_a_thousand_nodes_take_a_tenth_of_the_memory_that_they_may() -> None:
    """Nodes of 8 GPUs with 180 labels each, as node feature discovery sets them."""
    nodes, decode = LiveNodes(), msgspec.json.Decoder(NodeObject).decode
    features = {f"feature.node.kubernetes.io/cpu-cpuid.FEATURE{number}": "true" for number in range(150)}
    others = {f"nvidia.com/label-{number}": "value" for number in range(30)}
    texts = [
        json.dumps(node_document(f"gpu-{number}", {**H100, **features, **others, "kubernetes.io/hostname": f"gpu-{number}"}))
        for number in range(1000)
    ]  # fmt: skip
    tracemalloc.start()
    for text in texts:
        nodes.put_node(decode(text))
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept < 15 << 20
    assert peak < 20 << 20
