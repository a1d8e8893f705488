"""The files of a repository that vLLM loads, and the indexes that say what is in them.

Rules: vLLM 0.32, `DefaultModelLoader._prepare_weights`, `filter_duplicate_safetensors_files`.
"""

import re
from collections.abc import Iterable
from typing import Any, Literal

import msgspec
from msgspec import Struct

from kvgate.checkpoint.tensors import MAX_TENSORS, CheckpointError

INDEX = "model.safetensors.index.json"
CONSOLIDATED_INDEX = "consolidated.safetensors.index.json"
BIN_INDEX = "pytorch_model.bin.index.json"
MAX_INDEX_BYTES = 64_000_000
"""Bytes of an index; that of the largest published checkpoint has 20 MB."""
_MAX_FILES = 2000
"""Files of weights in one repository; published ones have at most 300."""
_NOT_FOR_INFERENCE = ("training_args.bin", "optimizer.bin", "optimizer.pt", "scheduler.pt", "scaler.pt")
"""Endings of what a trainer leaves beside the weights (vLLM 0.32, `filter_files_not_needed_for_inference`)."""

FileKind = Literal["safetensors", "bin", "pt"]


class WeightIndex(Struct, frozen=True, kw_only=True):
    """Facts of an index: the files that it names, and the bytes of all tensors."""

    files: frozenset[str]
    num_tensors: int
    total_bytes: int = 0
    """`metadata.total_size`; 0: not stated. Tools differ in what they count, so headers go before it."""


class WeightFiles(Struct, frozen=True, kw_only=True):
    """The files that vLLM loads."""

    kind: FileKind
    names: tuple[str, ...]
    missing: tuple[str, ...] = ()
    """Files that the index names and the repository lacks: vLLM refuses the model."""


def read_index(data: bytes) -> WeightIndex:
    """Read `model.safetensors.index.json` or `pytorch_model.bin.index.json`. Raises CheckpointError."""
    if len(data) > MAX_INDEX_BYTES or data.count(b":") > 4 * MAX_TENSORS:
        raise CheckpointError(f"it has {len(data)} bytes; an index has at most {MAX_INDEX_BYTES}")
    try:
        index = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise CheckpointError(f"it is not JSON ({error})") from None
    weight_map: Any = index.get("weight_map") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise CheckpointError("weight_map is missing, or does not give a file for each tensor")
    files = frozenset(weight_map.values())
    outside = sorted(name for name in files if not is_plain_name(name))
    if outside or len(files) > _MAX_FILES:
        what = (
            f"weight_map names {outside[0][:60]!r}, which is no file of this folder"
            if outside
            else "it names too many files"
        )
        raise CheckpointError(what)
    return WeightIndex(files=files, num_tensors=len(weight_map), total_bytes=_total_bytes(index.get("metadata")))


def _total_bytes(metadata: Any) -> int:
    """Return the total where it is stated as a number; some tools write it as text or as a float."""
    value = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(value, str) and re.fullmatch(r"\d{1,15}", value, re.ASCII):
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 10**15:
        return 0
    return int(value)


def is_plain_name(name: str) -> bool:
    """Return True for the name of a file in the folder itself: no folder, no `..`, nothing that a shell or a log would misread."""
    return re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+=@ -]{0,254}", name) is not None and ".." not in name


def weight_files(names: Iterable[str]) -> WeightFiles | None:
    """Return the files that vLLM reads before it looks at an index: those of the first pattern that any file matches.

    Names of files in folders (`original/`, `onnx/`) are passed over, as vLLM passes them over. Those of Mistral come first since 0.12.
    None: there are no weights.
    """
    here = sorted(name for name in names if is_plain_name(name))
    consolidated = tuple(name for name in here if name.startswith("consolidated") and name.endswith(".safetensors"))
    if consolidated:
        return WeightFiles(kind="safetensors", names=consolidated)
    kinds: tuple[FileKind, ...] = ("safetensors", "bin", "pt")
    for kind in kinds:
        found = tuple(name for name in here if name.endswith(f".{kind}") and not name.endswith(_NOT_FOR_INFERENCE))
        if found:
            return WeightFiles(kind=kind, names=found)
    return None


def index_of(files: WeightFiles) -> str | None:
    """Return the name of the index that vLLM reads if there is one; None where it reads none."""
    if files.kind == "bin":
        return BIN_INDEX
    if files.kind != "safetensors":
        return None
    return CONSOLIDATED_INDEX if all(name.startswith("consolidated") for name in files.names) else INDEX


def with_index(files: WeightFiles, index: WeightIndex | None) -> WeightFiles:
    """Leave out what the index does not name, such as a second copy of all weights; name what is missing.

    `.bin` files are all loaded, whatever their index says.
    """
    if files.kind != "safetensors" or index is None:
        return files
    names = tuple(name for name in files.names if name in index.files)
    return WeightFiles(kind=files.kind, names=names, missing=tuple(sorted(index.files.difference(files.names))))
