"""The files of one checkpoint, wherever they lie: what a hub, a folder and a mirror have in common."""

from collections.abc import Collection
from typing import Protocol

from msgspec import Struct


class Part(Struct, frozen=True):
    """Bytes of a file from some position on; fewer than wanted where the file ends."""

    data: bytes
    file_bytes: int | None
    """Size of the whole file; None: not known."""


class CheckpointFiles(Protocol):
    """Files by name. The methods raise CouldNotFetch; threads may call them at once."""

    @property
    def source(self) -> str:
        """Words for the place of the files."""
        ...

    @property
    def commit(self) -> str:
        """Commit of the files; empty where there is none."""
        ...

    @property
    def names(self) -> Collection[str]:
        """Names of the files, those in folders with `/`."""
        ...

    def read(self, name: str, *, max_bytes: int) -> bytes:
        """Return a whole file."""
        ...

    def read_part(self, name: str, *, start: int, length: int) -> Part:
        """Return `length` bytes from `start` on."""
        ...
