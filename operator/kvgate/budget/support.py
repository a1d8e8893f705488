"""Settings that vLLM refuses before it looks at memory: caches that a release, a GPU or a model's kernels do not have.

Each function returns the reason as a sentence, or None where the setting is accepted. Read in vLLM 0.32; texts are ours.
"""

from collections.abc import Iterator

from kvgate.budget.attention_backends import (
    DEFAULT_BLOCK_SIZE,
    LEAST_COMPRESSED_BLOCK_SIZE,
    SPARSE_BLOCK_SIZE,
    WIDEST_COMMON_HEAD,
    cache_dtype_of,
)
from kvgate.budget.errors import UnmodelledKind
from kvgate.budget.hardware import Accelerator
from kvgate.budget.model_shape import (
    DTYPE_BYTES,
    CompressedAttention,
    FullAttention,
    LatentAttention,
    Mixer,
    ModelShape,
    RecurrentState,
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
