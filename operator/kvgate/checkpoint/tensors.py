"""Tensors of a checkpoint by name, dtype and shape, and their summary, which is small enough to keep."""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from math import prod

from msgspec import Struct

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
    """One tensor as a file stores it."""

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
    problems = [problem for group in groups[:MAX_GROUPS] for problem in _problems(group)]
    if len(groups) > MAX_GROUPS:
        problems.append(f"it has {len(groups)} groups of tensors; the limit is {MAX_GROUPS}")
    elif not problems and sum(group.count for group in groups) > MAX_TENSORS:
        problems.append(f"it has more than {MAX_TENSORS} tensors")
    if problems:
        raise CheckpointError(*problems[:5])


def _problems(group: TensorGroup) -> Iterator[str]:
    name = group.name[:60]
    if len(group.name) > MAX_NAME or group.name.count("{}") != len(group.numbers) or len(group.numbers) > _FOLDED:
        yield f"the group {name!r} needs numbers for each of its {{}}, at most {_FOLDED}, and at most {MAX_NAME} characters"
    elif group.dtype not in DTYPES:
        yield f"the group {name!r} has the dtype {group.dtype[:20]!r}, which is none of safetensors or ggml"
    elif len(group.shape) > 8 or any(not 0 <= size <= 1 << 40 for size in group.shape):
        yield f"the group {name!r} has a shape that no tensor has"
    elif wrong := [numbers for numbers in group.numbers if not _is_written(numbers)]:
        yield f"the group {name!r} has the numbers {wrong[0][:40]!r}; they are written as 0-3,5"
    elif group != _group(group.name, group.dtype, group.shape, group.numbers):
        yield f"the group {name!r} has a count or size that its numbers and its shape do not give"


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
