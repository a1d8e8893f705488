"""A kind that is followed for ever: the list first, then every change, from version to version until the API server has forgotten it.

With a shape of its own, what is not declared is never decoded: a Node may have 40 KB, most of it the names of images. A watch that breaks
begins anew; where the list is forbidden, that is said, and it is tried again later.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Struct

from kvgate.api.base import Document
from kvgate.cluster.client import Cluster, Kind
from kvgate.cluster.errors import ApiError
from kvgate.runtime.background import Troubles

PAGE_SIZE = 100
"""Objects of one answer; their text is in memory at once."""
BACKOFF_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Pauses of a watch that breaks again and again: an outage may be long, and an administrator may add a missing role or kind."""
QUIET_SECONDS = 1.0
"""Pause after a watch that ended without an event."""
LISTED = "LISTED"
"""Type of the events with which a kind begins: one for each object that is there."""
T = TypeVar("T")


class _Metadata(Struct):
    name: str = ""
    resourceVersion: str = ""  # noqa: N815 - Kubernetes' name


class _Object(Struct):
    metadata: _Metadata


class _ListMetadata(Struct):
    resourceVersion: str = ""  # noqa: N815 - Kubernetes' name
    continue_: str = msgspec.field(default="", name="continue")


class _Page(Struct):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


class _Event(Struct):
    type: str
    object: msgspec.Raw


_decode_document = msgspec.json.Decoder(Document).decode
_decode_object = msgspec.json.Decoder(_Object).decode
_decode_page = msgspec.json.Decoder(_Page).decode
_decode_event = msgspec.json.Decoder(_Event).decode


class Follower(Generic[T]):
    """Tells a handler of every object of a kind and of its changes. What it cannot understand is counted and logged, and left out."""

    def __init__(
        self, cluster: Cluster, kind: Kind, handler: Callable[[str, T], None], troubles: Troubles, *,
        shape: type[T] | None = None, keep: Callable[[frozenset[str]], None] = lambda _: None,
        namespace: str | None = None, label_selector: str | None = None, tried: asyncio.Event | None = None,
    ) -> None:  # fmt: skip
        """Without a shape, objects are whole documents. `keep` gets the names of all objects after a list; `tried` is set after the first,
        or once there can be none."""
        self._cluster, self._kind, self._handler, self._troubles, self._keep = cluster, kind, handler, troubles, keep
        self._where = {"namespace": namespace, "label_selector": label_selector}
        self._decode: Callable[[msgspec.Raw], Any] = (
            self._document if shape is None else msgspec.json.Decoder(shape).decode
        )
        self._pauses = iter(BACKOFF_SECONDS)
        self._tried = tried or asyncio.Event()

    def _document(self, raw: msgspec.Raw) -> Document:
        """Return an object with apiVersion and kind, which the items of a list lack."""
        return {"apiVersion": self._kind.api_version, "kind": self._kind.kind, **_decode_document(raw)}

    async def run_forever(self) -> None:
        loop = f"watch of {self._kind.plural}"
        while True:
            try:
                version = await self._list()
                self._tried.set()
                while version:
                    version = await self._watch(version)
                self._troubles.over(loop)
            except Exception as error:  # noqa: BLE001 - whatever it is, the kind is listed anew
                self._troubles.note(loop, error, expected=ApiError)
            self._tried.set()
            await asyncio.sleep(next(self._pauses, BACKOFF_SECONDS[-1]))

    async def _list(self) -> str:
        """List all objects, and return the version from which to watch."""
        names, following = set[str](), ""
        while True:
            text = await self._cluster.read_page(self._kind, limit=PAGE_SIZE, following=following, **self._where)
            page = _decode_page(text)
            names |= {name for raw in page.items or () if (name := self._tell(LISTED, raw).name)}
            if not (following := page.metadata.continue_):
                break
        self._keep(frozenset(names))
        return page.metadata.resourceVersion

    def _tell(self, type_: str, raw: msgspec.Raw) -> _Metadata:
        """Give an object to the handler; one that is not what its kind says is left out."""
        metadata = _decode_object(raw).metadata
        with suppress(msgspec.ValidationError):
            found = self._decode(raw)
            try:
                self._handler(type_, found)
            except Exception as error:  # noqa: BLE001 - an event may hold anything
                self._troubles.note(f"watch of {self._kind.plural}", error)
        return metadata

    async def _watch(self, version: str) -> str:
        """Follow a watch to its end, and return the version of its last event; empty where the kind must be listed anew."""
        before = version
        async for line in self._cluster.watch(self._kind, version, **self._where):
            self._pauses = iter(BACKOFF_SECONDS)  # a list that can never be followed must not come every second
            event = _decode_event(line)
            if event.type not in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK"):  # the version is too old, mostly
                return ""
            is_change = event.type != "BOOKMARK"
            version = (
                self._tell(event.type, event.object) if is_change else _decode_object(event.object).metadata
            ).resourceVersion
        if version == before:
            await asyncio.sleep(QUIET_SECONDS)
        return version
