"""kopf's handlers only translate, and kopf's settings keep it from writing more than its one annotation."""

from itertools import islice
from typing import Any

import kopf
import pytest

from kvgate.api import SKIP_BUDGET_ANNOTATION
from kvgate.controller.handlers import registry_of
from kvgate.controller.pods import PodStore
from kvgate.controller.settings import EndlessBackoffs, operator_settings
from support.manifests import a_document, a_pod


class FakeQueue:
    def __init__(self) -> None:
        self.reconciled: list[tuple[str, str]] = []
        self.enqueued: list[tuple[str, str]] = []

    async def reconcile(self, key: tuple[str, str]) -> None:
        self.reconciled.append(key)

    def enqueue(self, key: tuple[str, str]) -> None:
        self.enqueued.append(key)


class FakeStore:
    def __init__(self) -> None:
        self.forgotten: list[tuple[str, str]] = []

    def forget(self, key: tuple[str, str]) -> None:
        self.forgotten.append(key)


async def login(**_: object) -> None:
    return None


@pytest.fixture
def queue() -> FakeQueue:
    return FakeQueue()


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def pods() -> PodStore:
    return PodStore()


@pytest.fixture
def registry(queue: FakeQueue, store: FakeStore, pods: PodStore) -> kopf.OperatorRegistry:
    return registry_of(queue, store, pods, login)  # type: ignore[arg-type]


def changing(registry: kopf.OperatorRegistry) -> list[Any]:
    return list(registry._changing._handlers)


def watching(registry: kopf.OperatorRegistry, plural: str) -> Any:
    return next(h for h in registry._watching._handlers if h.selector.any_name == plural)


async def test_creation_change_and_restart_are_one_reconcile(registry: kopf.OperatorRegistry, queue: FakeQueue) -> None:
    handlers = changing(registry)
    assert len({handler.fn for handler in handlers}) == 1
    assert {handler.id for handler in handlers} == {"reconcile"}
    assert len(handlers) == 3
    assert await handlers[0].fn(namespace="serving", name="qwen") is None
    assert queue.reconciled == [("serving", "qwen")]


async def test_a_deleted_object_is_forgotten_and_no_other(registry: kopf.OperatorRegistry, store: FakeStore) -> None:
    handler = watching(registry, "inferencedeployments")
    for kind in (None, "ADDED", "MODIFIED"):
        await handler.fn(type=kind, namespace="serving", name="qwen")
    assert store.forgotten == []
    await handler.fn(type="DELETED", namespace="serving", name="qwen")
    assert store.forgotten == [("serving", "qwen")]


@pytest.mark.parametrize("plural", ["deployments", "services"])
async def test_a_childs_event_is_its_owners(registry: kopf.OperatorRegistry, queue: FakeQueue, plural: str) -> None:
    owners = [
        {"apiVersion": "kvgate.io/v1alpha1", "kind": "InferenceDeployment", "name": "qwen"},
        {"apiVersion": "apps/v1", "kind": "InferenceDeployment", "name": "impostor"},
        {"apiVersion": "kvgate.io/v1alpha1", "kind": "Other", "name": "other"},
    ]
    child = a_document("child")
    handler = watching(registry, plural)
    await handler.fn(namespace="serving", body=child)
    assert queue.enqueued == []
    child["metadata"]["ownerReferences"] = owners
    await handler.fn(namespace="serving", body=child)
    assert queue.enqueued == [("serving", "qwen")]


async def test_a_pod_is_kept_until_it_is_deleted(registry: kopf.OperatorRegistry, pods: PodStore) -> None:
    handler = watching(registry, "pods")
    body = a_pod()
    for kind in (None, "ADDED", "MODIFIED"):
        await handler.fn(type=kind, body=body)
    assert len(pods) == 1
    await handler.fn(type="DELETED", body=body)
    assert len(pods) == 0


def test_nothing_asks_for_a_finalizer(registry: kopf.OperatorRegistry) -> None:
    assert not [handler for handler in changing(registry) if handler.requires_finalizer]
    assert not registry._spawning._handlers


def test_a_watch_is_tried_again_for_ever() -> None:
    backoffs = EndlessBackoffs()
    assert list(islice(backoffs, 8)) == [1, 2, 4, 8, 16, 30, 30, 30]
    assert next(iter(backoffs)) == 1


def test_kopf_writes_under_our_name_and_posts_nothing() -> None:
    settings = operator_settings()
    assert settings.persistence.finalizer.startswith("kopf.kvgate.io/")
    assert not settings.posting.enabled
    assert settings.peering.standalone
    assert settings.networking.request_timeout


def test_kopf_sees_a_change_of_our_annotation_and_none_of_its_own() -> None:
    """kopf drops whole prefixes from what it compares: all that its storages write under, and all that are marked."""
    persistence = operator_settings().persistence

    def compared(annotations: dict[str, str]) -> Any:
        body = kopf.Body(a_document(annotations=annotations))  # type: ignore[arg-type]
        essence = persistence.diffbase_storage.build(body=body)
        return persistence.progress_storage.clear(essence=essence)

    patch = kopf.Patch()
    body = kopf.Body(a_document())  # type: ignore[arg-type]
    persistence.diffbase_storage.store(body=body, patch=patch, essence=compared({}))
    written = dict(patch["metadata"]["annotations"])
    assert list(written) == ["kopf.kvgate.io/last-handled-configuration"]
    assert compared(written) == compared({})
    skipped = compared(written | {SKIP_BUDGET_ANNOTATION: "load test"})
    assert skipped["metadata"]["annotations"] == {SKIP_BUDGET_ANNOTATION: "load test"}
