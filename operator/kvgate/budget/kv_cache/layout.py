"""The KV cache of one engine: its groups, from the layers of the model, and the bytes of a block on every pipeline stage."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from math import lcm

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.engine.request import BudgetRequest
from kvgate.budget.engine.run import with_own_parts
from kvgate.budget.engine.settings import Resolved
from kvgate.budget.ground.hardware import stage_sizes
from kvgate.budget.ground.interval import UnmodelledKind, UnmodelledValue
from kvgate.budget.ground.units import cdiv, round_up
from kvgate.budget.kv_cache.capacity import KVCache
from kvgate.budget.kv_cache.dtype import cache_dtype_of, kernel_block_size, takes_cache_dtype
from kvgate.budget.kv_cache.groups import Cache, Groups, bytes_per_block, form_groups, without_local_caches
from kvgate.budget.kv_cache.hybrid_manager import hybrid_manager
from kvgate.budget.kv_cache.layer_specs import CacheSettings, specs_of
from kvgate.budget.kv_cache.spec import (
    AttentionSpec,
    FullAttentionSpec,
    KVCacheSpec,
    MLASpec,
    Reach,
    SlidingWindowSpec,
    StateSpec,
)
from kvgate.budget.model.draft import MTP_CLASSES, Draft
from kvgate.budget.model.shape import DTYPE_BYTES, CompressedAttention, FullAttention, LatentAttention, ModelShape
from kvgate.budget.releases.accounting import Accounting

_LATENT_FORMATS = frozenset({"fp8_ds_mla", "nvfp4_ds_mla"})
"""Formats of sparse MLA's cache, which no other attention has."""


class LayoutSettings(Struct, frozen=True, kw_only=True):
    """Settings that decide the layout together with the model and its specs."""

    specs: CacheSettings
    kernel_block: int
    """The smallest block, in tokens, that every attention kernel takes."""
    pipeline: int = 1
    latent_state_block: int = 1
    """Least multiple of MLA's blocks where recurrent states stand beside it."""
    state_chunk: int = 1
    """Tokens of which a block is a multiple where every block keeps a state."""
    hybrid_manager: bool = True
    """True where windows and chunks stay what they are beside full attention."""
    with_drafts: bool = False
    """True where layers of multi-token prediction keep caches too (speculative decoding)."""
    draft: Draft | None = None
    """Another model that drafts; its layers keep caches in the same blocks."""
    draft_specs: CacheSettings | None = None
    """Settings of the caches of whatever drafts, where they are not the target's."""


class Layout(Struct, frozen=True, kw_only=True, eq=False):
    """Groups of the whole model, and what each pipeline stage holds of them."""

    groups: Groups
    stages: tuple[tuple[int, int], ...]
    """Layers first ≤ i < last of each stage."""
    stage_block_bytes: tuple[int, ...]
    """Bytes of one block on a rank of each stage; 0 on a stage that keeps nothing."""
    alike: tuple[int, ...] = ()
    """For each stage the index of the first one whose ranks hold the same: they share its ledger."""


def lay_out(request: BudgetRequest, resolved: Resolved, accounting: Accounting) -> tuple[KVCache, Layout]:
    """Return the cache, and what each stage holds of it. Raises UnmodelledKind for a layer or a format without a formula."""
    settings = _layout_settings(request, resolved, accounting)
    layout = layout_of(with_own_parts(request.shape, accounting), settings)
    reach = Reach(
        max_model_len=resolved.max_model_len,
        decode_context=request.settings.parallelism.decode_context,
        in_flight_tokens=resolved.in_flight_tokens,
        max_encoder_tokens=resolved.max_num_batched_tokens,
    )
    kv_cache = KVCache(
        groups=layout.groups,
        dtype=settings.specs.dtype,
        kernel_block=settings.kernel_block,
        bytes_per_block=max(layout.stage_block_bytes),
        checked_bytes_per_block=(sum if accounting.start_check_counts_all_stages else max)(layout.stage_block_bytes),
        reach=reach,
        null_blocks=accounting.null_blocks,
        tokens_by_concurrency=accounting.tokens_by_concurrency,
    )
    return kv_cache, layout


def _layout_settings(request: BudgetRequest, resolved: Resolved, accounting: Accounting) -> LayoutSettings:
    shape, settings, speculation = request.shape, request.settings, request.settings.speculation
    all_latent = all(isinstance(mixer, LatentAttention) for mixer in shape.mixers)
    if settings.parallelism.prefill_context > 1 and not (accounting.shares_prompts and all_latent):
        # only MLA is served, and of it every rank holds the tokens that decode_context_parallel_size leaves it (0.27+)
        raise UnmodelledValue("prefill_context_parallel_size", settings.parallelism.prefill_context)
    if settings.mamba_cache_mode == "all" and accounting.state_modes == {"align"}:
        raise UnmodelledKind("mamba_cache_mode all, which this release refuses")
    major = request.accelerator.capability_major
    dtype = cache_dtype_of(shape, major, settings.kv_cache_dtype, accounting)
    kernel_block = kernel_block_size(shape, major, dtype, accounting)
    draft = request.draft
    if speculation is not None and speculation.uses_another_model and draft is None:
        raise UnmodelledKind(f"drafts by {speculation.model or speculation.method or 'a model without a name'}")
    with_drafts = speculation is not None and speculation.uses_own_layers
    # draft modules that run one after another look back one token further each (vLLM 0.32, `SlidingWindowSpec`)
    has_several_modules = with_drafts and len(shape.draft_layers) >= 2
    specs = CacheSettings(
        model_dtype=shape.dtype,
        dtype=dtype,
        block_size=settings.block_size or kernel_block,
        tensor=settings.parallelism.tensor,
        num_speculative_tokens=request.draft_tokens,
        retained_tokens=request.draft_tokens - 1 if has_several_modules else 0,
        state_mode=resolved.state_mode,
        drafts_beside_all_states=accounting.drafts_beside_all_states,
        keeps_checkpoints=accounting.state_checkpoints,
        conv_dtype=settings.mamba_cache_dtype,
        state_dtype=settings.mamba_ssm_cache_dtype,
        skipped_layers=frozenset(settings.kv_cache_dtype_skip_layers),
    )
    return LayoutSettings(
        specs=specs,
        kernel_block=kernel_block,
        pipeline=settings.parallelism.pipeline,
        latent_state_block=accounting.latent_state_block,
        state_chunk=(settings.mamba_block_size or shape.state_chunk_tokens) if resolved.state_mode == "all" else 1,
        hybrid_manager=hybrid_manager(request, accounting).runs,
        with_drafts=with_drafts,
        draft=draft,
        draft_specs=_draft_specs(request, draft, specs, accounting),
    )


def _draft_specs(
    request: BudgetRequest, draft: Draft | None, specs: CacheSettings, accounting: Accounting
) -> CacheSettings | None:
    """Return the settings of the draft's caches: the target's format, unless the draft has one of its own, and the draft's cut.

    None where nothing drafts, and for layers of the model's own whose caches are like the model's.
    """
    speculation, dtype, shape = request.settings.speculation, specs.dtype, draft.shape if draft else request.shape
    major = request.accelerator.capability_major
    is_mtp = speculation is not None and speculation.is_mtp
    is_plain = (MTP_CLASSES.get(shape.architecture), "") in accounting.plain_caches if is_mtp else False
    if is_plain or (draft is not None and not takes_cache_dtype(shape, accounting)):
        dtype = cache_dtype_of(shape, major, "auto", accounting)
    elif speculation is not None and speculation.kv_cache_dtype not in (None, "auto"):
        dtype = cache_dtype_of(shape, major, str(speculation.kv_cache_dtype), accounting)
    elif dtype.name in _LATENT_FORMATS and not shape.has(LatentAttention):
        dtype = cache_dtype_of(shape, major, "fp8", accounting)
    if draft is None:
        return replace(specs, dtype=dtype) if is_plain else None
    return replace(
        specs, dtype=dtype, tensor=request.draft_parallelism.tensor, retained_tokens=0, skipped_layers=frozenset()
    )


@lru_cache(maxsize=1024)
def layout_of(shape: ModelShape, settings: LayoutSettings) -> Layout:
    """Return the layout on one tensor-parallel rank of every stage. Raises UnmodelledKind for a layer without a formula."""
    caches = caches_of(shape, settings)
    groups = form_groups(caches, packed=shape.has(CompressedAttention))
    count = len(shape.layers)
    stages = tuple(pairwise(accumulate(stage_sizes(count, min(settings.pipeline, count)), initial=0)))
    ends = (*(last for _, last in stages[:-1]), None)  # drafts follow the last layer
    sizes = tuple(bytes_per_block(groups, first, end) for (first, _), end in zip(stages, ends, strict=True))
    # stages between the first and the last are alike if their layers are; equal layers are one object
    found: dict[object, int] = {}
    at_ends = (0, len(stages) - 1)
    keys = (i if i in at_ends else tuple(map(id, shape.layers[slice(*stage)])) for i, stage in enumerate(stages))
    alike = tuple(found.setdefault(key, index) for index, key in enumerate(keys))
    return Layout(groups=groups, stages=stages, stage_block_bytes=sizes, alike=alike)


def caches_of(shape: ModelShape, settings: LayoutSettings) -> list[Cache]:
    """Return every cache of the model in the order of its layers, with the blocks of hybrids aligned."""
    layers = shape.layers + (shape.draft_layers if settings.with_drafts else ())
    specs = _with_boundaries(shape, settings.specs)
    own_drafts = specs if settings.draft is not None else settings.draft_specs or specs
    caches = [
        (i, spec)
        for i, layer in enumerate(layers)
        for mixer in layer.mixers
        for spec in specs_of(mixer, i, specs if i < len(shape.layers) else own_drafts)
    ]
    if settings.draft is not None and settings.draft_specs is not None:
        caches += [
            (len(layers) + i, spec)
            for i, layer in enumerate(settings.draft.layers)
            for mixer in layer.mixers
            for spec in specs_of(mixer, len(layers) + i, settings.draft_specs)
        ]
    if not settings.hybrid_manager:
        caches = without_local_caches(caches)
    if "sliding_window" in specs.skipped_layers:
        caches = _with_wider_windows(caches)
    return aligned(
        caches, settings.kernel_block, chunk=settings.state_chunk, latent_multiple=settings.latent_state_block
    )


def _with_boundaries(shape: ModelShape, settings: CacheSettings) -> CacheSettings:
    """Return the settings of a packed format: two layers at either end do not take it, and a page covers the keys of those layers."""
    mixer = next((mixer for mixer in shape.mixers if isinstance(mixer, FullAttention)), None)
    if not settings.dtype.is_packed or shape.is_hybrid or mixer is None:
        return settings
    count = len(shape.layers)
    edges = frozenset(str(i) for i in (0, 1, count - 2, count - 1))
    slot = settings.dtype.head_bytes(mixer.head_dim, mixer.v_head_dim or mixer.head_dim)
    block = settings.block_size * cdiv(mixer.head_dim * DTYPE_BYTES[settings.model_dtype], slot)
    return replace(settings, block_size=block, skipped_layers=settings.skipped_layers | edges)


def _with_wider_windows(caches: list[Cache]) -> list[Cache]:
    """Widen the blocks of a quantised cache until its page covers that of the windows beside it, which keep the model dtype."""
    windows = [spec for _, spec in caches if isinstance(spec, SlidingWindowSpec)]
    full = next((spec for _, spec in caches if isinstance(spec, FullAttentionSpec)), None)
    if not windows or full is None:
        return caches
    factor = cdiv(max(spec.page_size_bytes for spec in windows), full.page_size_bytes)
    page = factor * full.page_size_bytes

    def covering(spec: KVCacheSpec) -> KVCacheSpec:
        if isinstance(spec, SlidingWindowSpec):
            return replace(spec, page_padded_bytes=page)
        return replace(spec, block_size=factor * spec.block_size) if isinstance(spec, FullAttentionSpec) else spec

    return [(layer, covering(spec)) for layer, spec in caches]


def aligned(caches: Sequence[Cache], kernel_block: int, *, chunk: int = 1, latent_multiple: int = 1) -> list[Cache]:
    """Make the blocks of a hybrid's attention so large that a page holds a recurrent state, and pad states to that page.

    vLLM 0.32, `platforms/interface.py` (`_align_hybrid_block_size`); it overrides a block size that the user sets.
    """
    states = [spec for _, spec in caches if isinstance(spec, StateSpec)]
    attention = next((spec for _, spec in caches if isinstance(spec, AttentionSpec | MLASpec)), None)
    if not states or attention is None:
        return list(caches)
    state_bytes = max(spec.state_bytes for spec in states)
    multiple = max(kernel_block, latent_multiple if isinstance(attention, MLASpec) else 1)
    block = aligned_block_size(attention, state_bytes, kernel_block=multiple, chunk=chunk)
    page = block * attention.token_bytes

    def widened(spec: KVCacheSpec) -> KVCacheSpec:
        if isinstance(spec, StateSpec):
            return replace(spec, page_padded_bytes=page, block_size=block if spec.block_size else 0)
        return replace(spec, block_size=block)

    return [(layer, widened(spec)) for layer, spec in caches]


def aligned_block_size(
    attention: AttentionSpec | MLASpec, state_bytes: int, *, kernel_block: int = 16, chunk: int = 1
) -> int:
    """Tokens of a hybrid's attention block whose page is at least a recurrent state; a multiple of `chunk`, too."""
    multiple = lcm(max(kernel_block, attention.block_size), chunk)
    block = multiple * cdiv(state_bytes, multiple * attention.token_bytes)
    return round_up(max(attention.block_size, block), kernel_block)
