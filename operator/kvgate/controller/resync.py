"""Every five minutes all objects are held against the cluster: what a watch missed is found, and so are changed ConfigMaps."""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence

from kvgate.api.base import Document
from kvgate.cluster.client import DEPLOYMENTS, INFERENCE_DEPLOYMENTS, SERVICES, Cluster
from kvgate.cluster.client import Kind as ObjectKind
from kvgate.cluster.errors import ApiError
from kvgate.controller import observed as pure
from kvgate.controller.observed import Observed
from kvgate.controller.reconcile import Reconciler
from kvgate.controller.starts import ObservedStarts
from kvgate.controller.store import Key, Store
from kvgate.controller.work_queue import WorkQueue
from kvgate.rendering.labels import OWNER_LABEL

_log = logging.getLogger(__name__)

Connect = Callable[[], Cluster]
"""A new connection: the old one may be what is broken."""


class Resync:
    """Lists instead of reading one by one; only what is not settled is reconciled, with fresh reads."""

    def __init__(
        self,
        *,
        connect: Connect,
        namespaces: Sequence[str],
        reconciler: Reconciler,
        queue: WorkQueue,
        store: Store,
        starts: ObservedStarts,
    ) -> None:
        self._connect = connect
        self._namespaces: Sequence[str | None] = namespaces or (None,)
        self._reconciler = reconciler
        self._queue = queue
        self._store = store
        self._starts = starts

    async def run_forever(self, interval_seconds: float, done: Callable[[], None]) -> None:
        """± 20 %, so that replicas and clusters do not march in step."""
        while True:
            await asyncio.sleep(interval_seconds * random.uniform(0.8, 1.2))  # noqa: S311 - spreads load, hides nothing
            try:
                await self.run_once()
            except ApiError as error:
                _log.warning("resync failed: %s", error)
            else:
                done()

    async def run_once(self) -> None:
        known, seen = self._store.keys(), set()
        async with self._connect() as cluster:
            await self._starts.load(cluster)
            for namespace in self._namespaces:
                children = [await _by_key(cluster, kind, namespace) for kind in (DEPLOYMENTS, SERVICES)]
                async for document in cluster.list(INFERENCE_DEPLOYMENTS, namespace):
                    key = _key(document)
                    seen.add(key)
                    await self._compare(key, document, *(found.get(key) for found in children))
                    await asyncio.sleep(0)  # others may run between two judgements
        for key in known - seen:
            self._queue.enqueue(key)

    async def _compare(
        self, key: Key, document: Document, deployment: Document | None, service: Document | None
    ) -> None:
        """What one object's ConfigMap cannot tell is that object's trouble and no other's."""
        owner = pure.read_owner(document)
        try:
            config = await self._reconciler.config(key[0], pure.config_reference(owner))
        except ApiError:
            self._queue.enqueue(key)
            return
        observed = Observed(document=document, owner=owner, config=config, deployment=deployment, service=service)
        if "deletionTimestamp" not in document["metadata"] and not self._reconciler.is_settled(key, observed):
            self._queue.enqueue(key)


async def _by_key(cluster: Cluster, kind: ObjectKind, namespace: str | None) -> dict[Key, Document]:
    return {_key(item): item async for item in cluster.list(kind, namespace, label_selector=OWNER_LABEL)}


def _key(document: Document) -> Key:
    return document["metadata"]["namespace"], document["metadata"]["name"]
