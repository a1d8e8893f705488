"""The KV cache of one engine, from a request and its resolved settings."""

from kvgate.budget.attention_backends import cache_dtype_of, kernel_block_size
from kvgate.budget.cache_specs import CacheSettings
from kvgate.budget.capacity import KVCache
from kvgate.budget.errors import UnmodelledKind
from kvgate.budget.kv_cache_spec import Reach
from kvgate.budget.layout import Layout, LayoutSettings, layout_of
from kvgate.budget.model_shape import ModelShape
from kvgate.budget.request import BudgetRequest, EngineSettings
from kvgate.budget.settings import Resolved
from kvgate.budget.versions import Accounting


def lay_out(request: BudgetRequest, resolved: Resolved, accounting: Accounting) -> tuple[KVCache, Layout]:
    """The cache, and what each stage holds of it. Raises UnmodelledKind for a layer or a format without a formula."""
    settings = _layout_settings(request, resolved, accounting)
    layout = layout_of(request.shape, settings)
    reach = Reach(
        max_model_len=resolved.max_model_len,
        decode_context=request.settings.parallelism.decode_context,
        in_flight_tokens=resolved.in_flight_tokens,
        max_encoder_tokens=resolved.max_num_batched_tokens,
    )
    kv_cache = KVCache(
        groups=layout.groups,
        dtype=settings.specs.dtype,
        bytes_per_block=max(layout.stage_block_bytes),
        reach=reach,
        null_blocks=accounting.null_blocks,
        tokens_by_concurrency=accounting.tokens_by_concurrency,
    )
    return kv_cache, layout


def _layout_settings(request: BudgetRequest, resolved: Resolved, accounting: Accounting) -> LayoutSettings:
    shape, asked = request.shape, request.settings
    if (
        asked.parallelism.prefill_context > 1
    ):  # its ranks hold a request whole or in parts, by release and by the other sizes
        raise UnmodelledKind(f"prefill_context_parallel_size {asked.parallelism.prefill_context}")
    if asked.mamba_cache_mode not in (None, "none", "align"):
        raise UnmodelledKind(f"mamba_cache_mode {asked.mamba_cache_mode}")
    dtype = cache_dtype_of(shape, request.accelerator, asked.kv_cache_dtype, accounting)
    kernel_block = kernel_block_size(shape, request.accelerator, dtype)
    specs = CacheSettings(
        model_dtype=shape.dtype,
        dtype=dtype,
        block_size=asked.block_size or kernel_block,
        tensor=asked.parallelism.tensor,
        num_speculative_tokens=asked.speculation.num_speculative_tokens if asked.speculation else 0,
        retained_tokens=_retained_tokens(shape, asked),
        caches_states=resolved.caches_states,
        keeps_checkpoints=accounting.state_checkpoints,
        conv_dtype=asked.mamba_cache_dtype,
        state_dtype=asked.mamba_ssm_cache_dtype,
        skipped_layers=frozenset(asked.kv_cache_dtype_skip_layers),
    )
    return LayoutSettings(
        specs=specs,
        kernel_block=kernel_block,
        pipeline=asked.parallelism.pipeline,
        hybrid_manager=accounting.hybrid_kv_cache_manager and not asked.disable_hybrid_kv_cache_manager,
        with_drafts=_with_drafts(asked),
    )


def _with_drafts(asked: EngineSettings) -> bool:
    """True where the layers that draft are the checkpoint's own. Raises UnmodelledKind where nobody knows them."""
    speculation = asked.speculation
    if speculation is None:
        return False
    if speculation.uses_another_model:
        raise UnmodelledKind(f"drafts by {speculation.method}")
    return speculation.uses_own_layers


def _retained_tokens(shape: ModelShape, asked: EngineSettings) -> int:
    """Draft modules that run one after another look back one token further each (vLLM 0.32, `SlidingWindowSpec`)."""
    speculation = asked.speculation
    if speculation is None or not speculation.uses_own_layers or len(shape.draft_layers) < 2:
        return 0
    return speculation.num_speculative_tokens - 1
