"""Formats of the KV cache, and the block sizes that attention kernels take with them.

A format decides the bytes of a head's keys and values, or of a latent vector. vLLM's choice of attention kernels decides which
format a setting means and how many tokens a block has. Read in vLLM 0.32: `platforms/cuda.py` (order of backends) and
`get_supported_kernel_block_sizes` of each backend.
"""

from fractions import Fraction
from functools import lru_cache

from msgspec import Struct

from kvgate.budget.ground.interval import UnmodelledValue
from kvgate.budget.ground.units import cdiv, round_up
from kvgate.budget.model.shape import (
    DTYPE_BYTES,
    CompressedAttention,
    FullAttention,
    LatentAttention,
    Mixer,
    ModelShape,
)
from kvgate.budget.releases.accounting import Accounting

DEFAULT_BLOCK_SIZE = 16
COMPRESSED_BLOCK_SIZE = 256
LEAST_COMPRESSED_BLOCK_SIZE = 128
"""Smallest block of compressed layers: it must hold one vector of the strongest compression."""
SPARSE_BLOCK_SIZE = 64
WIDEST_COMMON_HEAD = 256
"""Widest head that FlashAttention 2 and 3 and FlashInfer all take."""
_INDEXED_BLOCK_SIZE = 128
_FP8_BY_ITSELF = frozenset({"GlmMoeDsaForCausalLM"})
"""Model classes that take an fp8 cache on Blackwell where the user chooses none."""
_READ_BY_LAYERS = frozenset({"compressed-tensors"})
"""Quantisation methods whose scheme for the cache an attention layer reads itself (0.16 to 0.33, `Attention.__init__`)."""
_HALF, _ONE = Fraction(1, 2), Fraction(1)


class Side(Struct, frozen=True, kw_only=True):
    """Bytes of keys, or of values: per element, and besides that per token and head."""

    bytes_per_element: Fraction
    extra_bytes: int = 0

    def head_bytes(self, head_dim: int) -> int:
        """Bytes of one token of one head."""
        return cdiv(head_dim * self.bytes_per_element.numerator, self.bytes_per_element.denominator) + self.extra_bytes


class KVCacheDtype(Struct, frozen=True, kw_only=True, eq=False):
    """One format, one object each; scales that are kept inside the page count, those beside it do not."""

    name: str
    keys: Side
    values: Side

    def head_bytes(self, head_dim: int, v_head_dim: int) -> int:
        """Bytes of the keys and values of one token and head; packed formats round up to even slots (vLLM 0.32, `TurboQuantConfig`)."""
        if self.is_octave:
            # codes of keys and values, and a scale of 2 bytes for each rotated block of keys and one for the values
            is_compact, value_bits = self.name.endswith("_compact"), int(self.name.removesuffix("_compact")[-1])
            rotary = 0 if is_compact else head_dim // 4
            num_scales = 2 if is_compact else cdiv(head_dim, 64) + 1
            codes = rotary * 4 // 8 + (head_dim - rotary) * 3 // 8 + head_dim * value_bits // 8
            return round_up(codes + 2 * num_scales, 4 if is_compact else 8)
        size = self.keys.head_bytes(head_dim) + self.values.head_bytes(v_head_dim)
        return round_up(size, 2) if self.is_packed else size

    def latent_bytes(self, kv_lora_rank: int, qk_rope_head_dim: int) -> int:
        """Bytes of one token of MLA, which keeps one vector; the sparse formats keep scales and a wider rotary part beside it."""
        if self.name == "fp8_ds_mla":
            return kv_lora_rank + kv_lora_rank // 128 * 4 + 2 * qk_rope_head_dim
        if self.name == "nvfp4_ds_mla":
            return kv_lora_rank * 9 // 16 + qk_rope_head_dim
        return self.keys.head_bytes(kv_lora_rank + qk_rope_head_dim)

    @property
    def bytes_per_element(self) -> Fraction:
        """Bytes of one element of the keys; values never take more."""
        return self.keys.bytes_per_element

    @property
    def is_octave(self) -> bool:
        """True where keys and values share a slot, and every layer has the format."""
        return self.name.startswith("octave_")

    @property
    def is_fp8(self) -> bool:
        """True for plain 8-bit floats without scales in the page."""
        return self.keys.bytes_per_element == 1 and not self.keys.extra_bytes and not self.is_packed

    @property
    def is_packed(self) -> bool:
        """True where keys and values share a slot; layers at both ends of the model then keep the model dtype (`boundary_skip_layers`)."""
        return self.name.startswith(("turboquant_", "ultraquant_"))


def _both(bytes_per_element: Fraction, extra_bytes: int = 0) -> tuple[Side, Side]:
    side = Side(bytes_per_element=bytes_per_element, extra_bytes=extra_bytes)
    return side, side


def _turboquant(key_bits: int, value_bits: int) -> tuple[Side, Side]:
    """Return both sides: keys of fewer than 8 bits keep a norm of 2 bytes, values a scale and a zero point of 2 bytes each."""
    keys = Side(bytes_per_element=Fraction(key_bits, 8), extra_bytes=2 if key_bits < 8 else 0)
    return keys, Side(bytes_per_element=Fraction(value_bits, 8), extra_bytes=4)


_FORMATS = {
    "fp8": _both(_ONE),
    "fp8_e4m3": _both(_ONE),
    "fp8_e5m2": _both(_ONE),
    "fp8_inc": _both(_ONE),
    "fp8_ds_mla": _both(_ONE),
    "nvfp4_ds_mla": _both(Fraction(9, 16)),
    "int8_per_token_head": _both(_ONE, 4),
    "fp8_per_token_head": _both(_ONE, 4),
    "int4_per_token_head": _both(_HALF, 4),
    "nvfp4": _both(Fraction(9, 16)),  # half a byte, and an fp8 scale for every 16 elements
    "nvfp4_4over6": _both(Fraction(9, 16)),
    "turboquant_k8v4": _turboquant(8, 4),
    "turboquant_4bit_nc": _turboquant(4, 4),
    "turboquant_k3v4_nc": _turboquant(3, 4),
    "turboquant_3bit_nc": _turboquant(3, 3),
    "ultraquant_4bit": _both(Fraction(17, 32)),
    "octave_k3v4": (Side(bytes_per_element=Fraction(13, 32)), Side(bytes_per_element=_HALF)),
    "octave_k3v3": (Side(bytes_per_element=Fraction(13, 32)), Side(bytes_per_element=Fraction(3, 8))),
    "octave_k3v3_compact": _both(Fraction(3, 8)),
}
"""(keys, values) by format; vLLM 0.33, `kv_cache_interface` and the configs of the quantisation methods."""


def formats_known() -> frozenset[str]:
    """Values of `--kv-cache-dtype` that have a formula."""
    return frozenset({*_FORMATS, *DTYPE_BYTES, "auto"})


@lru_cache(maxsize=64)
def plain(dtype: str) -> KVCacheDtype:
    """Return the format that keeps a model dtype as it is."""
    keys, values = _both(Fraction(DTYPE_BYTES[dtype]))
    return KVCacheDtype(name=dtype, keys=keys, values=values)


@lru_cache(maxsize=256)
def resolve(name: str, *, model_dtype: str, checkpoint_scheme: str | None = None) -> KVCacheDtype:
    """Return the format that a `--kv-cache-dtype` means; `auto` takes the checkpoint's, or else the model dtype.

    Raises UnmodelledKind for a format without a formula.
    """
    if name == "auto":
        name = checkpoint_scheme or model_dtype
    if name in DTYPE_BYTES:
        return plain(name)
    if name in _FORMATS:
        keys, values = _FORMATS[name]
        return KVCacheDtype(name=name, keys=keys, values=values)
    raise UnmodelledValue("kv_cache_dtype", name)


def takes_cache_dtype(shape: ModelShape, accounting: Accounting) -> bool:
    """False where the model's class builds its attention layers without the settings of the cache (`plain_caches`)."""
    return not any((shape.architecture, test) in accounting.plain_caches for test in ("", *shape.source_tests))


@lru_cache(maxsize=1024)
def cache_dtype_of(shape: ModelShape, major: int | None, stated: str, accounting: Accounting) -> KVCacheDtype:
    """Return the format of the cache as kernels of this major capability keep it. Raises UnmodelledKind for one without a formula."""
    if shape.has(CompressedAttention):
        return resolve("fp8_ds_mla", model_dtype=shape.dtype)
    # `auto` follows the checkpoint; earlier releases keep the model dtype whatever the checkpoint states
    scheme, method = shape.kv_cache_scheme, shape.quantization.method if shape.quantization else None
    methods = accounting.cache_scheme_methods
    if not takes_cache_dtype(shape, accounting):
        stated, methods = "auto", methods & _READ_BY_LAYERS
    if scheme not in accounting.kv_cache_dtypes or not (method is None or method in methods):
        scheme = None
    is_sparse = shape.has(LatentAttention, "is_sparse")
    is_fp8_by_itself = major == 10 and shape.architecture in _FP8_BY_ITSELF
    if is_sparse and scheme is None and (is_fp8_by_itself or accounting.sparse_latent_defaults_to_fp8):
        scheme = "fp8_e4m3"
    dtype = resolve(stated, model_dtype=shape.dtype, checkpoint_scheme=scheme)
    if is_sparse and dtype.is_fp8 and major in (9, 12):
        return resolve("fp8_ds_mla", model_dtype=shape.dtype)  # FLASHMLA_SPARSE knows no other fp8
    return dtype


@lru_cache(maxsize=1024)
def kernel_block_size(shape: ModelShape, major: int | None, dtype: KVCacheDtype, accounting: Accounting) -> int:
    """Return the smallest block, in tokens, that the release takes for every layer of the model on GPUs of this major capability."""
    return max((_kernel_block(mixer, major, dtype, accounting) for mixer in shape.mixers), default=DEFAULT_BLOCK_SIZE)


def _kernel_block(mixer: Mixer, major: int | None, dtype: KVCacheDtype, accounting: Accounting) -> int:
    is_fp8_on_hopper = major == 9 and dtype.is_fp8
    if isinstance(mixer, CompressedAttention):
        return COMPRESSED_BLOCK_SIZE
    if isinstance(mixer, LatentAttention):
        if mixer.is_sparse:
            return SPARSE_BLOCK_SIZE
        if accounting.latent_blocks is not None:
            return accounting.latent_blocks.get(major or 0, DEFAULT_BLOCK_SIZE)
        # FLASHINFER_MLA on Blackwell takes 32, FLASHMLA (fp8 on Hopper) 64, all others 16
        return 32 if major == 10 else 64 if is_fp8_on_hopper else DEFAULT_BLOCK_SIZE
    if not isinstance(mixer, FullAttention):
        return DEFAULT_BLOCK_SIZE
    if mixer.index_head_dim:
        return _INDEXED_BLOCK_SIZE
    # wider heads need FlashAttention 4, which takes 64 on Blackwell, and on Hopper where the cache is fp8
    is_wide = mixer.head_dim > WIDEST_COMMON_HEAD
    if dtype.name.startswith("ultraquant_") or (is_wide and (major == 10 or is_fp8_on_hopper)):
        return 64
    return DEFAULT_BLOCK_SIZE
