"""Memory that the driver and NCCL take after the snapshot, outside torch's allocator."""

from kvgate.budget.interval import Interval
from kvgate.budget.run import Run
from kvgate.budget.term import Term
from kvgate.budget.units import gib


def non_torch(run: Run) -> Term:
    """Kernels that load, and the channels of NCCL between several GPUs."""
    ranks = run.parallelism.tensor * run.parallelism.pipeline
    return Term(
        name="non_torch",
        amount=_amount(run),
        formula="driver + links(ranks)",
        source="logged starts: one GPU 0.02 to 0.25 GiB, several depend on their links",
        inputs=(
            ("ranks", ranks),
            ("links", "NVLink" if run.accelerator.nvlink else "PCIe"),
            ("nccl", "counted" if run.accounting.nccl_in_budget else "before the snapshot"),
        ),
    )


def _amount(run: Run) -> Interval:
    """Several GPUs on NVLink: 2.1 GiB on H100 (11 configurations of 0.19), 1.2 on H200 and B-series, 0.3 over PCIe."""
    base = Interval.around(gib(0.2), below=gib(0.15), above=gib(0.2))
    if run.accounting.whole_card_non_torch:
        base += Interval.around(gib(0.5), below=gib(0.2), above=gib(0.5))
    if run.accelerator.unified_memory:
        base += Interval.around(gib(0.5), below=gib(1), above=gib(4))
    if run.parallelism.tensor == 1:
        return base if run.parallelism.pipeline == 1 else base + Interval.around(0, below=0, above=gib(0.5))
    if not run.accelerator.nvlink:
        return base + Interval.around(gib(0.15), below=gib(0.15), above=gib(0.5))
    return base + Interval.around(_nvlink_bytes(run), below=gib(0.8), above=gib(0.7))


def _nvlink_bytes(run: Run) -> int:
    """Before 0.11 all of NCCL; then what it takes at first use; since 0.18 also what capturing graphs makes it take."""
    if run.accounting.nccl_in_budget:
        return gib(1.6)
    if not run.accounting.captures_in_profile:
        return gib(0.4)
    is_h100 = run.accelerator.compute_capability == (9, 0) and run.accelerator.memory_bytes < gib(100)
    return gib(1.9) if is_h100 else gib(1.0)
