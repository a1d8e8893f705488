"""kopf's handlers: they look at events and name the object that wants a reconcile; kopf itself writes nothing.

Only `on.event` is used: handlers of changes would keep the whole spec in an annotation, which has 256 KiB and no more.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import wraps
from typing import Any

import kopf

from kvgate.api import API_VERSION, GROUP, KIND, PLURAL, VERSION
from kvgate.controller.pods import PodStore
from kvgate.controller.store import Store
from kvgate.controller.work_queue import WorkQueue
from kvgate.runtime.background import Troubles

Login = Any
"""An async function that returns kopf.AiohttpSession."""
_Handler = Callable[..., Awaitable[None]]


def registry_of(
    queue: WorkQueue, store: Store, pods: PodStore, login: Login, troubles: Troubles
) -> kopf.OperatorRegistry:
    """All handlers of the controller; no finalizers, no timers, no daemons, so none ever holds an object up."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(login)

    async def owner(type: str | None, namespace: str | None, name: str, event: Mapping[str, Any], **_: Any) -> None:  # noqa: A002 - kopf's name
        key = (namespace or "", name)
        if type == "DELETED":
            store.forget(key)
        elif store.is_news(key, event["object"]):
            queue.begin(key)

    async def child(namespace: str | None, body: Mapping[str, Any], **_: Any) -> None:
        for owner in body["metadata"].get("ownerReferences", ()):
            if owner.get("kind") == KIND and owner.get("apiVersion") == API_VERSION:
                queue.enqueue((namespace or "", owner["name"]))  # the reconcile looks at the uid

    async def pod(type: str | None, body: Mapping[str, Any], **_: Any) -> None:  # noqa: A002 - kopf's name
        if type == "DELETED":
            pods.forget(body["metadata"]["uid"])
        else:
            pods.put(body)

    watched: tuple[tuple[str, str, str, _Handler], ...] = (
        (GROUP, VERSION, PLURAL, owner),
        ("apps", "v1", "deployments", child),
        ("", "v1", "services", child),
        ("", "v1", "pods", pod),
    )
    for group, version, plural, handler in watched:
        kopf.on.event(group, version, plural, registry=registry)(_guarded(handler, plural, troubles))
    return registry


def _guarded(handler: _Handler, plural: str, troubles: Troubles) -> _Handler:
    """An event that cannot be understood is counted and logged once; the resync finds what it would have told."""

    @wraps(handler)
    async def guarded(**event: Any) -> None:
        try:
            await handler(**event)
        except Exception as error:  # noqa: BLE001 - see above
            troubles.note(f"watch of {plural}", error)

    return guarded
