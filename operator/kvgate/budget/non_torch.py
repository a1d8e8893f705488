"""Memory outside torch's allocator: what is in use before vLLM's snapshot, and what the driver and fitted.NCCL.interval take after it."""

from kvgate.budget import fitted
from kvgate.budget.cuda_graphs import captures_graphs
from kvgate.budget.hardware import Accelerator, Parallelism
from kvgate.budget.interval import Interval, Term
from kvgate.budget.run import Run
from kvgate.budget.units import gib
from kvgate.budget.versions import Accounting


def non_torch(run: Run) -> Term:
    """Return the memory that loaded kernels, and fitted.NCCL.interval's channels between several GPUs, take after the snapshot."""
    # from 0.27 on vLLM reads the figure before it captures graphs, and fitted.NCCL.interval's part of them is in the estimate of the graphs
    after_graphs = captures_graphs(run) and run.accounting.captures_graphs(v2_runner=run.v2_runner)
    kernels, links = _kernels(run, after_graphs=after_graphs), _links(run, after_graphs=after_graphs)
    return Term(
        name="non_torch",
        amount=kernels + links,
        formula="kernels + links",
        source="logged starts; vLLM 0.11 and 0.19, MemorySnapshot",
        inputs=(
            ("tensor_parallel_size", run.parallelism.tensor),
            ("links", "NVLink" if run.accelerator.nvlink else "PCIe"),
            ("nccl", "counted" if run.accounting.nccl_in_budget else "before the snapshot"),
            ("kernels_bytes", kernels.expected),
            ("links_bytes", links.expected),
        ),
    )


def _kernels(run: Run, *, after_graphs: bool) -> Interval:
    kernels = (
        fitted.KERNELS_AND_GRAPHS.interval
        if after_graphs and not run.accounting.consumed_accounting
        else fitted.KERNELS.interval
    )
    if run.accounting.whole_card_non_torch:
        kernels += fitted.CONTEXT.interval
    if run.accelerator.unified_memory:
        kernels += fitted.UNIFIED.interval
    if run.shape.vocab_size % 16:
        kernels = Interval(
            low=kernels.low, expected=kernels.expected, high=kernels.high + fitted.UNALIGNED.interval.high
        )
    return kernels


def _links(run: Run, *, after_graphs: bool) -> Interval:
    if run.parallelism.tensor == 1:
        return fitted.STAGES.interval if run.parallelism.pipeline > 1 else Interval.exactly(0)
    if not run.accelerator.nvlink:
        return fitted.NCCL_PCIE.interval
    if run.accounting.nccl_in_budget:
        return fitted.NCCL.interval
    if not after_graphs:
        return fitted.NCCL_FIRST_USE.interval
    is_h100 = run.accelerator.compute_capability == (9, 0) and run.accelerator.memory_bytes < gib(90)
    return fitted.NCCL_GRAPHS_H100.interval if is_h100 else fitted.NCCL_GRAPHS.interval


def startup_slack(accelerator: Accelerator, accounting: Accounting, parallelism: Parallelism) -> Interval:
    """Return total − free memory at start-up on a GPU that nobody else uses.

    It must fit into the share that gpu_memory_utilization leaves: vLLM refuses to start if free < total × gpu_memory_utilization.
    """
    if accelerator.unified_memory:
        return fitted.SLACK_UNIFIED.interval
    if accelerator.vendor != "nvidia":
        return fitted.SLACK_ELSEWHERE.interval
    if parallelism.tensor * parallelism.pipeline == 1 or accounting.nccl_in_budget:
        return fitted.SLACK_CONTEXT.interval
    return fitted.SLACK_CONTEXT.interval + (
        fitted.SLACK_NVLINK.interval if accelerator.nvlink else fitted.SLACK_PCIE.interval
    )
