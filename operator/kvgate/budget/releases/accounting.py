"""The record of what a vLLM release decides: defaults and accounting, one field each. `versions` says which release changes which."""

from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

from msgspec import Struct

from kvgate.budget.ground.hardware import Accelerator


class BatchLimits(Struct, frozen=True, kw_only=True):
    max_num_batched_tokens: int
    max_num_seqs: int


ENGINE_BATCHED_TOKENS = 2048
"""Default of max_num_batched_tokens in an engine that a program builds itself (`SchedulerConfig`, 0.8.5 to 0.33)."""
SMALL_BATCHED_TOKENS = 2048
"""Default of the server on small devices, where the class LLM takes four times as many; on others it takes 16,384."""
DEVICES: dict[str, Callable[[Accelerator], bool]] = {
    "a100": lambda accelerator: (
        "a100" in accelerator.product.lower()
    ),  # in its name (0.9+, `EngineArgs.get_batch_defaults`)
    "gb10": lambda accelerator: accelerator.compute_capability == (12, 1),
}
"""Tests for the devices that tiers of batch limits leave out, by the names in `release_tables`."""


class BatchTier(Struct, frozen=True, kw_only=True):
    """Batch limits of devices with at least so much memory, except the named ones."""

    from_bytes: int
    limits: BatchLimits
    excluded: tuple[str, ...] = ()

    def takes(self, accelerator: Accelerator) -> bool:
        """True for a device of this tier; the first tier that takes a device counts."""
        is_excluded = any(DEVICES[name](accelerator) for name in self.excluded)
        # NVML does not tell the memory of GB10, so that vLLM took it for 0 until 0.32, and leaves GB10 out since 0.33
        memory_bytes = 0 if DEVICES["gb10"](accelerator) else accelerator.memory_bytes
        return memory_bytes >= self.from_bytes and not is_excluded


class Accounting(Struct, frozen=True, kw_only=True, eq=False, weakref=True):
    """The way in which one release arrives at the KV cache memory of a rank; one object per release, compared by identity."""

    gpu_memory_utilization: Fraction = Fraction(9, 10)
    """Default share of the device's memory that vLLM may use."""
    batch_tiers: tuple[BatchTier, ...] = ()
    """Batch limits by memory, largest first; the last tier is for all other devices."""
    engine_max_num_seqs: int | None = None
    """Default of max_num_seqs in an engine that a program builds itself; None: that of the server."""
    null_blocks: int = 0
    """Blocks that vLLM keeps back before it checks that one request fits."""
    v1_engine: bool = False
    """True where the V1 engine runs by default (0.8+)."""
    whole_card_non_torch: bool = False
    """True where vLLM deducts all memory in use outside torch, with the CUDA context (V1 in 0.8 and 0.9.0)."""
    checks_free_memory: bool = False
    """True where vLLM refuses to start with less free memory than it requests (0.9.1 and later; absent in 0.9.0)."""
    nccl_in_budget: bool = True
    """True where vLLM takes the snapshot before NCCL starts, so that NCCL's buffers are deducted."""
    nccl_connects_at_use: bool = False
    """True where NCCL opens the channels of an algorithm when it first runs (NCCL 2.22+, with torch 2.7); before, all of them at once."""
    gathers_with_torch: bool = True
    """True where torch gathers the logits, with a communicator of its own that it creates then (`all_gather`; 0.26 uses PyNccl)."""
    all_reduce_workspace: str = ""
    """FlashInfer's workspace for fused all-reduce: `trtllm`, `mnnvl`, or empty (`_resolve_fi_ar_backend`)."""
    all_reduce_multicast: bool = False
    """True where FlashInfer rounds that workspace up to the step of memory for several GPUs."""
    all_reduce_excludes: frozenset[str] = frozenset()
    """Kinds of parallelism beside which vLLM does not fuse all-reduce (`enable_allreduce_rms_fusion`)."""
    reduces_alone_mib: dict[tuple[int, int], int] | None = None
    """Largest tensor in MiB, by capability and ranks, that FlashInfer reduces without a norm; None where it does not by default."""
    has_both_engines: bool = False
    """True where V0 is still there for what V1 cannot run (0.8 to 0.10, `_is_v1_supported_oracle`)."""
    all_to_all_tokens: int = 256
    """Tokens of a rank that experts elsewhere get at a time (VLLM_MOE_DP_CHUNK_SIZE); 0: all of a batch."""
    v0_cuts_latent_prompts: bool = True
    """True where V0 finds its default of max_num_batched_tokens before it stops cutting prompts for MLA: 2048 (0.7.3, `VllmConfig`)."""
    v0_is_common: bool = False
    """True where starts run V0 for reasons that no request states: three of eight sources of 0.8 on GPUs that V1 runs on."""
    v0_vendors: frozenset[str] = frozenset()
    """Vendors of GPUs on which V0 runs by default; 0.9.2 runs V1."""
    v0_below: tuple[int, int] = (0, 0)
    """Compute capability from which V1 runs; below it V0 does."""
    v0_runs_states: bool = False
    """True where V0 runs models with recurrent states."""
    graphs_unmeasured_on: frozenset[str] = frozenset({"amd", "intel"})
    """Vendors of GPUs for which no graphs are captured before vLLM sizes the KV cache (`Worker.determine_available_memory`)."""
    sampler_half_rows: int = 19
    """Peak of the sampler's profile in halves of max_num_seqs × vocabulary × 4 bytes, before the V2 runner; a sorting sampler takes
    19 halves."""
    leaves_out_unused_encoders: bool = False
    """True where an encoder is not loaded if no prompt may hold what it reads."""
    chunks_pictures: bool = False
    """True where Gemma 4's towers encode as many pictures at once as a tenth of the GPU's memory holds (0.22.0, absent in 0.19.0)."""
    towers_run: bool = False
    """True where towers were run as the release has them (`make kv-oracle`, 0.14.0 to 0.30.0; a CPU cannot run those of 0.11)."""
    fuses_tower_gates: bool = False
    """True where a gate that is no kernel's is compiled on its own in a tower (`CustomOp.maybe_compile`, 0.17.0; absent in 0.14.0)."""
    masks_pictures: bool = False
    """True where Pixtral's attention gets a mask of all patches (`generate_block_attention_mask`; 0.14.0 to 0.28.0, absent in 0.30.0;
    0.11 has xFormers, which needs none)."""
    begins_last_media_item: bool = False
    """True where the profile run rounds its count of images and sounds up (V1 in 0.8.5 and 0.9.2; down in 0.10.0)."""
    pads_encoder_outputs: str = ""
    """Embeddings that the profile run keeps for every item: as many as the `budget`, or as the largest `item` has by vLLM's count;
    empty: as many as the item has."""
    flashinfer_samples: str = "never"
    """When FlashInfer samples with top-k and top-p: `never`; `installed` where it is (the image decides); `requested` by
    VLLM_USE_FLASHINFER_SAMPLER; `default` unless that variable says no (`TopKTopPSampler.__init__`)."""
    flashinfer_capabilities: tuple[tuple[int, int], tuple[int, int]] = ((0, 0), (99, 0))
    """Least and highest compute capability on which it does (`FlashInferBackend.supports_compute_capability`)."""
    sampler_program_rows: bool = False
    """True where the sampler keeps a scratch row for each of its programs (Triton top-k and top-p)."""
    samples_with_generators: bool = False
    """True where the profile also samples with a generator of a request's own, which FlashInfer cannot do, so that the kernels of the
    other sampler run as well (`_dummy_sampler_run`)."""
    expert_chunk_tokens: int = 32 * 1024
    """Tokens that experts compute at a time (`VLLM_FUSED_MOE_CHUNK_SIZE`, 0.8.5 to 0.17.0); 0: all of them (0.18.0)."""
    bundles_triton_kernels: bool = False
    """True where vLLM brings the kernels that compute MXFP4 experts on Hopper (`vllm.third_party.triton_kernels`, absent in 0.11.0)."""
    refines_expert_blocks: bool = False
    """True where blocks of experts in fp8 that a cut would go through are made smaller (0.29, absent in 0.28.0)."""
    compressed_cache_needs_fp8: bool = False
    """True where DeepSeek-V4's layers on FlashMLA assert `--kv-cache-dtype fp8` (0.20, absent in 0.30, `DeepseekV4Attention`)."""
    latent_blocks: dict[int, int] | None = None
    """Block to which vLLM sets MLA by the major capability, whatever the kernels take (`CudaPlatformBase.check_and_update_config`, up to
    0.17); None: the smallest that the kernel takes."""
    latent_state_block: int = 1
    """Least multiple to which blocks of MLA are aligned where recurrent states stand beside it (`_align_hybrid_block_size`)."""
    sparse_latent_defaults_to_fp8: bool = False
    """True where sparse MLA keeps its own fp8 format unless the user chooses bfloat16 (0.11.0, absent in 0.11.2)."""
    expert_workspace_persists: bool = False
    """True where expert workspaces outlive the profile run and add to its peak instead of being inside it."""
    estimates_graphs: bool = False
    """True where the V1 runner captures a few CUDA graphs before it sizes the KV cache, to estimate them all."""
    graphs_deducted: bool = False
    """True where the V1 runner takes the estimate of CUDA graph memory out of the budget."""
    v2_runner_architectures: frozenset[str] | None = frozenset()
    """Architectures that the V2 runner serves by default; None: all architectures."""
    v1_runner_on_amd: frozenset[str] = frozenset()
    """Architectures that stay on the V1 runner on GPUs of AMD (ROCM_DEFAULT_MRV1_ARCHITECTURES)."""
    v2_runner_dense: bool = False
    """True where the V2 runner serves every dense architecture that generates text (0.25, `_is_default_v2_model_runner_model`)."""
    v2_runner_plain_only: bool = False
    """True where a checkpoint that states a quantisation stays on the V1 runner (0.22.0 and 0.23.0, absent in 0.24.0)."""
    v2_sampler_half_rows: int = 3
    """Peak of the V2 runner's sampler in halves of max_num_seqs × vocabulary × 4 bytes: 16-bit logits and their copy in 32 bits; 0.26
    copies none where no request needs it; 0.33 runs it once more with the parameters of its warm-up."""
    v2_profiles_encoders: bool = False
    """True where the V2 runner runs encoders in its profile."""
    v2_graphs_deducted: bool = False
    """True where the V2 runner captures graphs before it sizes the KV cache, and takes their memory out of the budget."""
    consumed_accounting: bool = False
    """True where everything that is still allocated after the profile run counts, persistent buffers included."""
    compiler_tries_kernels: bool = False
    """True where torch.compile measures combined kernels inside the profile run, on invented inputs (`benchmark_combo_kernel`)."""
    cold_compile_seen: bool = False
    """True where starts with an empty compile cache have shown that in their peak: first 0.19.0, on the first stages of Llama-3.1-8B and
    on gpt-oss-20b. 0.17 and 0.18 have the same torch (2.10), and no start that is known to be cold; with torch 2.9 fourteen cold starts
    on five GPUs do not show it."""
    compares_draft_ends: bool = False
    """True where a draft keeps an embedding or a head of its own unless it equals the target's; before, equal sizes were enough."""
    mtp_shares_head: bool = False
    """True where layers of multi-token prediction use the model's head instead of one of their own; absent in 0.14.0."""
    scheduled_tokens_leave_draft_slots: bool = False
    """True where the tokens of a batch are max_num_batched_tokens less the slots that drafting adds for each of max_num_seqs."""
    counts_fragments: bool = False
    """True where a block of which only a piece is still in use counts whole: vLLM counts what the card has lost, and large blocks
    are cut."""
    unsplit_large_blocks: bool = False
    """True where vLLM loads weights under max_split_size_mb = 20, so that large blocks keep their tail."""
    full_graphs: bool = False
    """True where CUDA graphs are captured for whole decode steps as well as piecewise."""
    blackwell_graphs: bool = False
    """True where compute capability 10.x captures up to 1024 tokens instead of 512."""
    hybrid_kv_cache_manager: bool = False
    """True where windows and chunks stay what they are beside full attention."""
    kv_events_exclude_manager: bool = False
    """True where `--kv-events-config` switches the hybrid KV cache manager off (0.9.2 to 0.19.0, absent in 0.20.0)."""
    takes_wish_for_manager: bool = False
    """True where `--no-disable-hybrid-kv-cache-manager` keeps it beside a KV connector, and vLLM refuses a connector that cannot (0.13.0;
    0.12.0 switches it off beside every connector)."""
    asks_connectors: bool = False
    """True where a connector switches it off only if its class does not subclass `SupportsHMA` (0.22.0, absent in 0.21.0)."""
    keeps_chunks_whole: bool = False
    """True where chunks are kept as full attention: 0.9.2 has no other cache for them, and 0.10.2 to 0.13.0 switch the manager off unless
    VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE is set (absent in 0.10.0, on by default in 0.14.0)."""
    hybrid_prefix_caching: bool = False
    """True where prefixes of hybrids are cached by default; those of pure attention are since V1."""
    state_modes: frozenset[str] = frozenset()
    """Ways in which recurrent states are kept for cached prefixes (`mamba_cache_mode`): `all` keeps one for every block, `align` two for
    a request."""
    default_state_mode: str = "align"
    """The way that vLLM takes if the kernels of the model can do it (`MambaModelConfig.verify_and_update_config`)."""
    drafts_beside_all_states: bool = False
    """True where a request that keeps all states has blocks for drafts beside them."""
    state_checkpoints: bool = False
    """True where cached recurrent states keep one more block if the kernel can export it."""
    reserves_batches_in_flight: bool = False
    """True where windows hold the tokens of every batch in flight instead of one batch."""
    checks_state_blocks: bool = False
    """True where vLLM with full CUDA graphs refuses more sequences than there are blocks for recurrent states."""
    defaults_to_unscaled_length: bool = False
    """True where LongRoPE models run at the length before scaling unless the user requests more (0.11.1, absent in 0.11.0)."""
    length_rule: str = "rope_scaling"
    """Which keys of a config scale its longest context (`_get_and_verify_max_len`): `rope_scaling` alone; `rope_parameters`, also those
    of single kinds of layers (0.12, absent in 0.11.2); or `yarn_stated`: the same, and YaRN's factor is no longer multiplied (0.30,
    absent in 0.29)."""
    tokens_by_concurrency: bool = False
    """True where the logged size of the KV cache is concurrency × max_model_len; it was blocks of a group × block size before."""
    wrapper_ties_embeddings: bool = False
    """True where the multimodal config's `tie_word_embeddings` counts, even its default: with transformers 5."""
    latent_context_in_profile: bool = True
    """True where the profile run of MLA allocates the context that it up-projects (V0; V1 since 0.11.0, absent in 0.10.2)."""
    indexer_logits_in_profile: bool = False
    """True where the profile run allocates the logits of a sparse indexer (`VLLM_SPARSE_INDEXER_MAX_LOGITS_MB`)."""
    pools_compressed_queries: bool = False
    """True where DeepSeek-V4 allocates the queries of its attention once, while it loads (0.27.0 and 0.27.1, absent in 0.26 and 0.30)."""
    shared_layers_project_keys: bool = True
    """True where a layer that reads another layer's cache has weights for keys and values all the same (Gemma 3n and 4: up to 0.27.1,
    absent in 0.30.0)."""
    interleaved_positions_have_room: bool = True
    """True where rotary tables of interleaved sections are as long as other tables (`MRotaryEmbedding`, 0.11.0 to 0.31.0; two starts of
    Qwen3.5 with 0.19, one of Qwen3-VL with 0.11)."""
    shutdown_timeout: bool = False
    """True where `--shutdown-timeout` exists, which lets running requests end."""
    deprecated_quantizations: frozenset[str] = frozenset()
    """Methods that vLLM refuses without `--allow-deprecated-quantization`."""
    batch_holds_media_item: bool = False
    """True where vLLM raises its default max_num_batched_tokens to one image or video that attends both ways (2,496 instead of
    2,048 with Gemma-4-26B in a log of 0.25.1; 0.20.2 refuses instead)."""
    graphs_by_level: bool = False
    """True where optimisation level 1 captures pieces only; levels 1 to 3 were levels of compilation before."""
    performance_modes: bool = False
    """True where `--performance-mode` doubles the default batch limits (throughput) or captures every small size (interactivity)."""
    falls_back_to_float16: bool = False
    """True where vLLM serves a bfloat16 model in float16 on a GPU without bfloat16 (`_resolve_auto_dtype`)."""
    float16_refused: frozenset[str] = frozenset()
    """Classes of models whose type vLLM refuses in float16, if that is requested (`_FLOAT16_NOT_SUPPORTED_MODELS`)."""
    shares_prompts: bool | None = False
    """True where prefill-context parallelism runs, and every one of its ranks holds the cache that decode-context parallelism leaves it;
    False where no attention kernel can do it; None: nobody has read the release."""
    float16_kernels: frozenset[str] = frozenset({"awq", "gptq"})
    """Methods whose own config, not Marlin's, takes float16 alone (`get_supported_act_dtypes`; read in 0.6.6, 0.8.5, 0.11.0, 0.19.1,
    0.21.0, 0.22.0, 0.23.0 and 0.24.0: GPTQ up to 0.21, AWQ up to 0.23)."""
    offloads_after_loading: bool = False
    """True where a weight that is kept in host memory goes back there after a kernel has repacked it."""
    pads_experts: bool = False
    """True where FlashInfer's TRT-LLM kernels compute plain experts on Blackwell in steps of 128 (0.24,
    `convert_to_unquantized_kernel_format`; 0.23 pads none)."""
    lora_in_experts: bool = False
    """True where adapters may change experts, so that each slot has room for them."""
    lora_adds_vocabulary: bool = True
    """True where adapters may add tokens, for which each slot has rows."""
    lora_graphs_twice: bool = False
    """True where CUDA graphs are captured with adapters and without (`cudagraph_specialize_lora`)."""
    kv_cache_dtypes: frozenset[str] = frozenset()
    """Values of --kv-cache-dtype that the parser accepts."""
    layers_state_cache_dtype: bool = False
    """True where every layer states the dtype of its cache (0.11.1, `GPUModelRunner.get_kv_cache_spec`; 0.11.0 has one for all)."""
    plain_caches: frozenset[tuple[str, str]] = frozenset()
    """(model class, tests in its source) of layers that keep the model's dtype: where the tests hold, the class builds them without
    `cache_config`, and `Attention.__init__` takes `auto`."""
    shares_indices: bool = False
    """True where a layer of sparse MLA that takes the choice of another one builds no indexer (0.24.0, `DeepseekV2MLAAttention`; 0.21 to
    0.23 build it and do not run it, and 0.20 runs it)."""
    shrinks_to_fewest_blocks: bool = False
    """True where a rank with room for more blocks than the fewest of all ranks gives the rest back (`get_kv_cache_configs`); before 0.12
    it keeps all bytes that `--kv-cache-memory-bytes` gives it."""
    tells_auto_length: bool = False
    """True where `/v1/models` tells the length that `--max-model-len auto` found (0.20, `_apply_ready_response`); before, the front end
    keeps the model's own (0.14 to 0.19)."""
    start_check_counts_all_stages: bool = False
    """True where vLLM's start check holds one request's caches of all pipeline stages against the memory of one rank (0.14 and 0.16,
    `get_kv_cache_configs`; not in 0.13 and 0.17)."""
    plugs_in_kv_cache_dtypes: bool = False
    """True where a plug-in for a platform may register further KV cache dtypes (0.33, `register_kv_cache_dtype`)."""
    v0_reads_fp8_caches: bool = True
    """True where vLLM falls back to V0 for an fp8 cache that V1 has no kernel for on the GPU (up to 0.10, `_is_v1_supported_oracle`)."""
    v0_on_amd_in_builds_alone: bool = False
    """True where V1 runs on GPUs of AMD, and only builds on the way to this release ran V0 (0.9.2)."""
    fp8_cache_majors: frozenset[int] = frozenset({9})
    """Major compute capabilities of NVIDIA with a kernel of V1 for an fp8 cache, while there were two engines (0.8 to 0.10,
    `flash_attn_supports_fp8` and `is_kv_cache_dtype_supported`)."""
    fp8_weights_on_turing: bool = False
    """True where fp8 weights have kernels on Turing (0.14, `Fp8Config.get_min_capability`)."""
    drafts_with_shared_prompts: bool = False
    """True where prefill-context parallelism goes with drafts by MTP and DSpark (0.30, `PCPManager.validate_config`)."""
    stages_with_shared_prompts: bool = False
    """True where it goes with pipeline stages (0.31)."""
    cuts_draft_as_target: bool = False
    """True where a complete model must be cut as its target is (0.16, `DraftModelProposer._raise_if_draft_tp_mismatch`)."""
    compares_vocabularies: bool = False
    """True where a complete draft must read the vocabulary of its target (0.17, `verify_equal_vocab_size_if_draft_model`)."""
    checks_draft_slots: bool = False
    """True where the slots that drafting adds must leave room in a batch (0.20, `_set_max_num_scheduled_tokens`)."""
    lora_ranks: tuple[int, ...] = (8, 16, 32, 64, 128, 256)
    """Values of `--max-lora-rank`."""
    lora_with_expert_parallelism: bool = False
    """True where adapters take experts that are whole on a rank (0.21, `FusedMoEWithLoRA`)."""
    lora_max_vocabulary: int = 257024
    """Rows of a head that adapters may change, where the class offers its head."""
    adapters_may_have_biases: bool = True
    """True while `bias_enabled` allows biases in adapters (up to 0.11)."""
    adapters_replace_heads: bool = False
    """True where vLLM takes whole heads of classification models, counts `rank_pattern`, and refuses more features of adapters (0.32)."""
    converts_classifiers: bool = False
    """True where a classifier is made of the model class of its base (0.10 `_normalize_archs`, 0.11 to 0.33 `_normalize_arch`)."""
    overrides_inner_configs: bool = False
    """True where `--hf-overrides` reaches the configs inside a config (0.12)."""
    loads_gguf: bool = True
    """True where vLLM loads GGUF files without the package vllm-gguf-plugin (up to 0.23)."""
    loads_split_gguf: bool = False
    """True where it loads a GGUF file of several parts (0.20)."""
    names_gguf_by_type: bool = False
    """True where `repository:TYPE` names a GGUF file (0.12)."""
    fp8_cache_capability: tuple[int, int] = (0, 0)
    """The least compute capability for an fp8 cache; before 0.24 FlashInfer was chosen on Turing too (`supports_compute_capability`)."""
    nvfp4_capabilities: frozenset[int] = frozenset()
    """Major compute capabilities with kernels for the KV cache format nvfp4 (`FlashInferBackend.supports_kv_cache_dtype`)."""
    packed_caches_refuse_windows: bool = False
    """True where backends say whether they take sliding windows; TurboQuant's does not (0.26, `supports_sliding_window`)."""
    cache_scheme_methods: frozenset[str] = frozenset()
    """Quantisation methods whose checkpoints decide what `--kv-cache-dtype auto` means (`resolve_kv_cache_dtype_string`, and the
    attention layer for compressed-tensors, absent in 0.14.0 and present in 0.16.0)."""

    def uses_v2_runner(self, architecture: str, *, is_dense: bool, is_quantized: bool) -> bool:
        """True where this release runs the architecture on the V2 model runner by default."""
        if self.v2_runner_architectures is None:
            return True
        if is_quantized and self.v2_runner_plain_only:
            return False
        return architecture in self.v2_runner_architectures or (self.v2_runner_dense and is_dense)

    def deducts_graphs(self, vendor: str, *, v2_runner: bool) -> bool:
        """True where vLLM takes the reserve for CUDA graphs out of the KV cache."""
        measured = self.v2_graphs_deducted if v2_runner else self.graphs_deducted
        return measured and vendor not in self.graphs_unmeasured_on

    def captures_graphs(self, vendor: str, *, v2_runner: bool) -> bool:
        """True where vLLM captures graphs before it sizes the KV cache."""
        captured = self.v2_graphs_deducted if v2_runner else self.estimates_graphs
        return captured and vendor not in self.graphs_unmeasured_on

    def batch_limits(self, accelerator: Accelerator, usage_context: str | None = None) -> BatchLimits:
        """Defaults by device memory and name, and by the entry point (`EngineArgs.get_batch_defaults`); None means `vllm serve`."""
        limits = _limits_of_tier(self.batch_tiers, accelerator)
        if usage_context == "engine" and self.v1_engine:
            return BatchLimits(
                max_num_batched_tokens=ENGINE_BATCHED_TOKENS,
                max_num_seqs=self.engine_max_num_seqs or limits.max_num_seqs,
            )
        if usage_context == "llm" and self.v1_engine:
            tokens = 8192 if limits.max_num_batched_tokens == SMALL_BATCHED_TOKENS else 16384
            return BatchLimits(max_num_batched_tokens=tokens, max_num_seqs=limits.max_num_seqs)
        return limits


@lru_cache(maxsize=1024)
def _limits_of_tier(tiers: tuple[BatchTier, ...], accelerator: Accelerator) -> BatchLimits:
    return next(tier.limits for tier in tiers if tier.takes(accelerator))
