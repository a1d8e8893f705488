"""The files of one checkpoint, wherever they lie: what a hub, a folder and a mirror have in common."""

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from kvgate.checkpoint.tensors import CheckpointError
from kvgate.fetching.bounded_http import broken
from kvgate.hf_config import ModelConfigError
from kvgate.hf_config.fields import MAX_CHARACTERS, parse_config_text
from kvgate.text.inert import inert

_Read = TypeVar("_Read")


class Part(Struct, frozen=True):
    """Bytes of a file from some position on; fewer than wanted where the file ends."""

    data: bytes
    file_bytes: int | None
    """Size of the whole file; None: not known."""


class CheckpointFiles(Protocol):
    """Files by name. The methods raise CouldNotFetch; threads may call them at once."""

    source: str
    """Words for the place of the files."""
    commit: str
    """Commit of the files; empty where there is none."""
    names: Collection[str]
    """Names of the files, those in folders with `/`."""
    is_partial: bool = False
    """True where files that the repository has may not be here."""

    def read(self, name: str, *, max_bytes: int) -> bytes:
        """Return a whole file."""
        ...

    def read_part(self, name: str, *, start: int, length: int) -> Part:
        """Return `length` bytes from `start` on."""
        ...


def json_of(files: CheckpointFiles, name: str) -> Mapping[str, Any]:
    """Return the values of a file; every character has one byte at least."""
    data = files.read(name, max_bytes=MAX_CHARACTERS)
    return understood(name, lambda: parse_config_text(data.decode("utf-8-sig")))


def understood(name: str, read: Callable[[], _Read]) -> _Read:
    """Call a reader of a file, whose errors do not name it."""
    try:
        return read()
    except (CheckpointError, ModelConfigError, UnicodeDecodeError) as error:
        raise broken(f"{name} cannot be read: {inert(str(error)[:500])}") from None
