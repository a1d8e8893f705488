"""What vLLM refuses before it looks at memory: dtype × GPU × version, and sizes that do not divide.

Each function returns the reason as a sentence, or None where the setting is accepted. Read in vLLM 0.32; texts are ours.
"""

from kvgate.budget.accelerator import Accelerator
from kvgate.budget.model_shape import (
    DTYPE_BYTES,
    LatentAttention,
    ModelShape,
    UnmodelledLayer,
)
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
