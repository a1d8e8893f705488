"""InferenceDeployments and their children in memory: as the watches report them, and as this process's own writes left them.

A reconcile reads here, so a settled object costs no request. The API server itself is asked about an object that is in doubt: after a
request that failed, and while a name belongs to somebody else, because the watches report only children with our label.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct

from kvgate.api.base import Document
from kvgate.cluster.client import DEPLOYMENTS, DISRUPTION_BUDGETS, INFERENCE_DEPLOYMENTS, SERVICES, Cluster, Kind
from kvgate.controller.decision import Key, key_of
from kvgate.rendering.labels import OWNER_LABEL

CHILDREN = (DEPLOYMENTS, SERVICES, DISRUPTION_BUDGETS)
FAMILY = (INFERENCE_DEPLOYMENTS, *CHILDREN)
"""Kinds that are kept."""
MAX_KEPT_BYTES = 1 << 16
"""An object of usual size has a fifth of it. A larger one is requested by each run, so nobody fills the memory with objects."""
_decode = msgspec.json.Decoder(Document).decode


class _Kept(Struct, frozen=True, kw_only=True):
    uid: str
    version: str
    """resourceVersion; a later one of the same object is a larger number."""
    text: bytes | None
    """The object as JSON, which takes a fifth of the memory of its dictionaries; None for one that is too large to be kept."""

    def is_older_than(self, uid: str, version: str) -> bool:
        if self.uid != uid or not (self.version.isdigit() and version.isdigit()):
            return self.version != version
        return int(self.version) < int(version)


class LiveObjects:
    """Used in the working thread's event loop only. Until a kind was listed once, its objects are requested one by one."""

    def __init__(self) -> None:
        self._kept: dict[str, dict[Key, _Kept]] = defaultdict(dict)
        self._listed: set[str] = set()
        self._doubted: set[Key] = set()

    async def find(self, cluster: Cluster, kind: Kind, key: Key) -> Document | None:
        """Return the object, or None where there is none. Raises ApiError where it had to be requested."""
        kept = self._kept[kind.plural]
        if key not in self._doubted and (key in kept or kind.plural in self._listed):
            if key not in kept:
                return None
            if (text := kept[key].text) is not None:
                return _decode(text)
        document = await cluster.find(kind, *key)
        if document is None:
            kept.pop(key, None)
        else:
            self._keep(kind, key, document)
        return document

    def put(self, kind: Kind, document: Document) -> bool:
        """Keep what a watch or a write reports. Returns False where it is known already, or older than what is known."""
        key, metadata = key_of(document), document["metadata"]
        known = self._kept[kind.plural].get(key)
        if known and not known.is_older_than(metadata.get("uid", ""), metadata.get("resourceVersion", "")):
            return False
        self._keep(kind, key, document)
        return True

    def drop(self, kind: Kind, document: Document) -> None:
        """Forget an object that a watch reports as deleted; another one may have its name by now."""
        kept, key = self._kept[kind.plural], key_of(document)
        if key in kept and kept[key].uid == document["metadata"].get("uid", ""):
            del kept[key]

    def doubt(self, key: Key) -> None:
        """Have runs request the object and its children, until one of them ends well."""
        self._doubted.add(key)

    def trust(self, key: Key) -> None:
        self._doubted.discard(key)

    async def relist(self, cluster: Cluster, kind: Kind, namespaces: Iterable[str | None]) -> None:
        """List a kind anew, which finds what a watch missed."""
        selector, kept, seen = None if kind is INFERENCE_DEPLOYMENTS else OWNER_LABEL, self._kept[kind.plural], set()
        before = dict(kept)
        for namespace in namespaces:
            async for document in cluster.list(kind, namespace, label_selector=selector):
                seen.add(key_of(document))
                self.put(kind, document)
        for key in before.keys() - seen:
            if kept.get(key) is before[key]:  # else a watch reported it meanwhile
                del kept[key]
        self._listed.add(kind.plural)

    def deployments(self) -> Iterator[tuple[Key, Document]]:
        """Yield the Deployments that are kept, with the names of their objects."""
        for key, kept in [*self._kept[DEPLOYMENTS.plural].items()]:
            if kept.text is not None:
                yield key, _decode(kept.text)

    def owners(self) -> tuple[Key, ...]:
        return tuple(self._kept[INFERENCE_DEPLOYMENTS.plural])

    def _keep(self, kind: Kind, key: Key, document: Document) -> None:
        metadata, text = document["metadata"], msgspec.json.encode(document)
        self._kept[kind.plural][key] = _Kept(
            uid=str(metadata.get("uid", "")),
            version=str(metadata.get("resourceVersion", "")),
            text=text if len(text) <= MAX_KEPT_BYTES else None,
        )
