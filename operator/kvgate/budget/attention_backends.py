"""vLLM's choice of attention kernels, as far as it decides the format of the cache and the tokens of a block.

Read in vLLM 0.32: `platforms/cuda.py` (order of backends) and `get_supported_kernel_block_sizes` of each of them.
"""

from functools import lru_cache

from kvgate.budget.hardware import Accelerator
from kvgate.budget.kv_cache_dtype import KVCacheDtype, resolve
from kvgate.budget.model_shape import CompressedAttention, FullAttention, LatentAttention, Mixer, ModelShape
from kvgate.budget.versions import Accounting

DEFAULT_BLOCK_SIZE = 16
COMPRESSED_BLOCK_SIZE = 256
LEAST_COMPRESSED_BLOCK_SIZE = 128
"""A block must hold one vector of the strongest compression."""
SPARSE_BLOCK_SIZE = 64
HYBRID_MLA_BLOCK_SIZE = 128
"""Least multiple that blocks of MLA beside recurrent states are aligned to."""
_INDEXED_BLOCK_SIZE = 128
WIDEST_COMMON_HEAD = 256
"""Widest head that FlashAttention 2 and 3 and FlashInfer all take."""
_FP8_BY_ITSELF = frozenset({"GlmMoeDsaForCausalLM"})
"""Model classes that take an fp8 cache on Blackwell where nobody chooses."""


def cache_dtype_of(shape: ModelShape, accelerator: Accelerator, asked: str, accounting: Accounting) -> KVCacheDtype:
    """The format of the cache as the kernels keep it. Raises UnmodelledKind for a format without a formula."""
    return _cache_dtype(shape, _major(accelerator), asked, accounting)


@lru_cache(maxsize=1024)
def _cache_dtype(shape: ModelShape, major: int | None, asked: str, accounting: Accounting) -> KVCacheDtype:
    if any(isinstance(mixer, CompressedAttention) for mixer in shape.mixers):
        return resolve("fp8_ds_mla", model_dtype=shape.dtype)
    is_sparse = any(isinstance(mixer, LatentAttention) and mixer.is_sparse for mixer in shape.mixers)
    scheme = _followed_scheme(shape, accounting)
    if is_sparse and scheme is None and major == 10 and shape.architecture in _FP8_BY_ITSELF:
        scheme = "fp8_e4m3"
    dtype = resolve(asked, model_dtype=shape.dtype, checkpoint_scheme=scheme)
    if is_sparse and dtype.is_fp8 and major in (9, 12):
        return resolve("fp8_ds_mla", model_dtype=shape.dtype)  # FLASHMLA_SPARSE knows no other fp8
    return dtype


def _followed_scheme(shape: ModelShape, accounting: Accounting) -> str | None:
    """Return the format that `auto` takes from the checkpoint; earlier releases keep the model dtype whatever the checkpoint states."""
    scheme, method = shape.kv_cache_scheme, shape.quantization.method if shape.quantization else None
    follows = method is None or method in accounting.cache_scheme_methods
    return scheme if follows and scheme in accounting.kv_cache_dtypes else None


def kernel_block_size(shape: ModelShape, accelerator: Accelerator, dtype: KVCacheDtype) -> int:
    """The smallest block that every attention kernel of the model takes."""
    return _kernel_block_size(shape, _major(accelerator), dtype)


@lru_cache(maxsize=1024)
def _kernel_block_size(shape: ModelShape, major: int | None, dtype: KVCacheDtype) -> int:
    sizes = (_kernel_block(mixer, major, dtype) for mixer in shape.mixers)
    return max(sizes, default=DEFAULT_BLOCK_SIZE)


def _kernel_block(mixer: Mixer, major: int | None, dtype: KVCacheDtype) -> int:
    if isinstance(mixer, CompressedAttention):
        return COMPRESSED_BLOCK_SIZE
    if isinstance(mixer, LatentAttention):
        return SPARSE_BLOCK_SIZE if mixer.is_sparse else _latent_block(major, dtype)
    if isinstance(mixer, FullAttention):
        return _attention_block(mixer, major, dtype)
    return DEFAULT_BLOCK_SIZE


def _latent_block(major: int | None, dtype: KVCacheDtype) -> int:
    """FLASHINFER_MLA on Blackwell takes 32, FLASHMLA (fp8 on Hopper) 64, all others 16."""
    if major == 10:
        return 32
    return 64 if major == 9 and dtype.is_fp8 else DEFAULT_BLOCK_SIZE


def _attention_block(mixer: FullAttention, major: int | None, dtype: KVCacheDtype) -> int:
    """FlashAttention 4, which heads above 256 need, takes 64 on Blackwell, and on Hopper where the cache is fp8."""
    if mixer.index_head_dim:
        return _INDEXED_BLOCK_SIZE
    if dtype.name.startswith("ultraquant_"):
        return 64
    is_wide = mixer.head_dim > WIDEST_COMMON_HEAD
    return 64 if is_wide and (major == 10 or (major == 9 and dtype.is_fp8)) else DEFAULT_BLOCK_SIZE


def _major(accelerator: Accelerator) -> int | None:
    """Return the major number of the CUDA compute capability."""
    return accelerator.compute_capability[0] if accelerator.compute_capability else None
