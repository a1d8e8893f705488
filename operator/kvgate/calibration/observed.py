"""Starts as they are made of what an engine reports, and why one corrects nothing, in words."""

from collections.abc import Iterable, Iterator

from kvgate.budget import Budget, Calibration, GpuAtStart, ObservedStart, StartState, observed_start
from kvgate.budget.gpu.non_torch import startup_slack
from kvgate.budget.ground import fitted
from kvgate.budget.ground.units import format_gib, gib

NEIGHBOUR_BYTES = gib(0.5)
"""Memory in use before the start, beyond the most that the engine itself takes, from which another process is the explanation."""
SAME_GPU_PERCENT = 5
"""Cards of one name report memory that differs by less: with and without ECC, under Windows, by driver."""
LOG_ROUNDING_BYTES = gib(0.005)
"""Logs print GiB with two decimals."""


def start_of_blocks(
    budget: Budget, num_gpu_blocks: int, *, block_size: int | None = None, source: str
) -> ObservedStart | None:
    """Make a start of an engine's blocks on its tightest rank; None where the memory was given or pinned, or has no formula."""
    stage = budget.tightest
    if stage is None or not stage.bytes_per_block:
        return None
    # attention backends choose the block: the engine's may have another size than the expected one
    size, groups = stage.bytes_per_block, budget.kv_cache.groups if budget.kv_cache else ()
    if block_size and len(groups) == 1 and groups[0].spec.block_size:
        size = size * block_size // groups[0].spec.block_size
    # a figure in blocks of many GiB would agree with every other start: by its own word none is coarser than starts scatter
    half = min(size // 2, max(stage.bytes_per_block // 2, fitted.SCATTER.interval.high))
    return start_of_bytes(budget, num_gpu_blocks * size + half, resolution_bytes=half, source=source)


def start_of_bytes(
    budget: Budget, available_kv_cache_bytes: int, *, source: str, resolution_bytes: int = LOG_ROUNDING_BYTES,
    compile_cache: str = "", is_refused: bool = False,
) -> ObservedStart | None:  # fmt: skip
    """Make a start of a figure in bytes, as a start-up log has it, and of the kind that the log shows; is_refused: vLLM went no further."""
    stage = budget.tightest
    if stage is None or stage.ledger is None or budget.request.settings.gives_cache_memory or budget.pin:
        return None
    return observed_start(
        budget.request, budget.resolved, budget.accounting, (stage.first, stage.last),
        available_kv_cache_bytes=available_kv_cache_bytes, resolution_bytes=resolution_bytes, source=source,
        compile_cache=compile_cache, is_refused=is_refused,
    )  # fmt: skip


def gpu_at_start(budget: Budget, memory: Iterable[tuple[int | None, int | None]]) -> GpuAtStart:
    """Return what a log shows about the GPUs before the start: vLLM prints (total, free) bytes of each since 0.11.

    A GPU with less memory than its type has is a slice, whose other parts somebody else may use.
    """
    request = budget.request
    own = startup_slack(request.accelerator, budget.accounting, request.settings.parallelism).high + NEIGHBOUR_BYTES
    least = request.accelerator.memory_bytes * (100 - SAME_GPU_PERCENT) // 100
    held = [max(least - total, total - free - own) for total, free in memory if total is not None and free is not None]
    if not held:
        return GpuAtStart.UNKNOWN
    return GpuAtStart.SHARED if max(held) > 0 else GpuAtStart.EMPTY


def impossible_text(start: ObservedStart) -> str:
    """Return why physics does not allow the figure of a start, which then teaches nothing; empty where it does."""
    if start.is_possible:
        return ""
    seen, most = format_gib(start.available_kv_cache_bytes), format_gib(start.possible_bytes[1])
    if start.available_kv_cache_bytes > start.possible_bytes[1]:
        limit = f"its weights leave at most {most} of the {format_gib(start.requested_bytes)} that vLLM requests"
    else:
        limit = "no engine runs without memory for it"
    return f"{seen} of KV cache are impossible: {limit}; the start teaches nothing, so look at what reports this figure"


def unused_text(calibration: Calibration, start: ObservedStart) -> str | None:
    """Return the reason, for people, why a start corrects nothing; None where it corrects something."""
    state, key = calibration.state(start), start.key
    if state in (StartState.USED, StartState.DROPPED, StartState.OUTDATED, StartState.EXPIRED):
        return None  # nothing is wrong: somebody has decided so, or newer starts have, or the cluster has moved on
    what = f"{start.source or 'a start'} of {key.architecture} on {key.accelerator}, vLLM {key.vllm_version}"
    seen = f"{format_gib(start.available_kv_cache_bytes)} of KV cache"
    if state is StartState.IMPOSSIBLE:
        return f"{what}: {impossible_text(start)}"
    if state is StartState.IMPLAUSIBLE:
        expected = format_gib(start.predicted.expected)
        return f"{what} reported {seen} where {expected} was expected: it is not used; is it another setting, or a shared GPU?"
    if state is StartState.SHARED and start.gpu_at_start is GpuAtStart.SHARED:
        return f"{what} reported {seen}, and another process held memory of its GPU: it makes verdicts less certain and moves none"
    if state is StartState.SHARED:
        low = format_gib(start.predicted.low)
        return (
            f"{what} reported {seen} where at least {low} was expected, and no log shows that its GPU was empty: it makes other verdicts "
            "less certain and moves none; `kvgate calibrate pin` makes predictions follow it"
        )
    consequence = "none is used" if calibration.scope is None else "it makes other verdicts less certain and moves none"
    return f"{what} reported {seen}, other starts of the same setting reported something else: {consequence}; remove those that are wrong"


def unused_texts(calibration: Calibration) -> Iterator[str]:
    return filter(None, (unused_text(calibration, start) for start in calibration.starts))
