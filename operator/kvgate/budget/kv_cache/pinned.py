"""Pinned capacity: the KV cache gets the low end of the ledger, so that every start on every rank has the blocks that were promised."""

from collections.abc import Sequence

from msgspec import Struct

from kvgate.budget.ground.interval import Interval
from kvgate.budget.ground.units import MIB

PINNED_SAFETY_BYTES = 150 * MIB
"""Bytes of every GPU that stay free below the low end. vLLM leaves out the same of the size that it suggests for `--kv-cache-memory-bytes`,
because its own profile run may find too little (0.10.2 to 0.33, `Worker.compile_or_warm_up_model`, `redundancy_buffer_memory`)."""


class Pin(Struct, frozen=True, kw_only=True):
    """Size of the KV cache that vLLM is given, and the prediction of the size that it would find itself."""

    num_blocks: int
    """Blocks of every rank, the null block included; 0 where the low end holds none, so that nothing can be pinned."""
    cache_memory_bytes: int
    """Value of `--kv-cache-memory-bytes`. It is one for all ranks: the blocks on the pipeline stage where a block is largest."""
    available: Interval
    """Bytes that the ledger leaves on the stage that holds the fewest blocks; negative ends mean an overdrawn budget."""
    profiled_blocks: Interval
    """Blocks that vLLM would find itself."""

    @property
    def forgone_blocks(self) -> int:
        """Blocks that are given away against the expected size."""
        return self.profiled_blocks.expected - self.num_blocks


class PinnedCapacity(Struct, frozen=True, kw_only=True):
    """A pinned KV cache in figures, and what is given away against the size that vLLM is expected to find itself."""

    num_blocks: int
    num_tokens: int
    """Size as vLLM prints it."""
    kv_cache_bytes: int
    """Bytes of the blocks on the GPU that has the least room."""
    profiled_bytes: Interval
    """Bytes that vLLM would find itself on that GPU."""
    forgone_bytes: int
    forgone_tokens: int


def pin(
    stages: Sequence[tuple[Interval, int]], profiled_blocks: Interval, *, shrinks_to_fewest_blocks: bool
) -> tuple[Pin, int]:
    """Return the pin, and the index of the stage that decides it. `stages` are (available bytes, bytes per block) of pipeline stages.

    vLLM divides the one value by the size of each stage's blocks, and all ranks take the smallest result (0.32, `get_kv_cache_configs`):
    a multiple of the largest block gives exactly that many blocks everywhere. A release that does not shrink the other ranks lets each
    of them hold the whole value, which therefore must fit on the smallest.
    """
    largest = max(size for _, size in stages)
    counts = []
    for available, own_size in stages:
        room, size = available.low - PINNED_SAFETY_BYTES, own_size if shrinks_to_fewest_blocks else largest
        # a stage without caches limits nothing, unless it is overdrawn
        counts.append(max(0, room) // size if size else profiled_blocks.high * (room >= 0))
    blocks = min(counts)
    decides = counts.index(blocks)
    found = Pin(
        num_blocks=blocks,
        cache_memory_bytes=blocks * largest,
        available=stages[decides][0],
        profiled_blocks=profiled_blocks,
    )
    return found, decides
