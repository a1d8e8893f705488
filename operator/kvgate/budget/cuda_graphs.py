"""The reserve for CUDA graphs: how many are captured, and what vLLM's estimate takes for them."""

from kvgate.budget.interval import Interval
from kvgate.budget.run import Run
from kvgate.budget.term import Term
from kvgate.budget.units import MIB, gib

GRAPH_BASE_BYTES = gib(0.25)
"""CUDA graphs, part that no count explains: four dense starts of 0.19 on H100 within 0.15 GiB."""
GRAPH_PIECE_BYTES = round(0.34 * MIB)
"""Per captured piece of a dense model on one GPU; the same four starts."""
GRAPH_PIECE_COMPLEX_BYTES = round(0.6 * MIB)
"""Per piece with experts or tensor parallelism: 0.5 to 1.0 MiB over five starts."""
GRAPH_ESTIMATE_PERCENT = 115
"""vLLM reserves more than it then uses: four pairs of estimate and use."""


def cuda_graphs(run: Run) -> Term:
    """The reserve that vLLM takes out of the budget for CUDA graphs; exactly 0 where the release takes none."""
    deducted = not run.enforce_eager and run.accounting.deducts_graphs(v2_runner=run.v2_runner)
    return Term(
        name="cuda_graph",
        amount=_amount(run) if deducted else Interval.exactly(0),
        formula="1.15 × (base + piece × (piecewise × (layers + 1) + 8 × full))" if deducted else "0: not deducted",
        source="logged pairs of estimate and use, 0.19 to 0.28",
        inputs=(
            ("piecewise_graphs", num_piecewise_graphs(run)),
            ("full_graphs", num_full_graphs(run)),
            ("layers", run.num_layers),
        ),
    )


def _amount(run: Run) -> Interval:
    is_complex = run.is_sparse or run.parallelism.tensor > 1
    piece = GRAPH_PIECE_COMPLEX_BYTES if is_complex else GRAPH_PIECE_BYTES
    pieces = num_piecewise_graphs(run) * (run.num_layers + 1) + 8 * num_full_graphs(run)
    reserve = (GRAPH_BASE_BYTES + piece * pieces) * GRAPH_ESTIMATE_PERCENT // 100
    if is_complex:
        return Interval.around(reserve, below=reserve * 6 // 10, above=reserve * 6 // 10)
    return Interval.around(reserve, below=reserve // 3, above=reserve // 3)


def num_piecewise_graphs(run: Run) -> int:
    """Batch sizes that are captured: up to 2 S, 512 (1024 on compute capability 10.x since 0.28) and T."""
    is_blackwell = run.accelerator.compute_capability is not None and run.accelerator.compute_capability[0] == 10
    ceiling = 1024 if is_blackwell and run.accounting.blackwell_graphs else 512
    return num_capture_sizes(min(2 * run.max_num_seqs, ceiling, run.max_num_batched_tokens))


def num_full_graphs(run: Run) -> int:
    """Whole decode steps are captured up to S sequences."""
    if not run.accounting.full_graphs:
        return 0
    return min(num_capture_sizes(run.max_num_seqs), num_piecewise_graphs(run))


def num_capture_sizes(limit: int) -> int:
    """How many of 1, 2, 4, 8, 16 … 248, 256, 272, 288 … are at most `limit` (vLLM 0.32, `_set_cudagraph_sizes`)."""
    small = sum(size <= limit for size in (1, 2, 4))
    return small + min(limit, 255) // 8 + max(0, (limit - 256) // 16 + 1)
