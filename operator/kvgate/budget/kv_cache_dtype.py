"""Formats of the KV cache: which bytes a head's keys and values take, or a latent vector."""

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from kvgate.budget.errors import UnmodelledKind
from kvgate.budget.model_shape import DTYPE_BYTES
from kvgate.budget.units import cdiv, round_up
from kvgate.record import record

_HALF, _ONE = Fraction(1, 2), Fraction(1)


@record
class Side:
    """Keys, or values: bytes per element, and per token and head beside them."""

    bytes_per_element: Fraction
    extra_bytes: int = 0

    def head_bytes(self, head_dim: int) -> int:
        """One token of one head."""
        return cdiv(head_dim * self.bytes_per_element.numerator, self.bytes_per_element.denominator) + self.extra_bytes


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KVCacheDtype:
    """One format, one object each; scales that are kept inside the page count, those beside it do not."""

    name: str
    keys: Side
    values: Side

    def head_bytes(self, head_dim: int, v_head_dim: int) -> int:
        """Keys and values of one token and head; packed formats take even slots (vLLM 0.32, `TurboQuantConfig`)."""
        size = self.keys.head_bytes(head_dim) + self.values.head_bytes(v_head_dim)
        return round_up(size, 2) if self.is_packed else size

    def latent_bytes(self, kv_lora_rank: int, qk_rope_head_dim: int) -> int:
        """One token of MLA: one vector, nothing twice; the sparse formats keep scales and a wider rotary part beside it."""
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
    def is_fp8(self) -> bool:
        """Plain 8-bit floats without scales in the page."""
        return self.keys.bytes_per_element == 1 and not self.keys.extra_bytes and not self.is_packed

    @property
    def is_packed(self) -> bool:
        """Keys and values share a slot, and layers at both ends of the model keep the model dtype (`boundary_skip_layers`)."""
        return self.name.startswith(("turboquant_", "ultraquant_"))


def _both(bytes_per_element: Fraction, extra_bytes: int = 0) -> tuple[Side, Side]:
    side = Side(bytes_per_element=bytes_per_element, extra_bytes=extra_bytes)
    return side, side


def _turboquant(key_bits: int, value_bits: int) -> tuple[Side, Side]:
    """Keys of fewer than 8 bits keep a norm of 2 bytes, values a scale and a zero point of 2 bytes each."""
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
}
"""(keys, values), vLLM 0.32 `kv_cache_interface` and the quantisers' own configs."""


def formats_known() -> frozenset[str]:
    """Values of `--kv-cache-dtype` that have a formula."""
    return frozenset({*_FORMATS, *DTYPE_BYTES, "auto"})


@lru_cache(maxsize=64)
def plain(dtype: str) -> KVCacheDtype:
    """A model dtype as it is."""
    keys, values = _both(Fraction(DTYPE_BYTES[dtype]))
    return KVCacheDtype(name=dtype, keys=keys, values=values)


@lru_cache(maxsize=256)
def resolve(name: str, *, model_dtype: str, checkpoint_scheme: str | None = None) -> KVCacheDtype:
    """The format that a `--kv-cache-dtype` means; `auto` asks the checkpoint first and then takes the model dtype.

    Raises UnmodelledKind for formats without a formula here.
    """
    if name == "auto":
        name = checkpoint_scheme or model_dtype
    if name in DTYPE_BYTES:
        return plain(name)
    if name in _FORMATS:
        keys, values = _FORMATS[name]
        return KVCacheDtype(name=name, keys=keys, values=values)
    raise UnmodelledKind(f"kv_cache_dtype {name}")
