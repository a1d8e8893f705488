"""Cache specs of a layer, derived from what the layer computes with: one spec per cache, for one tensor-parallel rank.

Formulas: vLLM 0.32, `get_kv_cache_spec` of the attention layers and `MambaStateShapeCalculator`.
"""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from msgspec import Struct

from kvgate.budget.ground.hardware import local_heads
from kvgate.budget.ground.interval import UnmodelledKind
from kvgate.budget.kv_cache.dtype import KVCacheDtype, plain
from kvgate.budget.kv_cache.spec import (
    ChunkedLocalSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MLASpec,
    SlidingWindowSpec,
    StateSpec,
    WindowMLASpec,
)
from kvgate.budget.model.shape import (
    DTYPE_BYTES,
    CompressedAttention,
    CrossAttention,
    EncoderAttention,
    FullAttention,
    LatentAttention,
    Mixer,
    RecurrentState,
    SharedCache,
)

_COMPRESSED_ALIGNMENT = 576
"""DeepSeek-V4: a page is a multiple of so many bytes."""
_ROTARY = 64
_SCALE_BYTES = 8
_WINDOW_BLOCK = 64
"""Tokens of a block of DeepSeek-V4's window."""


class CacheSettings(Struct, frozen=True, kw_only=True):
    """Settings that decide a spec together with the model."""

    model_dtype: str
    dtype: KVCacheDtype
    block_size: int
    """Tokens of a block, before the blocks of hybrids are aligned."""
    tensor: int = 1
    num_speculative_tokens: int = 0
    retained_tokens: int = 0
    """Tokens kept beside sliding windows for draft modules that run one after another."""
    state_mode: str = "none"
    """Way in which states are kept for prefixes (`mamba_cache_mode` as vLLM resolves it)."""
    drafts_beside_all_states: bool = False
    """True where mode `all` has blocks for drafts as well."""
    keeps_checkpoints: bool = False
    """True where this release keeps one more state if the kernel can export it."""
    conv_dtype: str = "auto"
    """`--mamba-cache-dtype`."""
    state_dtype: str = "auto"
    """`--mamba-ssm-cache-dtype`."""
    skipped_layers: frozenset[str] = frozenset()
    """Indices of layers that keep the model dtype; `sliding_window` stands for all layers with a window."""


def specs_of(mixer: Mixer, layer: int, settings: CacheSettings) -> tuple[KVCacheSpec, ...]:
    """Return the specs of what a layer keeps for a mixer. Raises UnmodelledKind for a kind without a formula."""
    if isinstance(mixer, FullAttention):
        return _attention(mixer, settings, dtype_of_layer(mixer, layer, settings))
    return _specs(mixer, settings)


@lru_cache(maxsize=1024)
def _specs(mixer: Mixer, settings: CacheSettings) -> tuple[KVCacheSpec, ...]:
    if isinstance(mixer, LatentAttention):
        vector_bytes = settings.dtype.latent_bytes(mixer.kv_lora_rank, mixer.qk_rope_head_dim)
        own = MLASpec(block_size=settings.block_size, vector_bytes=vector_bytes)
        if not mixer.index_head_dim:
            return (own,)
        return MLASpec(block_size=settings.block_size, vector_bytes=index_bytes(mixer.index_head_dim)), own
    if isinstance(mixer, CompressedAttention):
        return tuple(_compressed(mixer, settings.block_size))
    if isinstance(mixer, CrossAttention):
        heads = local_heads(mixer.num_kv_heads, settings.tensor)
        return (
            CrossAttentionSpec(
                block_size=settings.block_size, num_kv_heads=heads, head_dim=mixer.head_dim, dtype=settings.dtype
            ),
        )
    if isinstance(mixer, RecurrentState):
        return (_state_spec(mixer, settings),)
    if isinstance(mixer, SharedCache | EncoderAttention):
        return ()
    raise UnmodelledKind(mixer.kind)


def _state_spec(mixer: RecurrentState, settings: CacheSettings) -> StateSpec:
    """Return one state and those of drafts; for cached prefixes one more and a checkpoint, or one for every block instead."""
    size, drafts = state_bytes(mixer, settings), settings.num_speculative_tokens
    if settings.state_mode == "none":
        return StateSpec(block_size=0, state_bytes=size, num_states=1 + drafts)
    if settings.state_mode == "all":
        beside = drafts if settings.drafts_beside_all_states else 0
        return StateSpec(block_size=settings.block_size, state_bytes=size, num_states=beside, is_kept_by_block=True)
    count = 2 + drafts + (mixer.keeps_checkpoint and settings.keeps_checkpoints)
    return StateSpec(block_size=settings.block_size, state_bytes=size, num_states=count)


def dtype_of_layer(mixer: FullAttention, layer: int, settings: CacheSettings) -> KVCacheDtype:
    """Return the cache's format, or the model dtype for a layer that does not take it."""
    skipped = settings.skipped_layers
    if str(layer) in skipped or (mixer.sliding_window and "sliding_window" in skipped):
        return plain(settings.model_dtype)
    return settings.dtype


@lru_cache(maxsize=1024)
def _attention(mixer: FullAttention, settings: CacheSettings, dtype: KVCacheDtype) -> tuple[KVCacheSpec, ...]:
    heads = local_heads(mixer.num_kv_heads, settings.tensor)
    common: dict[str, Any] = {
        "block_size": settings.block_size, "num_kv_heads": heads, "head_dim": mixer.head_dim, "v_head_dim": mixer.v_head_dim,
        "dtype": dtype,
    }  # fmt: skip
    if mixer.sliding_window:
        return (SlidingWindowSpec(**common, window=mixer.sliding_window, retained_tokens=settings.retained_tokens),)
    if mixer.chunk_size:
        return (ChunkedLocalSpec(**common, chunk_size=mixer.chunk_size),)
    full = FullAttentionSpec(**common)
    if not mixer.index_head_dim:
        return (full,)
    index_bytes = mixer.index_head_dim * DTYPE_BYTES[settings.model_dtype]
    return MLASpec(block_size=settings.block_size, vector_bytes=index_bytes), full


def index_bytes(index_head_dim: int) -> int:
    """Bytes of one token of a sparse indexer: fp8 and a float32 scale for every 128 elements, whatever the cache's format is."""
    return index_head_dim + index_head_dim // 128 * 4


def _compressed(mixer: CompressedAttention, block_size: int) -> Iterator[KVCacheSpec]:
    """Specs of DeepSeek-V4's caches: fp8 vectors with a 16-bit rotary part and 8 bytes of scales, and float32 rings."""
    vector_bytes = mixer.head_dim - _ROTARY + 2 * _ROTARY + _SCALE_BYTES
    yield WindowMLASpec(
        block_size=_WINDOW_BLOCK,
        vector_bytes=vector_bytes,
        window=mixer.sliding_window,
        alignment=_COMPRESSED_ALIGNMENT,
    )
    if not mixer.ratio:
        return
    overlaps = mixer.ratio == 4
    yield MLASpec(
        block_size=block_size, vector_bytes=vector_bytes, tokens_per_vector=mixer.ratio, alignment=_COMPRESSED_ALIGNMENT
    )
    yield _ring(mixer.head_dim, mixer.ratio, overlaps=overlaps)
    if overlaps:
        yield MLASpec(
            block_size=block_size, vector_bytes=index_bytes(mixer.index_head_dim), tokens_per_vector=mixer.ratio,
            alignment=_COMPRESSED_ALIGNMENT,
        )  # fmt: skip
        yield _ring(mixer.index_head_dim, mixer.ratio, overlaps=True)


def _ring(width: int, ratio: int, *, overlaps: bool) -> WindowMLASpec:
    """Return the spec of what a compressor reads: values and gates of the tokens of one vector, or of two where they overlap."""
    copies = 2 if overlaps else 1
    return WindowMLASpec(
        block_size=4 if overlaps else 8, vector_bytes=copies * 2 * width * 4, window=copies * ratio,
        alignment=_COMPRESSED_ALIGNMENT,
    )  # fmt: skip


def state_bytes(mixer: RecurrentState, settings: CacheSettings) -> int:
    """Bytes of the convolution's window and of the recurrent state on one rank."""
    conv_dtype = _or(settings.conv_dtype, settings.model_dtype)
    taps = mixer.conv_taps + settings.num_speculative_tokens
    total = taps * sum(units.on_rank(settings.tensor) for units in mixer.conv) * DTYPE_BYTES[conv_dtype]
    if mixer.state is not None:
        state_dtype = mixer.state_dtype or conv_dtype
        if not mixer.fixed_state_dtype:  # the user can choose another format for the state
            state_dtype = _or(settings.state_dtype, state_dtype)
        total += mixer.state.on_rank(settings.tensor) * DTYPE_BYTES[state_dtype]
    return total


def _or(dtype: str, otherwise: str) -> str:
    return otherwise if dtype == "auto" else dtype
