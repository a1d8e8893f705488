"""Cache specs of one layer: the bytes of a page, and the blocks that one request needs.

A page is one block of one layer. Formulas: vLLM 0.32, `v1/kv_cache_interface.py`.
"""

from collections.abc import Hashable

from msgspec import Struct

from kvgate.budget.ground.units import cdiv, round_up
from kvgate.budget.kv_cache.dtype import KVCacheDtype


class Reach(Struct, frozen=True, kw_only=True):
    """Limits of a request's growth, which decide its number of blocks together with the spec."""

    max_model_len: int
    decode_context: int = 1
    """Ranks that divide the tokens of a sequence between them."""
    in_flight_tokens: int = 0
    """Tokens of the batches in flight, which windows and chunks hold in addition to the tokens that they look back on."""
    max_encoder_tokens: int = 0
    """Encoder states that cross attention is sized for: vLLM takes max_num_batched_tokens."""


class _Spec(Struct, frozen=True, kw_only=True):
    """Base of all specs: one that keeps every token of the request, in blocks that two requests with one prefix may share."""

    block_size: int
    """Tokens of a block."""

    shares_prefixes = True

    @property
    def family(self) -> Hashable:
        """Equal for specs whose caches may share a block table."""
        return "full", self.block_size

    def blocks(self, reach: Reach) -> int:
        """Blocks of every token of a request, which the ranks of decode context parallelism divide between them."""
        return cdiv(cdiv(reach.max_model_len, reach.decode_context), self.block_size)


class AttentionSpec(_Spec, frozen=True, kw_only=True):
    """Base of the specs that keep keys and values of every head."""

    num_kv_heads: int
    head_dim: int
    v_head_dim: int = 0
    """Width of the values; 0: as wide as the keys."""
    dtype: KVCacheDtype
    page_padded_bytes: int = 0
    """Bytes that the page is padded to where another group has a larger page; 0 where it is not padded."""

    @property
    def token_bytes(self) -> int:
        return self.num_kv_heads * self.dtype.head_bytes(self.head_dim, self.v_head_dim or self.head_dim)

    @property
    def page_size_bytes(self) -> int:
        return max(self.block_size * self.token_bytes, self.page_padded_bytes)


class FullAttentionSpec(AttentionSpec, frozen=True, kw_only=True):
    """A cache that keeps every token of the request."""

    kind = "full attention"


class SlidingWindowSpec(AttentionSpec, frozen=True, kw_only=True):
    """A cache that keeps the last tokens; older blocks return to the pool while the request runs."""

    window: int
    retained_tokens: int = 0
    """Tokens kept beside the window for draft modules that run one after another."""

    kind = "sliding-window attention"
    shares_prefixes = False

    @property
    def family(self) -> Hashable:
        return "window", self.block_size, self.window

    @property
    def reach_back(self) -> int:
        """Tokens that stand before the one that is computed."""
        return self.window - 1 + self.retained_tokens

    def blocks(self, reach: Reach) -> int:
        return _blocks_of_window(self.block_size, self.reach_back, reach)


class ChunkedLocalSpec(AttentionSpec, frozen=True, kw_only=True):
    """A cache that keeps the chunk that is being computed."""

    chunk_size: int

    kind = "chunked-local attention"
    shares_prefixes = False

    @property
    def family(self) -> Hashable:
        return "chunk", self.block_size, self.chunk_size

    @property
    def reach_back(self) -> int:
        """Tokens of a chunk that may stand before the batch."""
        return self.chunk_size

    def blocks(self, reach: Reach) -> int:
        return cdiv(min(self.chunk_size + reach.in_flight_tokens, reach.max_model_len), self.block_size)


class CrossAttentionSpec(AttentionSpec, frozen=True, kw_only=True):
    """A cache that keeps the encoder's states, as many as a batch may bring."""

    kind = "cross attention"
    shares_prefixes = False

    @property
    def family(self) -> Hashable:
        return "cross", self.block_size

    def blocks(self, reach: Reach) -> int:
        return cdiv(reach.max_encoder_tokens, self.block_size)


class MLASpec(_Spec, frozen=True, kw_only=True):
    """One vector per token, whole on every tensor-parallel rank: MLA's own cache, or an indexer's."""

    vector_bytes: int
    tokens_per_vector: int = 1
    """Tokens that share one vector: 4 or 128 in DeepSeek-V4."""
    alignment: int = 1
    """A page is rounded up to a multiple of so many bytes."""

    kind = "MLA"

    @property
    def token_bytes(self) -> int:
        return self.vector_bytes // self.tokens_per_vector

    @property
    def page_size_bytes(self) -> int:
        return round_up(self.block_size // self.tokens_per_vector * self.vector_bytes, self.alignment)


class WindowMLASpec(_Spec, frozen=True, kw_only=True):
    """A cache that keeps the last vectors: DeepSeek-V4's window, and the rings that its compressors read."""

    vector_bytes: int
    window: int
    alignment: int = 1

    kind = "sliding-window MLA"
    shares_prefixes = False

    @property
    def family(self) -> Hashable:
        return "window", self.block_size, self.window

    @property
    def reach_back(self) -> int:
        """Tokens that stand before the one that is computed."""
        return self.window - 1

    @property
    def page_size_bytes(self) -> int:
        return round_up(self.block_size * self.vector_bytes, self.alignment)

    def blocks(self, reach: Reach) -> int:
        return _blocks_of_window(self.block_size, self.reach_back, reach)


class StateSpec(_Spec, frozen=True, kw_only=True):
    """A recurrent state of fixed size; its blocks do not depend on the length of the request, unless every block keeps one."""

    block_size: int
    """Tokens between states that prefix caching keeps; 0: one state for the whole request."""
    state_bytes: int
    num_states: int = 1
    """One state, or two where prefixes are cached (`align`); speculative and checkpoint states come on top."""
    page_padded_bytes: int = 0
    is_kept_by_block: bool = False
    """True where the end of every block has a state (`mamba_cache_mode` all), beside `num_states` others."""

    kind = "recurrent state"

    @property
    def shares_prefixes(self) -> bool:  # type: ignore[override]
        return self.is_kept_by_block

    @property
    def family(self) -> Hashable:
        return "state", self.block_size, self.page_size_bytes, self.num_states

    @property
    def page_size_bytes(self) -> int:
        return max(self.state_bytes, self.page_padded_bytes)

    def blocks(self, reach: Reach) -> int:
        return self.num_states + self.states_of_blocks(reach.max_model_len)

    def states_of_blocks(self, num_tokens: int) -> int:
        """States that the blocks of a request keep; 0 where only the request has some."""
        return cdiv(num_tokens, self.block_size) if self.is_kept_by_block and self.block_size else 0


LocalSpec = SlidingWindowSpec | ChunkedLocalSpec
"""Specs that need the hybrid KV cache manager."""
KVCacheSpec = (
    FullAttentionSpec | SlidingWindowSpec | ChunkedLocalSpec | CrossAttentionSpec | MLASpec | WindowMLASpec | StateSpec
)


def _blocks_of_window(block_size: int, reach_back: int, reach: Reach) -> int:
    """Blocks of a window; one more than its tokens need, because a window need not begin where a block does."""
    return cdiv(min(reach_back + reach.in_flight_tokens, reach.max_model_len), block_size) + 1


def as_full(spec: KVCacheSpec, block_size: int) -> KVCacheSpec:
    """Return the spec that a window or a chunk becomes where the hybrid KV cache manager is off; others stay what they are.

    DeepSeek-V4's windows and rings get pages of the full blocks: 38.87 GiB for 128,000 tokens of Flash in vLLM 0.20 (issue 41830 of vLLM).
    """
    if isinstance(spec, WindowMLASpec):
        return MLASpec(block_size=block_size, vector_bytes=spec.vector_bytes, alignment=spec.alignment)
    if not isinstance(spec, LocalSpec):
        return spec
    return FullAttentionSpec(
        block_size=block_size,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        v_head_dim=spec.v_head_dim,
        dtype=spec.dtype,
    )
