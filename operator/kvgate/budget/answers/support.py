"""Settings that vLLM refuses before it looks at memory.

These are caches that a release, a GPU or a model's kernels do not have, and parallel sizes that do not go with a model. Each reason is
a sentence of ours. Read in vLLM 0.32, and compared with the settings that it refuses (tests/parity).
"""

from collections.abc import Iterator
from functools import lru_cache
from itertools import islice
from math import gcd

from kvgate.budget.engine.request import BudgetRequest
from kvgate.budget.ground.hardware import Accelerator, Parallelism, stage_sizes
from kvgate.budget.ground.interval import UnmodelledKind
from kvgate.budget.kv_cache.dtype import (
    DEFAULT_BLOCK_SIZE,
    LEAST_COMPRESSED_BLOCK_SIZE,
    SPARSE_BLOCK_SIZE,
    WIDEST_COMMON_HEAD,
    cache_dtype_of,
    formats_known,
    takes_cache_dtype,
)
from kvgate.budget.model.matrix import Cut, Matrix, WeightFormat
from kvgate.budget.model.shape import (
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
from kvgate.budget.releases.accounting import Accounting
from kvgate.budget.releases.versions import accounting_of

_LATENT_ONLY = frozenset({"fp8_ds_mla", "nvfp4_ds_mla"})
_PER_HEAD = (
    "int8_per_token_head", "fp8_per_token_head", "int4_per_token_head", "nvfp4", "turboquant_", "ultraquant_", "octave_",
)  # fmt: skip
"""First letters of the formats that keep a scale for each head."""
_ROCM_ONLY = ("ultraquant_", "octave_")
_NVFP4_HEADS = (64, 128, 256, 512)
"""Head dimensions of FlashInfer, the only backend with this format (0.21 to 0.33, `get_supported_head_sizes`)."""
_CHECKED_EXPERTS = frozenset({"fp8", "compressed-tensors", "quark"})
"""Methods whose experts vLLM checks for blocks that a cut goes through."""
_LEAST_EXPERT_BLOCK = 32
"""Least rows and columns of the blocks of experts that are made smaller (`refine_fp8_moe_block_shape`)."""


def kv_cache_dtype_refusal(
    name: str,
    shape: ModelShape,
    accelerator: Accelerator,
    accounting: Accounting,
    skip_layers: tuple[str, ...] = (),
) -> str | None:
    """Return the reason why this release, GPU or model has no such cache; None where it has.

    `skip_layers` is `kv_cache_dtype_skip_layers`. From 0.33 on a plug-in for a platform may register further formats, so that a name
    which vLLM itself does not have is no reason (`register_kv_cache_dtype`).
    """
    if name == "auto" or name in DTYPE_BYTES:
        on_flash_mla = accelerator.capability_major == 9 and shape.has(CompressedAttention)
        if on_flash_mla and accounting.compressed_cache_needs_fp8 and not shape.kv_cache_scheme:
            return "on this GPU the model's attention asserts an fp8 cache in this release"
    if name == "auto":
        return None
    if name not in accounting.kv_cache_dtypes:
        if accounting.plugs_in_kv_cache_dtypes and name and name not in formats_known():
            return None
        known = ", ".join(sorted(accounting.kv_cache_dtypes))
        return f"this vLLM release does not have it; it has {known}"
    # layers that keep a format of their own, or are not known, take every format; so does a plain dtype
    keeps_own = shape.has(UnmodelledLayer | CompressedAttention)
    if name in DTYPE_BYTES or keeps_own or not takes_cache_dtype(shape, accounting):
        return None
    return _kind_refusal(name, shape) or _kernel_refusal(name, shape, accelerator, accounting, skip_layers)


def _kind_refusal(name: str, shape: ModelShape) -> str | None:
    """Return the reason why no kernel for the model's kind of attention takes the format."""
    if shape.has(LatentAttention) and name not in _LATENT_ONLY:
        return f"no attention kernel for MLA takes {name}" if name.startswith(_PER_HEAD) else None
    if name in _LATENT_ONLY and not _is_sparse(shape):
        return f"{name} is a format for sparse MLA, and this model has none"
    return None


def _kernel_refusal(
    name: str, shape: ModelShape, accelerator: Accelerator, accounting: Accounting, skip_layers: tuple[str, ...]
) -> str | None:
    """Return the reason why the kernels of this GPU do not take the format; accelerators of other vendors are not judged here."""
    capability = accelerator.compute_capability
    if capability is None:
        return None
    needed = _needed_capability(name, shape, accounting)
    if capability < needed:
        return f"{name} needs compute capability {needed[0]}.{needed[1]} and {accelerator.name} has {capability[0]}.{capability[1]}"
    if name.startswith(_ROCM_ONLY):
        return f"{name} has kernels for AMD GPUs only, and {accelerator.name} is none"
    if name in ("nvfp4", "nvfp4_4over6"):
        return _nvfp4_refusal(name, shape, accelerator, accounting)
    if name.startswith("turboquant_"):
        heads = [mixer for mixer in shape.mixers if isinstance(mixer, FullAttention)]
        if any(mixer.has_sinks for mixer in heads):
            return f"no attention kernel takes {name} with attention sinks"
        windows = accounting.packed_caches_refuse_windows and "sliding_window" not in skip_layers
        if windows and any(mixer.sliding_window for mixer in heads):
            return f"no attention kernel takes {name} with a sliding window, unless kv_cache_dtype_skip_layers has sliding_window"
    return None


def _needed_capability(name: str, shape: ModelShape, accounting: Accounting) -> tuple[int, int]:
    """Return the least compute capability; formats of other numbers than fp8 run on every GPU that their backend runs on.

    Only fp8 has a floor in Triton's kernels (0.24 to 0.33, `TritonAttentionImpl.__init__`); V0 read and wrote it with kernels of its own,
    except for MLA.
    """
    if name == "nvfp4_ds_mla":
        return (10, 0)
    if not name.startswith("fp8"):
        return (0, 0)
    is_latent = shape.has(LatentAttention)
    has_sinks = shape.has(FullAttention, "has_sinks")  # never V0
    if accounting.v0_reads_fp8_caches and not is_latent and not has_sinks:
        return (0, 0)
    if name == "fp8_per_token_head" or any(map(_runs_on_triton, shape.mixers)):
        return (8, 9)
    return accounting.fp8_cache_capability


def _nvfp4_refusal(name: str, shape: ModelShape, accelerator: Accelerator, accounting: Accounting) -> str | None:
    """Blackwell for data centres has kernels of its own; 0.32 brought others for Ampere, Hopper and RTX Blackwell (FlashInfer's FA2)."""
    majors = accounting.nvfp4_capabilities if name == "nvfp4" else accounting.nvfp4_capabilities & {10}
    if accelerator.capability_major not in majors:
        have = " or ".join(f"{major}.x" for major in sorted(majors))
        kernels = f"kernels for compute capability {have} only" if have else "no kernels"
        return f"in this release {name} has {kernels}, and {accelerator.name} has {accelerator.capability_major}.x"
    heads = [mixer for mixer in shape.mixers if isinstance(mixer, FullAttention)]
    for mixer in heads:
        if mixer.head_dim not in _NVFP4_HEADS:
            return f"no attention kernel takes {name} with heads of {mixer.head_dim} elements"
    if accelerator.capability_major == 10:
        return None
    if any(mixer.head_dim == _NVFP4_HEADS[0] for mixer in heads):
        return f"on {accelerator.name} no attention kernel takes {name} with heads of {_NVFP4_HEADS[0]} elements"
    if any(mixer.has_sinks for mixer in heads):
        return f"on {accelerator.name} no attention kernel takes {name} with attention sinks"
    return None


@lru_cache(maxsize=1024)
def _is_sparse(shape: ModelShape) -> bool:
    return shape.has(LatentAttention, "is_sparse")


def _runs_on_triton(mixer: Mixer) -> bool:
    """True where only Triton's kernels serve it before Hopper; those compute fp8 from compute capability 8.9 on."""
    if isinstance(mixer, LatentAttention):
        return True
    if not isinstance(mixer, FullAttention):
        return False
    return mixer.has_sinks or mixer.sees_images_both_ways or mixer.head_dim > WIDEST_COMMON_HEAD


def block_size_refusal(shape: ModelShape, accelerator: Accelerator, block_size: int) -> str | None:
    """Return the reason why no kernel takes blocks of this size (`get_supported_kernel_block_sizes`; CUDA only); None where one does."""
    multiple = DEFAULT_BLOCK_SIZE
    if shape.has(CompressedAttention):
        multiple = LEAST_COMPRESSED_BLOCK_SIZE
    elif _is_sparse(shape):
        multiple = SPARSE_BLOCK_SIZE
    if block_size % multiple == 0:
        return None
    return (
        f"{block_size} is no multiple of {multiple}; no attention kernel of this model takes it on {accelerator.name}"
    )


def cache_refusals(request: BudgetRequest) -> Iterator[tuple[str, str]]:
    """(field, reason) for settings and GPUs that do not go with the model's kind of cache."""
    shape, settings, accelerator = request.shape, request.settings, request.accelerator
    capability, state_dtype = accelerator.compute_capability, settings.mamba_ssm_cache_dtype
    if _is_sparse(shape) and capability is not None and capability < (9, 0):
        yield (
            "accelerator",
            f"sparse MLA has no attention kernel below compute capability 9.0, and {accelerator.name} has {capability[0]}.{capability[1]}",
        )
    if settings.parallelism.decode_context > 1 and _is_sparse(shape) and not _is_packed_sparse(request):
        yield (
            "decode_context_parallel_size",
            "sparse MLA divides tokens over ranks only with the KV cache format fp8_ds_mla",
        )
    if settings.disable_hybrid_kv_cache_manager and shape.has(CompressedAttention):
        yield (
            "disable_hybrid_kv_cache_manager",
            "compressed layers need the hybrid KV cache manager; vLLM crashes without it",
        )
    is_nvfp4_by_flash_attention = settings.kv_cache_dtype == "nvfp4" and capability is not None and capability[0] != 10
    if settings.parallelism.decode_context > 1 and is_nvfp4_by_flash_attention:
        yield (
            "decode_context_parallel_size",
            f"with the KV cache format nvfp4, {accelerator.name} cannot divide tokens over ranks",
        )
    # pages are sized by the requested dtype, but some kernels keep their own all the same (Kimi-Linear)
    fixed = (
        mixer.state_dtype for mixer in shape.mixers if isinstance(mixer, RecurrentState) and mixer.fixed_state_dtype
    )
    if state_dtype != "auto" and any(dtype and DTYPE_BYTES[state_dtype] < DTYPE_BYTES[dtype] for dtype in fixed):
        yield (
            "mamba_ssm_cache_dtype",
            f"the kernel keeps its states in a wider format than {state_dtype}, so the pages are too small and vLLM crashes",
        )


def _is_packed_sparse(request: BudgetRequest) -> bool:
    try:
        accounting = accounting_of(request.vllm_version)
        dtype = cache_dtype_of(
            request.shape, request.accelerator.capability_major, request.settings.kv_cache_dtype, accounting
        )
    except UnmodelledKind:
        return False
    return dtype.name in _LATENT_ONLY


@lru_cache(maxsize=4096)
def parallelism_refusals(shape: ModelShape, parallelism: Parallelism, vllm_version: str) -> tuple[tuple[str, str], ...]:
    """(field, reason) for every parallel size that the release refuses for the model."""
    accounting = accounting_of(vllm_version)
    reasons = [("tensor_parallel_size", reason) for reason in _tensor_refusals(shape, parallelism, accounting)]
    reasons += [("pipeline_parallel_size", reason) for reason in _pipeline_refusals(shape, parallelism.pipeline)]
    reasons += [("decode_context_parallel_size", reason) for reason in _context_refusals(shape, parallelism)]
    reasons += _balancing_refusals(shape, parallelism)
    return tuple(dict.fromkeys(reasons))


def _tensor_refusals(shape: ModelShape, parallelism: Parallelism, accounting: Accounting) -> Iterator[str]:
    tensor = parallelism.tensor
    if shape.num_heads % tensor:
        yield f"{shape.num_heads} attention heads are not divisible by {tensor}"
        return
    for mixer in shape.mixers:
        if isinstance(mixer, FullAttention) and mixer.num_kv_heads % tensor and tensor % mixer.num_kv_heads:
            yield f"of {mixer.num_kv_heads} KV heads and {tensor} ranks, one must be a multiple of the other"
    matrices = dict.fromkeys(matrix for layer, _ in shape.distinct_layers for matrix in layer.matrices)
    cuts = (reason for matrix in matrices for reason in _matrix_refusals(matrix, parallelism, accounting))
    yield from islice(cuts, 1)  # one cause shows in several matrices


def _matrix_refusals(matrix: Matrix, parallelism: Parallelism, accounting: Accounting) -> Iterator[str]:
    """Yield sizes that do not divide, and blocks of scales that a cut would go through (`validate_fp8_block_shape`)."""
    tensor = parallelism.expert_tensor if matrix.experts else parallelism.tensor
    rows, columns = matrix.format.block if matrix.format else (0, 0)
    if matrix.experts and matrix.format:
        rows, columns = _expert_block(matrix, matrix.format, tensor, accounting)
    if matrix.cut is Cut.COLUMNS and matrix.columns % tensor:
        yield f"the {matrix.columns} inputs of {matrix.name} are not divisible by {tensor}"
    elif matrix.cut is Cut.COLUMNS and columns and (matrix.columns // tensor) % columns and tensor > 1:
        yield (
            f"each rank would hold {matrix.columns // tensor} inputs of {matrix.name}, "
            f"which are no multiple of its quantisation block of {columns}"
        )
    # vLLM 0.32 lets fused matrices end within a block (MiMo-V2-Flash)
    is_checked = matrix.experts or len(matrix.rows) == 1
    if matrix.cut is Cut.ROWS and rows and tensor > 1 and is_checked:
        yield from (
            f"each rank would hold {part.on_rank(tensor)} outputs of {matrix.name}, "
            f"which are no multiple of its quantisation block of {rows}"
            for part in matrix.rows
            if part.on_rank(tensor) % rows
        )


def _expert_block(matrix: Matrix, stored: WeightFormat, tensor: int, accounting: Accounting) -> tuple[int, int]:
    """Return rows and columns of the blocks that a cut of experts must respect; (0, 0) where nothing is checked.

    vLLM 0.8.5 to 0.33, `validate_fp8_block_shape_moe`; since 0.29 the method fp8 first makes blocks finer (`refine_fp8_moe_block_shape`).
    """
    if stored.method not in _CHECKED_EXPERTS:
        return 0, 0
    cut = tensor if matrix.cut is Cut.COLUMNS else 1
    finer = gcd(*stored.block, matrix.columns // cut, *(part.on_rank(tensor // cut) for part in matrix.rows))
    may_refine = accounting.refines_expert_blocks and stored.method == "fp8"
    return (finer, finer) if may_refine and finer >= _LEAST_EXPERT_BLOCK else stored.block


def _pipeline_refusals(shape: ModelShape, pipeline: int) -> Iterator[str]:
    if pipeline == 1:
        return
    if not shape.supports_pipeline:
        yield f"{shape.architecture} cannot be cut into stages"
    if pipeline > len(shape.layers):
        yield f"{len(shape.layers)} layers cannot be cut into {pipeline} stages"
        return
    stage_of = [stage for stage, size in enumerate(stage_sizes(len(shape.layers), pipeline)) for _ in range(size)]
    apart = (
        f"layer {index} reads the cache of layer {mixer.target}, which is on another stage"
        for index, layer in enumerate(shape.layers)
        for mixer in layer.mixers
        if isinstance(mixer, SharedCache) and stage_of[index] != stage_of[mixer.target]
    )
    yield from islice(apart, 1)


def _balancing_refusals(shape: ModelShape, parallelism: Parallelism) -> Iterator[tuple[str, str]]:
    """Redundant experts and their balance (`ParallelConfig._validate_parallel_config`, 0.9 to 0.33)."""
    ranks = parallelism.num_expert_ranks
    if parallelism.redundant_experts and not parallelism.balances_experts:
        yield "num_redundant_experts", f"{parallelism.redundant_experts} copies of experts need enable_eplb"
    if parallelism.elastic and not parallelism.balances_experts:
        yield "enable_elastic_ep", "ranks are added only with enable_eplb"
    if parallelism.elastic and parallelism.pipeline > 1:
        yield "enable_elastic_ep", f"ranks cannot be added to {parallelism.pipeline} pipeline stages"
    if not parallelism.balances_experts:
        return
    if not parallelism.expert:
        yield "enable_eplb", "experts are balanced only with enable_expert_parallel"
    elif ranks == 1:
        yield "enable_eplb", "there is one rank, and nothing to balance"
    for experts in sorted(
        {matrix.experts for layer, _ in shape.distinct_layers for matrix in layer.matrices if matrix.experts}
    ):
        if (experts + parallelism.redundant_experts) % ranks:
            yield (
                "num_redundant_experts",
                f"{experts} experts and {parallelism.redundant_experts} copies do not divide evenly over {ranks} ranks",
            )


def prompt_refusals(request: BudgetRequest) -> Iterator[tuple[str, str]]:
    """Settings and models for which prefill-context parallelism does not run (0.27 to 0.33, `PCPManager.validate_config`)."""
    settings, shape = request.settings, request.shape
    name, accounting = "prefill_context_parallel_size", accounting_of(request.vllm_version)
    runs, cut = accounting.shares_prompts, settings.parallelism
    if cut.prefill_context == 1 or runs is None:
        return
    if not runs:
        if request.accelerator.vendor == "nvidia":
            yield name, f"no attention kernel of vLLM {request.vllm_version} shares a prompt between ranks"
        return
    if not shape.has(LatentAttention | CompressedAttention | UnmodelledLayer):
        yield name, "vLLM shares the prompts of MLA models only"
    if settings.lora.enabled:
        yield name, "it does not go with LoRA"
    if any(settings.takes(item.modality) for encoder in shape.encoders for item in encoder.items):
        yield name, "it does not go with images and sounds; language_model_only leaves them out"
    drafts = accounting.drafts_with_shared_prompts and request.draft_method in ("mtp", "dspark", "")
    if settings.speculation is not None and not drafts:
        yield name, f"it does not go with drafts by {settings.speculation.method}"
    if cut.pipeline > 1 and not accounting.stages_with_shared_prompts:
        yield name, "it does not go with pipeline stages in this release"
    sizes = sorted({1, cut.prefill_context, cut.tensor * cut.prefill_context})
    if cut.decode_context not in sizes:
        yield (
            "decode_context_parallel_size",
            f"beside prefill-context parallelism it must be one of {', '.join(map(str, sizes))}",
        )


def _context_refusals(shape: ModelShape, parallelism: Parallelism) -> Iterator[str]:
    """Full attention divides tokens only between ranks that hold the same KV heads (`ParallelConfig` checks)."""
    context, tensor = parallelism.decode_context, parallelism.tensor
    # beside prefill_context, other sizes go together
    if context == 1 or parallelism.prefill_context > 1:
        return
    if tensor % context:
        yield f"{context} does not divide the {tensor} tensor parallel ranks"
    if any(isinstance(mixer, CompressedAttention) or getattr(mixer, "sliding_window", 0) for mixer in shape.mixers):
        yield "vLLM does not divide the tokens of a sliding window over ranks"
    if shape.has(FullAttention, "sees_images_both_ways"):
        yield "no attention kernel for images that attend both ways divides tokens over ranks"
    if shape.num_heads % tensor == 0:
        for count in sorted({mixer.num_kv_heads for mixer in shape.mixers if isinstance(mixer, FullAttention)}):
            if context > tensor // count:
                copies = max(1, tensor // count)
                yield f"{context} ranks must hold the same KV heads, and {tensor} ranks hold {copies} copies of {count} KV heads"
