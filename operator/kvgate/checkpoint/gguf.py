"""The header of a GGUF file: its metadata, and its tensors with their ggml types.

Layout: ggml's `gguf.md`, versions 2 and 3, in either byte order. Everything before the tensors' bytes is read, and of long lists only
how many entries they have: a vocabulary takes 5 MB, and only its length matters.
"""

import re
import struct
from collections.abc import Mapping, Sequence
from math import isfinite

from msgspec import Struct

from kvgate.checkpoint.tensors import DTYPES, MAX_NAME, MAX_TENSORS, CheckpointError, StoredTensor
from kvgate.text.patterns import pattern

MAGIC = b"GGUF"
MAX_HEADER_BYTES = 64_000_000
"""Bytes before the tensors; published files have at most 20 million (a vocabulary of 260,000 with its merges)."""
_MAX_KEYS = 10_000
_MAX_LIST = 4096
"""Entries of a list that is kept; one entry for each layer is less."""
_MAX_TEXT = 4096
"""Bytes of a text that is kept; chat templates are longer, and nobody needs them here."""
_MAX_ENTRIES = 4_000_000
"""Entries of a list that is passed over."""
_DEFAULT_ALIGNMENT = 32

Scalar = int | float | bool | str
Value = Scalar | tuple[Scalar, ...]

GGML_TYPES: dict[int, str] = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K",
    13: "Q5_K", 14: "Q6_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S", 20: "IQ4_NL", 21: "IQ3_S",
    22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64", 29: "IQ1_M", 30: "BF16", 34: "TQ1_0",
    35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
"""`ggml_type` → name (gguf 0.19, `GGMLQuantizationType`)."""
_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Type of a metadata value → `struct` format."""
_TEXT, _LIST = 8, 9
_SPLIT = pattern(r"(?P<stem>.*)-(?P<number>\d+)-of-(?P<count>\d+)\.gguf", re.ASCII)


class Truncated(CheckpointError):
    """The bytes end before the header does: read more of the file, as long as it has more."""


class GgufFile(Struct, frozen=True, kw_only=True):
    metadata: Mapping[str, Value]
    """Values by key, without long texts and long lists."""
    lengths: Mapping[str, int]
    """Entries of each list that is not kept (`tokenizer.ggml.tokens`)."""
    tensors: tuple[StoredTensor, ...]
    """With the names of the file (`blk.0.attn_q.weight`), and rows before columns."""
    header_bytes: int

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture", ""))


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0
        self.order = "<"

    def take(self, size: int) -> bytes:
        if self.at + size > len(self.data):
            if self.at + size > MAX_HEADER_BYTES:
                raise CheckpointError(f"its header takes more than {MAX_HEADER_BYTES} bytes")
            raise Truncated(f"its header ends after {len(self.data)} bytes, and needs at least {self.at + size}")
        self.at += size
        return self.data[self.at - size : self.at]

    def number(self, form: str) -> int:
        value: int = struct.unpack(self.order + form, self.take(struct.calcsize(f"={form}")))[0]
        return value

    def text(self, limit: int) -> str | None:
        """Return a text; None where it is longer than the limit, and passed over."""
        size = self.number("Q")
        raw = self.take(size)
        if size > limit:
            return None
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise CheckpointError(f"it has a text at byte {self.at - size} that is not Unicode") from None

    def scalar(self, kind: int) -> Scalar | None:
        """Return a value of a type; None for a text that is not kept."""
        if kind == _TEXT:
            return self.text(_MAX_TEXT)
        if kind not in _FORMATS:
            raise CheckpointError(f"it has a value of type {kind} at byte {self.at}, which GGUF does not have")
        form = _FORMATS[kind]
        value: Scalar = struct.unpack(self.order + form, self.take(struct.calcsize(f"={form}")))[0]
        return value if not isinstance(value, float) or isfinite(value) else 0.0

    def entries(self) -> tuple[int, tuple[Scalar, ...] | None]:
        """Return how many entries a list has, and the entries of a short one."""
        kind, count = self.number("I"), self.number("Q")
        if kind == _LIST or count > _MAX_ENTRIES:
            raise CheckpointError(f"it has a list of lists, or of {count} entries, at byte {self.at}")
        if kind != _TEXT and count > _MAX_LIST:
            self.take(count * struct.calcsize(f"={_FORMATS.get(kind, 'B')}"))
            return count, None
        if kind == _TEXT and count > _MAX_LIST:
            for _ in range(count):
                self.take(self.number("Q"))
            return count, None
        return count, tuple(value for value in [self.scalar(kind) for _ in range(count)] if value is not None)


def read_gguf(data: bytes, *, file_bytes: int | None = None) -> GgufFile:
    """Read a header from the first bytes of a file.

    `file_bytes` is the size of the whole file where it is known; the tensors must lie in it. Raises Truncated where more bytes are
    needed, and CheckpointError where no bytes would help.
    """
    cursor = _Cursor(data)
    num_tensors, num_keys = _opening(cursor)
    metadata: dict[str, Value] = {}
    lengths: dict[str, int] = {}
    for _ in range(num_keys):
        key = cursor.text(MAX_NAME)
        if key is None or not key.isprintable() or key in metadata or key in lengths:
            raise CheckpointError(f"it has a key before byte {cursor.at} that is too long, or stands twice")
        kind = cursor.number("I")
        if kind == _LIST:
            lengths[key], values = cursor.entries()
            if values is not None:
                metadata[key] = values
        elif (value := cursor.scalar(kind)) is not None:
            metadata[key] = value
    found = [_tensor(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if isinstance(alignment, bool) or not isinstance(alignment, int) or not 8 <= alignment <= 1 << 20 or alignment % 8:
        raise CheckpointError(f"general.alignment is {str(alignment)[:20]}; it must be a multiple of 8")
    begin = -(-cursor.at // alignment) * alignment
    # no tensor overlaps another one or lies outside the file
    data_bytes = None if file_bytes is None else file_bytes - begin
    reached = 0
    for tensor, offset in sorted(found, key=lambda item: item[1]):
        if offset % alignment or offset < reached:
            raise CheckpointError(f"the tensor {tensor.name[:80]!r} begins at byte {offset}, in the one before it")
        reached = offset + tensor.size_bytes
    if data_bytes is not None and reached > data_bytes:
        raise CheckpointError(
            f"its tensors take {reached} bytes and the file has {max(0, data_bytes)} for them; it is truncated"
        )
    tensors = tuple(tensor for tensor, _ in found)
    return GgufFile(metadata=metadata, lengths=lengths, tensors=tensors, header_bytes=cursor.at)


def _opening(cursor: _Cursor) -> tuple[int, int]:
    """Read the first 24 bytes: (tensors, keys)."""
    if cursor.take(len(MAGIC)) != MAGIC:
        raise CheckpointError("it does not begin with GGUF; this is no GGUF file")
    version = cursor.number("I")
    if version & 0xFFFF == 0:  # a small number in the other byte order
        cursor.order = ">"
        version = int.from_bytes(version.to_bytes(4, "little"), "big")
    if version not in (2, 3):
        raise CheckpointError(f"it is GGUF of version {version}; versions 2 and 3 can be read")
    num_tensors, num_keys = cursor.number("Q"), cursor.number("Q")
    if num_tensors > MAX_TENSORS or num_keys > _MAX_KEYS:
        raise CheckpointError(
            f"it states {num_tensors} tensors and {num_keys} keys; the limits are {MAX_TENSORS} and {_MAX_KEYS}"
        )
    return num_tensors, num_keys


def _tensor(cursor: _Cursor) -> tuple[StoredTensor, int]:
    """Read a tensor and where it begins. ggml counts dimensions from the innermost one, which is a row."""
    name = cursor.text(MAX_NAME)
    if name is None or not name.isprintable() or "{" in name:
        raise CheckpointError(
            f"it has a tensor before byte {cursor.at} whose name is too long, or has signs that no name has"
        )
    num_dimensions = cursor.number("I")
    if num_dimensions > 4:
        raise CheckpointError(f"the tensor {name[:80]!r} has {num_dimensions} dimensions; ggml has at most 4")
    sizes = [cursor.number("Q") for _ in range(num_dimensions)]
    kind, offset = cursor.number("I"), cursor.number("Q")
    dtype = GGML_TYPES.get(kind)
    if dtype is None:
        raise CheckpointError(f"the tensor {name[:80]!r} has the ggml type {kind}, which this version does not know")
    if any(size > 1 << 40 for size in sizes) or (sizes and sizes[0] % DTYPES[dtype][0]):
        raise CheckpointError(f"the tensor {name[:80]!r} has rows of {sizes[0]} elements, which {dtype} cannot store")
    return StoredTensor(name=name, dtype=dtype, shape=tuple(reversed(sizes))), offset


def split_names(name: str) -> tuple[str, ...]:
    """Return the names of all files of a split (`…-00001-of-00005.gguf`); of any other file its own name.

    vLLM 0.20+ loads all of them, whichever is named (`GGUFModelLoader._get_all_gguf_files`); older releases load single files only.
    """
    found = _SPLIT.fullmatch(name)
    if found is None or not 1 <= int(found["count"]) <= 1000:
        return (name,)
    width, count = len(found["number"]), int(found["count"])
    return tuple(f"{found['stem']}-{number:0{width}d}-of-{count:0{width}d}.gguf" for number in range(1, count + 1))


def joined(files: Sequence[GgufFile]) -> GgufFile:
    """Return the files of a split as one: the metadata stands in the first. Raises CheckpointError where one is missing."""
    first = files[0]
    stated, total = first.metadata.get("split.count", 1), first.metadata.get("split.tensors.count")
    tensors = tuple(tensor for file in files for tensor in file.tensors)
    if stated != len(files) or total not in (None, len(tensors)):
        raise CheckpointError(
            f"it is one of {stated} files with {total or 'some'} tensors, and {len(files)} with {len(tensors)} are here"
        )
    return GgufFile(
        metadata=first.metadata,
        lengths=first.lengths,
        tensors=tensors,
        header_bytes=sum(each.header_bytes for each in files),
    )
