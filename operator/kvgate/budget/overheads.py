"""Memory besides weights and cache: peak activation, non-torch, CUDA graphs, each with how far it may be off.

Formulas are read in vLLM's profile run; constants name the starts behind them. Symbols: T max_num_batched_tokens,
S max_num_seqs, V vocabulary, H hidden size, I intermediate size, b bytes of an element.
"""

from dataclasses import dataclass
from functools import lru_cache

from kvgate.budget.accelerator import Accelerator
from kvgate.budget.interval import Interval
from kvgate.budget.model_shape import DTYPE_BYTES, DenseMlp, ModelShape, SparseMlp, distinct_layers
from kvgate.budget.parallelism import Parallelism
from kvgate.budget.units import MIB, cdiv, gib
from kvgate.budget.versions import Accounting

COLD_COMPILE_BYTES = gib(1.05)
"""Peak while torch.compile works on an empty cache; four cold starts of 0.19 to 0.31 lie within 0.10 GiB, others at 0.45 to 2.6."""

GRAPH_BASE_BYTES = gib(0.25)
"""CUDA graphs, part that no count explains: four dense starts of 0.19 on H100 within 0.15 GiB."""
GRAPH_PIECE_BYTES = round(0.34 * MIB)
"""Per captured piece of a dense model on one GPU; the same four starts."""
GRAPH_PIECE_COMPLEX_BYTES = round(0.6 * MIB)
"""Per piece with experts or tensor parallelism: 0.5 to 1.0 MiB over five starts."""
GRAPH_ESTIMATE_PERCENT = 115
"""vLLM reserves more than it then uses: four pairs of estimate and use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What one rank of one stage goes through while vLLM profiles it."""

    shape: ModelShape
    accelerator: Accelerator
    accounting: Accounting
    parallelism: Parallelism
    max_num_seqs: int
    max_num_batched_tokens: int
    enforce_eager: bool
    stage: tuple[int, int]

    @property
    def num_layers(self) -> int:
        return self.stage[1] - self.stage[0]

    @property
    def has_sampler(self) -> bool:
        return self.stage[1] == len(self.shape.layers)

    @property
    def is_sparse(self) -> bool:
        return any(
            isinstance(mlp, SparseMlp) for layer, _ in distinct_layers(self.shape, *self.stage) for mlp in layer.mlps
        )

    @property
    def v2_runner(self) -> bool:
        return self.accounting.uses_v2_runner(self.shape.architecture, is_dense=not self.is_sparse)

    @property
    def is_complex(self) -> bool:
        """Experts or several GPUs: what is known about one dense GPU holds less well."""
        return self.is_sparse or self.parallelism.tensor > 1

    @property
    def logits_bytes(self) -> int:
        """S rows of the whole vocabulary in float32: every tensor-parallel rank gathers all of it."""
        return min(self.max_num_seqs, self.max_num_batched_tokens) * self.shape.vocab_size * 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Overheads:
    """The three terms of one rank, in bytes."""

    peak_activation: Interval
    non_torch: Interval
    cuda_graphs: Interval


@lru_cache(maxsize=4096)
def overheads_of(run: Run) -> Overheads:
    """All terms; what-ifs about the length of a context ask for the same run again and again."""
    return Overheads(peak_activation=peak_activation(run), non_torch=non_torch(run), cuda_graphs=cuda_graphs(run))


def peak_activation(run: Run) -> Interval:
    """The peak of the profile run above the weights, persistent buffers that count included."""
    block, workspace = _block_bytes(run)
    peak = max(block, _sampler_bytes(run))
    persistent = workspace + _penalty_bytes(run)
    margin = gib(0.35) if run.is_sparse else gib(0.15)
    margin += peak // 20
    if not run.accounting.cold_compile_floor or run.enforce_eager:
        return Interval.around(peak + persistent, below=margin, above=margin)
    cold = max(peak, COLD_COMPILE_BYTES)
    return Interval(
        low=max(0, peak + persistent - margin),
        expected=cold + persistent,
        high=max(peak + margin, cold + gib(0.4)) + persistent,
    )


def _block_bytes(run: Run) -> tuple[int, int]:
    """(peak inside the widest layer, workspace that stays) for a forward pass of T tokens.

    Dense: gate and up (2I), their product (I) and four hidden-sized tensors live together. Experts: both matrix products of
    the k experts of every token; since 0.13 these two come from a workspace that stays.
    """
    element, hidden, tokens = DTYPE_BYTES[run.shape.dtype], run.shape.hidden_size, run.max_num_batched_tokens
    widest = workspace = 0
    mlps = dict.fromkeys(mlp for layer, _ in distinct_layers(run.shape, *run.stage) for mlp in layer.mlps)
    for mlp in mlps:
        if isinstance(mlp, DenseMlp):
            inner = (3 if mlp.gated else 2) * mlp.intermediate_size // run.parallelism.tensor
        else:
            inner, kept = _expert_elements(mlp, run)
            workspace = max(workspace, tokens * element * kept)
        widest = max(widest, tokens * element * (inner + 4 * hidden))
    return widest, workspace


def _expert_elements(mlp: SparseMlp, run: Run) -> tuple[int, int]:
    """(transient, kept) elements per token of an expert block; the shared part is an ordinary block."""
    size = mlp.intermediate_size if run.parallelism.expert else mlp.intermediate_size // run.parallelism.tensor
    hidden = run.shape.hidden_size
    products = mlp.num_experts_per_token * (max(size, hidden) + max(2 * size, hidden))
    shared = 3 * mlp.shared_intermediate_size // run.parallelism.tensor
    if run.accounting.expert_workspace_persists:
        return shared, products
    return max(products, shared), 0


def _sampler_bytes(run: Run) -> int:
    """The sampler's dummy run on S rows (0 on stages without the head).

    9.65 × (sort-based, 5 starts), 3.6 × plus the hidden states of T tokens and 0.05 GiB (0.17+, 36 configurations of 0.19),
    0.5 × on the V2 runner (read in its source: bfloat16 logits only).
    """
    if not run.has_sampler:
        return 0
    if run.v2_runner:
        return run.logits_bytes // 2
    peak = int(run.logits_bytes * run.accounting.sampler_rows_factor)
    if run.accounting.sampler_keeps_hidden_states:
        peak += run.max_num_batched_tokens * run.shape.hidden_size * DTYPE_BYTES[run.shape.dtype] + gib(0.05)
    return peak


def _penalty_bytes(run: Run) -> int:
    """V2 runner: output counts S × V × 4 and two bit masks, allocated once (`PenaltiesState`); counted since 0.27."""
    if not (run.has_sampler and run.v2_runner and run.accounting.consumed_accounting):
        return 0
    return run.max_num_seqs * (run.shape.vocab_size * 4 + 2 * 4 * cdiv(run.shape.vocab_size, 32))


def non_torch(run: Run) -> Interval:
    """What the driver and NCCL take after the snapshot; one GPU 0.02 to 0.25 GiB, several depend on their links.

    Several GPUs on NVLink: 2.1 GiB on H100 (11 configurations of 0.19), 1.2 on H200 and B-series, 0.3 over PCIe (single logs).
    """
    base = Interval.around(gib(0.2), below=gib(0.15), above=gib(0.2))
    if run.accounting.whole_card_non_torch:
        base += Interval.around(gib(0.5), below=gib(0.2), above=gib(0.5))
    if run.accelerator.unified_memory:
        base += Interval.around(gib(0.5), below=gib(1), above=gib(4))
    if run.parallelism.tensor * run.parallelism.pipeline == 1:
        return base
    if not run.accelerator.nvlink:
        return base + Interval.around(gib(0.15), below=gib(0.15), above=gib(0.5))
    expected = (
        gib(1.9)
        if run.accelerator.compute_capability == (9, 0) and run.accelerator.memory_bytes < gib(100)
        else gib(1.0)
    )
    if run.accounting.nccl_in_budget:
        expected = gib(1.6)
    return base + Interval.around(expected, below=gib(0.8), above=gib(0.7))


def cuda_graphs(run: Run) -> Interval:
    """The reserve that vLLM takes out of the budget for CUDA graphs; exactly 0 where the release takes none."""
    if run.enforce_eager or not run.accounting.deducts_graphs(v2_runner=run.v2_runner):
        return Interval.exactly(0)
    piece = GRAPH_PIECE_COMPLEX_BYTES if run.is_complex else GRAPH_PIECE_BYTES
    pieces = num_piecewise_graphs(run) * (run.num_layers + 1) + 8 * num_full_graphs(run)
    reserve = (GRAPH_BASE_BYTES + piece * pieces) * GRAPH_ESTIMATE_PERCENT // 100
    if run.is_complex:
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
