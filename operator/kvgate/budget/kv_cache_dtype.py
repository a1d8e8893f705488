"""Formats of the KV cache: which bytes a head's keys or values take."""

from dataclasses import dataclass
from fractions import Fraction

from kvgate.budget.errors import UnmodelledKind
from kvgate.budget.model_shape import DTYPE_BYTES


@dataclass(frozen=True, kw_only=True, slots=True)
class KVCacheDtype:
    """One format: plain elements, plus scales kept per token and head inside the page."""

    name: str
    bytes_per_element: Fraction
    scale_bytes: int = 0
    """Per token, head and side (K or V)."""

    def head_bytes(self, head_dim: int) -> int:
        """Bytes of one token's keys, or values, of one head."""
        return int(head_dim * self.bytes_per_element) + self.scale_bytes

    @property
    def is_fp8(self) -> bool:
        """Plain 8-bit floats without scales in the page."""
        return self.bytes_per_element == 1 and not self.scale_bytes


_ONE = Fraction(1)
_PACKED = {
    "fp8": (_ONE, 0),
    "fp8_e4m3": (_ONE, 0),
    "fp8_e5m2": (_ONE, 0),
    "fp8_inc": (_ONE, 0),
    "int8_per_token_head": (_ONE, 4),
    "fp8_per_token_head": (_ONE, 4),
    "int4_per_token_head": (_ONE / 2, 4),
    "nvfp4": (Fraction(9, 16), 0),  # half a byte, and an fp8 scale for every 16 elements
}
"""(bytes per element, scale bytes per token and head), vLLM 0.32 `kv_cache_interface`."""


def resolve(name: str, *, model_dtype: str, checkpoint_scheme: str | None = None) -> KVCacheDtype:
    """The format that a `--kv-cache-dtype` means; `auto` asks the checkpoint first and then takes the model dtype.

    Raises UnmodelledKind for formats without a formula here.
    """
    if name == "auto":
        name = checkpoint_scheme or model_dtype
    if name in DTYPE_BYTES:
        return KVCacheDtype(name=name, bytes_per_element=Fraction(DTYPE_BYTES[name]))
    if name in _PACKED:
        per_element, scale_bytes = _PACKED[name]
        return KVCacheDtype(name=name, bytes_per_element=per_element, scale_bytes=scale_bytes)
    raise UnmodelledKind(f"kv_cache_dtype {name}")
