"""From a request to the ledger of one rank: every term with its formula, and what no term explains."""

from functools import lru_cache

from kvgate.budget.activation import peak_activation
from kvgate.budget.built_shape import built_shape
from kvgate.budget.cuda_graphs import cuda_graphs
from kvgate.budget.gpu_memory import Ledger
from kvgate.budget.interval import Interval
from kvgate.budget.model_shape import CompressedAttention, ModelShape
from kvgate.budget.non_torch import non_torch
from kvgate.budget.request import BudgetRequest
from kvgate.budget.run import Run
from kvgate.budget.settings import Resolved
from kvgate.budget.term import Term
from kvgate.budget.units import gib, share_of
from kvgate.budget.versions import Accounting, is_newer_than_known
from kvgate.budget.weights import Weights, rank_weights


def ledger_of(request: BudgetRequest, settings: Resolved, accounting: Accounting, stage: tuple[int, int]) -> Ledger:
    """What any rank of the pipeline stage first ≤ i < last has, and what it spends."""
    modalities = _modalities(request)
    run = Run(
        shape=built_shape(request.shape, accounting, request.settings),
        accelerator=request.accelerator,
        accounting=accounting,
        parallelism=request.settings.parallelism,
        max_model_len=settings.max_model_len,
        max_num_seqs=settings.max_num_seqs,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        enforce_eager=request.settings.enforce_eager,
        graphs=request.settings.graphs,
        modalities=() if request.settings.skip_mm_profiling else modalities,
        takes_embeddings=bool(modalities),
        draft_tokens=request.settings.speculation.num_speculative_tokens if request.settings.speculation else 0,
        stage=stage,
    )
    weights, parameter_bytes = _weights(request, accounting, stage)
    return Ledger(
        total_bytes=request.accelerator.memory_bytes,
        requested_bytes=share_of(request.accelerator.memory_bytes, settings.gpu_memory_utilization),
        lines=(weights, *_overheads(run)),
        parameter_bytes=parameter_bytes,
        uncertainty_bytes=_uncertainty(request, settings),
    )


def _modalities(request: BudgetRequest) -> tuple[str, ...]:
    """What prompts may hold beside text."""
    items = (item.modality for encoder in request.shape.encoders for item in encoder.items)
    return tuple(modality for modality in items if request.settings.takes(modality))


@lru_cache(maxsize=4096)
def _overheads(run: Run) -> tuple[Term, ...]:
    """All terms beside the weights; what-ifs ask for the same run again and again."""
    return peak_activation(run), non_torch(run), cuda_graphs(run)


def _weights(request: BudgetRequest, accounting: Accounting, stage: tuple[int, int]) -> tuple[Term, int | None]:
    """Loaded bytes: dense 16-bit models are known to 0.01 GiB, kernels that repack quantised or expert weights to about 1 %."""
    if request.weights_bytes is not None:
        given = Interval.around(request.weights_bytes, below=gib(0.01), above=gib(0.01))
        return Term(name="weights", amount=given, formula="as given", source="the request"), None
    weights = weights_of(built_shape(request.shape, accounting, request.settings), request, accounting, stage)
    margin = _weights_margin(request.shape, weights.loaded_bytes)
    term = Term(
        name="weights",
        amount=Interval.around(weights.loaded_bytes, below=margin, above=margin),
        formula="Σ tensors of the rank, each in the allocator's block + rotary tables + absorbed MLA matrices",
        source="vLLM 0.32, model classes; 11 starts within 4 MiB",
        inputs=(
            ("parameter_bytes", weights.parameter_bytes),
            ("tensor_parallel_size", request.settings.parallelism.tensor),
            ("layers", stage[1] - stage[0]),
            ("quantization", request.shape.quantization.method if request.shape.quantization else "none"),
        ),
    )
    return term, weights.parameter_bytes


def weights_of(shape: ModelShape, request: BudgetRequest, accounting: Accounting, stage: tuple[int, int]) -> Weights:
    """Of a shape, or of a part of one, as the request's engine loads it."""
    speculation = request.settings.speculation
    return rank_weights(
        shape,
        request.settings.parallelism,
        stage,
        unsplit_large_blocks=accounting.unsplit_large_blocks,
        compute_capability=request.accelerator.compute_capability,
        with_drafts=speculation is not None and speculation.uses_own_layers,
    )


def _weights_margin(shape: ModelShape, loaded_bytes: int) -> int:
    """How far logged weights were off: dense 16-bit text models by at most 0.03 GiB (45 starts); formats that kernels repack and
    experts by up to 1 %, MXFP4 by 2; towers by 0.1 GiB; compressed attention by 3 % (two starts).
    """  # fmt: skip
    margin = gib(0.03) + loaded_bytes // 1000
    if shape.quantization is not None or shape.is_sparse:
        margin += loaded_bytes // 100
    if shape.quantization is not None and shape.quantization.method == "mxfp4":
        margin += loaded_bytes // 100
    if shape.encoders:
        margin += gib(0.1)
    if any(isinstance(mixer, CompressedAttention) for mixer in shape.mixers):
        margin += loaded_bytes * 3 // 100
    return margin


def _uncertainty(request: BudgetRequest, settings: Resolved) -> int:
    """What other drivers report as total memory, and what a release or a vendor without logs may do differently."""
    accelerator = request.accelerator
    spread = max(
        accelerator.memory_high_bytes - accelerator.memory_bytes,
        accelerator.memory_bytes - accelerator.memory_low_bytes,
    )
    uncertainty = share_of(spread, settings.gpu_memory_utilization)
    if is_newer_than_known(request.vllm_version):
        uncertainty += accelerator.memory_bytes // 50
    if accelerator.vendor != "nvidia":
        uncertainty += gib(1.5)
    return uncertainty
