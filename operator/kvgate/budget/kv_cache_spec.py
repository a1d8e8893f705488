"""What one layer keeps: bytes of a page, and how many blocks one request needs.

A page is one block of one layer. Formulas: vLLM 0.32, `v1/kv_cache_interface.py`.
"""

from dataclasses import dataclass, replace

from kvgate.budget.kv_cache_dtype import KVCacheDtype
from kvgate.budget.units import cdiv


@dataclass(frozen=True, kw_only=True, slots=True)
class Reach:
    """How far a request may grow: what a number of blocks depends on besides the spec."""

    max_model_len: int
    decode_context: int = 1
    """Ranks that deal out a sequence's tokens between them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionSpec:
    """Base of the specs that keep K and V of every head: `2 × heads × head_dim` elements per token."""

    block_size: int
    """Tokens of a block."""
    num_kv_heads: int
    head_dim: int
    dtype: KVCacheDtype
    page_padded_bytes: int = 0
    """What the page is padded to, where a larger page of another group decides."""

    @property
    def token_bytes(self) -> int:
        """One token in one layer on one rank."""
        return 2 * self.num_kv_heads * self.dtype.head_bytes(self.head_dim)

    @property
    def page_size_bytes(self) -> int:
        return max(self.block_size * self.token_bytes, self.page_padded_bytes)

    def with_block_size(self, block_size: int) -> "AttentionSpec":
        return replace(self, block_size=block_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class FullAttentionSpec(AttentionSpec):
    """Every token of the request is kept."""

    kind = "full attention"

    def blocks(self, reach: Reach) -> int:
        return cdiv(cdiv(reach.max_model_len, reach.decode_context), self.block_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class MLASpec:
    """One latent vector per token (`kv_lora_rank + qk_rope_head_dim`), whole on every tensor-parallel rank."""

    block_size: int
    width: int
    dtype: KVCacheDtype

    kind = "MLA"

    @property
    def token_bytes(self) -> int:
        return self.dtype.head_bytes(self.width)

    @property
    def page_size_bytes(self) -> int:
        return self.block_size * self.token_bytes

    def with_block_size(self, block_size: int) -> "MLASpec":
        return replace(self, block_size=block_size)

    def blocks(self, reach: Reach) -> int:
        return cdiv(cdiv(reach.max_model_len, reach.decode_context), self.block_size)


@dataclass(frozen=True, kw_only=True, slots=True)
class StateSpec:
    """A recurrent state of fixed size (Mamba, GDN, KDA): its blocks do not depend on the length.

    The arithmetic of hybrids is here; no config is read into it yet, because their ledger has no formulas.
    """

    block_size: int
    state_bytes: int
    num_states: int = 1
    """1, or 2 with prefix caching (`align` mode), each plus speculative and checkpoint states."""
    page_padded_bytes: int = 0

    kind = "recurrent state"

    @property
    def page_size_bytes(self) -> int:
        return max(self.state_bytes, self.page_padded_bytes)

    def blocks(self, reach: Reach) -> int:  # noqa: ARG002 - one signature for all specs
        return self.num_states


KVCacheSpec = FullAttentionSpec | MLASpec | StateSpec
