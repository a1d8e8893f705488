"""The places of observed starts for people: a file, standard input, or the ConfigMaps of a cluster, through kubectl."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import click
from msgspec.structs import replace

from kvgate.budget import Calibration, CalibrationScope, ObservedStart
from kvgate.calibration.keeping import SHARDS, Store, shard_name, shard_of
from kvgate.calibration.records import MAX_FROZEN, MAX_TEXT_BYTES, Records, read_records
from kvgate.cli.exits import Exit, replace_file
from kvgate.cli.kubectl import apply_object, kubectl
from kvgate.cli.terminal import show_error
from kvgate.documents.bounded_files import read_text

DEFAULT_PLACE = "kvgate-system/kvgate-calibration"
KEY = "starts.jsonl"
MAX_LIST_BYTES = (SHARDS + 1) * (2 << 20)
"""Size of a list of ConfigMaps: each holds 1 MiB, which JSON may write as two."""


class Starts:
    """The starts of one place, with what somebody decided about them."""

    def __init__(
        self,
        store: Store,
        *,
        scope: CalibrationScope | None,
        write: Callable[[int, str], None] = lambda _shard, _text: None,
    ) -> None:
        """Keep what was read. Without a scope every start counts for every object, and all are in one shard."""
        self.store = store
        self.scope = scope
        self._write = write

    @property
    def calibration(self) -> Calibration:
        return Calibration(starts=self.store.starts, scope=self.scope)

    @property
    def problems(self) -> tuple[str, ...]:
        return tuple(problem for _, problem in self.store.problems)

    def mark(self, revisions: Iterable[int], **marks: bool) -> None:
        """Set marks of some starts, and write them. Ends the command where one is not known."""
        wanted = frozenset(revisions)
        unknown = wanted - {start.revision for start in self.store.starts}
        if unknown:
            numbers = ", ".join(map(str, sorted(unknown)))
            _end(f"no start has the number {numbers}; `kvgate calibrate show` lists the numbers")
        for number in range(SHARDS):
            starts = self.store.starts_of(number)
            marked = tuple(replace(start, **marks) if start.revision in wanted else start for start in starts)
            if marked != starts:
                self._put(number, marked, self._shard(number).frozen)

    def freeze(self, name: str, *, is_thawed: bool) -> None:
        """Remember that nothing new is learnt of a namespace, of a setting in it, or of anything; or end that."""
        own = shard_of(name.partition("/")[0]) if self.scope else 0
        for number in range(SHARDS) if is_thawed else (own,):
            frozen = frozenset(self._shard(number).frozen)
            after = frozen - {name} if is_thawed else frozen | {name}
            if len(after) > MAX_FROZEN:
                _end(f"{MAX_FROZEN} names are frozen already in this place; thaw one, or freeze '*'")
            if after != frozen:
                self._put(number, self.store.starts_of(number), after)

    def _shard(self, number: int) -> Records:
        return self.store.shards.get(number, Records())

    def _put(self, number: int, starts: tuple[ObservedStart, ...], frozen: Iterable[str]) -> None:
        known = self._shard(number)
        if known.problems:
            _end(f"shard {number}: {'; '.join(known.problems)}; correct these lines or remove them")
        self._write(number, self.store.text_of(number, starts, frozen))


def in_file(path: Path) -> Starts:
    """Read a file, of which every start counts for every object."""
    store = Store(shards={0: records_in(path, "--file")})
    return Starts(store, scope=None, write=lambda _shard, text: replace_file(path, text, "--file"))


def in_cluster(place: str, context: str, scope: str) -> Starts:
    """Read the ConfigMaps of an installation; those that are missing are empty."""
    namespace, slash, name = place.partition("/")
    if not (namespace and slash and name):
        raise click.UsageError(f"--place {place!r} is not NAMESPACE/NAME, such as {DEFAULT_PLACE}")
    names = [name, *(shard_name(name, number) for number in range(SHARDS))]
    connection = [f"--context={context}"] if context else []
    found = kubectl("get", "configmap", *names, "-n", namespace, "-o", "json", "--ignore-not-found", *connection)
    store, versions = _listed(json.loads(found) if found.strip() else {"items": []})

    def write(number: int, text: str) -> None:
        metadata = {"name": shard_name(name, number), "namespace": namespace}
        if version := versions.get(number):
            metadata["resourceVersion"] = version  # the controller may have written meanwhile
        apply_object({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: text}}, context)

    return Starts(store, scope=CalibrationScope(scope), write=write)


def of_text(text: str, scope: str) -> Starts:
    """Read records, or ConfigMaps as `kubectl get configmap -o json` lists them."""
    try:
        listed = json.loads(text)
    except ValueError:
        listed = None
    if isinstance(listed, dict) and listed.get("kind") in ("List", "ConfigMapList", "ConfigMap"):
        return Starts(_listed(listed)[0], scope=CalibrationScope(scope))
    return Starts(Store(shards={0: read_records(text)}), scope=None)


def _listed(listed: Mapping[str, Any]) -> tuple[Store, dict[int | None, str]]:
    """Read ConfigMaps that kubectl listed; with the resourceVersion of each shard."""
    store, versions = Store(), dict[int | None, str]()
    items = listed.get("items", [listed])
    for item in items if isinstance(items, list) else ():
        metadata = item.get("metadata") or {} if isinstance(item, Mapping) else {}
        text = (item.get("data") or {}).get(KEY) if metadata else None
        if not isinstance(text, str):
            continue
        shard = re.fullmatch(r".*-([0-9]{1,2})", str(metadata.get("name", "")))
        number = int(shard[1]) if shard else None
        if number is None or number < SHARDS:
            store = store.with_text(number, text)
            versions[number] = str(metadata.get("resourceVersion", ""))
    return store, versions


def records_in(path: Path, option: str) -> Records:
    """Read the starts of a file, none where it is missing; one that cannot be read completely is never replaced."""
    if not path.exists():
        return Records()
    try:
        records = read_records(read_text(path, max_bytes=MAX_TEXT_BYTES, inside=None))
    except (OSError, UnicodeDecodeError) as error:
        raise click.UsageError(f"{option} {path} cannot be read: {error}") from None
    if records.problems:
        raise click.UsageError(f"{option} {path}: {'; '.join(records.problems)}; correct these lines or remove them")
    return records


def _end(message: str) -> NoReturn:
    show_error(message)
    sys.exit(Exit.UNDECIDED)
