"""Tensors of a checkpoint by name, dtype and shape: from the header of a safetensors file, and as a summary that is small enough to keep.

Layout and limits of a header are those of the safetensors crate (0.8, `SafeTensors::read_metadata`): 8 bytes with the header's length, the
header as JSON, and the tensors without gaps.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import prod

import msgspec
from msgspec import Raw, Struct

MAX_TENSORS = 400_000
"""Tensors of one checkpoint; the largest published one (Kimi-K2-Thinking: 384 experts in 60 layers) has 210,000."""
MAX_NAME = 512
"""Characters of a tensor's name; published ones have less than 120."""
MAX_GROUPS = 2048
"""Groups of one summary; published checkpoints have less than 200."""
_FOLDED = 4
"""Numbers of a name that are folded; published names have at most three (layer, expert, part of a projector)."""
_MAX_RANGES = 20_000
"""Characters of the numbers of one group."""


class CheckpointError(ValueError):
    """A file of a checkpoint that cannot be read; `problems` has one sentence for each thing that is wrong."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


FLOATS = frozenset({"F64", "F32", "F16", "BF16"})
"""Dtypes of plain weights, which vLLM loads into a tensor of the model dtype."""
DTYPES: dict[str, tuple[int, int]] = {
    # safetensors 0.8, `Dtype`
    "BOOL": (1, 1), "U8": (1, 1), "I8": (1, 1), "U16": (1, 2), "I16": (1, 2), "U32": (1, 4), "I32": (1, 4), "U64": (1, 8),
    "I64": (1, 8), "C64": (1, 8), "F64": (1, 8), "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "F8_E4M3": (1, 1),
    "F8_E5M2": (1, 1), "F8_E8M0": (1, 1), "F8_E4M3FNUZ": (1, 1), "F8_E5M2FNUZ": (1, 1), "F6_E2M3": (4, 3), "F6_E3M2": (4, 3),
    "F4": (2, 1),
    # gguf 0.19, `GGML_QUANT_SIZES`
    "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24), "Q8_0": (32, 34), "Q8_1": (32, 40),
    "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210), "Q8_K": (256, 292),
    "IQ1_S": (256, 50), "IQ1_M": (256, 56), "IQ2_XXS": (256, 66), "IQ2_XS": (256, 74), "IQ2_S": (256, 82),
    "IQ3_XXS": (256, 98), "IQ3_S": (256, 110), "IQ4_NL": (32, 18), "IQ4_XS": (256, 136), "TQ1_0": (256, 54),
    "TQ2_0": (256, 66), "Q1_0": (128, 18), "MXFP4": (32, 17), "NVFP4": (64, 36),
}  # fmt: skip
"""Dtype → (elements of a block, bytes of a block)."""


class StoredTensor(Struct, frozen=True, kw_only=True):
    name: str
    dtype: str
    """One of DTYPES."""
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return bytes_of(self.dtype, self.shape)


def bytes_of(dtype: str, shape: tuple[int, ...]) -> int:
    """Return the bytes of a tensor; those of ggml's types are whole blocks in every row."""
    elements, size = DTYPES[dtype]
    return prod(shape) * size // elements


class TensorGroup(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, forbid_unknown_fields=True):
    """Tensors of one dtype and one shape, whose names differ in numbers only."""

    name: str
    """Name with `{}` in the place of each number: `model.layers.{}.self_attn.q_proj.weight`."""
    dtype: str
    """Name that the file gives it: `BF16`, `F8_E4M3`, `U8`, `I32`; of a GGUF file `Q4_K`."""
    shape: tuple[int, ...]
    count: int = 1
    numbers: tuple[str, ...] = ()
    """Numbers of each `{}` as ranges (`0-27`, `0-2,5`); every combination of them is a tensor."""
    size_bytes: int
    """Bytes of all tensors of the group together."""

    def at(self, index: int) -> Iterator[int]:
        """Return the numbers of one `{}`."""
        return (number for first, last in _ranges(self.numbers[index]) for number in range(first, last + 1))


def _group(name: str, dtype: str, shape: tuple[int, ...], numbers: tuple[str, ...]) -> TensorGroup:
    count = prod(sum(last - first + 1 for first, last in _ranges(each)) for each in numbers)
    size_bytes = count * bytes_of(dtype, shape)
    return TensorGroup(name=name, dtype=dtype, shape=shape, count=count, numbers=numbers, size_bytes=size_bytes)


def summarize(tensors: Iterable[StoredTensor]) -> tuple[TensorGroup, ...]:
    """Fold the numbers of layers and experts, so that 20,000 tensors become a hundred groups; nothing is lost.

    Raises CheckpointError where a name stands twice, and where the names are too irregular to fold.
    """
    places: dict[tuple[str, str, tuple[int, ...]], set[tuple[int, ...]]] = {}
    seen: set[tuple[str, tuple[int, ...]]] = set()
    for tensor in tensors:
        parts = tensor.name.split(".")
        folded: list[int] = []
        for index, part in enumerate(parts):
            is_number = part.isascii() and part.isdecimal() and len(part) <= 5 and (part == "0" or part[0] != "0")
            if is_number and len(folded) < _FOLDED:
                folded.append(int(part))
                parts[index] = "{}"
        pattern, numbers = ".".join(parts), tuple(folded)
        if (pattern, numbers) in seen:
            raise CheckpointError(f"the tensor {tensor.name!r} stands twice")
        seen.add((pattern, numbers))
        places.setdefault((pattern, tensor.dtype, tensor.shape), set()).add(numbers)
        if len(seen) > MAX_TENSORS or len(places) > MAX_GROUPS:
            raise CheckpointError(f"it has more than {MAX_TENSORS} tensors, or more than {MAX_GROUPS} kinds of them")
    groups = [
        _group(pattern, dtype, shape, numbers)
        for (pattern, dtype, shape), found in places.items()
        for numbers in _products(found)
    ]
    if len(groups) > MAX_GROUPS:
        raise CheckpointError(f"its tensors are of {len(groups)} kinds; published checkpoints have less than 200")
    return tuple(sorted(groups, key=lambda group: (group.name, group.numbers, group.dtype, group.shape)))


def check_summary(groups: tuple[TensorGroup, ...]) -> None:
    """Refuse a summary that `summarize` did not write, because it may stand in a file that people edit. Raises CheckpointError."""
    problems = list[str]()
    for group in groups[:MAX_GROUPS]:
        what = f"the group {group.name[:60]!r}"
        if len(group.name) > MAX_NAME or group.name.count("{}") != len(group.numbers) or len(group.numbers) > _FOLDED:
            problems.append(
                f"{what} needs numbers for each of its {{}}, at most {_FOLDED}, and at most {MAX_NAME} characters"
            )
        elif group.dtype not in DTYPES:
            problems.append(f"{what} has the dtype {group.dtype[:20]!r}, which is none of safetensors or ggml")
        elif len(group.shape) > 8 or any(not 0 <= size <= 1 << 40 for size in group.shape):
            problems.append(f"{what} has a shape that no tensor has")
        elif wrong := [numbers for numbers in group.numbers if not _is_written(numbers)]:
            problems.append(f"{what} has the numbers {wrong[0][:40]!r}; they are written as 0-3,5")
        elif group != _group(group.name, group.dtype, group.shape, group.numbers):
            problems.append(f"{what} has a count or size that its numbers and its shape do not give")
    if len(groups) > MAX_GROUPS:
        problems.append(f"it has {len(groups)} groups of tensors; the limit is {MAX_GROUPS}")
    elif not problems and sum(group.count for group in groups) > MAX_TENSORS:
        problems.append(f"it has more than {MAX_TENSORS} tensors")
    if problems:
        raise CheckpointError(*problems[:5])


def _is_written(numbers: str) -> bool:
    """Return True for ranges as `_written` writes them, in a text that is read fast."""
    if len(numbers) > _MAX_RANGES or not re.fullmatch(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*", numbers, re.ASCII):
        return False
    ranges = list(_ranges(numbers))
    is_ascending = all(before[1] < after[0] for before, after in pairwise(ranges))
    return is_ascending and all(first <= last for first, last in ranges)


def _products(found: set[tuple[int, ...]]) -> list[tuple[str, ...]]:
    """Write a set of number tuples as few products of ranges, each as text."""
    if () in found:
        return [()]
    rests: dict[int, set[tuple[int, ...]]] = {}
    for first, *rest in found:
        rests.setdefault(first, set()).add(tuple(rest))
    firsts: dict[tuple[str, ...], list[int]] = {}
    for first, tails in sorted(rests.items()):
        for tail in _products(tails):
            firsts.setdefault(tail, []).append(first)
    return [(_written(numbers), *tail) for tail, numbers in firsts.items()]


def _written(numbers: list[int]) -> str:
    """Write ascending numbers as ranges: 0, 1, 2, 5 → `0-2,5`."""
    starts = [number for before, number in pairwise([-2, *numbers]) if number != before + 1]
    ends = [number for number, after in pairwise([*numbers, -2]) if after != number + 1]
    return ",".join(
        f"{first}-{last}" if first != last else str(first) for first, last in zip(starts, ends, strict=True)
    )


def _ranges(text: str) -> Iterator[tuple[int, int]]:
    for part in text.split(","):
        first, _, last = part.partition("-")
        yield int(first), int(last or first)


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
    problems = [problem for name, entry in entries.items() for problem in _entry_problems(name, entry)]
    ordered, reached = sorted(entries.items(), key=lambda item: item[1].data_offsets), 0
    for name, entry in () if problems else ordered:
        begin, end = entry.data_offsets
        if begin != reached:  # a name that stands twice leaves a gap too
            overlaps = begin < reached
            what = "overlaps the one before it" if overlaps else "leaves a gap before it (does a name stand twice?)"
            problems.append(f"the tensor {name[:80]!r} begins at byte {begin} and {what}")
        reached = max(reached, end)
    stated = LENGTH_BYTES + len(header) + max((entry.data_offsets[1] for entry in entries.values()), default=0)
    if not problems and file_bytes is not None and file_bytes != stated:
        problems.append(f"it has {file_bytes} bytes and its header describes {stated}; it is truncated, or has a tail")
    if problems:
        more = [f"{len(problems) - _SHOWN} more problems"] if len(problems) > _SHOWN else []
        raise CheckpointError(*problems[:_SHOWN], *more)
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


def _entry_problems(name: str, entry: _Entry) -> Iterator[str]:
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
