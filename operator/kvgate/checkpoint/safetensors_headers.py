"""The header of a safetensors file: which tensors it holds, and where they lie.

Layout and limits are those of the safetensors crate (0.8, `SafeTensors::read_metadata`): 8 bytes with the header's length, the header
as JSON, and the tensors without gaps.
"""

from collections.abc import Iterator, Mapping

import msgspec
from msgspec import Raw, Struct

from kvgate.checkpoint.tensors import DTYPES, MAX_NAME, MAX_TENSORS, CheckpointError, StoredTensor, bytes_of

LENGTH_BYTES = 8
"""Bytes before the header, which hold its length (little endian)."""
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit (`MAX_HEADER_SIZE`); the longest published headers have 3 MB."""
_SHOWN = 5
"""Problems of one header that are reported; a damaged file has thousands."""
_LARGEST = 1 << 50
"""No dimension and no offset is larger."""


class _Entry(Struct, frozen=True, kw_only=True):
    """One value of the header, with the format's own keys."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def header_bytes(beginning: bytes) -> int:
    """Return the header's length, from the first 8 bytes of a file. Raises CheckpointError."""
    if len(beginning) < LENGTH_BYTES:
        raise CheckpointError(
            f"it has {len(beginning)} bytes; a safetensors file begins with {LENGTH_BYTES} bytes of length"
        )
    length = int.from_bytes(beginning[:LENGTH_BYTES], "little")
    if not 2 <= length <= MAX_HEADER_BYTES:
        raise CheckpointError(
            f"it states a header of {length} bytes, which no safetensors file has (at most {MAX_HEADER_BYTES})"
        )
    return length


def read_header(header: bytes, *, file_bytes: int | None = None) -> tuple[StoredTensor, ...]:
    """Return the tensors of a file, in the order of their bytes, from the JSON between the length and the data.

    `file_bytes` is the size of the whole file where it is known; the tensors must fill it. Raises CheckpointError.
    """
    entries = dict(_entries(header))
    problems = [problem for name, entry in entries.items() for problem in _problems(name, entry)]
    if not problems:
        problems += _gaps(entries)
    stated = LENGTH_BYTES + len(header) + max((entry.data_offsets[1] for entry in entries.values()), default=0)
    if not problems and file_bytes is not None and file_bytes != stated:
        problems.append(f"it has {file_bytes} bytes and its header describes {stated}; it is truncated, or has a tail")
    if problems:
        more = [f"{len(problems) - _SHOWN} more problems"] if len(problems) > _SHOWN else []
        raise CheckpointError(*problems[:_SHOWN], *more)
    ordered = sorted(entries.items(), key=lambda item: item[1].data_offsets)
    return tuple(StoredTensor(name=name, dtype=entry.dtype, shape=tuple(entry.shape)) for name, entry in ordered)


def _entries(header: bytes) -> Iterator[tuple[str, _Entry]]:
    """Yield the entries but for `__metadata__`. Every value is read by itself, so that one that is wrong has its name in the message."""
    if len(header) > MAX_HEADER_BYTES or header.count(b":") > 8 * MAX_TENSORS:  # before anything is built from it
        raise CheckpointError(f"its header of {len(header)} bytes describes more than {MAX_TENSORS} tensors")
    try:
        values = msgspec.json.decode(header, type=dict[str, Raw])
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise CheckpointError(f"its header is no JSON object ({error})") from None
    read = msgspec.json.Decoder(_Entry).decode
    for name, value in values.items():
        if name == "__metadata__":
            continue
        try:
            yield name, read(value)
        except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
            raise CheckpointError(f"the tensor {name[:80]!r} has no dtype, shape and data_offsets ({error})") from None


def _problems(name: str, entry: _Entry) -> Iterator[str]:
    shown = name[:80]
    (begin, end), shape = entry.data_offsets, tuple(entry.shape)
    if len(name) > MAX_NAME or not name.isprintable() or "{" in name:
        yield f"the tensor {shown!r} has a name of {len(name)} characters with signs that no name has"
    if entry.dtype not in DTYPES or DTYPES[entry.dtype][0] > 4:  # blocks of more elements are ggml's
        yield f"the tensor {shown!r} has the dtype {entry.dtype[:20]!r}, which this version does not know"
    elif len(shape) > 16 or any(not 0 <= size <= _LARGEST for size in shape):
        yield f"the tensor {shown!r} has a shape that no tensor has"
    elif not 0 <= begin <= end <= _LARGEST or end - begin != bytes_of(entry.dtype, shape):
        yield f"the tensor {shown!r} takes the bytes {begin} to {end}; {entry.dtype} of shape {list(shape)} does not"


def _gaps(entries: Mapping[str, _Entry]) -> Iterator[str]:
    """Report tensors that overlap, and bytes between them, which a name that stands twice leaves too."""
    reached = 0
    for name, entry in sorted(entries.items(), key=lambda item: item[1].data_offsets):
        begin, end = entry.data_offsets
        if begin != reached:
            what = (
                "overlaps the one before it" if begin < reached else "leaves a gap before it (does a name stand twice?)"
            )
            yield f"the tensor {name[:80]!r} begins at byte {begin} and {what}"
        reached = max(reached, end)
