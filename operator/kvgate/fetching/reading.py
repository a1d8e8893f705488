"""The files of a checkpoint → what is published about it. Only configs, indexes and headers are read, and nothing is executed."""

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeVar

from msgspec import Struct

from kvgate.checkpoint.adapter import ADAPTER_CONFIG, read_adapter
from kvgate.checkpoint.gguf import MAX_HEADER_BYTES, GgufFile, Truncated, joined, read_gguf, split_names
from kvgate.checkpoint.gguf_models import file_of_quant_type, gguf_config, gguf_tensors
from kvgate.checkpoint.mistral_params import CONFIG, PARAMS, config_of_params, hugging_face_names, reads_params
from kvgate.checkpoint.not_fetched import Reason
from kvgate.checkpoint.published import Published
from kvgate.checkpoint.tensors import LENGTH_BYTES, CheckpointError, StoredTensor, header_bytes, read_header, summarize
from kvgate.checkpoint.weight_files import (
    INDEX,
    MAX_INDEX_BYTES,
    WeightIndex,
    index_of,
    read_index,
    weight_files,
    with_index,
)
from kvgate.fetching.bounded_http import broken
from kvgate.fetching.checkpoint_names import MAIN, CheckpointName
from kvgate.fetching.limits import CouldNotFetch
from kvgate.hf_config import ModelConfigError
from kvgate.hf_config.fields import MAX_CHARACTERS, parse_config_text
from kvgate.hf_config.formats.quantization import quantization_files, with_quantization_beside
from kvgate.text.inert import inert

_Read = TypeVar("_Read")
_GUESSED_TENSOR_BYTES = 192
"""Bytes of a header for one tensor; published ones need 100 to 160. The rest is asked for where they are more."""
_GUESSED_BYTES = range(16 << 10, 1 << 20)
"""Bytes of a file that are asked for at first, at least and at most."""


class Part(Struct, frozen=True):
    """Bytes of a file from some position on; fewer than wanted where the file ends."""

    data: bytes
    file_bytes: int | None
    """Size of the whole file; None: not known."""


class CheckpointFiles(Protocol):
    """Files by name, in a hub, a folder or a bucket. The methods raise CouldNotFetch; threads may call them at once."""

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

    def read_part(self, name: str, *, start: int, length: int) -> Part:
        """Return `length` bytes from `start` on."""


def published(files: CheckpointFiles, checkpoint: CheckpointName, *, num_parallel: int) -> Published:
    """Return what the files say about the model. Raises CouldNotFetch."""
    config, adapter, tensors, size_bytes, index_bytes = _facts(files, checkpoint, num_parallel)
    return Published(
        name=checkpoint.name,
        revision="" if checkpoint.revision == MAIN else checkpoint.revision,
        commit=files.commit,
        source=files.source,
        config=config,
        tensors=_understood("the list of tensors", lambda: summarize(tensors)),
        checkpoint_bytes=size_bytes,
        index_bytes=index_bytes if index_bytes != size_bytes else 0,
        adapter=adapter,
    )


_Facts = tuple[Mapping[str, Any], Mapping[str, Any], Sequence[StoredTensor], int, int]
"""Config, adapter, tensors, bytes of all tensors, bytes that their index states."""


def _facts(files: CheckpointFiles, checkpoint: CheckpointName, num_parallel: int) -> _Facts:
    """Read what describes the model, before anything of its weights is read."""
    if file := _gguf_file(files, checkpoint):
        # vLLM reads the repository's config.json where the file is named by its type
        beside = _json_of(files, CONFIG) if checkpoint.gguf_quantization and CONFIG in files.names else None
        config, tensors = _gguf_facts(files, file, beside)
        return config, {}, tensors, sum(tensor.size_bytes for tensor in tensors), 0
    if reads_params(files.names):
        params, beside = _json_of(files, PARAMS), _json_of(files, CONFIG) if CONFIG in files.names else None
        config = _understood(PARAMS, lambda: config_of_params(params, beside))
        return config, {}, *_weights(files, num_parallel)
    if CONFIG in files.names:
        stated = _json_of(files, CONFIG)  # the quantisation may stand in files beside it
        beside_it = {name: _json_of(files, name) for name in quantization_files(stated) if name in files.names}
        config = _understood(CONFIG, lambda: with_quantization_beside(stated, beside_it))
        return config, {}, *_weights(files, num_parallel)
    if ADAPTER_CONFIG in files.names:
        adapter = _json_of(files, ADAPTER_CONFIG)
        _understood(ADAPTER_CONFIG, lambda: read_adapter(adapter))
        return {}, adapter, *_weights(files, num_parallel)
    place = f"{checkpoint.repository} in {files.source}"
    if any(name.endswith(".gguf") for name in files.names):
        message, remedy = (
            f"{place} has GGUF files, and no {CONFIG}",
            f"name the type of one: {checkpoint.repository}:Q4_K_M",
        )
        raise CouldNotFetch(Reason.FILE_NOT_FOUND, message, remedy)
    message = f"{place} has no {CONFIG}, so it is no model that vLLM loads"
    raise CouldNotFetch(Reason.FILE_NOT_FOUND, message, "name the repository of the model")


def _gguf_file(files: CheckpointFiles, checkpoint: CheckpointName) -> str | None:
    """Return the GGUF file that the name means; None where it means none. Raises CouldNotFetch where there is no such file."""
    if not checkpoint.gguf_file and not checkpoint.gguf_quantization:
        return None
    wanted = checkpoint.gguf_file or file_of_quant_type(files.names, checkpoint.gguf_quantization)
    if wanted in files.names:
        return wanted
    what = checkpoint.gguf_file or f"GGUF file of type {checkpoint.gguf_quantization}"
    here = sorted(name for name in files.names if name.endswith(".gguf"))
    shown = f"; it has {', '.join(map(inert, here[:8]))}" if here else ""
    raise CouldNotFetch(
        Reason.FILE_NOT_FOUND,
        f"{checkpoint.repository} in {files.source} has no {what}{shown}",
        "name one of its files",
    )


def _weights(files: CheckpointFiles, num_parallel: int) -> tuple[list[StoredTensor], int, int]:
    """Return the tensors, the bytes of all of them, and those that the index states; without headers the index or the files decide."""
    found = weight_files(files.names)
    if found is None:  # the cache may have the index without its files
        index = _index(files, INDEX)
        return [], index.total_bytes if index else 0, 0
    index = _index(files, index_of(found))
    found = with_index(found, index)
    if found.missing and files.is_partial and index:
        return [], index.total_bytes, 0
    if found.missing:
        shown = ", ".join(map(inert, found.missing[:3]))
        raise broken(f"its index names {len(found.missing)} files that are not there: {shown}")
    if found.kind != "safetensors":
        if index and index.total_bytes:
            return [], index.total_bytes, 0
        # files have hardly more bytes than their tensors; 0 where one size is not known
        sizes = [files.read_part(name, start=0, length=1).file_bytes for name in found.names]
        return [], sum(size or 0 for size in sizes) if all(sizes) else 0, 0
    per_file = index.num_tensors // max(1, len(found.names)) if index else 600
    # bytes that are likely to hold the header of one file
    guess = min(max(_GUESSED_BYTES.start, per_file * _GUESSED_TENSOR_BYTES), _GUESSED_BYTES.stop)
    with ThreadPoolExecutor(num_parallel, thread_name_prefix="kvgate-fetch") as pool:
        headers = pool.map(lambda name: _header(files, name, guess), found.names)
        tensors = [tensor for header in headers for tensor in header]
    if all(name.startswith("consolidated") for name in found.names):
        tensors = list(hugging_face_names(tensors))
    return tensors, sum(tensor.size_bytes for tensor in tensors), index.total_bytes if index else 0


def _index(files: CheckpointFiles, name: str | None) -> WeightIndex | None:
    if name is None or name not in files.names:
        return None
    data = files.read(name, max_bytes=MAX_INDEX_BYTES)
    return _understood(name, lambda: read_index(data))


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


_FIRST_GGUF_BYTES = 2 << 20
"""Bytes that are asked for at first; a vocabulary of 150,000 takes 6 MB."""
_GGUF_GROWTH = 4
"""Bytes of each further part, as a multiple of what is there."""


def _gguf_facts(
    files: CheckpointFiles, name: str, beside: Mapping[str, Any] | None = None
) -> tuple[Mapping[str, Any], Sequence[StoredTensor]]:
    """Return the config and the tensors of a file, and of the others of its split; `beside` is the repository's config.json.

    Raises CouldNotFetch.
    """
    names = split_names(name)
    if missing := [each for each in names if each not in files.names]:
        raise broken(f"{name} is one of {len(names)} files, and {missing[0]} is not there")
    file = _understood(name, lambda: joined([_gguf_header(files, each) for each in names]))
    return _understood(name, lambda: gguf_config(file, beside)), gguf_tensors(file)


def _gguf_header(files: CheckpointFiles, name: str) -> GgufFile:
    data, wanted = b"", _FIRST_GGUF_BYTES
    while True:
        part = files.read_part(name, start=len(data), length=wanted)
        data += part.data
        try:
            return read_gguf(data, file_bytes=part.file_bytes)
        except Truncated as error:
            if len(part.data) < wanted or len(data) >= MAX_HEADER_BYTES:
                raise broken(f"{name} is truncated: {error}") from None
            wanted = min(len(data) * _GGUF_GROWTH, MAX_HEADER_BYTES - len(data))
        except CheckpointError as error:
            raise broken(f"{name} cannot be read: {error}") from None


def _json_of(files: CheckpointFiles, name: str) -> Mapping[str, Any]:
    """Return the values of a file; every character has one byte at least."""
    data = files.read(name, max_bytes=MAX_CHARACTERS)
    return _understood(name, lambda: parse_config_text(data.decode("utf-8-sig")))


def _understood(name: str, read: Callable[[], _Read]) -> _Read:
    """Call a reader of a file, whose errors do not name it."""
    try:
        return read()
    except (CheckpointError, ModelConfigError, UnicodeDecodeError) as error:
        raise broken(f"{name} cannot be read: {inert(str(error)[:500])}") from None
