"""kopf's thread: its settings and handlers, and the background tasks beside them. kopf itself writes nothing.

The handlers look at events and name the object that wants a reconcile. Only `on.event` is used: handlers of changes would keep the whole
spec in an annotation, which has 256 KiB and no more. No finalizers, no timers and no daemons, so none ever holds an object up.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from functools import partial, wraps
from itertools import chain, repeat
from typing import Any

import kopf

from kvgate.api import API_VERSION, GROUP, KIND
from kvgate.budget import ModelShape
from kvgate.cluster.client import (
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    INFERENCE_DEPLOYMENTS,
    PODS,
    SERVICES,
    Cluster,
    Kind,
    load_configuration,
    watch_session,
)
from kvgate.cluster.events import EventRecorder
from kvgate.controller.fetches import WORKERS, fetch_in_worker
from kvgate.controller.judging import LIMITS, judge_in_worker
from kvgate.controller.live_nodes import LiveNodes, follow
from kvgate.controller.memory import Memory
from kvgate.controller.observe import Observer, Scraper
from kvgate.controller.pods import KnownPods
from kvgate.controller.reconcile import Reconciler
from kvgate.controller.resolving import Resolver
from kvgate.controller.schedule import Resync, WorkQueue
from kvgate.controller.state import Process
from kvgate.rendering.labels import OWNER_LABEL, PassedOn
from kvgate.runtime import background
from kvgate.runtime.background import Troubles
from kvgate.runtime.pool import Pool

BEAT_SECONDS = 1.0


class NoDifferences(kopf.DiffBaseStorage):
    """kopf compares each event with the state that it noted last, for handlers of changes; we have none, and the copies cost much."""

    def build(self, *, body: kopf.Body, extra_fields: object = None) -> kopf.BodyEssence:  # noqa: ARG002 - kopf's names
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:  # noqa: ARG002 - kopf's name
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        """Note nothing."""


FINALIZER = f"kopf.{GROUP}/finalizer"
"""Nothing here needs a finalizer; kopf's own name for one would be the same as that of every other operator."""

_log = logging.getLogger(__name__)

Login = Any
"""An async function that returns kopf.AiohttpSession."""
_Handler = Callable[..., Awaitable[None]]


def run_thread(process: Process, on_end: Callable[[], object]) -> None:
    """Body of the thread: works until `process.stop` is set, and calls `on_end` then or when it has failed."""
    try:
        asyncio.run(_operate(process))
    except Exception:  # noqa: BLE001 - the main thread must hear of whatever it is
        process.died |= not process.stop.is_set()
        if process.died:  # where it is set during the start, kopf finds its connections closed
            _log.exception("kopf's thread has failed")
    process.died |= not process.stop.is_set()
    on_end()


async def _operate(process: Process) -> None:
    """Run kopf and the background tasks in a loop of their own: kopf cancels every task in its loop when it ends."""
    options, configuration = process.options, await load_configuration(process.options.kubeconfig)
    connect = partial(Cluster, configuration, process.count_request, may_write=process.gate.is_open)
    pool, pods = Pool(LIMITS, preload=("kvgate.controller.decision",), by_content=(ModelShape,)), KnownPods()
    memory = Memory(process.deployments, process.starts, partial(judge_in_worker, pool, process.starts))
    memory.passed_on = PassedOn(labels=tuple(options.pass_labels), annotations=tuple(options.pass_annotations))
    beat = asyncio.create_task(_beat(process, memory))  # from now on, because the workers take a while to start
    async with pool, connect() as cluster, Scraper(process.scrapes) as scraper, contextlib.AsyncExitStack() as stack:
        recorder = EventRecorder(cluster)
        learn = partial(process.starts.learn, cluster)
        resolver = await stack.enter_async_context(_resolver(process, cluster))
        nodes = LiveNodes(pods.gpus_by_node) if process.options.watch_nodes else None
        pace = process.pace
        reconciler = Reconciler(
            cluster,
            recorder,
            memory,
            process.instruments,
            on_start=learn,
            resolver=resolver,
            nodes=nodes,
            allowed=options.allowed,
            pace=pace,
        )
        queue = WorkQueue(reconciler, resync_seconds=options.resync_seconds, troubles=process.troubles)
        reconciler.aside, pace.enqueue = queue.aside, queue.enqueue
        reconciler.look_again = lambda key, delay_seconds: queue.enqueue(key, delay_seconds=delay_seconds)
        process.queue_depth.set_function(queue.depth)
        if resolver:
            resolver.enqueue = lambda key, delay_seconds: queue.enqueue(key, delay_seconds=delay_seconds)
        resync = Resync(
            connect=connect, namespaces=options.namespaces, reconciler=reconciler, queue=queue, memory=memory,
            starts=process.starts, troubles=process.troubles, models=process.models, resolver=resolver, pace=pace,
        )  # fmt: skip
        observer = Observer(
            cluster=cluster, namespaces=options.namespaces, pods=pods, scrape=scraper, length=scraper.length, memory=memory,
            enqueue=queue.enqueue, troubles=process.troubles,
        )  # fmt: skip
        tasks = [
            beat,
            asyncio.create_task(observer.run_forever(options.observe_seconds)),
            asyncio.create_task(observer.run_hindrances_forever()),
            asyncio.create_task(observer.run_events_forever()),
            asyncio.create_task(resync.run_forever(options.resync_seconds, process.health.resynced)),
        ]
        if nodes:
            tasks.append(asyncio.create_task(follow(cluster, nodes, process.troubles, queue.enqueue)))
        try:
            await resync.load()
            if nodes:
                await nodes.first_list()
            await _watch(process, Handlers(queue, reconciler, memory, pods))
        finally:
            process.died = not process.stop.is_set()
            process.stop.set()  # kopf waits for it in a thread, without which this loop does not end
            queue.close()
            for task in tasks:
                task.cancel()


async def _watch(process: Process, handlers: "Handlers") -> None:
    """Run kopf until the process stops."""

    def unless_stopping(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not process.stop.is_set():  # kopf leaves tasks behind, which fail when the process stops
            loop.default_exception_handler(context)

    async def login(**_: object) -> kopf.AiohttpSession:
        # kopf asks again after a 401, and files renew tokens
        renewed = await load_configuration(process.options.kubeconfig)
        session = await watch_session(renewed, process.count_request, may_write=process.gate.is_open)
        return kopf.AiohttpSession(server=renewed.host, aiohttp_session=session)

    asyncio.get_running_loop().set_exception_handler(unless_stopping)
    await kopf.operator(
        registry=handlers.registry(login, process.troubles),
        settings=operator_settings(),
        clusterwide=not process.options.namespaces,
        namespaces=process.options.namespaces,
        standalone=True,
        stop_flag=process.stop,
    )


@contextlib.asynccontextmanager
async def _resolver(process: Process, cluster: Cluster) -> AsyncIterator[Resolver | None]:
    """Fetch models while the thread works, in worker processes of their own; None where the hub is asked for nothing."""
    if process.options.models_map is None:
        yield None
        return
    async with Pool(WORKERS, preload=("kvgate.controller.decision",)) as pool:
        resolver = Resolver(
            process.models, partial(fetch_in_worker, pool), process.resolving, process.troubles,
            resolve_seconds=process.options.resolve_seconds,
        )  # fmt: skip
        fetching = asyncio.create_task(resolver.run_forever(cluster))
        try:
            yield resolver
        finally:
            fetching.cancel()
            resolver.close()


async def _beat(process: Process, memory: Memory) -> None:
    """Once a second: measure how late the loop is, and publish the figures."""
    clock = asyncio.get_running_loop().time
    due = clock()

    async def beat() -> None:
        nonlocal due
        process.lag.set(max(0.0, clock() - due))
        due = clock() + BEAT_SECONDS
        process.health.beat()
        memory.publish()

    await background.repeat("beat", beat, interval_seconds=BEAT_SECONDS, troubles=process.troubles)


class Handlers:
    """The handlers of events: each keeps what it hears, and names the object that wants a reconcile."""

    def __init__(self, queue: WorkQueue, reconciler: Reconciler, memory: Memory, pods: KnownPods) -> None:
        self._queue = queue
        self._reconciler = reconciler
        self._memory = memory
        self._pods = pods

    async def owner(self, type: str | None, namespace: str, name: str, event: Mapping[str, Any], **_: Any) -> None:  # noqa: A002 - kopf's name
        key, document = (namespace, name), event["object"]
        if type == "DELETED":
            self._reconciler.live.drop(INFERENCE_DEPLOYMENTS, document)
            self._reconciler.forget(key)
            return
        self._reconciler.live.put(INFERENCE_DEPLOYMENTS, document)
        if self._memory.is_news(key, document):
            generation, status = document["metadata"].get("generation"), document.get("status") or {}
            is_unchanged = type is None and status.get("observedGeneration") == generation
            (self._queue.begin_later if is_unchanged else self._queue.begin)(key)

    async def child(self, kind: Kind, type: str | None, namespace: str, event: Mapping[str, Any], **_: Any) -> None:  # noqa: A002 - kopf's name
        document = event["object"]
        if type == "DELETED":
            self._reconciler.live.drop(kind, document)
        elif not self._reconciler.live.put(kind, document):
            return  # the echo of our own write, or listed a moment ago
        for owner in document["metadata"].get("ownerReferences", ()):
            if owner.get("kind") == KIND and owner.get("apiVersion") == API_VERSION:
                self._queue.enqueue((namespace, owner["name"]))  # the reconcile looks at the uid

    async def pod(self, type: str | None, body: Mapping[str, Any], **_: Any) -> None:  # noqa: A002 - kopf's name
        if type == "DELETED":
            self._pods.forget(body["metadata"]["uid"])
        else:
            self._pods.put(body)

    def registry(self, login: Login, troubles: Troubles) -> kopf.OperatorRegistry:
        """Return kopf's registry with all of them."""
        registry = kopf.OperatorRegistry()
        kopf.on.login(registry=registry)(login)
        watched: tuple[tuple[Kind, _Handler], ...] = (
            (INFERENCE_DEPLOYMENTS, self.owner),
            (DEPLOYMENTS, partial(self.child, DEPLOYMENTS)),
            (SERVICES, partial(self.child, SERVICES)),
            (DISRUPTION_BUDGETS, partial(self.child, DISRUPTION_BUDGETS)),
            (PODS, self.pod),
        )
        for kind, handler in watched:
            kopf.on.event(kind.group, kind.version, kind.plural, registry=registry)(
                _guarded(handler, kind.plural, troubles)
            )
        return registry


def _guarded(handler: _Handler, plural: str, troubles: Troubles) -> _Handler:
    """Count and log an event that cannot be understood; the resync finds what it would have reported."""

    @wraps(handler)
    async def guarded(**event: Any) -> None:
        try:
            await handler(**event)
        except Exception as error:  # noqa: BLE001 - an event may hold anything
            troubles.note(f"watch of {plural}", error)

    return guarded


class EndlessBackoffs:
    """1, 2, 4 … 30, 30 s: a watch that gave up would never come back, and an outage may be long."""

    def __iter__(self) -> Iterator[float]:
        return chain((1, 2, 4, 8, 16), repeat(30))


_SETTINGS: tuple[tuple[str, str, object], ...] = (
    ("peering", "standalone", True),  # a peering object called `default` would pause the process
    ("scanning", "disabled", True),  # it would need rights over CRDs and namespaces; the start checks that ours exist
    ("posting", "enabled", False),  # kvgate's own recorder counts repeated events
    ("persistence", "finalizer", FINALIZER),
    ("persistence", "diffbase_storage", NoDifferences()),
    ("watching", "inactivity_timeout", 70),  # a bookmark comes every minute: a stream silent for longer is dead
    ("watching", "server_timeout", 270),
    ("watching", "client_timeout", 300),
    ("watching", "chunk_size", 500),
    ("networking", "request_timeout", 30),
    ("networking", "connect_timeout", 5),
    ("networking", "enforce_retry_after", True),
    ("networking", "error_backoffs", EndlessBackoffs()),
    ("process", "ultimate_exiting_timeout", 15),  # less than the 30 s that the pod has
    ("execution", "max_workers", 2),  # every handler is async
)
"""kopf's settings, by their group and name."""
_OURS_ALONE = (
    ("apps", "v1", "deployments"),
    ("", "v1", "services"),
    ("", "v1", "pods"),
    ("policy", "v1", "poddisruptionbudgets"),
)
"""Kinds of which other objects than those with our label never enter the process."""


def operator_settings() -> kopf.OperatorSettings:
    settings = kopf.OperatorSettings()
    for group, name, value in _SETTINGS:
        setattr(getattr(settings, group), name, value)
    settings.watching.label_selectors.update(dict.fromkeys(_OURS_ALONE, OWNER_LABEL))
    return settings
