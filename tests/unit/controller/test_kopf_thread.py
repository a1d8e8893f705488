"""kopf's handlers only look at events, and kopf itself writes nothing."""

from itertools import islice
from typing import Any

import kopf
import pytest

from kvgate.api import SKIP_BUDGET_ANNOTATION
from kvgate.controller.kopf_thread import _SETTINGS, EndlessBackoffs, Handlers, operator_settings
from kvgate.controller.memory import Memory
from kvgate.controller.pods import KnownPods
from kvgate.controller.starts import ObservedStarts
from kvgate.metrics.exporter import DeploymentSnapshot
from kvgate.runtime.background import Troubles
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

    def enqueue(self, key: tuple[str, str]) -> None:
        self.enqueued.append(key)


async def login(**_: object) -> None:
    return None


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
def failed() -> list[str]:
    return []


@pytest.fixture
def registry(queue: FakeQueue, memory: Memory, pods: KnownPods, failed: list[str]) -> kopf.OperatorRegistry:
    reconciler, _ = new(FakeCluster(None), memory)
    return Handlers(queue, reconciler, memory, pods).registry(login, Troubles(failed.append))  # type: ignore[arg-type]


def watching(registry: kopf.OperatorRegistry, plural: str) -> Any:
    return next(h for h in registry._watching._handlers if h.selector.any_name == plural)


async def tell(registry: kopf.OperatorRegistry, kind: str | None, document: dict[str, Any]) -> None:
    handler = watching(registry, "inferencedeployments")
    event = {"type": kind, "object": document}
    await handler.fn(type=kind, namespace="serving", name="qwen", event=event)


@pytest.mark.parametrize("kind", [None, "ADDED", "MODIFIED"])
async def test_creation_change_and_restart_ask_for_a_reconcile(
    registry: kopf.OperatorRegistry, queue: FakeQueue, kind: str | None
) -> None:
    await tell(registry, kind, a_document())
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
async def test_the_echo_of_our_own_write_asks_for_nothing_and_whatever_decides_does(
    registry: kopf.OperatorRegistry,
    queue: FakeQueue,
    memory: Memory,
    change: dict[str, Any],
    is_news: bool,  # noqa: FBT001
) -> None:
    status = {"observedGeneration": 1, "replicas": 1}
    memory.settled(KEY, a_document(), status)
    document = a_document() | {"status": dict(status)}
    await tell(registry, "MODIFIED", {**document, **{part: document[part] | more for part, more in change.items()}})
    assert queue.begun == ([KEY] if is_news else [])


async def test_a_deleted_object_is_forgotten_and_no_other(registry: kopf.OperatorRegistry, memory: Memory) -> None:
    memory.settled(KEY, a_document(), {})
    await tell(registry, "MODIFIED", a_document())
    assert memory.written(KEY, a_document()) == {}
    await tell(registry, "DELETED", a_document())
    assert memory.written(KEY, a_document()) is None


async def test_an_event_that_cannot_be_understood_is_counted_and_nothing_is_raised(
    registry: kopf.OperatorRegistry, failed: list[str]
) -> None:
    await watching(registry, "pods").fn(type="ADDED", body={"metadata": {"uid": "x"}, "status": {"conditions": [1]}})
    child = {"metadata": {"name": "x", "namespace": "serving", "ownerReferences": [None]}}
    await watching(registry, "deployments").fn(type="ADDED", namespace="serving", event={"object": child})
    assert failed == ["watch of pods", "watch of deployments"]


@pytest.mark.parametrize("plural", ["deployments", "services", "poddisruptionbudgets"])
async def test_a_childs_event_is_its_owners(registry: kopf.OperatorRegistry, queue: FakeQueue, plural: str) -> None:
    owners = [
        {"apiVersion": "kvgate.io/v1alpha1", "kind": "InferenceDeployment", "name": "qwen"},
        {"apiVersion": "apps/v1", "kind": "InferenceDeployment", "name": "impostor"},
        {"apiVersion": "kvgate.io/v1alpha1", "kind": "Other", "name": "other"},
    ]
    child = a_document("child")
    handler = watching(registry, plural)

    async def tell_of(version: str, kind: str = "MODIFIED") -> None:
        child["metadata"]["resourceVersion"] = version
        await handler.fn(type=kind, namespace="serving", event={"object": child})

    await tell_of("1")
    assert queue.enqueued == []
    child["metadata"]["ownerReferences"] = owners
    await tell_of("2")
    assert queue.enqueued == [("serving", "qwen")]
    await tell_of("2")
    assert len(queue.enqueued) == 1, "the echo of what is known"
    await tell_of("2", "DELETED")
    assert len(queue.enqueued) == 2


async def test_after_a_start_what_did_not_change_waits_behind_what_did(
    registry: kopf.OperatorRegistry, queue: FakeQueue
) -> None:
    await tell(registry, None, a_document() | {"status": {"observedGeneration": 1}})
    assert (queue.begun, queue.later) == ([], [KEY])
    changed = a_document() | {"status": {"observedGeneration": 1}}
    changed["metadata"]["generation"] = 2
    await tell(registry, None, changed)
    assert queue.begun == [KEY]


async def test_a_pod_is_kept_until_it_is_deleted(registry: kopf.OperatorRegistry, pods: KnownPods) -> None:
    handler = watching(registry, "pods")
    body = a_pod()
    for kind in (None, "ADDED", "MODIFIED"):
        await handler.fn(type=kind, body=body)
    assert len(pods) == 1
    await handler.fn(type="DELETED", body=body)
    assert len(pods) == 0


def test_kopf_keeps_no_books_on_our_objects(registry: kopf.OperatorRegistry) -> None:
    """Handlers of changes write the last spec into an annotation, timers and daemons a finalizer; watching writes nothing."""
    assert not registry._changing._handlers
    assert not registry._spawning._handlers
    assert not registry._indexing._handlers


def test_a_watch_is_tried_again_for_ever() -> None:
    backoffs = EndlessBackoffs()
    assert list(islice(backoffs, 8)) == [1, 2, 4, 8, 16, 30, 30, 30]
    assert next(iter(backoffs)) == 1


def test_kopf_has_every_setting_that_is_set() -> None:
    theirs = kopf.OperatorSettings()
    assert [row for row in _SETTINGS if not hasattr(getattr(theirs, row[0]), row[1])] == []


def test_kopf_writes_under_our_name_and_posts_nothing() -> None:
    settings = operator_settings()
    assert settings.persistence.finalizer.startswith("kopf.kvgate.io/")
    assert not settings.posting.enabled
    assert settings.peering.standalone
    assert settings.networking.request_timeout
    assert settings.networking.enforce_retry_after, "of a server that says when to come again"
    assert settings.scanning.disabled, "it would need rights over CRDs and namespaces"
    assert settings.watching.inactivity_timeout > 60, "a bookmark comes every minute"
