"""The AdmissionRecords of the objects: found, made, adopted after a restore from a backup, and deleted once another one took their place.

A record never changes, so it is read once in a process.
"""

import logging
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from kvgate.api.base import Document
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.api.validation import InvalidDocument
from kvgate.cluster.client import ADMISSION_RECORDS, Cluster
from kvgate.cluster.errors import ApiError, Conflict, Rejected
from kvgate.controller.decision import Key, key_of
from kvgate.controller.live import MAX_KEPT_BYTES
from kvgate.rendering.admission import Admitted, read_record, record_manifest
from kvgate.rendering.earlier_formats import admitted_earlier
from kvgate.rendering.labels import is_owned_by
from kvgate.rendering.live_deployment import record_of, rendered_template
from kvgate.text.patterns import pattern

_log = logging.getLogger(__name__)

Listed = Mapping[str, Document]
"""The records of one object by their names, where they were listed: their metadata alone."""


class _Known(Struct, frozen=True, kw_only=True):
    uid: str
    admitted: Admitted
    stored: str = ""
    """Name of the record that the API server has as this object's; empty where it has none."""


class Records:
    """The record of each object that this process has seen."""

    def __init__(self) -> None:
        self._known: dict[Key, _Known] = {}
        self._listed: dict[Key, bytes] = {}
        """Records that were listed at the start and that no object has named yet, as JSON, by their own namespace and name."""

    async def load(self, cluster: Cluster, namespaces: Iterable[str | None]) -> None:
        """List all records at once, so that the first look at each object does not request its own."""
        for namespace in namespaces:
            async for record in cluster.list(ADMISSION_RECORDS, namespace):
                if len(text := msgspec.json.encode(record)) <= MAX_KEPT_BYTES:
                    self._listed[key_of(record)] = text

    async def standing(
        self, cluster: Cluster, document: Document, owner: InferenceDeployment | InvalidDocument,
        deployment: Document | None, listed: Listed | None = None,
    ) -> Admitted | None:  # fmt: skip
        """Return the spec that was admitted last; `deployment` is the object's own, and `listed` its records where they were listed."""
        key, uid = key_of(document), str(document["metadata"]["uid"])
        known = self._known.get(key)
        if known is None or known.uid != uid:
            known = await self._found(cluster, document, owner, deployment, listed)
        elif listed is not None and known.stored not in listed:
            known = replace(known, stored="")  # somebody deleted it
        if known is None:
            return None
        self._known[key] = known
        digest = rendered_template(deployment, known.admitted) or known.admitted.template_digest
        return replace(known.admitted, template_digest=digest)

    async def _found(
        self, cluster: Cluster, document: Document, owner: InferenceDeployment | InvalidDocument,
        deployment: Document | None, listed: Listed | None,
    ) -> _Known | None:  # fmt: skip
        uid, namespace = str(document["metadata"]["uid"]), document["metadata"]["namespace"]
        for name, digest in pointers(document, deployment):
            is_there = listed is None or name in listed
            stored = await self._stored(cluster, namespace, name) if is_there else None
            admitted = read_record(document, stored) if stored is not None else None
            if stored is not None and admitted is not None and admitted.digest == digest:
                return _Known(uid=uid, admitted=admitted, stored=name if is_owned_by(stored, uid) else "")
        earlier = admitted_earlier(document, owner if isinstance(owner, InferenceDeployment) else None)
        return _Known(uid=uid, admitted=earlier) if earlier else None

    async def _stored(self, cluster: Cluster, namespace: str, name: str) -> Document | None:
        if (text := self._listed.pop((namespace, name), None)) is not None:
            listed: Document = msgspec.json.decode(text)
            return listed
        return await cluster.find(ADMISSION_RECORDS, namespace, name)

    def names(self) -> dict[Key, str]:
        """Return the name of each object's record, as far as the API server has one."""
        return {key: known.stored for key, known in self._known.items()}

    def name(self, key: Key) -> str:
        known = self._known.get(key)
        return known.stored if known else ""

    def is_stored(self, key: Key, admitted: Admitted | None) -> bool:
        """Return True where nothing is to be made for this admission."""
        known = self._known.get(key)
        return admitted is None or (known is not None and known.stored == admitted.name)

    async def keep(self, cluster: Cluster, document: Document, admitted: Admitted) -> str:
        """Store the record if it is not, and return the name of the one whose place it takes, if any. Raises ApiError."""
        key, uid, before = key_of(document), str(document["metadata"]["uid"]), ""
        if known := self._known.get(key):
            before = known.stored if known.uid == uid else ""
        # It is known before it is stored, because a resync deletes what nobody names.
        self._known[key] = _Known(uid=uid, admitted=admitted, stored=before)
        if before != admitted.name:
            await self._store(cluster, document, admitted)
            self._known[key] = _Known(uid=uid, admitted=admitted, stored=admitted.name)
        return before if before != admitted.name else ""

    async def _store(self, cluster: Cluster, document: Document, admitted: Admitted) -> None:
        body = record_manifest(admitted, document)
        try:
            await cluster.create(ADMISSION_RECORDS, body)
        except Conflict:
            namespace, name = body["metadata"]["namespace"], admitted.name
            there = await cluster.find(ADMISSION_RECORDS, namespace, name)
            if there is None:
                raise  # it is no conflict about the name: a quota was counted by somebody else meanwhile, for example
            if read_record(document, there) is None:
                message = f"{name} exists and is not the record of this InferenceDeployment; delete it"
                raise Rejected("create", ADMISSION_RECORDS.resource, message) from None
            if not is_owned_by(there, str(document["metadata"]["uid"])):
                owners = {"ownerReferences": body["metadata"]["ownerReferences"]}
                await cluster.merge(ADMISSION_RECORDS, namespace, name, {"metadata": owners})

    async def remove(self, cluster: Cluster, namespace: str, name: str) -> None:
        """Delete a record that stands no more, so that an edit back to its spec is judged anew. A resync tries again after a failure."""
        try:
            await cluster.delete(ADMISSION_RECORDS, namespace, name)
        except ApiError as error:
            _log.warning("the admission record %s/%s was not deleted: %s", namespace, name, error)

    async def tidy(self, cluster: Cluster, document: Document, deployment: Document | None, listed: Listed) -> None:
        """Delete the records of an object that neither it, nor its Deployment, nor this process names."""
        known = self._known.get(key_of(document))
        named = {name for name, _ in pointers(document, deployment)}
        named |= {known.stored, known.admitted.name} if known else set()
        for name, record in listed.items():
            if name not in named and is_owned_by(record, str(document["metadata"]["uid"])):
                await self.remove(cluster, document["metadata"]["namespace"], name)

    def forget(self, key: Key) -> None:
        self._known.pop(key, None)


def pointers(document: Document, deployment: Document | None) -> tuple[tuple[str, str], ...]:
    """Return the names of records, each with its digest, in the status of an object and on its Deployment."""
    status = document.get("status")
    admission = status.get("admission") if isinstance(status, Mapping) else None
    written = admission if isinstance(admission, Mapping) else {}
    noted = str(written.get("record", "")), str(written.get("digest", ""))
    return tuple(found for found in dict.fromkeys((noted, record_of(deployment))) if _NAME.fullmatch(found[0]))


_NAME = pattern("[a-z0-9][-a-z0-9.]{0,252}")
