"""kopf's handlers: they name the object, wait for its reconcile and return nothing."""

from collections.abc import Mapping
from typing import Any

import kopf

from kvgate.api import API_VERSION, GROUP, KIND, PLURAL, VERSION
from kvgate.controller.pods import PodStore
from kvgate.controller.store import Store
from kvgate.controller.work_queue import WorkQueue

Login = Any
"""An async function that returns kopf.AiohttpSession."""


def registry_of(queue: WorkQueue, store: Store, pods: PodStore, login: Login) -> kopf.OperatorRegistry:
    """All handlers of the controller; no finalizers, no timers, no daemons, so none ever holds an object up."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(login)
    _register_owner(registry, queue, store)
    for group, version, plural in (("apps", "v1", "deployments"), ("", "v1", "services")):
        _register_child(registry, queue, group, version, plural)
    _register_pods(registry, pods)
    return registry


def _register_owner(registry: kopf.OperatorRegistry, queue: WorkQueue, store: Store) -> None:
    @kopf.on.resume(GROUP, VERSION, PLURAL, id="reconcile", registry=registry)
    @kopf.on.create(GROUP, VERSION, PLURAL, id="reconcile", registry=registry)
    @kopf.on.update(GROUP, VERSION, PLURAL, id="reconcile", registry=registry)
    async def changed(namespace: str | None, name: str, **_: Any) -> None:
        await queue.reconcile((namespace or "", name))  # the queue tries again: kopf would write and log each retry

    @kopf.on.event(GROUP, VERSION, PLURAL, registry=registry)
    async def deleted(type: str | None, namespace: str | None, name: str, **_: Any) -> None:  # noqa: A002 - kopf's name
        if type == "DELETED":
            store.forget((namespace or "", name))


def _register_child(registry: kopf.OperatorRegistry, queue: WorkQueue, group: str, version: str, plural: str) -> None:
    @kopf.on.event(group, version, plural, registry=registry)
    async def child(namespace: str | None, body: Mapping[str, Any], **_: Any) -> None:
        for owner in body["metadata"].get("ownerReferences", ()):
            if owner.get("kind") == KIND and owner.get("apiVersion") == API_VERSION:
                queue.enqueue((namespace or "", owner["name"]))  # the reconcile looks at the uid


def _register_pods(registry: kopf.OperatorRegistry, pods: PodStore) -> None:
    @kopf.on.event("", "v1", "pods", registry=registry)
    async def pod(type: str | None, body: Mapping[str, Any], **_: Any) -> None:  # noqa: A002 - kopf's name
        if type == "DELETED":
            pods.forget(body["metadata"]["uid"])
        else:
            pods.put(body)
