"""The headers of GGUF files → the facts of the model; of a file of many gigabytes its first few megabytes are read."""

from collections.abc import Mapping, Sequence
from typing import Any

from kvgate.checkpoint.gguf import MAX_HEADER_BYTES, GgufFile, Truncated, joined, read_gguf, split_names
from kvgate.checkpoint.gguf_models import gguf_config, gguf_tensors
from kvgate.checkpoint.tensors import CheckpointError, StoredTensor
from kvgate.fetching.bounded_http import broken
from kvgate.fetching.files import CheckpointFiles, understood

_FIRST_BYTES = 2 << 20
"""Bytes that are asked for at first; a vocabulary of 150,000 takes 6 MB."""
_GROWTH = 4
"""Bytes of each further part, as a multiple of what is there."""


def gguf_facts(
    files: CheckpointFiles, name: str, beside: Mapping[str, Any] | None = None
) -> tuple[Mapping[str, Any], Sequence[StoredTensor]]:
    """Return the config and the tensors of a file, and of the others of its split; `beside` is the repository's config.json.

    Raises CouldNotFetch.
    """
    names = split_names(name)
    if missing := [each for each in names if each not in files.names]:
        raise broken(f"{name} is one of {len(names)} files, and {missing[0]} is not there")
    file = understood(name, lambda: joined([_header(files, each) for each in names]))
    return understood(name, lambda: gguf_config(file, beside)), gguf_tensors(file)


def _header(files: CheckpointFiles, name: str) -> GgufFile:
    data, wanted = b"", _FIRST_BYTES
    while True:
        part = files.read_part(name, start=len(data), length=wanted)
        data += part.data
        try:
            return read_gguf(data, file_bytes=part.file_bytes)
        except Truncated as error:
            if len(part.data) < wanted or len(data) >= MAX_HEADER_BYTES:
                raise broken(f"{name} is truncated: {error}") from None
            wanted = min(len(data) * _GROWTH, MAX_HEADER_BYTES - len(data))
        except CheckpointError as error:
            raise broken(f"{name} cannot be read: {error}") from None
