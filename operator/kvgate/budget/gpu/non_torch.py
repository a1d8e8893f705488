"""Memory outside torch's allocator: what is in use before vLLM's snapshot, and what kernels and communicators take after it."""

from kvgate.budget.engine.run import Run
from kvgate.budget.gpu.collectives import all_reduce_workspace_bytes, all_to_all_bytes, communicators, links_of
from kvgate.budget.gpu.cuda_graphs import captures_graphs
from kvgate.budget.ground import fitted
from kvgate.budget.ground.hardware import Accelerator, Parallelism
from kvgate.budget.ground.interval import Interval, Term
from kvgate.budget.releases.accounting import Accounting


def non_torch(run: Run) -> Term:
    """Return the memory that loaded kernels, and the exchange between several GPUs, take after the snapshot."""
    # from 0.27 on vLLM reads the figure before it captures graphs, and their part of it is in the estimate of the graphs
    captured = captures_graphs(run) and run.accounting.captures_graphs(run.accelerator.vendor, v2_runner=run.v2_runner)
    kernels = _kernels(run, after_graphs=captured and not run.accounting.consumed_accounting)
    found = links_of(run)
    links, workspace_bytes, exchange = communicators(run), all_reduce_workspace_bytes(run), all_to_all_bytes(run)
    return Term(
        name="non_torch",
        amount=kernels + links + exchange + Interval.exactly(workspace_bytes),
        formula="kernels + links + all_reduce_workspace" + (" + all_to_all" if exchange.expected else ""),
        facts=(found,) if run.parallelism.tensor > 1 else (),
        source="logged starts; vLLM 0.11 and 0.19, MemorySnapshot; NCCL 2.21 and FlashInfer 0.6, buffers",
        inputs=(
            ("tensor_parallel_size", run.parallelism.tensor),
            ("links", found.value if run.accelerator.vendor == "nvidia" or run.circumstances.links else "not known"),
            ("nccl", "counted" if run.accounting.nccl_in_budget else "before the snapshot"),
            ("kernels_bytes", kernels.expected),
            ("links_bytes", links.expected),
            ("all_reduce_workspace_bytes", workspace_bytes),
            *((("all_to_all_bytes", exchange.expected),) if exchange.expected else ()),
        ),
    )


def _kernels(run: Run, *, after_graphs: bool) -> Interval:
    by_vendor = {"amd": fitted.KERNELS_ROCM, "intel": fitted.KERNELS_XPU}
    is_large = run.accelerator.capability_major in (9, 10)
    graphs = fitted.KERNELS_AND_GRAPHS if is_large else fitted.KERNELS_AND_GRAPHS_SMALL
    alone = fitted.KERNELS_EARLY if run.accounting.nccl_in_budget else fitted.KERNELS
    alike = graphs if after_graphs and run.has_sampler else alone
    kernels = by_vendor.get(run.accelerator.vendor, alike).interval
    if run.accounting.whole_card_non_torch:
        kernels += fitted.CONTEXT.interval
    if run.accelerator.unified_memory:
        kernels += fitted.UNIFIED.interval
    return kernels + fitted.UNALIGNED.interval if run.shape.vocab_size % 16 else kernels


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
