"""vLLM's arguments as it runs them: defaults, and the limits that arguments set to each other."""

from fractions import Fraction
from functools import lru_cache

from msgspec import Struct
from msgspec.structs import replace

from kvgate.budget.engine.circumstances import Circumstances
from kvgate.budget.engine.request import (
    AUTO_MAX_MODEL_LEN,
    DEFAULT_GRAPHS,
    BudgetRequest,
    EngineSettings,
    GraphSettings,
)
from kvgate.budget.model.shape import CrossAttention, FullAttention, LatentAttention, ModelShape, RecurrentState
from kvgate.budget.releases.accounting import ENGINE_BATCHED_TOKENS, Accounting, BatchLimits
from kvgate.budget.releases.versions import (
    accounting_of,
    accounting_of_v0,
)

_DRAFTS_ON_GPU = frozenset({"eagle", "eagle3", "mtp", "draft_model", "dflash", "dspark", "ngram_gpu"})
"""Methods of drafting for which the next batch need not wait on the CPU, so that asynchronous scheduling stays on."""
V0_LONGEST_WHOLE_PROMPT = 32 * 1024
"""V0 cuts prompts in chunks of 2048 tokens where the context may be longer than this; on CUDA only (0.6 to 0.9, `EngineArgs`)."""
V0_MAX_NUM_SEQS = 256
LENGTH_WHERE_NONE_IS_NAMED = 2048
"""Default of max_model_len where a config names no length, as those of Mamba and Bloom (0.8.5 to 0.33, `_get_and_verify_max_len`)."""
DISPATCHED_TOKENS = 256
"""Default of max_num_batched_tokens where experts get batches of a fixed size (0.20, DEFAULT_MAX_NUM_BATCHED_TOKENS_FOR_BATCHED_DP)."""
V0_POOLING_TOKENS, V0_MEDIA_TOKENS = 32 * 1024, 5 * 1024
"""V0's least defaults of max_num_batched_tokens for models that pool, and for those that take images or sounds."""


class Resolved(Struct, frozen=True, kw_only=True):
    """The settings as vLLM runs them, with defaults filled in."""

    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    gpu_memory_utilization: Fraction
    default_max_num_seqs: int
    """Value that vLLM takes for this release and GPU where the user sets none."""
    enable_prefix_caching: bool = True
    state_mode: str = "none"
    """Way in which recurrent states are kept for prefixes: `none`, `align` (two for a request) or `all` (one for every block)."""
    graphs_hold_states: bool = False
    """True for full CUDA graphs over recurrent states: vLLM then refuses more sequences than the pool has blocks. Every release that
    checks this captures such graphs by default."""
    in_flight_tokens: int = 0
    """Tokens of the batches that vLLM computes at the same time."""
    graphs: GraphSettings = DEFAULT_GRAPHS


def resolve_settings(request: BudgetRequest, accounting: Accounting) -> Resolved:
    """Apply vLLM's defaults and their mutual limits (0.32, `EngineArgs._set_default_max_num_seqs_and_batched_tokens_args`)."""
    settings, limits = request.settings, _batch_limits(request, accounting)
    # throughput mode doubles the limits before they bound each other
    factor = 2 if accounting.performance_modes and settings.performance_mode == "throughput" else 1
    default_seqs = factor * (limits.max_num_seqs if accounting.v1_engine else V0_MAX_NUM_SEQS)
    max_model_len = _max_model_len(request, accounting)
    batched = settings.max_num_batched_tokens or factor * limits.max_num_batched_tokens
    if settings.max_num_batched_tokens is None and not accounting.v1_engine:
        batched = _v0_batched_tokens(request, accounting, max_model_len)
    elif (
        settings.max_num_batched_tokens is None
        and not accounting.all_to_all_tokens
        and settings.parallelism.dispatches_batches
    ):
        batched = factor * DISPATCHED_TOKENS
    seqs = settings.max_num_seqs or default_seqs
    if settings.max_num_batched_tokens is None:
        batched = max(batched, max_model_len) if settings.enable_chunked_prefill is False else batched
        batched = max(batched, uncut_item_tokens(request)) if accounting.batch_holds_media_item else batched
        batched = min(batched, seqs * max_model_len)
    if settings.max_num_seqs is None:
        seqs = min(seqs, batched)
    prefixes = caches_prefixes(request.shape, settings, accounting)
    graphs = _graphs(settings, accounting)
    captures_whole_steps = not settings.enforce_eager and graphs.mode not in ("NONE", "PIECEWISE")
    return Resolved(
        max_model_len=max_model_len,
        max_num_seqs=seqs,
        max_num_batched_tokens=batched,
        gpu_memory_utilization=settings.gpu_memory_utilization or accounting.gpu_memory_utilization,
        default_max_num_seqs=min(default_seqs, batched),
        enable_prefix_caching=prefixes,
        state_mode=state_mode(request.shape, settings, accounting) if prefixes else "none",
        graphs_hold_states=request.shape.is_hybrid and accounting.checks_state_blocks and captures_whole_steps,
        in_flight_tokens=batched * max_concurrent_batches(request, accounting),
        graphs=graphs,
    )


def accounting_for(request: BudgetRequest) -> Accounting:
    """Return the accounting of the engine that the release runs for this request. Raises UnknownVersion."""
    accounting = accounting_of(request.vllm_version)
    return accounting_of_v0(request.vllm_version) if _falls_back_to_v0(request, accounting) else accounting


def _falls_back_to_v0(request: BudgetRequest, accounting: Accounting) -> bool:
    """True where V0 runs although the release has V1 (0.8.5, 0.9.2, 0.10.0 and 0.10.2, `_is_v1_supported_oracle`).

    Builds on the way to 0.9.2 run V0 on GPUs of AMD in the logs of two sources.
    """
    if not accounting.has_both_engines:
        return False
    if request.circumstances.use_v1 is not None:
        return not request.circumstances.use_v1
    gpu, shape = request.accelerator, request.shape
    if (gpu.likely_vendor or gpu.vendor) in accounting.v0_vendors:
        return not accounting.v0_on_amd_in_builds_alone or "dev" in request.vllm_version
    capability = gpu.compute_capability or gpu.likely_capability
    if capability is not None and capability < accounting.v0_below:
        return True
    if accounting.v0_runs_states and shape.has(RecurrentState):
        return True
    if shape.has(CrossAttention):
        return True
    return request.settings.kv_cache_dtype.startswith("fp8") and _lacks_fp8_kernel(request, accounting)


def may_run_v0(request: BudgetRequest, accounting: Accounting) -> bool:
    """True where the release starts V1, and nobody says that this start left it so."""
    return (
        accounting.v1_engine
        and accounting.v0_is_common
        and _is_program_open(request)
        and request.circumstances.use_v1 is None
    )


def _is_program_open(request: BudgetRequest) -> bool:
    """True where the command and the environment of the start are not known."""
    return request.circumstances.usage_context is None and not request.is_whole


def _lacks_fp8_kernel(request: BudgetRequest, accounting: Accounting) -> bool:
    """True where V1 of 0.8 to 0.10 has no kernel for an fp8 cache on a GPU of NVIDIA: outside Hopper, and Blackwell since 0.10.
    MLA and sinks are left out: V0 has no kernel either."""
    major, shape = request.accelerator.capability_major, request.shape
    if major is None or request.accelerator.vendor != "nvidia":
        return False
    special = (
        isinstance(each, LatentAttention) or (isinstance(each, FullAttention) and each.has_sinks)
        for each in shape.mixers
    )
    return major not in accounting.fp8_cache_majors and not any(special)


def _v0_batched_tokens(request: BudgetRequest, accounting: Accounting, max_model_len: int) -> int:
    """Return V0's default of max_num_batched_tokens (0.8.5, `EngineArgs._set_default_args_v0` and `SchedulerConfig`).

    V0 cuts prompts by itself only where they may be long, on GPUs of NVIDIA, and where nothing else is in the way.
    """
    settings, shape = request.settings, request.shape
    is_cut = settings.enable_chunked_prefill
    if is_cut is None:
        has_obstacle = (
            shape.pools
            or bool(shape.encoders)
            or (not accounting.v0_cuts_latent_prompts and shape.has(LatentAttention))
            or shape.has(FullAttention, "sliding_window")
            or settings.speculation is not None
            or settings.lora.enabled
        )
        is_cut = max_model_len > V0_LONGEST_WHOLE_PROMPT and request.accelerator.vendor != "amd" and not has_obstacle
    tokens = 2048 if is_cut else max(max_model_len, 2048)
    if shape.pools:
        tokens = max(tokens, V0_POOLING_TOKENS)
    return max(tokens, V0_MEDIA_TOKENS) if shape.encoders else tokens


def _batch_limits(request: BudgetRequest, accounting: Accounting) -> BatchLimits:
    return accounting.batch_limits(request.accelerator, request.circumstances.usage_context)


def profiled_seqs(request: BudgetRequest, resolved: Resolved, accounting: Accounting) -> tuple[int, int | None]:
    """Return max_num_seqs as the profile run is expected to have it, and what it may have instead (None: nothing else).

    vLLM's log prints max_num_batched_tokens and never max_num_seqs. So if only the first is stated, and it is the default of an engine
    that a program builds itself, the second may be that engine's default too: 128 instead of 256 or 1024 (0.9.2 to 0.33). Where
    `vllm serve` has another default, the figure is more likely printed than chosen: one source of logs has printed it, and none has
    chosen it.
    """
    settings, other = request.settings, accounting.engine_max_num_seqs
    if not accounting.v1_engine and request.shape.encoders:
        # V0 profiles as many prompts as the batch holds with all their items (0.8.5, `GPUModelRunnerBase._dummy_run`)
        limits = dict(settings.limit_mm_per_prompt)
        items = (item for encoder in request.shape.encoders for item in encoder.items)
        tokens = sum(limits.get(item.modality, 1) * item.tokens_within(resolved.max_model_len) for item in items)
        return max(1, min(resolved.max_num_seqs, resolved.max_num_batched_tokens // max(1, tokens))), None
    is_open = _is_program_open(request) and settings.max_num_seqs is None
    if other is None or not is_open or settings.max_num_batched_tokens != ENGINE_BATCHED_TOKENS:
        return resolved.max_num_seqs, None
    other = min(other, resolved.max_num_seqs)
    is_servers = _batch_limits(request, accounting).max_num_batched_tokens == ENGINE_BATCHED_TOKENS
    return (resolved.max_num_seqs, other) if is_servers else (other, resolved.max_num_seqs)


def _graphs(settings: EngineSettings, accounting: Accounting) -> GraphSettings:
    """Return the graphs that the user requests, with those that other options add (0.17, `VllmConfig._set_cudagraph_sizes`).

    The optimisation level fills in what the compilation config leaves open (0.12 to 0.33, `VllmConfig.__post_init__`). At level 0
    pieces need compilation, which the user must request as well: vLLM captures no pieces without it.
    """
    graphs = settings.graphs
    if settings.optimization_level == 0:
        compiles, mode = graphs.compiles is True, graphs.mode or "NONE"
        lacks_pieces = "PIECEWISE" in mode and not compiles
        graphs = replace(graphs, mode="NONE" if lacks_pieces else mode, compiles=compiles)
    elif settings.optimization_level == 1 and accounting.graphs_by_level:
        graphs = replace(graphs, mode=graphs.mode or "PIECEWISE")
    is_fine = accounting.performance_modes and settings.performance_mode == "interactivity"
    return replace(graphs, every_small_size=True) if is_fine else graphs


def uncut_item_tokens(request: BudgetRequest) -> int:
    """Tokens of the largest image or video that no batch may cut, because its tokens attend both ways; 0 where a batch may cut it."""
    both_ways = request.shape.has(FullAttention, "sees_images_both_ways")
    if not both_ways or request.settings.language_model_only:
        return 0
    return max((encoder.max_item_tokens for encoder in request.shape.encoders), default=0)


def _max_model_len(request: BudgetRequest, accounting: Accounting) -> int:
    """Return the requested length, or else the model's own, from which `auto` begins to search (`get_and_verify_max_len`)."""
    length, shape = request.settings.max_model_len, request.shape
    if length is not None and length != AUTO_MAX_MODEL_LEN:
        return length
    default = shape.default_max_model_len if accounting.defaults_to_unscaled_length else 0
    return default or longest_context(shape, accounting) or LENGTH_WHERE_NONE_IS_NAMED


def longest_context(shape: ModelShape, accounting: Accounting) -> int:
    """Return the largest max_model_len that the release accepts for the model without an override, in tokens; 0: any."""
    return dict(shape.earlier_max_model_lens).get(accounting.length_rule, shape.max_model_len)


def caches_prefixes(shape: ModelShape, settings: EngineSettings, accounting: Accounting) -> bool:
    """True where vLLM caches prefixes: by default since V1, for hybrids later; never for encoder-decoders, nor by default for models of
    recurrent states alone."""
    if shape.has(CrossAttention):
        return False
    if settings.enable_prefix_caching is not None:
        return settings.enable_prefix_caching
    if all(isinstance(mixer, RecurrentState) for mixer in shape.mixers):
        return False
    return accounting.hybrid_prefix_caching if shape.is_hybrid else accounting.v1_engine


_KERNELS_WITH_ALL_STATES = frozenset({"Mamba1", "Mamba2"})
"""Kinds whose kernels write a state for every block (vLLM 0.12 to 0.31, `SupportsMambaPrefixCaching`)."""


def state_mode(shape: ModelShape, settings: EngineSettings, accounting: Accounting) -> str:
    """Return the way in which recurrent states are kept if prefixes are cached.

    `none` counts as unset then, and `all` as `align` if the kernels cannot do it. Before 0.22 drafts exclude `all`.
    """
    kinds = {mixer.kind for mixer in shape.mixers if isinstance(mixer, RecurrentState)}
    if not kinds:
        return "none"
    modes = set(accounting.state_modes)
    if not kinds <= _KERNELS_WITH_ALL_STATES:
        modes.discard("all")
    wanted = settings.mamba_cache_mode
    if wanted in (None, "none"):
        drafts_exclude = settings.speculation is not None and not accounting.drafts_beside_all_states
        wanted = "align" if drafts_exclude else accounting.default_state_mode
    return next((mode for mode in (wanted, "align") if mode in modes), "none")


@lru_cache(maxsize=1024)
def runs_on_v2(shape: ModelShape, accounting: Accounting, circumstances: Circumstances, vendor: str) -> bool:
    """Return whether the release runs the model on the V2 runner; by default it needs a model that generates text before 0.29."""
    if circumstances.use_v2_model_runner is not None and accounting.v2_runner_architectures != frozenset():
        return circumstances.use_v2_model_runner
    if shape.pools and accounting.v2_runner_architectures is not None:
        return False
    if vendor == "amd" and shape.architecture in accounting.v1_runner_on_amd:
        return False
    is_quantized = shape.quantization is not None
    return accounting.uses_v2_runner(shape.architecture, is_dense=shape.is_dense, is_quantized=is_quantized)


def max_concurrent_batches(request: BudgetRequest, accounting: Accounting) -> int:
    """Batches whose tokens a window must hold (vLLM 0.32, `max_concurrent_batches` of both runners)."""
    shape, settings = request.shape, request.settings
    pipeline = settings.parallelism.pipeline
    if not accounting.reserves_batches_in_flight:
        return 1
    schedules_ahead = settings.async_scheduling
    if schedules_ahead is None:
        schedules_ahead = settings.speculation is None or request.draft_method in _DRAFTS_ON_GPU
    if not schedules_ahead:
        return pipeline
    if runs_on_v2(shape, accounting, request.circumstances, request.accelerator.vendor):
        return pipeline + 1
    return 2 if pipeline == 1 else pipeline
