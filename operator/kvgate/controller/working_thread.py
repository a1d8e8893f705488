"""The thread that works: the watches, their handlers, and the background tasks beside them.

The handlers look at events and name the object that wants a reconcile. No finalizers, so none ever holds an object up.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from functools import partial

from kvgate.api import API_VERSION, KIND
from kvgate.api.base import Document
from kvgate.budget import Accounting, ModelShape
from kvgate.cluster.client import INFERENCE_DEPLOYMENTS, PODS, Cluster, Kind, load_configuration
from kvgate.cluster.events import EventRecorder
from kvgate.cluster.following import LISTED, Follower
from kvgate.controller.decision import key_of
from kvgate.controller.fetches import WORKERS, fetch_in_worker
from kvgate.controller.judging import LIMITS, judge_in_worker
from kvgate.controller.live import CHILDREN
from kvgate.controller.live_nodes import LiveNodes
from kvgate.controller.live_nodes import follow as follow_nodes
from kvgate.controller.memory import Memory
from kvgate.controller.observe import Observer, Scraper
from kvgate.controller.pods import KnownPods
from kvgate.controller.reconcile import Reconciler
from kvgate.controller.resolving import Resolver
from kvgate.controller.schedule import Connect, Resync, WorkQueue
from kvgate.controller.state import Process
from kvgate.rendering.labels import OWNER_LABEL, PassedOn
from kvgate.runtime import background
from kvgate.runtime.pool import Pool

BEAT_SECONDS = 1.0
SOON_SECONDS = 0.5
"""Pause before the reconcile that a child wants: Kubernetes writes its status several times in a moment."""


_log = logging.getLogger(__name__)

_Handler = Callable[[str, Document], None]
"""Takes the type of an event and its object."""


def run_thread(process: Process, on_end: Callable[[], object]) -> None:
    """Body of the thread: works until `process.stop` is set, and calls `on_end` then or when it has failed."""
    try:
        asyncio.run(_operate(process))
    except Exception:  # noqa: BLE001 - the main thread must hear of whatever it is
        process.died |= not process.stop.is_set()
        if process.died:  # where it is set during the start, connections are closed already
            _log.exception("the working thread has failed")
    process.died |= not process.stop.is_set()
    on_end()


async def _operate(process: Process) -> None:
    """Run the watches and the background tasks until the process stops."""
    options, configuration = process.options, await load_configuration(process.options.kubeconfig)
    connect = partial(Cluster, configuration, process.count_request, may_write=process.gate.is_open)
    pool, pods = Pool(LIMITS, preload=("kvgate.controller.decision",), by_content=(ModelShape, Accounting)), KnownPods()
    memory = Memory(
        process.deployments, process.starts, partial(judge_in_worker, pool, process.starts, audits=options.audit)
    )
    memory.passed_on = PassedOn(labels=tuple(options.pass_labels), annotations=tuple(options.pass_annotations))
    beat = asyncio.create_task(_beat(process, memory))  # from now on, because the workers take a while to start
    async with connect() as cluster, Scraper(process.scrapes) as scraper, contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(pool.close)
        starting = asyncio.create_task(pool.start())  # the workers take a second, in which everything is listed
        learn = partial(process.starts.learn, cluster)
        resolver = await stack.enter_async_context(_resolver(process, cluster))
        nodes = LiveNodes(pods.gpus_by_node) if process.options.watch_nodes else None
        pace = process.pace
        reconciler = Reconciler(
            cluster, EventRecorder(cluster), memory, process.instruments, on_start=learn, resolver=resolver, nodes=nodes,
            allowed=options.allowed, pace=pace, max_skip_days=options.max_skip_days,
        )  # fmt: skip
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
        queue.awaited_by_later = observer.has_begun
        tasks = [
            beat,
            starting,
            asyncio.create_task(resync.run_forever(options.resync_seconds, process.health.resynced)),
            asyncio.create_task(_keep_certificate(process, cluster)),
        ]
        if nodes:
            tasks.append(asyncio.create_task(follow_nodes(cluster, nodes, process.troubles, queue.enqueue)))
        try:
            await resync.load()
            await starting
            tasks += (
                asyncio.create_task(observer.run_forever(options.observe_seconds)),
                asyncio.create_task(observer.run_hindrances_forever()),
                asyncio.create_task(observer.run_events_forever()),
            )
            if nodes:
                await nodes.first_list()
            await _watch(process, connect, Handlers(queue, reconciler, memory, pods))
        finally:
            process.died = not process.stop.is_set()
            process.stop.set()  # a thread of this loop waits for it
            queue.close()
            for task in tasks:
                task.cancel()


async def _keep_certificate(process: Process, cluster: Cluster) -> None:
    """Make and renew the webhook's certificate where kvgate is to do that."""
    if process.options.webhook_secret:
        from kvgate.controller.certificates import WebhookCertificate  # 11 MiB

        keeper = WebhookCertificate(cluster, process.options.webhook_secret, process.options.webhook_configuration)
        await keeper.run_forever(process.troubles)


async def _watch(process: Process, connect: Connect, handlers: "Handlers") -> None:
    """Follow all kinds in all namespaces until the process stops; each namespace has a connection of its own."""
    stopped = asyncio.create_task(asyncio.to_thread(process.stop.wait))
    async with contextlib.AsyncExitStack() as stack:
        for namespace in process.options.namespaces or (None,):
            cluster = await stack.enter_async_context(connect())
            for kind, handler in handlers.by_kind:
                selector = None if kind is INFERENCE_DEPLOYMENTS else OWNER_LABEL
                follower: Follower[Document] = Follower(
                    cluster, kind, handler, process.troubles, namespace=namespace, label_selector=selector
                )
                stack.callback(asyncio.create_task(follower.run_forever()).cancel)
        await stopped


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

    @property
    def by_kind(self) -> tuple[tuple[Kind, _Handler], ...]:
        """The kinds that are watched, each with its handler."""
        children = ((kind, partial(self.child, kind)) for kind in CHILDREN)
        return ((INFERENCE_DEPLOYMENTS, self.owner), *children, (PODS, self.pod))

    def owner(self, type: str, document: Document) -> None:  # noqa: A002 - as the API server calls it
        key = key_of(document)
        if type == "DELETED":
            self._reconciler.live.drop(INFERENCE_DEPLOYMENTS, document)
            self._reconciler.forget(key)
            return
        self._reconciler.live.put(INFERENCE_DEPLOYMENTS, document)
        if self._memory.is_news(key, document):
            generation, status = document["metadata"].get("generation"), document.get("status") or {}
            is_unchanged = type == LISTED and status.get("observedGeneration") == generation
            (self._queue.begin_later if is_unchanged else self._queue.begin)(key)

    def child(self, kind: Kind, type: str, document: Document) -> None:  # noqa: A002 - as the API server calls it
        if type == "DELETED":
            self._reconciler.live.drop(kind, document)
        elif not self._reconciler.live.put(kind, document):
            return  # the echo of our own write, or listed a moment ago
        metadata = document["metadata"]
        for owner in metadata.get("ownerReferences", ()):
            if owner.get("kind") == KIND and owner.get("apiVersion") == API_VERSION:
                key = metadata["namespace"], owner["name"]  # the reconcile looks at the uid
                self._queue.enqueue(key, delay_seconds=SOON_SECONDS)

    def pod(self, type: str, document: Document) -> None:  # noqa: A002 - as the API server calls it
        if type == "DELETED":
            self._pods.forget(document["metadata"]["uid"])
        else:
            self._pods.put(document)
