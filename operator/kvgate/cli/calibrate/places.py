"""The places of observed starts for people: a file, standard input, or the ConfigMaps of a cluster, through kubectl."""

import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import click
from msgspec.structs import replace

from kvgate.budget import Calibration, CalibrationScope, ObservedStart
from kvgate.calibration.keeping import SHARDS, Store, fitting, shard_name, shard_of
from kvgate.calibration.records import MAX_FROZEN, MAX_TEXT_BYTES, Records, read_records
from kvgate.cli.exits import Exit
from kvgate.cli.kubectl import apply_object, kubectl
from kvgate.cli.terminal import show_error
from kvgate.documents.bounded_files import read_text

DEFAULT_PLACE = "kvgate-system/kvgate-calibration"
KEY = "starts.jsonl"
MAX_LIST_BYTES = (SHARDS + 1) * (2 << 20)
"""Size of a list of ConfigMaps: each holds 1 MiB, which JSON may write as two."""


class Starts:
    """The starts of one place, with what somebody decided about them."""

    def __init__(self, store: Store, *, scope: CalibrationScope | None) -> None:
        self.store = store
        self.scope = scope

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
                self._write(number, marked, self.frozen_of(number))

    def frozen_of(self, number: int) -> frozenset[str]:
        return frozenset(self.store.shards.get(number, Records()).frozen)

    def freeze(self, name: str, *, is_thawed: bool) -> None:
        """Remember that nothing new is learnt of a namespace, of a setting in it, or of anything; or end that."""
        places = range(SHARDS) if is_thawed else (shard_of(name.partition("/")[0]),)
        for number in places:
            frozen = self.frozen_of(number)
            after = frozen - {name} if is_thawed else frozen | {name}
            if len(after) > MAX_FROZEN:
                _end(f"{MAX_FROZEN} names are frozen already in this place; thaw one, or freeze '*'")
            if after != frozen:
                self._write(number, self.store.starts_of(number), after)

    def _write(self, number: int, starts: tuple[ObservedStart, ...], frozen: frozenset[str]) -> None:
        raise NotImplementedError


class FileStarts(Starts):
    """The starts in a file, of which every one counts for every object."""

    def __init__(self, path: Path) -> None:
        super().__init__(Store(shards={0: records_in(path, "--file")}), scope=None)
        self._path = path

    def freeze(self, name: str, *, is_thawed: bool) -> None:
        frozen = self.frozen_of(0)
        self._write(0, self.store.shards[0].starts, frozen - {name} if is_thawed else frozen | {name})

    def _write(self, number: int, starts: tuple[ObservedStart, ...], frozen: frozenset[str]) -> None:
        highest = self.store.shards[number].highest
        replace_file(self._path, fitting(starts, frozen=frozen, highest=highest), "--file")


class ListedStarts(Starts):
    """The starts in ConfigMaps that kubectl listed."""

    def __init__(
        self, listed: Mapping[str, Any], scope: CalibrationScope, *, place: str = "", context: str = ""
    ) -> None:
        store = Store()
        self._versions: dict[int | None, str] = {}
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
                self._versions[number] = str(metadata.get("resourceVersion", ""))
        super().__init__(store, scope=scope)
        self._place, self._context = place, context

    def _write(self, number: int, starts: tuple[ObservedStart, ...], frozen: frozenset[str]) -> None:
        known = self.store.shards.get(number, Records())
        if known.problems:
            _end(f"shard {number}: {'; '.join(known.problems)}; correct these lines or remove them")
        namespace, _, name = self._place.partition("/")
        metadata = {"name": shard_name(name, number), "namespace": namespace}
        if version := self._versions.get(number):
            metadata["resourceVersion"] = version  # the controller may have written meanwhile
        apply_object(
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": metadata,
                "data": {KEY: self.store.text_of(number, starts, frozen)},
            },
            self._context,
        )


def in_cluster(place: str, context: str, scope: str) -> ListedStarts:
    """Read the ConfigMaps of an installation; those that are missing are empty."""
    namespace, slash, name = place.partition("/")
    if not (namespace and slash and name):
        raise click.UsageError(f"--place {place!r} is not NAMESPACE/NAME, such as {DEFAULT_PLACE}")
    names = [name, *(shard_name(name, number) for number in range(SHARDS))]
    connection = [f"--context={context}"] if context else []
    found = kubectl("get", "configmap", *names, "-n", namespace, "-o", "json", "--ignore-not-found", *connection)
    listed = json.loads(found) if found.strip() else {"items": []}
    return ListedStarts(listed, CalibrationScope(scope), place=place, context=context)


def of_text(text: str, scope: str) -> Starts:
    """Read records, or ConfigMaps as `kubectl get configmap -o json` lists them."""
    try:
        listed = json.loads(text)
    except ValueError:
        listed = None
    if isinstance(listed, dict) and listed.get("kind") in ("List", "ConfigMapList", "ConfigMap"):
        return ListedStarts(listed, CalibrationScope(scope))
    return Starts(Store(shards={0: read_records(text)}), scope=None)


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


def replace_file(path: Path, text: str, option: str) -> None:
    """Write a new file beside the old one, then rename it: no reader meets half a file."""
    fresh = path.with_name(f".{path.name}.new")
    try:
        fresh.unlink(missing_ok=True)  # left by a run that was killed; it may be a link, so it is never written to
        with fresh.open("x", encoding="utf-8") as file:
            file.write(text)
        fresh.replace(path)
    except OSError as error:
        raise click.UsageError(f"{option} {path} cannot be written: {error.strerror or error}") from None


def _end(message: str) -> NoReturn:
    show_error(message)
    sys.exit(Exit.UNDECIDED)
