"""Memory outside torch's allocator: what is in use before vLLM's snapshot, and what the driver and NCCL take after it."""

from kvgate.budget.cuda_graphs import captures_graphs
from kvgate.budget.hardware import Accelerator, Parallelism
from kvgate.budget.interval import Interval, Term
from kvgate.budget.run import Run
from kvgate.budget.units import gib
from kvgate.budget.versions import Accounting

KERNELS = Interval(low=gib(0.02), expected=gib(0.12), high=gib(0.3))
"""Kernel modules that are loaded: 0.02 to 0.16 GiB in 25 starts of one GPU (0.6 to 0.17, and 0.26 on), 0.26 and 0.35 in three."""
KERNELS_AND_GRAPHS = Interval(low=gib(0.04), expected=gib(0.22), high=gib(0.35))
"""The same where graphs are captured before vLLM reads the figure: 0.24 to 0.27 GiB in 30 starts on H100 and B300, 0.05 to 0.2 on
smaller GPUs."""
UNALIGNED_BYTES = gib(0.25)
"""Two starts with a vocabulary that is no multiple of 16 (Granite 3.1, 0.19) show 0.21 GiB more; the reason is not known."""
UNIFIED = Interval(low=-gib(1), expected=gib(0.5), high=gib(4.5))
"""Other processes count where CPU and GPU share the memory: logs show -0.5 to 8 GiB."""
CONTEXT = Interval(low=gib(0.3), expected=gib(0.5), high=gib(1))
"""The CUDA context, in the release that counts all memory in use on the card (0.8)."""

NCCL = Interval(low=gib(0.2), expected=gib(1.6), high=gib(3.4))
"""All of NCCL over NVLink, before 0.11: 1.3 (H200), 1.7 (H100), 2.0 (A100, 8 ranks), 0.2 (A100 40 GB), 3.4 (H100, 0.6)."""
NCCL_FIRST_USE = Interval(low=gib(0.15), expected=gib(0.41), high=gib(0.9))
"""Channels that NCCL opens for the first collective, after the snapshot: two starts on H100 with 2 ranks (0.11)."""
NCCL_GRAPHS_H100 = Interval(low=gib(1.6), expected=gib(1.86), high=gib(2.2))
"""The same after graphs were captured: 11 configurations on H100 with 2 and 4 ranks (0.19), 1.82 to 1.98."""
NCCL_GRAPHS = Interval(low=gib(0.1), expected=gib(0.9), high=gib(2))
"""The same on other GPUs with NVLink: 0.4 (H20), 0.7 (GB200), 1.4 (B300) and 1.5 GiB (H200), one start each."""
STAGES = Interval(low=0, expected=gib(0.2), high=gib(1.1))
"""Links between the stages of a pipeline, which carry little: 0.07 GiB in all in two starts of Llama-3.1-8B (0.19)."""
NCCL_PCIE = Interval(low=0, expected=gib(0.1), high=gib(0.7))
"""NCCL over PCIe, in any release: 0 to 0.2 GiB in five starts, 0.6 in one."""

SLACK_CONTEXT = Interval(low=gib(0.15), expected=gib(0.45), high=gib(0.75))
"""The CUDA context, as total less free memory at start-up: 0.17 to 0.61 GiB in 16 starts of one GPU from L4 to B300."""
SLACK_NVLINK = Interval(low=gib(0.3), expected=gib(1.0), high=gib(3.2))
"""Communicators over NVLink: 0.93 (H100, 2 ranks, 0.11), 2.0 (GB200, 4 ranks), 3.0 (B300)."""
SLACK_PCIE = Interval(low=gib(0.1), expected=gib(0.4), high=gib(2))
"""Communicators over PCIe: 0.2 (24 GB, 2 ranks), 0.5 (RTX PRO 6000, 4 ranks), 2 (L4, 2 ranks, a fault of torch 2.11)."""
SLACK_ELSEWHERE = Interval(low=0, expected=gib(0.4), high=gib(2.5))
"""GPUs of other vendors: 0.33 GiB in one start on MI300X."""
SLACK_UNIFIED = Interval(low=0, expected=gib(3), high=gib(12))
"""GPUs that share the CPU's memory: all that the host uses counts too, 2 to 10 GiB on GB10."""


def non_torch(run: Run) -> Term:
    """Return the memory that loaded kernels, and NCCL's channels between several GPUs, take after the snapshot."""
    # from 0.27 on vLLM reads the figure before it captures graphs, and NCCL's part of them is in the estimate of the graphs
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
    kernels = KERNELS_AND_GRAPHS if after_graphs and not run.accounting.consumed_accounting else KERNELS
    if run.accounting.whole_card_non_torch:
        kernels += CONTEXT
    if run.accelerator.unified_memory:
        kernels += UNIFIED
    if run.shape.vocab_size % 16:
        kernels = Interval(low=kernels.low, expected=kernels.expected, high=kernels.high + UNALIGNED_BYTES)
    return kernels


def _links(run: Run, *, after_graphs: bool) -> Interval:
    if run.parallelism.tensor == 1:
        return STAGES if run.parallelism.pipeline > 1 else Interval.exactly(0)
    if not run.accelerator.nvlink:
        return NCCL_PCIE
    if run.accounting.nccl_in_budget:
        return NCCL
    if not after_graphs:
        return NCCL_FIRST_USE
    is_h100 = run.accelerator.compute_capability == (9, 0) and run.accelerator.memory_bytes < gib(90)
    return NCCL_GRAPHS_H100 if is_h100 else NCCL_GRAPHS


def startup_slack(accelerator: Accelerator, accounting: Accounting, parallelism: Parallelism) -> Interval:
    """Return total − free memory at start-up on a GPU that nobody else uses.

    It must fit into the share that gpu_memory_utilization leaves: vLLM refuses to start if free < total × gpu_memory_utilization.
    """
    if accelerator.unified_memory:
        return SLACK_UNIFIED
    if accelerator.vendor != "nvidia":
        return SLACK_ELSEWHERE
    if parallelism.tensor * parallelism.pipeline == 1 or accounting.nccl_in_budget:
        return SLACK_CONTEXT
    return SLACK_CONTEXT + (SLACK_NVLINK if accelerator.nvlink else SLACK_PCIE)
