"""The files of a checkpoint → what is published about it. Only configs, indexes and headers are read, and nothing is executed."""

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from kvgate.checkpoint.not_fetched import Reason
from kvgate.checkpoint.published import Published
from kvgate.checkpoint.safetensors_headers import LENGTH_BYTES, header_bytes, read_header
from kvgate.checkpoint.tensors import CheckpointError, StoredTensor, summarize
from kvgate.checkpoint.weight_files import (
    MAX_INDEX_BYTES,
    WeightFiles,
    WeightIndex,
    index_of,
    read_index,
    weight_files,
    with_index,
)
from kvgate.fetching.asked import MAIN, Asked
from kvgate.fetching.bounded_http import broken
from kvgate.fetching.files import CheckpointFiles
from kvgate.fetching.limits import CouldNotFetch
from kvgate.hf_config import ModelConfigError
from kvgate.hf_config.fields import MAX_CHARACTERS, parse_config_text
from kvgate.hf_config.quantization_files import quantization_files, with_quantization_beside
from kvgate.text.inert import inert

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
_GUESSED_TENSOR_BYTES = 192
"""Bytes of a header for one tensor; published ones need 100 to 160. The rest is asked for where they are more."""
_GUESSED_BYTES = range(16 << 10, 1 << 20)
"""Bytes of a file that are asked for at first, at least and at most."""
_Read = TypeVar("_Read")


def published(files: CheckpointFiles, asked: Asked, *, num_parallel: int) -> Published:
    """Return what the files say about the model. Raises CouldNotFetch."""
    config: Mapping[str, Any] = {}
    adapter: Mapping[str, Any] = {}
    if CONFIG in files.names:
        config = _config(files)
    elif ADAPTER_CONFIG in files.names:
        adapter = _json(files, ADAPTER_CONFIG)
    else:
        raise CouldNotFetch(
            Reason.FILE_NOT_FOUND,
            f"{asked.repository} in {files.source} has no {CONFIG}, so it is no model that vLLM loads",
            "name the repository of the model",
        )
    tensors, size_bytes = _weights(files, num_parallel)
    return Published(
        name=asked.name,
        revision="" if asked.revision == MAIN else asked.revision,
        commit=files.commit,
        source=files.source,
        config=config,
        tensors=_understood("the list of tensors", lambda: summarize(tensors)),
        checkpoint_bytes=size_bytes,
        adapter=adapter,
    )


def _config(files: CheckpointFiles) -> Mapping[str, Any]:
    """Return config.json with the quantisation that stands in files beside it."""
    config = _json(files, CONFIG)
    beside = {name: _json(files, name) for name in quantization_files(config) if name in files.names}
    return _understood(CONFIG, lambda: with_quantization_beside(config, beside))


def _json(files: CheckpointFiles, name: str) -> Mapping[str, Any]:
    """Return the values of a file; every character has one byte at least."""
    data = files.read(name, max_bytes=MAX_CHARACTERS)
    return _understood(name, lambda: parse_config_text(data.decode("utf-8-sig")))


def _understood(name: str, read: Callable[[], _Read]) -> _Read:
    """Call a reader of a file, whose errors do not name it."""
    try:
        return read()
    except (CheckpointError, ModelConfigError, UnicodeDecodeError) as error:
        raise broken(f"{name} cannot be read: {inert(str(error)[:500])}") from None


def _weights(files: CheckpointFiles, num_parallel: int) -> tuple[list[StoredTensor], int]:
    """Return the tensors, and the bytes of all of them; without headers the bytes that the index or the files state."""
    found = weight_files(files.names)
    if found is None:
        return [], 0
    index = None
    if (name := index_of(found)) in files.names and name is not None:
        data = files.read(name, max_bytes=MAX_INDEX_BYTES)
        index = _understood(name, lambda: read_index(data))
    found = with_index(found, index)
    if found.missing:
        shown = ", ".join(map(inert, found.missing[:3]))
        raise broken(f"its index names {len(found.missing)} files that are not there: {shown}")
    if found.kind != "safetensors":
        return [], (index.total_bytes if index else 0) or _sizes(files, found)
    guess = _first_bytes(found, index)
    with ThreadPoolExecutor(num_parallel, thread_name_prefix="kvgate-fetch") as pool:
        tensors = _flat(pool.map(lambda name: _header(files, name, guess), found.names))
    return tensors, sum(tensor.size_bytes for tensor in tensors)


def _flat(parts: Iterable[Iterable[StoredTensor]]) -> list[StoredTensor]:
    return [tensor for part in parts for tensor in part]


def _sizes(files: CheckpointFiles, found: WeightFiles) -> int:
    """Return the bytes of all files, which are hardly more than those of their tensors; 0 where one is not known."""
    sizes = [files.read_part(name, start=0, length=1).file_bytes for name in found.names]
    return sum(size or 0 for size in sizes) if all(sizes) else 0


def _first_bytes(found: WeightFiles, index: WeightIndex | None) -> int:
    """Return the bytes that are likely to hold the header of one file."""
    per_file = index.num_tensors // max(1, len(found.names)) if index else 600
    return min(max(_GUESSED_BYTES.start, per_file * _GUESSED_TENSOR_BYTES), _GUESSED_BYTES.stop)


def _header(files: CheckpointFiles, name: str, guess: int) -> tuple[StoredTensor, ...]:
    """Read the header of a file; in most cases with one request."""
    part = files.read_part(name, start=0, length=guess)
    length = _understood(name, lambda: header_bytes(part.data))
    header = part.data[LENGTH_BYTES : LENGTH_BYTES + length]
    if len(header) < length:
        begin = LENGTH_BYTES + len(header)
        header += files.read_part(name, start=begin, length=length - len(header)).data
    if len(header) < length:
        raise broken(f"{name} is truncated: {len(header)} of the {length} bytes of its header are there")
    return _understood(name, lambda: read_header(header, file_bytes=part.file_bytes))
