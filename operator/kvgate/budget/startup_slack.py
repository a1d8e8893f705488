"""Memory of a GPU that is in use before vLLM looks at it; it must fit into the share that gpu_memory_utilization leaves."""

from kvgate.budget.hardware import Accelerator, Parallelism
from kvgate.budget.interval import Interval
from kvgate.budget.units import gib
from kvgate.budget.versions import Accounting

SLACK_CONTEXT = Interval(low=gib(0.15), expected=gib(0.45), high=gib(0.75))
"""The CUDA context, total less free at start-up: 0.17 to 0.61 GiB in 16 starts of one GPU from L4 to B300."""
SLACK_NVLINK = Interval(low=gib(0.3), expected=gib(1.0), high=gib(3.2))
"""Communicators over NVLink: 0.93 (H100, 2 ranks, 0.11), 2.0 (GB200, 4 ranks), 3.0 (B300)."""
SLACK_PCIE = Interval(low=gib(0.1), expected=gib(0.4), high=gib(2))
"""Over PCIe: 0.2 (24 GB, 2 ranks), 0.5 (RTX PRO 6000, 4 ranks), 2 (L4, 2 ranks, a fault of torch 2.11)."""
SLACK_ELSEWHERE = Interval(low=0, expected=gib(0.4), high=gib(2.5))
"""Other vendors: 0.33 GiB in one start on MI300X."""
SLACK_UNIFIED = Interval(low=0, expected=gib(3), high=gib(12))
"""Memory in use where CPU and GPU share it: all that the host uses counts too, 2 to 10 GiB on GB10."""


def startup_slack(accelerator: Accelerator, accounting: Accounting, parallelism: Parallelism) -> Interval:
    """total − free at start-up on a GPU that nobody else uses; vLLM refuses where free < total × gpu_memory_utilization."""
    if accelerator.unified_memory:
        return SLACK_UNIFIED
    if accelerator.vendor != "nvidia":
        return SLACK_ELSEWHERE
    if parallelism.tensor * parallelism.pipeline == 1 or accounting.nccl_in_budget:
        return SLACK_CONTEXT
    return SLACK_CONTEXT + (SLACK_NVLINK if accelerator.nvlink else SLACK_PCIE)
