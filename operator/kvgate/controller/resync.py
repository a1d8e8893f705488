"""Every five minutes all objects are held against the cluster: what a watch missed is found, and so are changed ConfigMaps."""

import asyncio
from collections.abc import Callable, Sequence

from kvgate.api.base import Document
from kvgate.cluster.client import DEPLOYMENTS, INFERENCE_DEPLOYMENTS, SERVICES, Cluster, Kind
from kvgate.cluster.errors import ApiError
from kvgate.controller.reconcile import Reconciler
from kvgate.controller.starts import ObservedStarts
from kvgate.controller.store import Key, Store
from kvgate.controller.work_queue import WorkQueue
from kvgate.rendering.labels import OWNER_LABEL
from kvgate.runtime.background import Troubles, repeat

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
        troubles: Troubles,
    ) -> None:
        self._connect = connect
        self._namespaces: Sequence[str | None] = namespaces or (None,)
        self._reconciler = reconciler
        self._queue = queue
        self._store = store
        self._starts = starts
        self._troubles = troubles

    async def run_forever(self, interval_seconds: float, done: Callable[[], None]) -> None:
        """`done` is called after every round that came to its end."""

        async def round_() -> None:
            await self.run_once()
            done()

        await repeat(
            "resync", round_, interval_seconds=interval_seconds, troubles=self._troubles, spread=0.2, pauses_first=True,
            expected=ApiError,
        )  # fmt: skip

    async def run_once(self) -> None:
        known, seen = self._store.keys(), set()
        async with self._connect() as cluster:
            await self._load_starts(cluster)
            for namespace in self._namespaces:
                children = [await _by_key(cluster, kind, namespace) for kind in (DEPLOYMENTS, SERVICES)]
                async for document in cluster.list(INFERENCE_DEPLOYMENTS, namespace):
                    key = _key(document)
                    seen.add(key)
                    await self._compare(key, document, *(found.get(key) for found in children))
                    await asyncio.sleep(0)  # others may run between two judgements
        for key in known - seen:
            self._queue.enqueue(key)

    async def _load_starts(self, cluster: Cluster) -> None:
        """Observed starts that cannot be read stay as they were; they hold no comparison up."""
        try:
            await self._starts.load(cluster)
        except Exception as error:  # noqa: BLE001 - see above
            self._troubles.note("resync", error, about="the observed starts", expected=ApiError)

    async def _compare(
        self, key: Key, document: Document, deployment: Document | None, service: Document | None
    ) -> None:
        """One object's trouble is that object's and no other's: its own reconcile says it there, and tries again less and less."""
        try:
            is_settled = await self._is_settled(key, document, deployment, service)
        except Exception as error:  # noqa: BLE001 - the round goes on with the others
            self._troubles.note("resync", error, about="/".join(key), expected=ApiError)
            is_settled = False
        if not is_settled:
            self._queue.enqueue(key)

    async def _is_settled(
        self, key: Key, document: Document, deployment: Document | None, service: Document | None
    ) -> bool:
        if "deletionTimestamp" in document["metadata"]:
            return True
        observed = await self._reconciler.observed(key, document, deployment, service)
        return self._reconciler.is_settled(key, observed)


async def _by_key(cluster: Cluster, kind: Kind, namespace: str | None) -> dict[Key, Document]:
    return {_key(item): item async for item in cluster.list(kind, namespace, label_selector=OWNER_LABEL)}


def _key(document: Document) -> Key:
    return document["metadata"]["namespace"], document["metadata"]["name"]
