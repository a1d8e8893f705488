"""Starts of real vLLM servers, for engines that report what a real one had: the figures are of public logs, and of no prediction."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from fleet.fake_vllm import Engine

TABLE = Path(__file__).resolve().parent / "data" / "recorded_starts.csv"
GIB = 1 << 30
BLOCK_SIZE = 16
ELEMENT_BYTES = 2
"""Bytes of a key's or a value's element; all of these caches are bfloat16."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedStart:
    """One start; its cache has one layout for all layers."""

    deployment: str
    start: str
    """Id in benchmarks/accuracy/starts.csv; empty where it is not in there."""
    available_kv_gib: float
    layers: int
    kv_heads: int
    head_size: int
    vllm_version: str
    gpu_memory_utilization: float
    ran: str
    """Settings of this start, in words."""
    source: str

    @property
    def num_gpu_blocks(self) -> int:
        """Blocks that vLLM makes of the memory: a block holds the keys and values of all layers for its tokens."""
        block_bytes = 2 * self.layers * self.kv_heads * self.head_size * ELEMENT_BYTES * BLOCK_SIZE
        return int(self.available_kv_gib * GIB) // block_bytes

    def engine(self) -> Engine:
        """Return the engine that reports it."""
        return Engine(
            vllm_version=self.vllm_version, model_name=self.deployment, num_gpu_blocks=self.num_gpu_blocks,
            block_size=BLOCK_SIZE, gpu_memory_utilization=self.gpu_memory_utilization,
        )  # fmt: skip


@lru_cache(maxsize=1)
def recorded_starts() -> dict[str, list[RecordedStart]]:
    """Return the starts of each InferenceDeployment, in their order."""
    found: dict[str, list[RecordedStart]] = {}
    with TABLE.open(encoding="utf-8") as lines:
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            numbers = {name: int(row.pop(name)) for name in ("layers", "kv_heads", "head_size")}
            shares = {name: float(row.pop(name)) for name in ("available_kv_gib", "gpu_memory_utilization")}
            start = RecordedStart(**row, **numbers, **shares)
            found.setdefault(start.deployment, []).append(start)
    return found
