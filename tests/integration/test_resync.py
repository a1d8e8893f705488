"""The resync: what is settled is not touched, what is not is found, and one object's trouble stays its own."""

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from hashlib import sha256
from typing import Any, Self
from unittest.mock import AsyncMock

import pytest
from prometheus_client import CollectorRegistry

from kvgate.cluster.client import ADMISSION_RECORDS, Kind
from kvgate.cluster.errors import Forbidden, Unavailable
from kvgate.cluster.events import EventRecorder
from kvgate.controller.decision import Key, Situation
from kvgate.controller.memory import Memory
from kvgate.controller.reconcile import ReconcileInstruments, Reconciler
from kvgate.controller.schedule import Resync
from kvgate.controller.starts import ObservedStarts
from kvgate.metrics import registry as metrics
from kvgate.metrics.exporter import DeploymentSnapshot, counter, histogram
from kvgate.rendering.labels import HASH_ANNOTATION
from kvgate.rendering.observation import Observation, RunningEngine
from kvgate.runtime.background import Troubles
from kvgate.vllm.metric_names import EngineReading
from support.manifests import a_document
from support.status_patch import merged

NEEDS_CONFIG = {"name": "nobody/x", "configFrom": {"configMapKeyRef": {"name": "x", "key": "config.json"}}}


class FakeCluster:
    """Holds any number of objects; nobody may read ConfigMaps."""

    def __init__(self, *documents: dict[str, Any]) -> None:
        self.objects: dict[tuple[str, str], dict[str, Any]] = {}
        for document in documents:
            name = document["metadata"]["name"]
            document["metadata"]["uid"] = f"uid-{name}"
            self.objects["inferencedeployments", name] = document

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    async def find(self, kind: Kind, namespace: str, name: str) -> dict[str, Any] | None:
        if kind.plural == "configmaps":
            raise Forbidden("get", "configmaps", "no")
        found = self.objects.get((kind.plural, name))
        return found and _versioned(found)

    async def list_metadata(self, kind: Kind, namespace: str | None = None) -> AsyncIterator[dict[str, Any]]:
        async for item in self.list(kind, namespace):
            yield {"metadata": item["metadata"]}

    async def list(
        self, kind: Kind, namespace: str | None = None, *, label_selector: str | None = None
    ) -> AsyncIterator[dict[str, Any]]:
        for (plural, _), document in list(self.objects.items()):
            if plural == kind.plural:
                yield _versioned(document)

    async def apply(self, kind: Kind, body: dict[str, Any], *, is_first: bool = False) -> dict[str, Any]:
        self.objects[kind.plural, body["metadata"]["name"]] = copy.deepcopy(body)
        return _versioned(body)

    async def patch_status(self, kind: Kind, metadata: dict[str, Any], status: dict[str, Any]) -> dict[str, Any]:
        document = self.objects[kind.plural, metadata["name"]]
        document["status"] = merged(document.get("status", {}), status)
        return _versioned(document)

    async def create(self, kind: Kind, body: dict[str, Any]) -> None:
        if kind is ADMISSION_RECORDS:
            self.objects[kind.plural, body["metadata"]["name"]] = json.loads(json.dumps(body))


def _versioned(document: dict[str, Any]) -> dict[str, Any]:
    """A copy with a resourceVersion that is another one for other content."""
    version = "v" + sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
    return {**copy.deepcopy(document), "metadata": {**document["metadata"], "resourceVersion": version}}


class FakeQueue:
    def __init__(self) -> None:
        self.keys: list[Key] = []

    def enqueue(self, key: Key) -> None:
        self.keys.append(key)


def new(
    cluster: FakeCluster, memory: Memory | None = None, on_start: AsyncMock | None = None
) -> tuple[Resync, Reconciler, FakeQueue]:
    registry, memory, queue = CollectorRegistry(), memory or new_memory(), FakeQueue()
    instruments = ReconcileInstruments(
        results=counter(metrics.RECONCILES, registry), durations=histogram(metrics.RECONCILE_DURATION, registry)
    )
    recorder = EventRecorder(cluster, instance="test")  # type: ignore[arg-type]
    reconciler = Reconciler(cluster, recorder, memory, instruments, on_start=on_start or AsyncMock(return_value=""))  # type: ignore[arg-type]
    resync = Resync(
        connect=lambda: cluster,  # type: ignore[arg-type,return-value]
        namespaces=(), reconciler=reconciler, queue=queue, memory=memory, starts=ObservedStarts(None),  # type: ignore[arg-type]
        troubles=Troubles(lambda _: None),
    )  # fmt: skip
    return resync, reconciler, queue


def new_memory() -> Memory:
    return Memory(DeploymentSnapshot(), ObservedStarts(None))


async def test_what_is_settled_is_left_alone_and_what_changed_unseen_is_found() -> None:
    cluster = FakeCluster(a_document("a"), a_document("b"))
    resync, reconcile, queue = new(cluster)
    for name in ("a", "b"):
        await reconcile(("serving", name))
    await resync.run_once()
    assert queue.keys == []
    cluster.objects["deployments", "b"]["spec"]["replicas"] = 5
    await resync.run_once()
    assert queue.keys == [("serving", "b")]


async def test_an_object_whose_deletion_nobody_saw_is_found() -> None:
    cluster = FakeCluster(a_document("a"))
    resync, reconcile, queue = new(cluster)
    await reconcile(("serving", "a"))
    cluster.objects.clear()
    await resync.run_once()
    assert queue.keys == [("serving", "a")]


async def test_an_object_that_no_watch_ever_told_of_is_found() -> None:
    resync, _, queue = new(FakeCluster(a_document("a")))
    await resync.run_once()
    assert queue.keys == [("serving", "a")]


async def test_a_config_map_that_may_not_be_read_troubles_no_other_object() -> None:
    resync, _, queue = new(FakeCluster(a_document("a", model=NEEDS_CONFIG), a_document("b")))
    await resync.run_once()
    assert queue.keys == [("serving", "a"), ("serving", "b")]


async def test_a_start_that_could_not_be_remembered_is_tried_again() -> None:
    key, memory, cluster = ("serving", "a"), new_memory(), FakeCluster(a_document("a"))
    on_start = AsyncMock(side_effect=[Unavailable("patch", "configmaps", "no"), ""])
    resync, reconcile, queue = new(cluster, memory, on_start)
    await reconcile(key)
    template = cluster.objects["deployments", "a"]["spec"]["template"]["metadata"]
    engine = RunningEngine(
        pod="a-1",
        template_hash=template["annotations"][HASH_ANNOTATION],
        reading=EngineReading(num_gpu_blocks=4096, block_size=16),
    )
    memory.observe({key: Observation(engines=(engine,))})
    await reconcile(key)
    await resync.run_once()
    assert (queue.keys, on_start.await_count) == ([key], 1)
    await reconcile(key)
    await resync.run_once()
    assert (queue.keys, on_start.await_count) == ([key], 2)


async def test_an_object_that_raises_is_enqueued_and_the_others_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = FakeCluster(a_document("a"), a_document("b"), a_document("c"))
    memory = new_memory()
    resync, reconcile, queue = new(cluster, memory)
    for name in ("a", "b", "c"):
        await reconcile(("serving", name))
    cluster.objects["deployments", "c"]["spec"]["replicas"] = 5
    judged = memory.judged

    def defect(key: Key, situation: Situation) -> object:
        if key[1] == "b":
            raise UnicodeEncodeError("utf-8", "x", 0, 1, "no")
        return judged(key, situation)

    monkeypatch.setattr(memory, "judged", defect)
    await resync.run_once()
    assert queue.keys == [("serving", "b"), ("serving", "c")]


async def test_a_round_that_fails_is_tried_again_and_its_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    resync, _, _ = new(FakeCluster(a_document("a")))
    rounds: list[int] = []
    done = asyncio.Event()

    async def run_once() -> None:
        rounds.append(1)
        if len(rounds) == 1:
            raise ZeroDivisionError

    monkeypatch.setattr(resync, "run_once", run_once)
    task = asyncio.create_task(resync.run_forever(0.001, done.set))
    await done.wait()
    assert len(rounds) == 2
    task.cancel()
