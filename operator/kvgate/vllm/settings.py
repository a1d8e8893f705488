"""Every setting of vLLM that kvgate knows, one row each. The commands, what-ifs, sweeps, the spec and extraArgs derive from the rows.

Tests hold the fields of EngineSettings, the fields of the CRD and vLLM's own options against this table.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from msgspec import Struct

from kvgate.vllm import json_values, values
from kvgate.vllm.values import Reader, UnusableValue, one_of, text, truth, whole


class Owner(StrEnum):
    """Who sets an option of a rendered pod."""

    USER = "extraArgs"
    SPEC = "a field of the spec"
    KVGATE = "kvgate"


def no_reader(value: Any) -> Any:
    """Stand in for the reader of a setting that is no part of a what-if."""
    raise UnusableValue(f"it is no part of a what-if, and its value is {value!r}")


class Setting(Struct, frozen=True, kw_only=True):
    """One setting of vLLM, or one fact that a what-if states."""

    name: str
    """vLLM's name in snake_case. A fact that is no option of vLLM, such as the GPU, has a name of kvgate's own."""
    help: str = ""
    read: Reader = no_reader
    """Reader of its value in a what-if."""
    budget: str = ""
    """Field of EngineSettings that it sets, or of a record in it (`parallelism.tensor`, `lora.max_loras`).
    Empty: the budget has no field for it."""
    owner: Owner = Owner.USER
    """SPEC and KVGATE own an option alone: extraArgs must not contain it."""
    spellings: tuple[str, ...] = ()
    """Further names of the option: `-q`."""
    is_switch: bool = False
    """It is true or false, and has no value on the command line; `--no-…` switches it off."""
    shapes_model: bool = False
    """It also decides the shape of the model, beside the field of the budget."""
    is_swept: bool = True
    """False for an object or a list, which cannot be an axis of a sweep."""
    unmodelled: str = ""
    """Feature without a formula that it switches on: the verdict is then Unknown."""
    is_mentioned: bool = False
    """It moves less memory than a change of the cache's layout: a warning names it, and the budget leaves it out."""
    is_of_pod: bool = False
    """It states the memory of the pod or of its node."""
    harmless: tuple[Any, ...] = ()
    """Values with which an unmodelled or mentioned setting moves no memory."""

    @property
    def flag(self) -> str:
        """`--max-model-len`."""
        return f"--{self.name.replace('_', '-')}"

    @property
    def flags(self) -> tuple[str, ...]:
        """Every name that the option has on a command line."""
        return (self.flag, *self.spellings, *([f"--no-{self.flag[2:]}"] if self.is_switch else []))

    @property
    def is_asked(self) -> bool:
        """True where a what-if may state it."""
        return self.read is not no_reader

    @property
    def is_about_host(self) -> bool:
        """True where it concerns the memory of the host alone, so that a verdict about the GPU needs no value of it."""
        return self.is_of_pod or self.budget.startswith("host.")


_SPEC, _KVGATE = Owner.SPEC, Owner.KVGATE
_bytes, _size = whole(1 << 50, units=True), whole(1024)
_LOAD_FORMATS = ("auto", "hf", "pt", "safetensors", "npcache", "dummy", "mistral", "fastsafetensors", "runai_streamer",
                 "runai_streamer_sharded")  # fmt: skip
"""Values of load_format that only say how the same weights are read."""

SETTINGS: tuple[Setting, ...] = (
    # The model, the GPU and the release.
    Setting(name="model", read=text, owner=_SPEC,
            help="Hugging Face id, short name, address on the hub, folder, GGUF file or config.json; NAME@REVISION."),
    Setting(name="revision", owner=_SPEC),
    Setting(name="model_config", read=values.mapping, is_swept=False, help="The model's config.json; it wins over the catalogue."),
    Setting(name="draft_config", read=values.mapping, is_swept=False,
            help="The config.json of the model that drafts; it wins over the catalogue."),
    Setting(name="gpu", read=text,
            help="L40S, 4090, 4xA100-80GB, 24GB, a machine such as g5.12xlarge, or auto for this one; H100 means all of that name."),
    Setting(name="gpu_memory_bytes", read=values.memory,
            help="Memory of one GPU as vLLM sees it, such as 12Gi; it wins over the catalogue."),
    Setting(name="shared_by", read=whole(64),
            help="Engines that share each GPU, this one included; they are taken to be alike."),
    Setting(name="vllm_version", read=text, help="Release of vLLM."),
    # Circumstances of the start, which are no options of vLLM.
    Setting(name="installed_by", read=values.installation, budget="circumstances.installed_by",
            help="image: vLLM's own image; pip: the wheel, or another image."),
    Setting(name="sampler", read=one_of("flashinfer", "pytorch"), budget="circumstances.sampler",
            help="Who samples, as vLLM's log says: flashinfer or pytorch."),
    Setting(name="use_flashinfer_sampler", read=truth, budget="circumstances.use_flashinfer_sampler", is_switch=True,
            help="VLLM_USE_FLASHINFER_SAMPLER."),
    Setting(name="use_v1", read=truth, budget="circumstances.use_v1", is_switch=True, help="VLLM_USE_V1 (0.8 to 0.10)."),
    Setting(name="use_v2_model_runner", read=truth, budget="circumstances.use_v2_model_runner", is_switch=True,
            help="VLLM_USE_V2_MODEL_RUNNER (0.22 and later)."),
    Setting(name="compile_cache", read=one_of("warm", "cold"), budget="circumstances.compile_cache",
            help="warm: an earlier start has filled VLLM_CACHE_ROOT; cold: this one compiles."),
    Setting(name="usage_context", read=one_of("server", "llm", "engine"), budget="circumstances.usage_context",
            help="server: vllm serve; llm: the class LLM; engine: an engine that a program builds itself."),
    Setting(name="links", read=one_of("nvlink", "pcie", "host"), budget="circumstances.links",
            help="Links between the GPUs: nvlink, pcie, or host where none reaches another's memory."),
    Setting(name="chunks_beside_manager", read=truth, budget="circumstances.chunks_beside_manager", is_switch=True,
            help="VLLM_ALLOW_CHUNKED_LOCAL_ATTN_WITH_HYBRID_KV_CACHE (0.10.2 and later)."),
    Setting(name="estimates_graphs", read=truth, budget="circumstances.estimates_graphs", is_switch=True,
            help="VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS."),
    Setting(name="expandable_segments", read=truth, budget="circumstances.expandable_segments", is_switch=True,
            help="expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF."),
    # Lengths, batches and the KV cache.
    Setting(name="max_model_len", read=values.tokens_or_auto, budget="max_model_len", owner=_SPEC,
            help="Longest request, prompt and output together: 32768, 32k, 32K, or auto for the longest that fits."),
    Setting(name="max_num_seqs", read=whole(1_000_000), budget="max_num_seqs", owner=_SPEC,
            help="Requests that run at the same time."),
    Setting(name="max_num_batched_tokens", read=values.read_tokens, budget="max_num_batched_tokens", owner=_SPEC,
            help="Tokens of one forward pass."),
    Setting(name="kv_cache_dtype", read=text, budget="kv_cache_dtype", owner=_SPEC,
            help="Format of the KV cache: auto, fp8, bfloat16 …"),
    Setting(name="kv_cache_memory_bytes", read=_bytes, budget="kv_cache_memory_bytes", owner=_SPEC, spellings=("--kv-cache-memory",),
            help="KV cache memory of each GPU; gpu_memory_utilization then only decides whether vLLM starts."),
    Setting(name="capacity", read=values.capacity,
            help="Profiled: vLLM measures what is left for the KV cache; Pinned: it is given the low end of the prediction."),
    # Weights and the share of the GPU.
    Setting(name="dtype", read=values.model_dtype, budget="dtype", owner=_SPEC, shapes_model=True,
            help="Format of weights and activations that are not quantised."),
    Setting(name="quantization", read=text, owner=_SPEC, spellings=("-q",), shapes_model=True,
            help="Quantise the weights while they are loaded, such as fp8."),
    Setting(name="allow_deprecated_quantization", read=truth, budget="allow_deprecated_quantization", is_switch=True,
            help="Take weight formats that vLLM will drop."),
    Setting(name="gpu_memory_utilization", read=values.share, budget="gpu_memory_utilization", owner=_SPEC,
            spellings=("--device-memory-utilization",), help="Share of the GPU's memory that vLLM may use."),
    # Parallel sizes.
    Setting(name="tensor_parallel_size", read=_size, budget="parallelism.tensor", owner=_SPEC, spellings=("-tp",),
            help="GPUs that share every layer."),
    Setting(name="pipeline_parallel_size", read=_size, budget="parallelism.pipeline", owner=_SPEC, spellings=("-pp",),
            help="Stages that share the layers."),
    Setting(name="data_parallel_size", read=_size, budget="parallelism.data", owner=_SPEC, spellings=("-dp",),
            help="Replicas of the attention within one engine."),
    Setting(name="decode_context_parallel_size", read=_size, budget="parallelism.decode_context", owner=_SPEC, spellings=("-dcp",),
            help="Ranks that share the cache of one request."),
    Setting(name="prefill_context_parallel_size", read=_size, budget="parallelism.prefill_context", owner=_SPEC, spellings=("-pcp",),
            help="GPUs that share a prompt; each holds its cache whole, or what decode_context_parallel_size leaves it."),
    Setting(name="enable_expert_parallel", read=truth, budget="parallelism.expert", owner=_SPEC, spellings=("-ep",), is_switch=True,
            help="Give every GPU whole experts instead of a part of each."),
    Setting(name="num_redundant_experts", read=values.count(1 << 16), budget="parallelism.redundant_experts",
            help="Copies of experts in every layer, beside its own."),
    Setting(name="enable_eplb", read=truth, budget="parallelism.balances_experts", is_switch=True,
            help="Move experts between GPUs while serving."),
    Setting(name="enable_elastic_ep", read=truth, budget="parallelism.elastic", is_switch=True,
            help="Let data parallel ranks be added later; the memory of each stays as it is."),
    # Blocks, CUDA graphs, scheduling.
    Setting(name="block_size", read=whole(16384), budget="block_size", owner=_SPEC, help="Tokens of a KV cache block."),
    Setting(name="enforce_eager", read=truth, budget="enforce_eager", owner=_SPEC, is_switch=True, help="Run without CUDA graphs."),
    Setting(name="enable_prefix_caching", read=truth, budget="enable_prefix_caching", owner=_SPEC, is_switch=True,
            help="Keep the cache of equal prefixes once."),
    Setting(name="num_gpu_blocks_override", read=whole(1 << 40), budget="num_gpu_blocks_override", owner=_KVGATE,
            help="Blocks of the KV cache, whatever memory there is."),
    Setting(name="disable_hybrid_kv_cache_manager", read=truth, budget="disable_hybrid_kv_cache_manager", is_switch=True,
            help="Keep windows as full attention."),
    Setting(name="enable_chunked_prefill", read=truth, budget="enable_chunked_prefill", is_switch=True,
            help="Cut long prompts into several batches."),
    Setting(name="async_scheduling", read=truth, budget="async_scheduling", is_switch=True,
            help="Schedule the next batch while one runs."),
    Setting(name="kv_cache_dtype_skip_layers", read=values.layers, budget="kv_cache_dtype_skip_layers", is_swept=False,
            help="Layers that keep the model dtype: 0,1 or sliding_window."),
    Setting(name="mamba_cache_mode", read=one_of("none", "align", "all"), budget="mamba_cache_mode",
            help="How recurrent states are cached: none, align or all."),
    Setting(name="mamba_block_size", read=whole(1 << 30), budget="mamba_block_size",
            help="Tokens between recurrent states that are cached."),
    Setting(name="mamba_cache_dtype", read=values.state_dtype, budget="mamba_cache_dtype", help="Format of convolution states."),
    Setting(name="mamba_ssm_cache_dtype", read=values.state_dtype, budget="mamba_ssm_cache_dtype", help="Format of recurrent states."),
    Setting(name="speculative_config", read=json_values.speculation, budget="speculation", is_swept=False,
            help="Speculative decoding, as JSON."),
    Setting(name="language_model_only", read=truth, budget="language_model_only", is_switch=True, help="Take no images and no sounds."),
    Setting(name="skip_mm_profiling", read=truth, budget="skip_mm_profiling", is_switch=True, help="Keep no memory for encoders."),
    Setting(name="moe_backend", read=text, budget="moe_backend", help="Kernels of the experts: auto, cutlass, marlin, triton …"),
    Setting(name="mm_encoder_tp_mode", read=one_of("weights", "data"), budget="mm_encoder_tp_mode",
            help="weights: the GPUs share the encoders; data: each GPU holds them whole."),
    Setting(name="limit_mm_per_prompt", read=json_values.item_limits, budget="limit_mm_per_prompt", is_swept=False,
            help='Items of a prompt at most, as JSON: {"image": 0}.'),
    Setting(name="compilation_config", read=json_values.graph_settings, budget="graphs", is_swept=False, help="CUDA graphs, as JSON."),
    Setting(name="optimization_level", read=values.optimization_level, budget="optimization_level",
            help="0: neither torch.compile nor CUDA graphs; 1: graphs of pieces only."),
    Setting(name="performance_mode", read=one_of("balanced", "interactivity", "throughput"), budget="performance_mode",
            help="throughput: twice the default batch limits; interactivity: more CUDA graphs of small batches."),
    # Adapters: each has a slot in GPU memory.
    Setting(name="enable_lora", read=truth, budget="lora.enabled", is_switch=True, help="Serve LoRA adapters."),
    Setting(name="max_loras", read=whole(1024), budget="lora.max_loras", help="Adapters of one batch."),
    Setting(name="max_lora_rank", read=whole(4096), budget="lora.max_rank", help="Largest rank of an adapter."),
    Setting(name="max_cpu_loras", read=whole(1_000_000), budget="lora.max_cpu_loras", help="Adapters in host memory."),
    Setting(name="lora_dtype", read=one_of("auto", "float16", "bfloat16"), budget="lora.dtype", help="Format of adapters."),
    Setting(name="fully_sharded_loras", read=truth, budget="lora.fully_sharded", is_switch=True,
            help="Cut both matrices of an adapter over the GPUs."),
    Setting(name="lora_target_modules", read=values.names, budget="lora.target_modules", is_swept=False,
            help="Modules that adapters may change: q_proj,v_proj."),
    Setting(name="lora_extra_vocab_size", read=values.count(1 << 20), budget="lora.extra_vocab_size",
            help="Tokens that an adapter may add (before 0.12)."),
    Setting(name="enable_tower_connector_lora", read=truth, budget="lora.tower_connector", is_switch=True,
            help="Let adapters change the encoders."),
    Setting(name="specialize_active_lora", read=truth, budget="lora.specializes_active", is_switch=True,
            help="Capture CUDA graphs by the number of adapters in use."),
    Setting(name="enable_mixed_moe_lora_format", read=truth, budget="lora.mixed_moe_format", is_switch=True,
            help="Take adapters of experts in both formats."),
    Setting(name="enable_moe_shared_loras", read=truth, budget="lora.moe_shared", is_switch=True,
            help="Take adapters whose outer matrices all experts share."),
    # Weights in host memory.
    Setting(name="cpu_offload_gb", read=values.gibibytes, budget="offload.cpu_bytes",
            help="GiB of each GPU's weights that stay in host memory."),
    Setting(name="cpu_offload_params", read=values.names, budget="offload.cpu_params", is_swept=False,
            help="Parameters that may stay there: experts."),
    Setting(name="offload_group_size", read=values.count(1024), budget="offload.group_size",
            help="Layers of a group, the last of which are fetched from host memory ahead of their use."),
    Setting(name="offload_num_in_group", read=values.count(1024), budget="offload.num_in_group",
            help="Layers of each group that are fetched."),
    Setting(name="offload_prefetch_step", read=values.count(1024), budget="offload.prefetch_step", help="Layers fetched ahead."),
    Setting(name="offload_params", read=values.names, budget="offload.params", is_swept=False,
            help="Parameters that are fetched; others stay on the GPU."),
    Setting(name="offload_backend", read=one_of("auto", "uva", "prefetch"), budget="offload.backend",
            help="uva: read cpu_offload_gb in place; prefetch: fetch layers."),
    # Memory of the host, which no verdict about a GPU needs.
    Setting(name="kv_offloading_size", read=values.gibibytes, budget="host.kv_offloading_bytes", is_swept=False,
            help="GiB of KV cache in host memory, of all ranks together."),
    Setting(name="kv_offloading_backend", read=one_of("native", "lmcache"), budget="host.kv_offloading_backend", is_swept=False,
            help="Who keeps it: native or lmcache."),
    Setting(name="simple_kv_offload", read=truth, budget="host.simple_kv_offload", is_switch=True,
            help="VLLM_USE_SIMPLE_KV_OFFLOAD: ranks keep it to themselves, and not in /dev/shm."),
    Setting(name="kv_transfer_config", read=json_values.kv_connectors, budget="host.kv_connectors", is_swept=False,
            help="Connectors of the KV cache, as JSON."),
    Setting(name="kv_events_config", read=json_values.kv_events, budget="host.kv_events", is_swept=False,
            help="Events about the KV cache, as JSON."),
    Setting(name="lmcache_max_local_cpu_size", read=values.gibibytes, budget="host.lmcache_bytes", is_swept=False,
            help="LMCACHE_MAX_LOCAL_CPU_SIZE: GiB of host memory that LMCache takes in each rank."),
    Setting(name="swap_space", read=values.gibibytes, budget="host.swap_space_bytes", is_swept=False,
            help="GiB of each GPU's KV cache that V0 may swap out (up to 0.17)."),
    Setting(name="enable_sleep_mode", read=truth, budget="host.sleep_mode", is_switch=True,
            help="Let the engine sleep with its weights in host memory."),
    Setting(name="enable_cumem_allocator", read=truth, budget="host.cumem_allocator", is_switch=True, is_swept=False,
            help="Give weights and KV cache memory that is not moved, as connectors need it beside expandable segments."),
    Setting(name="mm_processor_cache_gb", read=values.gibibytes, budget="host.mm_processor_cache_bytes", is_swept=False,
            help="GiB of prepared images that a process keeps."),
    Setting(name="mm_processor_cache_type", read=one_of("lru", "shm"), budget="host.mm_processor_cache_type", is_swept=False,
            help="Where they are kept: lru, or shm in /dev/shm."),
    Setting(name="api_server_count", read=values.count(1024), budget="host.api_server_count", is_swept=False,
            help="Processes that take requests.", spellings=("-asc",)),
    Setting(name="data_parallel_size_local", read=values.count(1024), budget="host.data_parallel_size_local", is_swept=False,
            help="Data parallel ranks of this pod.", spellings=("-dpl",)),
    Setting(name="distributed_executor_backend", read=text, budget="host.distributed_executor_backend", is_swept=False,
            help="Who starts the ranks: mp, ray, uni or external_launcher."),
    Setting(name="safetensors_load_strategy", read=text, budget="host.safetensors_load_strategy", is_swept=False,
            help="How files are read: lazy, eager, prefetch or torchao."),
    Setting(name="enable_shm_tensor_arena", read=truth, budget="host.shm_tensor_arena", is_switch=True,
            help="Pass large inputs through a segment of /dev/shm."),
    Setting(name="host_memory_limit_bytes", read=values.memory, is_swept=False, is_of_pod=True,
            help="Memory limit of the container: 64Gi, or 64G as vLLM reads it (2^30)."),
    Setting(name="shm_bytes", read=values.memory, is_swept=False, is_of_pod=True, help="Size of the container's /dev/shm: 10Gi."),
    Setting(name="node_memory_bytes", read=values.memory, is_swept=False, is_of_pod=True, help="Memory of the node: 512Gi."),
    # Sizes of the weights, where they are known better than by formula.
    Setting(name="checkpoint_bytes", read=_bytes, help="All tensors of the checkpoint: total_size of its safetensors index."),
    Setting(name="weights_bytes", read=_bytes, help="Weights on one GPU as loaded, where they are known."),
    # The server of a rendered pod.
    Setting(name="host", owner=_KVGATE),
    Setting(name="port", owner=_KVGATE),
    Setting(name="served_model_name", owner=_SPEC),
    Setting(name="config", owner=_KVGATE),
    # They move memory, or the longest request, and have no formula.
    Setting(name="lora_config", unmodelled="LoRA given as one object"),
    Setting(name="load_format", read=text, budget="host.load_format", unmodelled="a load format of its own", harmless=_LOAD_FORMATS,
            is_swept=False, help="Loader of the weights: auto, runai_streamer, fastsafetensors …"),
    Setting(name="quantization_config", unmodelled="a quantisation of its own"),
    Setting(name="worker_cls", unmodelled="a worker of its own", harmless=("auto",)),
    Setting(name="model_class_overrides", unmodelled="a model class of its own"),
    Setting(name="hf_config_path", unmodelled="overrides of the model's config"),
    Setting(name="hf_overrides", unmodelled="overrides of the model's config"),
    Setting(name="rope_scaling", unmodelled="overrides of the model's config"),
    # They move a little memory, by an amount without a formula.
    Setting(name="enable_dbo", is_mentioned=True, harmless=(False,)),
    Setting(name="ubatch_size", is_mentioned=True, harmless=(0, 1)),
    Setting(name="all2all_backend", read=text, budget="parallelism.all_to_all", is_mentioned=True, is_swept=False,
            harmless=("allgather_reducescatter", "naive", "deepep_high_throughput", "deepep_low_latency"),
            help="Exchange of tokens between experts on several GPUs, such as deepep_low_latency."),
    Setting(name="mm_ipc_gpu_memory_gb", is_mentioned=True, harmless=(0,)),
    Setting(name="mm_processor_device", is_mentioned=True, harmless=("auto", "cpu")),
    Setting(name="attention_backend", is_mentioned=True, harmless=("auto",)),
    Setting(name="model_impl", is_mentioned=True, harmless=("auto", "vllm")),
    Setting(name="worker_extension_cls", is_mentioned=True, harmless=("",)),
)  # fmt: skip
"""The order is that of `--help`, and that of the arguments of a rendered pod."""

WHAT_IFS: tuple[Setting, ...] = tuple(setting for setting in SETTINGS if setting.is_asked)
"""Settings that a what-if may state."""
SWEPT: Mapping[str, Setting] = {setting.name: setting for setting in WHAT_IFS if setting.is_swept}
"""Settings that can be an axis of a sweep."""
SPEC_SETTINGS: tuple[Setting, ...] = tuple(setting for setting in SETTINGS if setting.owner is Owner.SPEC)
"""Settings that are fields of an InferenceDeployment's spec, most of them in spec.vllm."""
MENTIONED: tuple[Setting, ...] = tuple(setting for setting in SETTINGS if setting.is_mentioned)
PARTS_OF_SPECULATION = {
    "spec_method": "method",
    "spec_model": "model",
    "spec_tokens": "num_speculative_tokens",
    "speculative_model": "model",
    "num_speculative_tokens": "num_speculative_tokens",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
    "speculative_max_model_len": "max_model_len",
    "speculative_model_quantization": "quantization",
}
"""Options that each give one key of `--speculative-config`: since 0.22, and those of V0 up to 0.8."""

DECIDING = frozenset(
    setting.name for setting in SETTINGS if (setting.is_asked and not setting.is_about_host) or setting.unmodelled
).union(PARTS_OF_SPECULATION)
"""Names of the settings without whose value no verdict is possible."""
