"""kopf's handlers: they look at events and name the object that wants a reconcile; kopf itself writes nothing.

Only `on.event` is used: handlers of changes would keep the whole spec in an annotation, which has 256 KiB and no more.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import wraps
from typing import Any

import kopf

from kvgate.api import API_VERSION, GROUP, KIND, PLURAL, VERSION
from kvgate.controller.memory import Memory
from kvgate.controller.pods import KnownPods
from kvgate.controller.schedule import WorkQueue
from kvgate.rendering.labels import OWNER_LABEL
from kvgate.runtime.background import Troubles

Login = Any
"""An async function that returns kopf.AiohttpSession."""
_Handler = Callable[..., Awaitable[None]]


def registry_of(
    queue: WorkQueue, memory: Memory, pods: KnownPods, login: Login, troubles: Troubles
) -> kopf.OperatorRegistry:
    """All handlers of the controller; no finalizers, no timers, no daemons, so none ever holds an object up."""
    registry = kopf.OperatorRegistry()
    kopf.on.login(registry=registry)(login)

    async def owner(type: str | None, namespace: str | None, name: str, event: Mapping[str, Any], **_: Any) -> None:  # noqa: A002 - kopf's name
        key = (namespace or "", name)
        if type == "DELETED":
            memory.forget(key)
        elif memory.is_news(key, event["object"]):
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


FINALIZER = f"kopf.{GROUP}/finalizer"
"""Nothing here needs one; kopf's own name for it would be that of every other operator."""
_MAX_BACKOFF_SECONDS = 30


class EndlessBackoffs:
    """1, 2, 4 … 30, 30 s: a watch that gives up would never come back, and an outage may be long."""

    def __iter__(self) -> Iterator[float]:
        seconds = 1
        while True:
            yield seconds
            seconds = min(seconds * 2, _MAX_BACKOFF_SECONDS)


def operator_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    settings.peering.standalone = True  # a stray peering object called `default` would pause us
    settings.scanning.disabled = True  # no rights over CRDs and namespaces; that ours exists is checked at the start
    settings.posting.enabled = False  # our own recorder aggregates
    settings.persistence.finalizer = FINALIZER
    settings.watching.inactivity_timeout = 70  # a minute's bookmark and a little more: a silent stream is a dead one
    settings.watching.server_timeout = 270
    settings.watching.client_timeout = 300
    settings.watching.chunk_size = 500
    settings.networking.request_timeout = 30
    settings.networking.connect_timeout = 5
    settings.networking.enforce_retry_after = True
    settings.networking.error_backoffs = EndlessBackoffs()
    settings.process.ultimate_exiting_timeout = 15  # below the pod's 30 s
    settings.execution.max_workers = 2  # every handler is async
    settings.watching.label_selectors["apps", "v1", "deployments"] = OWNER_LABEL  # the rest never enters the process
    settings.watching.label_selectors["", "v1", "services"] = OWNER_LABEL
    settings.watching.label_selectors["", "v1", "pods"] = OWNER_LABEL
    return settings
