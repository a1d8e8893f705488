"""What vLLM refuses before it looks at memory: dtype × GPU × version, and sizes that do not divide.

Each function returns the reason as a sentence, or None where the setting is accepted. Read in vLLM 0.32; texts are ours.
"""

from kvgate.budget.accelerator import Accelerator
from kvgate.budget.model_shape import (
    DTYPE_BYTES,
    DenseMlp,
    FullAttention,
    LatentAttention,
    ModelShape,
    UnmodelledLayer,
)
from kvgate.budget.parallelism import Parallelism
from kvgate.budget.versions import Accounting

_LATENT_ONLY = frozenset({"fp8_ds_mla", "nvfp4_ds_mla"})
_PER_HEAD = frozenset({"int8_per_token_head", "fp8_per_token_head", "int4_per_token_head", "nvfp4"})


def kv_cache_dtype_refusal(
    name: str, shape: ModelShape, accelerator: Accelerator, accounting: Accounting
) -> str | None:
    """Why this release, GPU or model has no such cache."""
    if name == "auto":
        return None
    if name not in accounting.kv_cache_dtypes:
        known = ", ".join(sorted(accounting.kv_cache_dtypes))
        return f"this vLLM release has no kv_cache_dtype {name}; it knows {known}"
    mixers = shape.mixers
    if name in DTYPE_BYTES or any(isinstance(mixer, UnmodelledLayer) for mixer in mixers):
        return None
    latent = any(isinstance(mixer, LatentAttention) for mixer in mixers)
    if latent and name in _PER_HEAD:
        return f"no attention kernel for MLA takes {name}"
    if name in _LATENT_ONLY:
        return f"{name} is a format of sparse MLA models, which this is not"
    return _capability_refusal(name, accelerator, latent=latent)


def _capability_refusal(name: str, accelerator: Accelerator, *, latent: bool) -> str | None:
    """Compute capabilities that the kernels ask for; accelerators without one are not judged here."""
    capability = accelerator.compute_capability
    if capability is None:
        return None
    needed = (8, 9) if latent or name == "fp8_per_token_head" else (8, 0)
    if capability >= needed:
        return None
    return f"{name} needs compute capability {needed[0]}.{needed[1]} and {accelerator.name} has {capability[0]}.{capability[1]}"


def parallelism_refusals(shape: ModelShape, parallelism: Parallelism) -> tuple[tuple[str, str], ...]:
    """(field, reason) for every parallel size that does not go with the model."""
    reasons = [("tensor_parallel_size", reason) for reason in _tensor_refusals(shape, parallelism.tensor)]
    if parallelism.pipeline > len(shape.layers):
        reasons.append(
            ("pipeline_parallel_size", f"{len(shape.layers)} layers cannot be cut into {parallelism.pipeline} stages")
        )
    reasons += [("decode_context_parallel_size", reason) for reason in _context_refusals(shape, parallelism)]
    if parallelism.tensor % parallelism.decode_context:
        reasons.append((
            "decode_context_parallel_size", f"{parallelism.decode_context} does not divide tensor_parallel_size {parallelism.tensor}"
        ))  # fmt: skip
    return tuple(reasons)


def _context_refusals(shape: ModelShape, parallelism: Parallelism) -> list[str]:
    """Full attention deals out tokens only between ranks that hold the same KV heads (vLLM 0.32, `ParallelConfig` checks)."""
    context, tensor = parallelism.decode_context, parallelism.tensor
    if context == 1 or shape.num_heads % tensor:
        return []
    heads = {mixer.num_kv_heads for mixer in shape.mixers if isinstance(mixer, FullAttention)}
    return [
        f"{count} KV heads on {tensor} ranks are held {max(1, tensor // count)} times, not {context} times"
        for count in sorted(heads)
        if context > tensor // count
    ]


def _tensor_refusals(shape: ModelShape, tensor: int) -> list[str]:
    if shape.num_heads % tensor:
        return [f"{shape.num_heads} attention heads are not divisible by {tensor}"]
    heads = (mixer.num_kv_heads for mixer in shape.mixers if isinstance(mixer, FullAttention))
    reasons = [
        f"{count} KV heads and {tensor} ranks do not divide each other" for count in heads if _uneven(count, tensor)
    ]
    widths = (mlp for layer, _ in shape.distinct_layers for mlp in layer.mlps if isinstance(mlp, DenseMlp))
    reasons += [reason for mlp in widths if (reason := _block_refusal(shape, mlp, tensor))]
    return list(dict.fromkeys(reasons))


def _uneven(num_kv_heads: int, tensor: int) -> bool:
    return bool(num_kv_heads % tensor and tensor % num_kv_heads)


def _block_refusal(shape: ModelShape, mlp: DenseMlp, tensor: int) -> str | None:
    """Blocks of quantised weights must not be cut through."""
    if mlp.intermediate_size % tensor:
        return f"intermediate_size {mlp.intermediate_size} is not divisible by {tensor}"
    quantization = shape.quantization
    if quantization is None or quantization.format != "fp8-block":
        return None
    rows = mlp.intermediate_size // tensor
    return (
        f"{rows} rows per rank cut the quantisation blocks of {quantization.block[0]}"
        if rows % quantization.block[0]
        else None
    )
