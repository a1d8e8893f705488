"""Binaries of the control plane as their projects publish them, in place of a build that takes minutes.

Each archive has a SHA-512 in downloads.csv beside the page of its publisher on which it was read; what has no row there is built. Without a
network no more than SILENCE_SECONDS are lost, and `KVGATE_DOWNLOADS=off` loses none.
"""

from __future__ import annotations

import csv
import hashlib
import os
import platform
import shutil
import tarfile
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

TABLE = Path(__file__).with_name("downloads.csv")
SILENCE_SECONDS = 5.0
"""Time without a byte from anybody after which the network counts as gone."""
CHUNK_BYTES = 1 << 18
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A tar file that holds some of the binaries."""

    url: str
    sha512: str
    tools: tuple[str, ...]

    def stored(self, store: Path, name: str) -> Path:
        return store / f"{name}-{self.sha512[:16]}" / name


def archives(table: Path = TABLE, machine: str = "") -> tuple[Archive, ...]:
    """The archives for this machine; none for a system that is not Linux."""
    ours = machine or (MACHINES.get(platform.machine(), "") if platform.system() == "Linux" else "")
    with table.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["machine"] == ours]
    return tuple(Archive(url=row["url"], sha512=row["sha512"], tools=tuple(row["tools"].split())) for row in rows)


def find(name: str, store: Path, known: Sequence[Archive]) -> Path | None:
    """Return the file of a binary that was downloaded before."""
    places = (archive.stored(store, name) for archive in known if name in archive.tools)
    return next((path for path in places if path.is_file()), None)


@dataclass
class _Progress:
    """State that the threads share with whoever waits for them."""

    num_bytes: int = 0
    gives_up: bool = False
    said: list[str] = field(default_factory=list)


def download(
    names: Iterable[str], store: Path, known: Sequence[Archive], *, silence_seconds: float = SILENCE_SECONDS
) -> list[str]:
    """Fetch at once every archive that holds one of these binaries; what is said about each of them."""
    wanted, progress = set(names), _Progress()
    if os.environ.get("KVGATE_DOWNLOADS") == "off":
        return []
    chosen = [archive for archive in known if wanted & set(archive.tools)]
    threads = [
        threading.Thread(target=_fetch, args=(archive, store, wanted & set(archive.tools), progress), daemon=True)
        for archive in chosen
    ]  # daemons, because a resolver without a network has no time limit
    for thread in threads:
        thread.start()
    seen, since = 0, time.monotonic()
    while any(thread.is_alive() for thread in threads):
        time.sleep(0.05)
        if progress.num_bytes != seen:
            seen, since = progress.num_bytes, time.monotonic()
        elif time.monotonic() - since > silence_seconds:
            progress.gives_up = True
            return [*progress.said, f"nothing came from the network for {silence_seconds:g} s: the rest is built here"]
    return progress.said


def _fetch(archive: Archive, store: Path, wanted: set[str], progress: _Progress) -> None:
    started = time.monotonic()
    try:
        with tempfile.TemporaryFile() as file:
            digest = hashlib.sha512()
            with urllib.request.urlopen(archive.url, timeout=SILENCE_SECONDS) as answer:  # noqa: S310 - the addresses of the table
                while chunk := answer.read(CHUNK_BYTES):
                    if progress.gives_up:
                        return
                    file.write(chunk)
                    digest.update(chunk)
                    progress.num_bytes += len(chunk)
            if digest.hexdigest() != archive.sha512:
                progress.said.append(f"{archive.url} has another SHA-512 than downloads.csv: not used")
                return
            file.seek(0)
            _unpack(archive, file, store, wanted)
    except (OSError, tarfile.TarError) as error:
        progress.said.append(f"{archive.url}: {error}")
        return
    progress.said.append(f"{', '.join(sorted(wanted))}: downloaded in {time.monotonic() - started:.0f} s")


def _unpack(archive: Archive, file: IO[bytes], store: Path, wanted: set[str]) -> None:
    """Write the binaries to their places, each with one rename, so that no reader ever meets half of one."""
    with tarfile.open(fileobj=file, mode="r:gz") as members:
        for member in members:
            name = Path(member.name).name
            content = members.extractfile(member) if member.isfile() and name in wanted else None
            if content is None:
                continue
            place = archive.stored(store, name)
            place.parent.mkdir(parents=True, exist_ok=True)
            fresh = place.with_name(f".{name}.{os.getpid()}")
            with fresh.open("wb") as target:
                shutil.copyfileobj(content, target, CHUNK_BYTES)
            fresh.chmod(0o755)
            fresh.replace(place)
