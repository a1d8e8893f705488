"""Settings that vLLM refuses before it looks at memory: caches that a release, a GPU or a model's kernels do not have.

Each function returns the reason as a sentence, or None where the setting is accepted. Read in vLLM 0.32; texts are ours.
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

from kvgate.budget.errors import UnmodelledKind
from kvgate.budget.hardware import Accelerator, Parallelism, stage_sizes
from kvgate.budget.kv_cache_dtype import (
    DEFAULT_BLOCK_SIZE,
    LEAST_COMPRESSED_BLOCK_SIZE,
    SPARSE_BLOCK_SIZE,
    WIDEST_COMMON_HEAD,
    cache_dtype_of,
)
from kvgate.budget.matrix import Cut, Matrix
from kvgate.budget.model_shape import (
    DTYPE_BYTES,
    CompressedAttention,
    FullAttention,
    LatentAttention,
    Mixer,
    ModelShape,
    RecurrentState,
    SharedCache,
    UnmodelledLayer,
)
from kvgate.budget.request import BudgetRequest
from kvgate.budget.versions import Accounting, accounting_of

_LATENT_ONLY = frozenset({"fp8_ds_mla", "nvfp4_ds_mla"})
_PER_HEAD = ("int8_per_token_head", "fp8_per_token_head", "int4_per_token_head", "nvfp4", "turboquant_", "ultraquant_")
"""Beginnings of the formats that are kept by heads."""


def kv_cache_dtype_refusal(
    name: str, shape: ModelShape, accelerator: Accelerator, accounting: Accounting
) -> str | None:
    """Return the reason why this release, GPU or model has no such cache."""
    if name == "auto":
        return None
    if name not in accounting.kv_cache_dtypes:
        known = ", ".join(sorted(accounting.kv_cache_dtypes))
        return f"this vLLM release has no kv_cache_dtype {name}; it knows {known}"
    mixers = shape.mixers
    if name in DTYPE_BYTES or any(isinstance(mixer, UnmodelledLayer | CompressedAttention) for mixer in mixers):
        return None
    if any(isinstance(mixer, LatentAttention) for mixer in mixers) and name not in _LATENT_ONLY:
        if name.startswith(_PER_HEAD):
            return f"no attention kernel for MLA takes {name}"
    elif name in _LATENT_ONLY and not _is_sparse(shape):
        return f"{name} is a format of sparse MLA models, which this is not"
    return _capability_refusal(name, shape, accelerator)


def _is_sparse(shape: ModelShape) -> bool:
    return any(isinstance(mixer, LatentAttention) and mixer.is_sparse for mixer in shape.mixers)


def _capability_refusal(name: str, shape: ModelShape, accelerator: Accelerator) -> str | None:
    """Compute capabilities that the kernels ask for; accelerators without one are not judged here."""
    capability = accelerator.compute_capability
    if capability is None:
        return None
    needed = (8, 9) if name == "fp8_per_token_head" or any(map(_runs_on_triton, shape.mixers)) else (8, 0)
    if name == "nvfp4_ds_mla":
        needed = (10, 0)
    if capability >= needed:
        return None
    return f"{name} needs compute capability {needed[0]}.{needed[1]} and {accelerator.name} has {capability[0]}.{capability[1]}"


def _runs_on_triton(mixer: Mixer) -> bool:
    """Only Triton's kernels serve it before Hopper, and those compute fp8 from 8.9 on."""
    if isinstance(mixer, LatentAttention):
        return True
    if not isinstance(mixer, FullAttention):
        return False
    return mixer.has_sinks or mixer.sees_images_both_ways or mixer.head_dim > WIDEST_COMMON_HEAD


def block_size_refusal(shape: ModelShape, accelerator: Accelerator, asked: int) -> str | None:
    """Return the reason why no kernel takes blocks of this size (`get_supported_kernel_block_sizes`; CUDA only)."""
    multiple = DEFAULT_BLOCK_SIZE
    if any(isinstance(mixer, CompressedAttention) for mixer in shape.mixers):
        multiple = LEAST_COMPRESSED_BLOCK_SIZE
    elif _is_sparse(shape):
        multiple = SPARSE_BLOCK_SIZE
    if asked % multiple == 0:
        return None
    return f"block_size {asked} is no multiple of {multiple}; no attention kernel of this model takes it on {accelerator.name}"


def cache_refusals(request: BudgetRequest) -> Iterator[tuple[str, str]]:
    """(field, reason) for settings and GPUs that the model's kind of cache does not go with."""
    shape, asked, accelerator = request.shape, request.settings, request.accelerator
    capability = accelerator.compute_capability
    if _is_sparse(shape) and capability is not None and capability < (9, 0):
        yield (
            "accelerator",
            f"sparse MLA has no attention kernel below compute capability 9.0, and {accelerator.name} has {capability[0]}.{capability[1]}",
        )
    if asked.parallelism.decode_context > 1 and _is_sparse(shape) and not _is_packed_sparse(request):
        yield "decode_context_parallel_size", "sparse MLA deals out tokens only where the KV cache is fp8_ds_mla"
    if asked.disable_hybrid_kv_cache_manager and any(isinstance(mixer, CompressedAttention) for mixer in shape.mixers):
        yield (
            "disable_hybrid_kv_cache_manager",
            "compressed layers need the hybrid KV cache manager; vLLM crashes without it",
        )
    yield from _state_refusals(shape, asked.mamba_ssm_cache_dtype)


def _state_refusals(shape: ModelShape, asked: str) -> Iterator[tuple[str, str]]:
    """Pages are sized by what is asked, and some kernels keep their own dtype all the same (Kimi-Linear)."""
    fixed = {
        mixer.state_dtype for mixer in shape.mixers if isinstance(mixer, RecurrentState) and mixer.fixed_state_dtype
    }
    if asked != "auto" and any(dtype and DTYPE_BYTES[asked] < DTYPE_BYTES[dtype] for dtype in fixed):
        yield (
            "mamba_ssm_cache_dtype",
            f"the kernel keeps wider states than {asked}, which its pages do not hold; vLLM crashes",
        )


def _is_packed_sparse(request: BudgetRequest) -> bool:
    try:
        accounting = accounting_of(request.vllm_version)
        dtype = cache_dtype_of(request.shape, request.accelerator, request.settings.kv_cache_dtype, accounting)
    except UnmodelledKind:
        return False
    return dtype.name in _LATENT_ONLY


_EXPERT_BLOCK = 64
"""Rows and columns that the blocks of experts are cut down to where larger ones do not divide."""


@lru_cache(maxsize=4096)
def parallelism_refusals(shape: ModelShape, parallelism: Parallelism) -> tuple[tuple[str, str], ...]:
    """(field, reason) for every parallel size that does not go with the model."""
    reasons = [("tensor_parallel_size", reason) for reason in _tensor_refusals(shape, parallelism)]
    reasons += [("pipeline_parallel_size", reason) for reason in _pipeline_refusals(shape, parallelism.pipeline)]
    reasons += [("decode_context_parallel_size", reason) for reason in _context_refusals(shape, parallelism)]
    return tuple(dict.fromkeys(reasons))


def _tensor_refusals(shape: ModelShape, parallelism: Parallelism) -> Iterator[str]:
    tensor = parallelism.tensor
    if shape.num_heads % tensor:
        yield f"{shape.num_heads} attention heads are not divisible by {tensor}"
        return
    for mixer in shape.mixers:
        if isinstance(mixer, FullAttention) and _uneven(mixer.num_kv_heads, tensor):
            yield f"{mixer.num_kv_heads} KV heads and {tensor} ranks do not divide each other"
    cuts = (reason for matrix in _matrices(shape) for reason in _matrix_refusals(matrix, parallelism))
    yield from islice(cuts, 1)  # one cause shows in several matrices


def _uneven(num_kv_heads: int, tensor: int) -> bool:
    return bool(num_kv_heads % tensor and tensor % num_kv_heads)


def _matrices(shape: ModelShape) -> tuple[Matrix, ...]:
    return tuple(dict.fromkeys(matrix for layer, _ in shape.distinct_layers for matrix in layer.matrices))


def _matrix_refusals(matrix: Matrix, parallelism: Parallelism) -> Iterator[str]:
    """Sizes that do not divide, and blocks of scales that a cut would go through (`validate_fp8_block_shape`)."""
    tensor = 1 if matrix.experts and parallelism.expert else parallelism.tensor
    rows, columns = matrix.format.block if matrix.format and not matrix.experts else (0, 0)  # experts get finer blocks
    if matrix.experts:  # vLLM 0.32 makes their blocks smaller (Qwen3-235B-A22B-FP8 on eight GPUs)
        rows, columns = min(rows, _EXPERT_BLOCK), min(columns, _EXPERT_BLOCK)
    if matrix.cut is Cut.COLUMNS and matrix.columns % tensor:
        yield f"the {matrix.columns} inputs of {matrix.name} are not divisible by {tensor}"
    elif matrix.cut is Cut.COLUMNS and columns and (matrix.columns // tensor) % columns and tensor > 1:
        yield f"{matrix.columns // tensor} inputs of {matrix.name} per rank cut the quantisation blocks of {columns}"
    is_checked = (
        matrix.experts or len(matrix.rows) == 1
    )  # vLLM 0.32 lets fused matrices end within a block (MiMo-V2-Flash)
    if matrix.cut is Cut.ROWS and rows and tensor > 1 and is_checked:
        yield from (
            f"{part.on_rank(tensor)} outputs of {matrix.name} per rank cut the quantisation blocks of {rows}"
            for part in matrix.rows
            if part.on_rank(tensor) % rows
        )


def _pipeline_refusals(shape: ModelShape, pipeline: int) -> Iterator[str]:
    if pipeline == 1:
        return
    if not shape.supports_pipeline:
        yield f"{shape.architecture} cannot be cut into stages"
    if pipeline > len(shape.layers):
        yield f"{len(shape.layers)} layers cannot be cut into {pipeline} stages"
    elif far := _shared_over_stages(shape, pipeline):
        yield f"layer {far[0]} reads the cache of layer {far[1]}, which is on another stage"


def _shared_over_stages(shape: ModelShape, pipeline: int) -> tuple[int, int] | None:
    """(layer, target) of the first cache that is shared between two stages."""
    stage_of = [stage for stage, size in enumerate(stage_sizes(len(shape.layers), pipeline)) for _ in range(size)]
    shared = (
        (index, mixer.target)
        for index, layer in enumerate(shape.layers)
        for mixer in layer.mixers
        if isinstance(mixer, SharedCache)
    )
    return next(((index, target) for index, target in shared if stage_of[index] != stage_of[target]), None)


def _context_refusals(shape: ModelShape, parallelism: Parallelism) -> Iterator[str]:
    """Full attention deals out tokens only between ranks that hold the same KV heads (`ParallelConfig` checks)."""
    context, tensor = parallelism.decode_context, parallelism.tensor
    if context == 1 or parallelism.prefill_context > 1:  # beside it, other sizes go together, and no budget is given
        return
    if tensor % context:
        yield f"{context} does not divide tensor_parallel_size {tensor}"
    if any(isinstance(mixer, CompressedAttention) or getattr(mixer, "sliding_window", 0) for mixer in shape.mixers):
        yield "a sliding window is not dealt out over ranks"
    if any(isinstance(mixer, FullAttention) and mixer.sees_images_both_ways for mixer in shape.mixers):
        yield "no attention kernel for images that attend both ways deals out tokens"
    if shape.num_heads % tensor == 0:
        yield from _head_refusals(shape, tensor, context)


def _head_refusals(shape: ModelShape, tensor: int, context: int) -> Iterator[str]:
    heads = {mixer.num_kv_heads for mixer in shape.mixers if isinstance(mixer, FullAttention)}
    for count in sorted(heads):
        if context > tensor // count:
            yield f"{count} KV heads on {tensor} ranks are held {max(1, tensor // count)} times, not {context} times"
