"""The logged starts of starts.csv, and the request that a user could have made before each of them."""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvgate import catalogue
from kvgate.budget.releases.versions import DEFAULT_VERSION, accounting_of
from parity.tables import arguments_of

Row = dict[str, str]

HERE = Path(__file__).parent
GIB = 2**30

_WORDS = ("model", "gpu", "vllm_version", "dtype", "kv_cache_dtype")
_NUMBERS = (
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "decode_context_parallel_size",
    "max_model_len",
    "max_num_seqs",
    "max_num_batched_tokens",
)
_FLAGS = ("enable_expert_parallel", "enforce_eager")
_GPU_CLASSES = {"140": "140 and more", "160+": "140 and more"}
_BANDS = (((0, 11), "up to 0.10"), ((0, 20), "0.11 to 0.19"), ((0, 27), "0.20 to 0.26"))


@dataclass(frozen=True, kw_only=True)
class Start:
    """One row; figures in GiB per GPU."""

    row: Row
    requested_gib: float
    """gpu_memory_utilization × memory of one GPU. Errors are shares of it."""
    weights_gib: float | None
    available_gib: float | None
    """The available KV cache memory that vLLM logged; negative if the budget was overdrawn."""

    @property
    def id(self) -> str:
        return self.row["id"]

    @property
    def started(self) -> bool:
        return self.row["outcome"] == "started"

    @property
    def source(self) -> str:
        """The publisher: a repository for its files, and a thread, a page or a log for everything else."""
        address = re.split(r"[#?]", self.row["source"])[0]
        repository = re.match(r"https?://github\.com/[^/]+/[^/]+(/(issues|pull|discussions)/\d+)?", address)
        return repository[0] if repository else address

    def is_scored_for(self, purpose: str) -> bool:
        return purpose in self.row["scored_for"].split()

    def request(self, *, weights_given: bool = False, circumstances: bool = False) -> dict[str, Any]:
        """Return the request of this start.

        It has weights only if the server's checkpoint is not in the catalogue, or on demand; circumstances that its log shows only on
        demand.
        """
        row = self.row
        values: dict[str, Any] = {key: row[key] for key in _WORDS if row[key]}
        values |= {key: int(row[key]) for key in _NUMBERS if row[key]}
        values |= {key: row[key] == "yes" for key in _FLAGS if row[key]}
        if row["gpu_memory_utilization"]:
            values["gpu_memory_utilization"] = float(row["gpu_memory_utilization"])
        if row["gpu_memory_gib"]:
            values["gpu_memory_bytes"] = int(float(row["gpu_memory_gib"]) * GIB)
        if self.weights_gib is not None and (weights_given or row["weights_from"] == "log"):
            values["weights_bytes"] = int(self.weights_gib * GIB)
        told = self.circumstances if circumstances else {}
        return {**values, **arguments_of(row["further"]), **told, "id": self.id}

    @property
    def circumstances(self) -> dict[str, str]:
        """Facts of the start that its log shows and that are no options of vLLM."""
        shown = {key: self.row[key] for key in ("sampler", "compile_cache", "usage_context", "links") if self.row[key]}
        installed = self.row["installed_by"]
        return {**shown, "installed_by": "image" if installed == "image" else "pip"} if installed else shown

    def classes(self) -> Iterator[tuple[str, str]]:
        """Yield the (heading, class) pairs by which errors are grouped."""
        row = self.row
        yield "Kind of model", row["kind"]
        memory = _GPU_CLASSES.get(row["gpu_class"], row["gpu_class"])
        yield "GPU memory", memory if memory == "unified" else f"{memory} GiB"
        yield "vLLM", band_of(row["vllm_version"])
        several = any(row[size] not in ("", "1") for size in ("tensor_parallel_size", "pipeline_parallel_size"))
        yield "GPUs of the engine", "several" if several else "one"


def band_of(version: str) -> str:
    """Return the band of releases that account for memory in the same way."""
    if not version:
        return "not stated"
    release = tuple(int(part) for part in version.split(".")[:2])
    return next((name for below, name in _BANDS if release < below), "0.27 and later")


def read_rows(name: str) -> list[Row]:
    """Read a CSV table in the folder of this module, without its comments."""
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return list(csv.DictReader(line for line in lines if not line.startswith("#")))


def read_starts() -> list[Start]:
    return [_start(row) for row in read_rows("starts.csv")]


def _start(row: Row) -> Start:
    return Start(
        row=row,
        requested_gib=_memory_gib(row) * _utilization(row),
        weights_gib=_number(row["weights_gib"]),
        available_gib=_number(row["available_kv_gib"]),
    )


def _number(text: str) -> float | None:
    return float(text) if text else None


def _memory_gib(row: Row) -> float:
    if row["gpu_memory_gib"]:
        return float(row["gpu_memory_gib"])
    accelerator = catalogue.find_accelerator(row["gpu"])
    if accelerator is None:
        raise LookupError(f"{row['id']}: the memory of its GPU is neither logged nor in the catalogue")
    return accelerator.memory_bytes / GIB


def _utilization(row: Row) -> float:
    stated = row["gpu_memory_utilization"]
    return float(stated or accounting_of(row["vllm_version"] or DEFAULT_VERSION).gpu_memory_utilization)
