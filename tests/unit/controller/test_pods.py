"""What is kept of a pod, and clocks that differ from ours."""

import asyncio
import time
import tracemalloc
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any, cast

import pytest

from kvgate.controller.pods import KnownPods, Pod, pod_of
from support.manifests import a_pod


def body(**status: Any) -> dict[str, Any]:
    found = a_pod(restarts=2)
    found["spec"] = {"nodeName": "gpu-1", "containers": [{"name": "vllm", "image": "vllm/vllm-openai:v0.33.0"}]}
    found["status"] |= status
    return found


def running(started: str | None) -> list[dict[str, Any]]:
    return [{"name": "vllm", "restartCount": 2, "state": {"running": {"startedAt": started}}}]


def test_node_start_restarts_and_images_are_kept() -> None:
    pod = pod_of(body(containerStatuses=running("2026-11-23T10:00:00Z")))
    assert (pod.node, pod.started_at, pod.restarts) == ("gpu-1", "2026-11-23T10:00:00Z", 2)
    assert pod.declared_image == "vllm/vllm-openai:v0.33.0"


@pytest.mark.parametrize(
    ("started", "expected"),
    [
        ("2026-11-23T10:00:00Z", datetime(2026, 11, 23, 10, tzinfo=UTC).timestamp()),
        ("2026-11-23T12:00:00+02:00", datetime(2026, 11, 23, 10, tzinfo=UTC).timestamp()),
        ("9999-12-31T23:59:59Z", datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()),  # a node's clock is off
        ("yesterday", None),
        ("", None),
        (None, None),
    ],
)
def test_a_time_of_a_node_is_as_it_says_and_one_that_is_none_is_left_out(started: str | None, expected: float) -> None:
    assert pod_of(body(containerStatuses=running(started))).sample.started_seconds == expected


def test_a_pod_takes_little_memory_whatever_its_manifest_holds() -> None:
    """Annotations, variables and managed fields are not kept; two thousand pods are two thousand of these."""
    large = body(containerStatuses=running("2026-11-23T10:00:00Z"))
    large["metadata"]["annotations"]["note"] = "x" * 200_000
    large["spec"]["containers"][0]["env"] = [{"name": "A", "value": "x" * 200_000}]
    pod = pod_of(large)
    assert sum(len(str(getattr(pod, name))) for name in Pod.__struct_fields__) < 500


class Listing:
    """A cluster with these pods."""

    def __init__(self, *names: str) -> None:
        self.names = names

    async def list(self, *_: object, **__: object) -> AsyncIterator[dict[str, Any]]:
        for name in self.names:
            yield a_pod(name) | {"spec": {}}


async def test_a_list_adds_what_the_watch_missed_and_forgets_what_went() -> None:
    known = KnownPods()
    for name in ("stays", "goes"):
        known.put(a_pod(name) | {"spec": {}})
    await known.relist(cast("Any", Listing("stays", "new")), [None])
    assert len(known) == 2
    known.forget("uid-stays")
    known.forget("uid-goes")
    assert len(known) == 1
    known.forget("uid-new")
    assert len(known) == 0


class Owners(Listing):
    """A cluster whose ReplicaSets belong to nobody."""

    def __init__(self, *names: str) -> None:
        super().__init__(*names)
        self.asked = 0

    async def find(self, *_: object) -> None:
        self.asked += 1

    async def list_metadata(self, *_: object, **__: object) -> AsyncIterator[dict[str, Any]]:
        self.asked += 1
        for body in ():
            yield body


async def test_pods_with_our_label_that_are_not_ours_are_not_kept_and_cost_one_request() -> None:
    known, cluster = KnownPods(), Owners()
    known.put(a_pod("bare", replica_set=None) | {"spec": {}})
    assert len(known) == 0, "a pod without a ReplicaSet is none of ours"
    for index in range(100):
        known.put(a_pod(f"foreign-{index}", replica_set=f"other-{index}") | {"spec": {}})
    assert await known.by_deployment(cast("Any", cluster)) == {}
    assert (len(known), cluster.asked) == (0, 1)
    for index in range(100):
        known.put(a_pod(f"foreign-{index}", replica_set=f"other-{index}") | {"spec": {}})
    await known.by_deployment(cast("Any", cluster))
    assert (len(known), cluster.asked) == (0, 1), "they are known to be others' until the next list"


async def test_ten_thousand_pods_with_our_label_that_are_not_ours_take_neither_memory_nor_time() -> None:
    """Each with a label and a ReplicaSet of its own, which nobody has."""
    known, cluster, bodies = KnownPods(), Owners(), list[dict[str, Any]]()
    for index in range(10_000):
        pod = a_pod(f"foreign-{index}", replica_set=f"other-{index}") | {"spec": {}}
        pod["metadata"] = {**pod["metadata"], "labels": {"kvgate.io/inferencedeployment": f"foreign-{index}"}}
        bodies.append(pod)
    tracemalloc.start()
    try:
        for _ in range(2):  # as a list tells of them, and the watch again
            for pod in bodies:
                known.put(pod)
            assert await known.by_deployment(cast("Any", cluster)) == {}
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (len(known), cluster.asked) == (0, 1)
    assert held_bytes < 2 << 20
    known.put(a_pod("ours") | {"spec": {}})
    began = time.process_time()
    await known.by_deployment(cast("Any", cluster))
    assert time.process_time() - began < 0.1


async def test_two_looks_at_once_request_a_replica_set_once() -> None:
    class Slow(Owners):
        async def find(self, *_: object) -> None:
            await asyncio.sleep(0)
            await super().find()

    known, cluster = KnownPods(), Slow()
    known.put(a_pod("new") | {"spec": {}})
    await asyncio.gather(*(known.by_deployment(cast("Any", cluster)) for _ in range(3)))
    assert cluster.asked == 1


@pytest.mark.parametrize(
    ("later", "reason"),
    [
        ('ImagePullBackOff: Back-off pulling image "x"', "ImageNotFound"),
        ("ErrImagePull: 429 Too Many Requests", "ImageRateLimited"),
    ],
)
def test_a_cause_of_a_failed_pull_stays_while_the_kubelet_waits(later: str, reason: str) -> None:
    known = KnownPods()
    for text in ("ErrImagePull: manifest unknown", later):
        word, _, message = text.partition(": ")
        pod = a_pod(ready=False) | {"spec": {"nodeName": "gpu-1"}}
        pod["status"]["containerStatuses"] = [
            {"name": "vllm", "state": {"waiting": {"reason": word, "message": message}}}
        ]
        known.put(pod)
    (kept,) = known._pods.values()
    assert kept.hindrance is not None
    assert kept.hindrance.reason == reason
