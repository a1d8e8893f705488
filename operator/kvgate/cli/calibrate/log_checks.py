"""Figures of a start-up log that cannot all be true, or that do not belong to the GPU and the model that were given."""

from collections.abc import Iterator

from kvgate import catalogue
from kvgate.budget import Budget
from kvgate.budget.gpu.non_torch import startup_slack
from kvgate.budget.ground.units import format_gib, gib
from kvgate.calibration.observed import NEIGHBOUR_BYTES, SAME_GPU_PERCENT
from kvgate.sources.startup_log import RankMemory

ROUNDING_BYTES = gib(0.05)
"""A log rounds each of up to five figures to 0.01 GiB, and the memory of the GPU, of which a share is requested."""
SAME_WEIGHTS_PERCENT = 25
"""Repacked and padded weights differ by less from the computed ones: at most 10 % in the logged starts of known checkpoints."""


def contradictions(rank: RankMemory, budget: Budget) -> Iterator[str]:
    """Yield every contradiction in a rank's figures, with the figures and what to do."""
    request, ledger = budget.request, budget.tightest.ledger if budget.tightest else None
    if ledger is None:
        return
    known = catalogue.find_accelerator(request.accelerator.name)
    total, weights, available = rank.total_bytes, rank.weights_bytes, rank.available_kv_cache_bytes
    if known and total is not None and abs(total - known.memory_bytes) * 100 > known.memory_bytes * SAME_GPU_PERCENT:
        yield (
            f"it shows a GPU of {format_gib(total)}, and {known.name} has {format_gib(known.memory_bytes)}; give the GPU of the "
            "log with --gpu"
        )
    else:
        yield from _overdrawn(rank, ledger.requested_bytes)
    if total is not None and available is not None and available > total:
        yield f"it shows {format_gib(available)} for the KV cache on a GPU of {format_gib(total)}; leave this log out"
    computed = ledger.weights.expected
    if weights is not None and abs(weights - computed) * 100 > max(weights, computed) * SAME_WEIGHTS_PERCENT:
        yield (
            f"it shows {format_gib(weights)} of weights, and {format_gib(computed)} are computed; give the model and the "
            "quantization that the server had"
        )


def _overdrawn(rank: RankMemory, requested_bytes: int) -> Iterator[str]:
    """Yield a contradiction if the parts are more than the requested memory: vLLM takes the KV cache from what they leave."""
    parts = {
        "weights": None if rank.consumed_bytes is not None else rank.weights_bytes,
        "weights and memory outside torch": rank.consumed_bytes,
        "peak activation": rank.peak_activation_bytes,
        "KV cache": rank.available_kv_cache_bytes,
    }
    known = {name: size for name, size in parts.items() if size is not None}
    if "KV cache" in known and sum(known.values()) > requested_bytes + ROUNDING_BYTES:
        sizes = " + ".join(f"{format_gib(size)} {name}" for name, size in known.items())
        yield (
            f"its figures are more than the {format_gib(requested_bytes)} that vLLM requested: {sizes}; give the GPU "
            "and the gpu_memory_utilization of the start, or leave this log out"
        )


def neighbour(rank: RankMemory, budget: Budget) -> str:
    """Return a remark if another process used the GPU when the engine started; empty if the log shows none."""
    request = budget.request
    if rank.total_bytes is None or rank.free_bytes is None:
        return ""
    own = startup_slack(request.accelerator, budget.accounting, request.settings.parallelism)
    held = rank.total_bytes - rank.free_bytes - own.expected
    if rank.total_bytes - rank.free_bytes <= own.high + NEIGHBOUR_BYTES:
        return ""
    return f"another process held about {format_gib(held)} of this GPU when the engine started"
