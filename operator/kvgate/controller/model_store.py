"""The fetched checkpoints that the controller keeps, in memory and in a ConfigMap, which the webhook mounts."""

import asyncio
import base64
import binascii
import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

import msgspec
from msgspec import Struct

from kvgate.api.base import Document
from kvgate.checkpoint.published import ModelName, PublishedError
from kvgate.checkpoint.stored import MAX_ENTRY_BYTES, SUFFIX, StoredModels, entry_key, unpacked
from kvgate.cluster.client import CONFIG_MAPS, Cluster
from kvgate.cluster.errors import ApiError
from kvgate.controller.fetches import MAX_SHOWN, Origin
from kvgate.controller.starts import ConfigMapName
from kvgate.runtime.background import Troubles
from kvgate.text.inert import inert

ABOUT_SUFFIX = ".about.json"
"""End of the key under which an entry's origin stands, as text that people can read."""
MAX_ENTRIES = 400
MAX_BYTES = 800 << 10
"""Size of all entries. A ConfigMap holds 1 MiB, and the origins need up to 200 KiB of it."""
UNUSED_SECONDS = 24 * 3600.0
"""Time for which an entry stays that no object names any more: whoever deletes a refused object creates another one soon."""
_log = logging.getLogger(__name__)


class Stored(Struct, frozen=True, kw_only=True):
    entry: bytes
    origin: Origin


class ModelStore:
    """The entries that this process knows and that its ConfigMap holds."""

    def __init__(self, config_map: ConfigMapName | None) -> None:
        self.config_map = config_map
        self._known: dict[str, Stored] = {}
        self._written: dict[str, Stored] = {}
        """The entries of the ConfigMap, as far as this process knows."""
        self._logged: frozenset[str] = frozenset()
        self._turn = asyncio.Lock()

    def __len__(self) -> int:
        return len(self._known)

    def find(self, wanted: ModelName) -> Stored | None:
        return self._known.get(entry_key(wanted.key))

    def models(self, names: Iterable[ModelName]) -> StoredModels:
        keys = [entry_key(name.key) for name in names]
        return StoredModels({key: self._known[key].entry for key in keys if key in self._known})

    def put(self, wanted: ModelName, stored: Stored) -> None:
        self._known[entry_key(wanted.key)] = stored

    def drop(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._known.pop(key, None)

    def sizes(self) -> dict[str, int]:
        """Return the bytes of each entry, the oldest first."""
        return {key: len(stored.entry) for key, stored in self._known.items()}

    async def load(self, cluster: Cluster) -> None:
        """Read the ConfigMap; what is not written yet stays. Raises ApiError."""
        if self.config_map is None:
            return
        async with self._turn:
            found = await cluster.find(CONFIG_MAPS, self.config_map.namespace, self.config_map.name)
            stored, problems = await asyncio.to_thread(_read, found or {}, self._written)
            unwritten = {key: each for key, each in self._known.items() if self._written.get(key) is not each}
            self._known, self._written = {**stored, **unwritten}, stored
        for problem in sorted(frozenset(problems) - self._logged):
            _log.warning("ConfigMap %s: %s", self.config_map, problem)
        self._logged = frozenset(problems)

    async def try_load(self, cluster: Cluster, troubles: Troubles, *, loop: str) -> None:
        """Read the ConfigMap; where that fails, note it and keep the entries as they were."""
        try:
            await self.load(cluster)
        except Exception as error:  # noqa: BLE001 - verdicts that stand need no entry, so the work goes on
            troubles.note(loop, error, about="the fetched models", expected=ApiError)

    async def save(self, cluster: Cluster) -> None:
        """Write what the ConfigMap lacks, and remove what is no longer known. Raises ApiError."""
        if self.config_map is None:
            return
        async with self._turn:
            news = {key: each for key, each in self._known.items() if self._written.get(key) is not each}
            gone = [key for key in self._written if key not in self._known]
            if not news and not gone:
                return
            texts = {_about(key): json.dumps(msgspec.to_builtins(each.origin)) for key, each in news.items()}
            entries = {key: base64.b64encode(each.entry).decode() for key, each in news.items()}
            patch = {
                "data": {**texts, **dict.fromkeys(map(_about, gone))},
                "binaryData": {**entries, **dict.fromkeys(gone)},
            }
            await cluster.apply(CONFIG_MAPS, self.config_map.manifest())  # it may not be there yet, or no longer
            await cluster.merge(CONFIG_MAPS, self.config_map.namespace, self.config_map.name, patch)
            self._written = {key: each for key, each in self._written.items() if key not in gone} | news


def _read(config_map: Document, known: Mapping[str, Stored]) -> tuple[dict[str, Stored], list[str]]:
    """Return the entries of a ConfigMap, and the problems of those that cannot be read; an entry that is known is the same object."""
    found, problems = dict[str, Stored](), list[str]()
    origins = config_map.get("data") or {}
    for key, text in (config_map.get("binaryData") or {}).items():
        try:
            entry = base64.b64decode(text, validate=True)
            if (same := known.get(key)) is not None and same.entry == entry:
                found[key] = same
            else:
                found[key] = _stored(key, entry, origins.get(_about(key)))
        except (binascii.Error, PublishedError, msgspec.MsgspecError, ValueError) as error:
            problems.append(f"key {inert(key)[:MAX_SHOWN]} cannot be read, and is left out: {inert(str(error))}")
    return found, problems


def _stored(key: str, entry: bytes, origin: str | None) -> Stored:
    if len(entry) > MAX_ENTRY_BYTES:
        raise PublishedError(f"it has {len(entry):,} bytes, and at most {MAX_ENTRY_BYTES:,} are read")
    published = unpacked(entry)
    wanted = ModelName(published.name, published.revision)
    if entry_key(wanted.key) != key:
        raise PublishedError(f"it is the entry of {inert(str(wanted))[:MAX_SHOWN]}")
    given = msgspec.json.decode(origin, type=Origin) if origin else None
    return Stored(entry=entry, origin=given or Origin.of(wanted, commit=published.commit, source=published.source))


def _about(key: str) -> str:
    return key.removesuffix(SUFFIX) + ABOUT_SUFFIX


def superfluous(
    sizes: Mapping[str, int], users: Mapping[str, Collection[str]], unused_seconds: Callable[[str], float], *,
    max_entries: int = MAX_ENTRIES, max_bytes: int = MAX_BYTES,
) -> Iterator[str]:  # fmt: skip
    """Yield the entries to drop: those long unused, and while there are too many, first others that nobody uses, the oldest first.

    Then it is the turn of the namespace that uses the most bytes alone. `sizes` are in the order of age; `users` are the
    namespaces whose objects name an entry.
    """
    left = dict(sizes)
    for key in [key for key in left if not users.get(key) and unused_seconds(key) > UNUSED_SECONDS]:
        del left[key]
        yield key
    while len(left) > max_entries or sum(left.values()) > max_bytes:
        unused = [key for key in left if not users.get(key)]
        key = max(unused, key=unused_seconds) if unused else _newest_of_the_greediest(left, users)
        del left[key]
        yield key


def _newest_of_the_greediest(sizes: Mapping[str, int], users: Mapping[str, Collection[str]]) -> str:
    alone = {key: next(iter(users[key])) for key in sizes if len(users[key]) == 1}
    if not alone:
        return next(reversed(list(sizes)))
    taken: dict[str, int] = {}
    for key, namespace in alone.items():
        taken[namespace] = taken.get(namespace, 0) + sizes[key]
    greediest = max(taken, key=lambda namespace: taken[namespace])
    return next(key for key in reversed(list(alone)) if alone[key] == greediest)
