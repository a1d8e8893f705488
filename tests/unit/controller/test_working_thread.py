"""The handlers of events only look at them."""

from typing import Any

import pytest

from kvgate.api import SKIP_BUDGET_ANNOTATION
from kvgate.cluster.following import LISTED
from kvgate.controller.memory import Memory
from kvgate.controller.pods import KnownPods
from kvgate.controller.starts import ObservedStarts
from kvgate.controller.working_thread import Handlers
from kvgate.metrics.exporter import DeploymentSnapshot
from support.manifests import NOW, a_document, a_pod
from support.reconciling import FakeCluster, new

KEY = ("serving", "qwen")


class FakeQueue:
    def __init__(self) -> None:
        self.begun: list[tuple[str, str]] = []
        self.enqueued: list[tuple[str, str]] = []
        self.later: list[tuple[str, str]] = []

    def begin_later(self, key: tuple[str, str]) -> None:
        self.later.append(key)

    def begin(self, key: tuple[str, str]) -> None:
        self.begun.append(key)

    def enqueue(self, key: tuple[str, str], *, delay_seconds: float) -> None:
        self.enqueued.append(key)


@pytest.fixture
def queue() -> FakeQueue:
    return FakeQueue()


@pytest.fixture
def memory() -> Memory:
    return Memory(DeploymentSnapshot(), ObservedStarts(None))


@pytest.fixture
def pods() -> KnownPods:
    return KnownPods()


@pytest.fixture
def handlers(queue: FakeQueue, memory: Memory, pods: KnownPods) -> Handlers:
    reconciler, _ = new(FakeCluster(None), memory)
    return Handlers(queue, reconciler, memory, pods)  # type: ignore[arg-type]


def handler_of(handlers: Handlers, plural: str) -> Any:
    return next(handler for kind, handler in handlers.by_kind if kind.plural == plural)


@pytest.mark.parametrize("kind", [LISTED, "ADDED", "MODIFIED"])
def test_creation_change_and_restart_ask_for_a_reconcile(handlers: Handlers, queue: FakeQueue, kind: str) -> None:
    handlers.owner(kind, a_document())
    assert queue.begun == [KEY]


@pytest.mark.parametrize(
    ("change", "is_news"),
    [
        ({}, False),
        ({"metadata": {"labels": {"team": "a"}, "resourceVersion": "9"}}, False),
        ({"metadata": {"generation": 2}}, True),
        ({"metadata": {"annotations": {SKIP_BUDGET_ANNOTATION: "load test"}}}, True),
        ({"metadata": {"uid": "another"}}, True),
        ({"metadata": {"deletionTimestamp": NOW}}, True),
        ({"status": {"replicas": 7}}, True),
        ({"status": {"budget": {"edited": "by hand"}}}, True),
        ({"status": {"later": {"by": "others"}}}, False),
    ],
)
def test_the_echo_of_our_own_write_asks_for_nothing_and_whatever_decides_does(
    handlers: Handlers,
    queue: FakeQueue,
    memory: Memory,
    change: dict[str, Any],
    is_news: bool,  # noqa: FBT001
) -> None:
    status = {"observedGeneration": 1, "replicas": 1}
    memory.settled(KEY, a_document(), status)
    document = a_document() | {"status": dict(status)}
    handlers.owner("MODIFIED", {**document, **{part: document[part] | more for part, more in change.items()}})
    assert queue.begun == ([KEY] if is_news else [])


def test_a_deleted_object_is_forgotten_and_no_other(handlers: Handlers, memory: Memory) -> None:
    memory.settled(KEY, a_document(), {})
    handlers.owner("MODIFIED", a_document())
    assert memory.written(KEY, a_document()) == {}
    handlers.owner("DELETED", a_document())
    assert memory.written(KEY, a_document()) is None


@pytest.mark.parametrize("plural", ["deployments", "services", "poddisruptionbudgets"])
def test_a_childs_event_is_its_owners(handlers: Handlers, queue: FakeQueue, plural: str) -> None:
    owners = [
        {"apiVersion": "kvgate.io/v1alpha1", "kind": "InferenceDeployment", "name": "qwen"},
        {"apiVersion": "apps/v1", "kind": "InferenceDeployment", "name": "impostor"},
        {"apiVersion": "kvgate.io/v1alpha1", "kind": "Other", "name": "other"},
    ]
    child = a_document("child")
    handler = handler_of(handlers, plural)

    def tell_of(version: str, kind: str = "MODIFIED") -> None:
        child["metadata"]["resourceVersion"] = version
        handler(kind, child)

    tell_of("1")
    assert queue.enqueued == []
    child["metadata"]["ownerReferences"] = owners
    tell_of("2")
    assert queue.enqueued == [("serving", "qwen")]
    tell_of("2")
    assert len(queue.enqueued) == 1, "the echo of what is known"
    tell_of("2", "DELETED")
    assert len(queue.enqueued) == 2


def test_after_a_start_what_did_not_change_waits_behind_what_did(handlers: Handlers, queue: FakeQueue) -> None:
    handlers.owner(LISTED, a_document() | {"status": {"observedGeneration": 1}})
    assert (queue.begun, queue.later) == ([], [KEY])
    changed = a_document() | {"status": {"observedGeneration": 1}}
    changed["metadata"]["generation"] = 2
    handlers.owner(LISTED, changed)
    assert queue.begun == [KEY]


def test_a_pod_is_kept_until_it_is_deleted(handlers: Handlers, pods: KnownPods) -> None:
    body = a_pod()
    for kind in (LISTED, "ADDED", "MODIFIED"):
        handlers.pod(kind, body)
    assert len(pods) == 1
    handlers.pod("DELETED", body)
    assert len(pods) == 0
