"""A kind that is kept in memory by list and watch, with the fields of a type alone: what is not declared is never decoded.

`Cluster.changes` decodes whole objects, and pages by one size for all kinds. A Node may have 40 KB, most of it the names of images, so
that a page of them takes 20 times the memory of what is kept. Where the list is forbidden, that is said, and it is tried again later.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

import msgspec
from msgspec import Struct

from kvgate.cluster.client import Cluster, Kind
from kvgate.cluster.errors import Forbidden, NotFound

PAGE_SIZE = 100
"""Objects of one answer; their text is in memory at once."""
RETRY_SECONDS = (1.0, 30.0)
"""First and longest pause after a failure."""
REFUSED_SECONDS = 60.0
"""Pause while the role or the API server has no such kind: an administrator may add it."""


class _Metadata(Struct):
    name: str = ""
    resourceVersion: str = ""  # noqa: N815 - Kubernetes' name


class _Object(Struct):
    metadata: _Metadata


T = TypeVar("T")


class _ListMetadata(Struct):
    resourceVersion: str = ""  # noqa: N815 - Kubernetes' name
    continue_: str = msgspec.field(default="", name="continue")


class _Page(Struct):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


class _Event(Struct):
    type: str
    object: msgspec.Raw


class Follower(Generic[T]):
    """Calls `put` and `drop` for all changes, and `listed` after each complete list."""

    def __init__(
        self, cluster: Cluster, kind: Kind, shape: type[T], *,
        put: Callable[[T], None], keep: Callable[[frozenset[str]], None], drop: Callable[[str], None],
        refused: Callable[[Exception], None], tried: asyncio.Event,
    ) -> None:  # fmt: skip
        """`keep` gets the names of all objects after a list, `refused` the error of one that failed; `tried` is set after the first."""
        self._cluster = cluster
        self._kind = kind
        self._decode = msgspec.json.Decoder(shape).decode
        self._metadata = msgspec.json.Decoder(_Object).decode
        self._page = msgspec.json.Decoder(_Page).decode
        self._event = msgspec.json.Decoder(_Event).decode
        self._put, self._keep, self._drop, self._refused, self._tried = put, keep, drop, refused, tried

    async def run_forever(self) -> None:
        pause_seconds = RETRY_SECONDS[0]
        while True:
            try:
                version = await self._list()
                pause_seconds = RETRY_SECONDS[0]
                while version:
                    version = await self._watch(version)
            except (Forbidden, NotFound) as error:
                self._refused(error)
                pause_seconds = REFUSED_SECONDS
            except Exception as error:  # noqa: BLE001 - whatever it is, the kind is listed anew
                self._refused(error)
                pause_seconds = min(2 * pause_seconds, RETRY_SECONDS[1])
            self._tried.set()
            await asyncio.sleep(pause_seconds)

    async def _list(self) -> str:
        """List all objects, and return the version from which to watch."""
        names, following = set[str](), ""
        while True:
            page = self._page(await self._cluster.read_page(self._kind, limit=PAGE_SIZE, following=following))
            names |= {name for raw in page.items or () if (name := self._take(raw).name)}
            if not (following := page.metadata.continue_):
                break
        self._keep(frozenset(names))
        self._tried.set()
        return page.metadata.resourceVersion

    def _take(self, raw: msgspec.Raw) -> "_Metadata":
        """Give an object to `put`; one that is not what its kind says is left out."""
        metadata = self._metadata(raw).metadata
        with suppress(msgspec.ValidationError):
            self._put(self._decode(raw))
        return metadata

    async def _watch(self, version: str) -> str:
        """Follow a watch to its end, and return the version of its last event; empty where the kind must be listed anew."""
        async for line in self._cluster.watch(self._kind, version):
            event = self._event(line)
            match event.type:
                case "ADDED" | "MODIFIED":
                    version = self._take(event.object).resourceVersion
                case "DELETED":
                    metadata = self._metadata(event.object).metadata
                    self._drop(metadata.name)
                    version = metadata.resourceVersion
                case "BOOKMARK":
                    version = self._metadata(event.object).metadata.resourceVersion
                case _:
                    return ""
        return version
