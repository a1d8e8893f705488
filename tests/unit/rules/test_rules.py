"""Every rule with a budget that makes it fire, and one that does not."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.engine.circumstances import Circumstances
from kvgate.budget.engine.request import Capacity, Guarantee, LoraSettings, OffloadSettings, Speculation
from kvgate.budget.ground.interval import Verdict
from kvgate.budget.ground.units import GIB, MIB
from kvgate.budget.host.settings import HostSettings, KVConnector, PodMemory
from kvgate.budget.model.matrix import WeightFormat
from kvgate.budget.model.shape import FullAttention, LayerShape, ModelShape, UnmodelledLayer
from kvgate.findings.finding import Finding, Severity
from kvgate.rules import connectors as connector_rules
from kvgate.rules import host_memory as host_rules
from kvgate.rules import memory, weight_formats
from kvgate.rules import pinned as pinned_rules
from kvgate.rules import settings as setting_rules
from kvgate.rules import sharing as sharing_rules
from kvgate.rules import support as support_rules
from kvgate.rules.checks import BUDGET_CHECKS, judge_budget
from support import kinds
from support.builders import (
    catalogue_shape,
    known_draft,
    new_accelerator,
    new_layer,
    new_model_shape,
    new_request,
    new_workload,
)
from support.tables import table

Check = Callable[[Budget], Any]
FP8 = WeightFormat(method="fp8", format="fp8-tensor")
MODELOPT = WeightFormat(method="modelopt", format="fp8-tensor")
FBGEMM = WeightFormat(method="fbgemm_fp8", format="fp8-channel")
BLOCKS = WeightFormat(method="fp8", format="fp8-block", block=(128, 128))
KDA = LayerShape(mixers=(UnmodelledLayer(kind="KDA"),))
ODD = new_layer(FullAttention(num_heads=12, num_kv_heads=6, head_dim=128), intermediate_size=14336)
NARROW = new_layer(FullAttention(num_heads=64, num_kv_heads=8, head_dim=128), intermediate_size=3072, stored=BLOCKS)
HYBRID = kinds.qwen_35_27b()
HYBRID_BLOCK = 16 * 3_211_264
SPARSE, COMPRESSED = kinds.deepseek_v32(), kinds.deepseek_v4_flash()
GEMMA = catalogue_shape("google/gemma-3-4b-it")


def connector(name: str, **more: bool) -> HostSettings:
    return HostSettings(kv_connectors=(KVConnector(name=name, role="kv_both"),), **more)


LMCACHE = HostSettings(kv_connectors=(KVConnector(name="LMCacheConnectorV1"),))


def stored_as(method: str, requested: str = "") -> ModelShape:
    """Return a model of bfloat16 whose weights are stored by a method, and the value of `--quantization`."""
    stored = WeightFormat(method=method, format="int4-awq")
    return new_model_shape(quantization=stored, requested_format=requested, dtype="bfloat16")


AMD_GPU = new_accelerator(vendor="amd", compute_capability=None)
OLD_GPU = new_accelerator(compute_capability=(7, 5))
WORKLOAD = {"guarantee": Guarantee.WORKLOAD, "max_model_len": 2048, "max_num_seqs": 8}

EAGLE_8B, EAGLE_4B = (known_draft(f"AngelSlim/Qwen3-{size}_eagle3") for size in ("8B", "4B"))
DRAFTS = {
    "speculation": Speculation(model="a/draft", num_speculative_tokens=3),
    "shape": catalogue_shape("Qwen/Qwen3-8B"),
}

PINNED = {"capacity": Capacity.PINNED}
LOW_END_IS_SHORT = {"accelerator": new_accelerator(memory_gib=24), "max_model_len": 43_200}
"""A Llama-3-8B on 24 GiB, whose prediction reaches from below one request to above it."""
OFFLOADED = HostSettings(kv_offloading_bytes=200 * GIB)

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
FIRES: list[tuple[Check, str, Severity, str, dict[str, Any]]] = [
    (setting_rules.length_within_model, "MaxModelLenAboveModel", ERROR, "max_model_len", {"max_model_len": 131_073}),
    (setting_rules.sizes_divide, "ParallelSizeRefused", ERROR, "tensor_parallel_size", {"tensor": 3}),
    (setting_rules.sizes_divide, "ParallelSizeRefused", ERROR, "tensor_parallel_size",
     {"tensor": 4, "shape": new_model_shape(layer=ODD, num_heads=12)}),
    (setting_rules.sizes_divide, "ParallelSizeRefused", ERROR, "tensor_parallel_size",
     {"tensor": 16, "shape": new_model_shape(quantization=BLOCKS, num_heads=64, layer=NARROW)}),
    (setting_rules.sizes_divide, "ParallelSizeRefused", ERROR, "pipeline_parallel_size", {"pipeline": 33}),
    (setting_rules.sizes_divide, "ParallelSizeRefused", ERROR, "decode_context_parallel_size", {"tensor": 32, "decode_context": 3}),
    (support_rules.kv_cache_dtype_exists, "KVCacheDtypeRefused", ERROR, "kv_cache_dtype",
     {"kv_cache_dtype": "fp9", "vllm_version": "0.32.0"}),
    (support_rules.kv_cache_dtype_exists, "KVCacheDtypeRefused", ERROR, "kv_cache_dtype",
     {"kv_cache_dtype": "bfloat16", "vllm_version": "0.10.2"}),
    (support_rules.kv_cache_dtype_exists, "KVCacheDtypeRefused", ERROR, "kv_cache_dtype",
     {"kv_cache_dtype": "fp8", "accelerator": OLD_GPU}),
    (setting_rules.sizes_divide, "ParallelSizeRefused", ERROR, "decode_context_parallel_size", {"tensor": 8, "decode_context": 2}),
    (support_rules.speculation_is_accepted, "SpeculationRefused", ERROR, "speculative_config",
     {"speculation": Speculation(method="suffix", num_speculative_tokens=3), "vllm_version": "0.11.0"}),
    (support_rules.draft_goes_with_model, "DraftOfAnotherModel", WARNING, "speculative_config", {**DRAFTS, "draft": EAGLE_4B}),
    (support_rules.draft_is_smaller, "DraftTooLarge", WARNING, "speculative_config",
     {**DRAFTS, "draft": known_draft("Qwen/Qwen3-8B"), "shape": catalogue_shape("Qwen/Qwen3-4B")}),
    (setting_rules.batch_holds_sequences, "BatchBelowMaxNumSeqs", ERROR, "max_num_batched_tokens",
     {"max_num_batched_tokens": 16, "max_num_seqs": 64}),
    (support_rules.block_size_has_kernels, "BlockSizeRefused", ERROR, "block_size", {"block_size": 24}),
    (support_rules.block_size_has_kernels, "BlockSizeRefused", ERROR, "block_size", {"block_size": 32, "shape": SPARSE}),
    (support_rules.block_size_has_kernels, "BlockSizeRefused", ERROR, "block_size", {"block_size": 64, "shape": COMPRESSED}),
    (support_rules.caches_have_kernels, "CacheKernelMissing", ERROR, "accelerator",
     {"shape": SPARSE, "accelerator": new_accelerator(compute_capability=(8, 9))}),
    (support_rules.caches_have_kernels, "CacheKernelMissing", ERROR, "decode_context_parallel_size",
     {"shape": SPARSE, "tensor": 2, "decode_context": 2}),
    (support_rules.caches_have_kernels, "CacheKernelMissing", ERROR, "disable_hybrid_kv_cache_manager",
     {"shape": COMPRESSED, "disable_hybrid_kv_cache_manager": True}),
    (support_rules.caches_have_kernels, "CacheKernelMissing", ERROR, "mamba_ssm_cache_dtype",
     {"shape": kinds.kimi_linear(), "mamba_ssm_cache_dtype": "bfloat16"}),
    (setting_rules.hybrid_manager_is_on, "HybridManagerOff", ERROR, "kv_transfer_config", {"shape": HYBRID, "host": LMCACHE}),
    (setting_rules.hybrid_manager_is_on, "HybridManagerOff", ERROR, "disable_hybrid_kv_cache_manager",
     {"shape": HYBRID, "disable_hybrid_kv_cache_manager": True}),
    (setting_rules.hybrid_manager_is_on, "HybridManagerOff", WARNING, "kv_transfer_config",
     {"shape": HYBRID, "host": HostSettings(kv_connectors=(KVConnector(name="SomebodysConnector"),))}),
    (setting_rules.hybrid_manager_is_on, "HybridManagerOff", INFO, "kv_transfer_config", {"shape": GEMMA, "host": LMCACHE}),
    (support_rules.gpu_has_kernels, "GpuWithoutKernels", WARNING, "accelerator",
     {"accelerator": new_accelerator(compute_capability=(6, 1))}),
    (support_rules.weight_format_has_kernels, "WeightFormatRefused", ERROR, "accelerator",
     {"shape": new_model_shape(quantization=FP8), "accelerator": new_accelerator(compute_capability=(7, 0))}),
    (support_rules.weight_format_has_kernels, "WeightFormatRefused", ERROR, "accelerator",
     {"shape": new_model_shape(quantization=FP8), "accelerator": new_accelerator(compute_capability=(7, 5)), "vllm_version": "0.13.0"}),
    (support_rules.weight_format_is_kept, "WeightFormatDeprecated", ERROR, "model", {"shape": new_model_shape(quantization=FBGEMM)}),
    (weight_formats.weight_format_is_in_release, "WeightFormatNotInRelease", WARNING, "model",
     {"shape": new_model_shape(format_kinds=("bitsandbytes",)), "vllm_version": "0.30.0"}),
    (weight_formats.weight_format_is_in_release, "WeightFormatNotInRelease", WARNING, "model",
     {"shape": new_model_shape(format_kinds=("mxfp4",)), "vllm_version": "0.9.2"}),
    (weight_formats.quantization_is_that_of_the_checkpoint, "QuantizationContradictsCheckpoint", ERROR, "quantization",
     {"shape": new_model_shape(format_kinds=("compressed-tensors",), requested_format="fp8")}),
    (weight_formats.quantization_is_that_of_the_checkpoint, "QuantizationContradictsCheckpoint", ERROR, "quantization",
     {"shape": new_model_shape(format_kinds=("awq",), requested_format="awq", lacks_requested_format=True)}),
    (weight_formats.name_and_config_agree, "NameStatesAnotherFormat", WARNING, "model", {"shape": new_model_shape(name="x/y-AWQ")}),
    (weight_formats.name_and_config_agree, "NameStatesAnotherFormat", WARNING, "model",
     {"shape": new_model_shape(name="x/y-AWQ", layer=NARROW)}),
    (weight_formats.name_and_config_agree, "NameStatesAnotherFormat", WARNING, "model",
     {"shape": new_model_shape(name="x/y-BF16", layer=NARROW)}),
    (weight_formats.name_and_config_agree, "NameStatesAnotherFormat", WARNING, "model", {"shape": new_model_shape(name="x/y-GGUF")}),
    (setting_rules.pod_fits_a_node, "MoreGpusThanANode", WARNING, "tensor_parallel_size", {"tensor": 8, "pipeline": 2, "is_one_pod": True}),
    (setting_rules.slices_stand_alone, "SlicesCannotBeJoined", ERROR, "tensor_parallel_size",
     {"tensor": 2, "accelerator": new_accelerator(is_slice=True)}),
    (memory.kv_cache_memory_within_gpu, "KVCacheMemoryAboveGpu", WARNING, "kv_cache_memory_bytes",
     {"kv_cache_memory_bytes": 70 * GIB}),
    (memory.slack_holds_context, "UtilizationTooHigh", ERROR, "gpu_memory_utilization", {"utilization": "1"}),
    (memory.slack_holds_context, "UtilizationTooHigh", WARNING, "gpu_memory_utilization", {"utilization": "0.996"}),
    (memory.slack_holds_context, "UtilizationTooHigh", ERROR, "gpu_memory_utilization",
     {"utilization": "1", "kv_cache_memory_bytes": GIB}),
    (memory.slack_holds_context, "UtilizationTooHigh", WARNING, "gpu_memory_utilization",
     {"utilization": "1", "vllm_version": "0.8.5"}),
    (sharing_rules.shares_leave_room, "SharedGpuOverbooked", ERROR, "gpu_memory_utilization", {"shared_by": 2}),
    (sharing_rules.shares_leave_room, "SharedGpuOverbooked", ERROR, "gpu_memory_utilization",
     {"shared_by": 2, "kv_cache_memory_bytes": GIB}),
    (sharing_rules.shares_leave_room, "SharedGpuOverbooked", WARNING, "gpu_memory_utilization", {"shared_by": 2, "utilization": "0.7"}),
    (sharing_rules.shares_leave_room, "SharedGpuOverbooked", WARNING, "gpu_memory_utilization", {"shared_by": 3, "utilization": "0.34"}),
    (sharing_rules.shares_leave_room, "SharedGpuOverbooked", ERROR, "gpu_memory_utilization", {"shared_by": 8, "utilization": "0.99"}),
    (sharing_rules.shares_leave_room, "SharedGpuOverbooked", WARNING, "gpu_memory_utilization",
     {"shared_by": 2, "utilization": "0.45", "vllm_version": "0.8.5"}),
    (memory.sampler_fits_beside_budget, "SamplerWarmUpIsTight", WARNING, "max_num_seqs",
     {"utilization": "0.99", "max_num_seqs": 1024}),
    (setting_rules.whole_prompts_fit_a_batch, "BatchBelowMaxModelLen", ERROR, "max_num_batched_tokens",
     {"enable_chunked_prefill": False, "max_num_batched_tokens": 2048, "max_model_len": 2049}),
    (support_rules.dtype_has_kernels, "DtypeRefused", ERROR, "dtype", {"accelerator": OLD_GPU, "dtype": "bfloat16"}),
    (support_rules.weight_format_takes_bfloat16, "DtypeRefused", ERROR, "dtype",
     {"shape": stored_as("awq", "awq"), "dtype": "bfloat16", "vllm_version": "0.23.0"}),
    (support_rules.weight_format_takes_bfloat16, "DtypeRefused", ERROR, "dtype",
     {"shape": stored_as("gptq", "gptq"), "dtype": "bfloat16", "vllm_version": "0.21.0"}),
    (support_rules.weight_format_takes_bfloat16, "DtypeRefused", ERROR, "dtype",
     {"shape": stored_as("gptq"), "dtype": "bfloat16", "vllm_version": "0.19.1", "accelerator": AMD_GPU}),
    (support_rules.weight_format_takes_bfloat16, "DtypeRefused", ERROR, "dtype",
     {"shape": replace(stored_as("awq", "awq"), architecture="Gemma3ForConditionalGeneration"), "vllm_version": "0.11.0"}),
    (support_rules.dtype_has_kernels, "DtypeRefused", ERROR, "dtype", {"accelerator": OLD_GPU, "vllm_version": "0.8.5"}),
    (setting_rules.media_fit_a_batch, "BatchBelowMediaItem", WARNING, "max_num_batched_tokens",
     {"shape": GEMMA, "max_num_batched_tokens": 128}),
    (memory.weights_fit, "WeightsTooLarge", ERROR, "accelerator", {"accelerator": new_accelerator(memory_gib=16)}),
    (memory.one_request_fits, "KVCacheTooSmall", ERROR, "max_model_len", {"accelerator": new_accelerator(memory_gib=24)}),
    (memory.one_request_fits, "KVCacheTooSmall", ERROR, "max_model_len", {"kv_cache_memory_bytes": 1000}),
    (memory.sequences_have_states, "MambaCacheBlocksExceeded", ERROR, "max_num_seqs",
     {"shape": HYBRID, "max_num_seqs": 513, "kv_cache_memory_bytes": 512 * HYBRID_BLOCK}),
    (memory.guarantee_holds, "GuaranteeNotMet", ERROR, "max_num_seqs", {"guarantee": Guarantee.FULL_CONTEXT}),
    (memory.guarantee_holds, "GuaranteeNotMet", ERROR, "workload", {**WORKLOAD, "workload": new_workload(1000)}),
    (setting_rules.workload_can_run, "ConcurrencyAboveMaxNumSeqs", WARNING, "max_num_seqs", {**WORKLOAD, "workload": new_workload(9)}),
    (setting_rules.workload_can_run, "RequestAboveMaxModelLen", ERROR, "workload", {**WORKLOAD, "workload": new_workload(8, 2048, 1)}),
    (support_rules.kinds_are_modelled, "UnmodelledKind", WARNING, "model", {"shape": new_model_shape(layer=KDA)}),
    (support_rules.kinds_are_modelled, "UnmodelledKind", WARNING, "extra_args", {"unmodelled_settings": ("LoRA",)}),
    (support_rules.kinds_are_modelled, "UnmodelledKind", WARNING, "kv_cache_dtype", {"kv_cache_dtype": "of_a_plug_in"}),
    (support_rules.lora_is_taken, "LoraRefused", ERROR, "enable_lora",
     {"shape": new_model_shape(architecture="FalconForCausalLM"), "lora": LoraSettings(enabled=True)}),
    (support_rules.lora_is_taken, "LoraRefused", ERROR, "max_lora_rank", {"lora": LoraSettings(enabled=True, max_rank=24)}),
    (support_rules.lora_is_taken, "LoraRefused", ERROR, "max_cpu_loras",
     {"lora": LoraSettings(enabled=True, max_loras=4, max_cpu_loras=3)}),
    (support_rules.offload_is_taken, "OffloadRefused", ERROR, "offload_num_in_group",
     {"offload": OffloadSettings(group_size=2, num_in_group=3)}),
    (support_rules.offload_is_taken, "OffloadRefused", ERROR, "offload_prefetch_step",
     {"offload": OffloadSettings(group_size=2, prefetch_step=0)}),
    (support_rules.release_is_known, "ReleaseNotKnown", INFO, "vllm_version", {"vllm_version": "7.3.0"}),
    (memory.checkpoint_decides_weights, "CheckpointDecidesWeights", INFO, "checkpoint_bytes",
     {"shape": new_model_shape(checkpoint_bytes=20 * GIB)}),
    (weight_formats.sources_agree, "SourcesContradict", WARNING, "model", {"shape": new_model_shape(checkpoint_bytes=8)}),
    (memory.weights_do_not_choose_kv_cache, "KVCacheKeepsModelDtype", INFO, "kv_cache_dtype",
     {"shape": new_model_shape(quantization=FP8)}),
    (support_rules.offload_is_taken, "OffloadRefused", ERROR, "kv_offloading_size", {"host": HostSettings(kv_offloading_bytes=0)}),
    (connector_rules.connectors_are_taken, "KVConnectorRefused", ERROR, "kv_transfer_config",
     {"host": connector("OffloadingConnector"), "vllm_version": "0.10.2"}),
    (connector_rules.connectors_are_taken, "KVConnectorRefused", ERROR, "kv_transfer_config",
     {"host": connector("P2pNcclConnector"), "vllm_version": "0.25.0"}),
    (connector_rules.connectors_are_taken, "KVConnectorRefused", WARNING, "kv_transfer_config", {"host": connector("OffloadingConnectr")}),
    (connector_rules.connectors_are_taken, "KVConnectorRefused", ERROR, "kv_transfer_config",
     {"host": connector("NixlConnector"), "circumstances": Circumstances(expandable_segments=True), "vllm_version": "0.21.0"}),
    (connector_rules.connectors_are_taken, "KVConnectorRefused", ERROR, "kv_offloading_size",
     {"host": HostSettings(kv_offloading_bytes=1 << 30), "circumstances": Circumstances(expandable_segments=True)}),
    (connector_rules.connectors_are_taken, "KVConnectorRefused", ERROR, "kv_transfer_config",
     {"host": connector("MoRIIOConnector", sleep_mode=True), "vllm_version": "0.33.0"}),
    (connector_rules.connectors_are_taken, "KVConnectorRefused", WARNING, "kv_offloading_size",
     {"host": HostSettings(kv_offloading_bytes=1 << 30, simple_kv_offload=True), "enable_prefix_caching": False}),
    (host_rules.host_memory_suffices, "HostMemoryTooSmall", ERROR, "host_memory_limit_bytes",
     {"host": OFFLOADED, "pod": PodMemory(limit_bytes=16 * GIB)}),
    (host_rules.host_memory_suffices, "HostMemoryTooSmall", WARNING, "host_memory_limit_bytes",
     {"host": OFFLOADED, "pod": PodMemory(limit_bytes=16 * GIB), "vllm_version": "0.26.0"}),
    (host_rules.host_memory_suffices, "HostMemoryTooSmall", WARNING, "host_memory_limit_bytes", {"pod": PodMemory(limit_bytes=GIB)}),
    (host_rules.host_memory_suffices, "HostMemoryTooSmall", ERROR, "node_memory_bytes",
     {"host": OFFLOADED, "pod": PodMemory(limit_bytes=300 * GIB, node_bytes=128 * GIB)}),
    (host_rules.host_memory_suffices, "HostMemoryTooSmall", ERROR, "gpu_memory_utilization",
     {"host": OFFLOADED, "accelerator": new_accelerator(unified_memory=True)}),
    (host_rules.host_memory_suffices, "SharedMemoryTooSmall", ERROR, "shm_bytes",
     {"tensor": 2, "pod": PodMemory(shm_bytes=64 * MIB)}),
    (host_rules.host_memory_suffices, "SharedMemoryTooSmall", WARNING, "shm_bytes",
     {"tensor": 2, "pod": PodMemory(shm_bytes=64 * MIB, is_shm_certain=False)}),
    (host_rules.host_memory_suffices, "SharedMemoryTooSmall", WARNING, "shm_bytes",
     {"tensor": 2, "pod": PodMemory(shm_bytes=64 * MIB), "vllm_version": "0.26.0"}),
    (host_rules.host_memory_suffices, "SharedMemoryTooSmall", ERROR, "shm_bytes",
     {"host": OFFLOADED, "pod": PodMemory(shm_bytes=64 * MIB)}),
    (memory.headroom_is_thin, "ThinHeadroom", INFO, "max_num_seqs", {"kv_cache_memory_bytes": 16 * GIB + 3 * 2_097_152}),
    (pinned_rules.pinned_capacity_is_told, "CapacityPinned", INFO, "capacity", {**PINNED, "max_model_len": 4096}),
    (pinned_rules.pinned_capacity_is_known, "CapacityNotPinned", WARNING, "capacity",
     {**PINNED, "shape": new_model_shape(layer=KDA)}),
    (memory.one_request_fits, "KVCacheTooSmall", ERROR, "max_model_len", {**PINNED, **LOW_END_IS_SHORT}),
]  # fmt: skip

SILENT: list[tuple[Check, dict[str, Any]]] = [
    (setting_rules.length_within_model, {"max_model_len": 131_072}),
    (setting_rules.sizes_divide, {"tensor": 8, "pipeline": 32}),
    (setting_rules.sizes_divide, {"tensor": 16, "decode_context": 2}),
    (support_rules.kv_cache_dtype_exists, {"kv_cache_dtype": "fp8"}),
    (support_rules.kv_cache_dtype_exists, {"kv_cache_dtype": "auto", "accelerator": new_accelerator(compute_capability=(7, 0))}),
    (setting_rules.batch_holds_sequences, {"max_num_batched_tokens": 64, "max_num_seqs": 64}),
    (support_rules.block_size_has_kernels, {"block_size": 48}),
    (support_rules.block_size_has_kernels, {"block_size": 8, "vllm_version": "0.6.6"}),
    (support_rules.block_size_has_kernels, {"block_size": 128, "shape": COMPRESSED}),
    (support_rules.block_size_has_kernels, {"block_size": 128, "shape": SPARSE}),
    (support_rules.caches_have_kernels, {"shape": SPARSE}),
    (support_rules.caches_have_kernels, {"shape": SPARSE, "accelerator": new_accelerator(compute_capability=None)}),
    (support_rules.caches_have_kernels, {"shape": SPARSE, "tensor": 2, "decode_context": 2, "kv_cache_dtype": "fp8"}),
    (support_rules.caches_have_kernels, {"shape": COMPRESSED}),
    (support_rules.caches_have_kernels, {"disable_hybrid_kv_cache_manager": True}),
    (support_rules.caches_have_kernels, {"shape": kinds.kimi_linear(), "mamba_ssm_cache_dtype": "float32"}),
    (support_rules.caches_have_kernels, {"shape": HYBRID, "mamba_ssm_cache_dtype": "bfloat16"}),
    (setting_rules.hybrid_manager_is_on, {"host": LMCACHE}),
    (setting_rules.hybrid_manager_is_on, {"shape": GEMMA, "disable_hybrid_kv_cache_manager": True}),
    (setting_rules.hybrid_manager_is_on, {"shape": HYBRID, "host": HostSettings(kv_connectors=(KVConnector(name="NixlConnector"),))}),
    (support_rules.gpu_has_kernels, {"accelerator": new_accelerator(compute_capability=(7, 0))}),
    (support_rules.gpu_has_kernels, {"accelerator": new_accelerator(compute_capability=None)}),
    (support_rules.weight_format_has_kernels, {"shape": new_model_shape(quantization=FP8)}),
    (support_rules.weight_format_has_kernels, {"accelerator": new_accelerator(compute_capability=(7, 0))}),
    (support_rules.weight_format_is_kept, {"shape": new_model_shape(quantization=FBGEMM), "vllm_version": "0.13.0"}),
    (support_rules.weight_format_is_kept, {"shape": new_model_shape(quantization=FBGEMM), "allow_deprecated_quantization": True}),
    (weight_formats.weight_format_is_in_release, {"shape": new_model_shape(format_kinds=("bitsandbytes",)), "vllm_version": "0.27.0"}),
    (weight_formats.weight_format_is_in_release, {"shape": new_model_shape(format_kinds=("mxfp4",)), "vllm_version": "0.10.0"}),
    (weight_formats.weight_format_is_in_release, {"shape": new_model_shape(format_kinds=("a format of its own",))}),
    (weight_formats.quantization_is_that_of_the_checkpoint,
     {"shape": new_model_shape(format_kinds=("gptq",), requested_format="moe_wna16")}),
    (weight_formats.quantization_is_that_of_the_checkpoint,
     {"shape": new_model_shape(format_kinds=("modelopt_fp4",), requested_format="modelopt")}),
    (weight_formats.quantization_is_that_of_the_checkpoint, {"shape": new_model_shape(format_kinds=("fp8",), requested_format="fp8")}),
    (weight_formats.quantization_is_that_of_the_checkpoint, {"shape": new_model_shape(format_kinds=("awq",))}),
    (weight_formats.sources_agree, {}),
    (weight_formats.sources_agree, {"shape": new_model_shape(checkpoint_bytes=8), "weights_bytes": 16 * GIB}),
    (weight_formats.name_and_config_agree, {"shape": new_model_shape(name="x/y-FP8", layer=NARROW)}),
    (weight_formats.name_and_config_agree, {"shape": new_model_shape(name="x/y", layer=NARROW)}),
    (weight_formats.name_and_config_agree, {"shape": new_model_shape(name="x/y-BF16")}),
    (weight_formats.name_and_config_agree, {"shape": new_model_shape(name="x/y-AWQ", unmodelled=("awq with 3 bits",))}),
    (support_rules.lora_is_taken, {"lora": LoraSettings(enabled=True, max_rank=320, max_loras=4, max_cpu_loras=4)}),
    (support_rules.lora_is_taken, {"lora": LoraSettings(max_rank=24)}),
    (support_rules.lora_is_taken, {"lora": LoraSettings(enabled=True, fully_sharded=True), "tensor": 8}),
    (support_rules.offload_is_taken, {"offload": OffloadSettings(num_in_group=3)}),
    (connector_rules.connectors_are_taken, {"host": connector("OffloadingConnector"), "vllm_version": "0.11.0"}),
    (connector_rules.connectors_are_taken, {"host": connector("CorporateConnector")}),
    (connector_rules.connectors_are_taken,
     {"host": connector("NixlConnector"), "circumstances": Circumstances(expandable_segments=True), "vllm_version": "0.20.0"}),
    (connector_rules.connectors_are_taken,
     {"host": connector("NixlConnector", sleep_mode=True), "circumstances": Circumstances(expandable_segments=True)}),
    (support_rules.offload_is_taken, {"offload": OffloadSettings(group_size=3, num_in_group=3)}),
    (setting_rules.pod_fits_a_node, {"tensor": 8}),
    (setting_rules.slices_stand_alone, {"accelerator": new_accelerator(is_slice=True)}),
    (setting_rules.slices_stand_alone, {"tensor": 2}),
    (memory.kv_cache_memory_within_gpu, {"kv_cache_memory_bytes": 61 * GIB}),
    (memory.slack_holds_context, {"utilization": "0.95"}),
    (memory.slack_holds_context, {"utilization": "0.95", "kv_cache_memory_bytes": GIB}),
    (sharing_rules.shares_leave_room, {}),
    (sharing_rules.shares_leave_room, {"utilization": "0.99"}),
    (sharing_rules.shares_leave_room, {"shared_by": 2, "utilization": "0.45"}),
    (sharing_rules.shares_leave_room, {"shared_by": 2, "utilization": "0.3", "kv_cache_memory_bytes": GIB}),
    (memory.sampler_fits_beside_budget, {"utilization": "0.99", "max_num_seqs": 64}),
    (setting_rules.whole_prompts_fit_a_batch, {"enable_chunked_prefill": False, "max_model_len": 100_000}),
    (setting_rules.whole_prompts_fit_a_batch, {"max_num_batched_tokens": 2048, "max_model_len": 2049}),
    (support_rules.dtype_has_kernels, {"accelerator": OLD_GPU}),
    (support_rules.dtype_has_kernels, {"dtype": "bfloat16"}),
    (support_rules.weight_format_takes_bfloat16, {"shape": stored_as("awq", "awq"), "dtype": "bfloat16", "vllm_version": "0.24.0"}),
    (support_rules.weight_format_takes_bfloat16, {"shape": stored_as("gptq", "gptq"), "dtype": "bfloat16", "vllm_version": "0.22.0"}),
    (support_rules.weight_format_takes_bfloat16, {"shape": stored_as("awq"), "vllm_version": "0.11.0"}),
    (support_rules.weight_format_takes_bfloat16, {"shape": stored_as("awq", "awq"), "vllm_version": "0.11.0"}),
    (support_rules.weight_format_takes_bfloat16, {"shape": stored_as("gptq"), "vllm_version": "0.11.0"}),
    (support_rules.weight_format_takes_bfloat16,
     {"shape": stored_as("awq"), "vllm_version": "0.11.0", "accelerator": AMD_GPU}),
    (support_rules.weight_format_takes_bfloat16,
     {"shape": stored_as("awq", "awq"), "vllm_version": "0.11.0", "accelerator": OLD_GPU}),
    (setting_rules.media_fit_a_batch, {"shape": GEMMA, "max_num_batched_tokens": 4096}),
    (setting_rules.media_fit_a_batch, {"shape": GEMMA, "max_num_batched_tokens": 128, "language_model_only": True}),
    (memory.weights_fit, {}),
    (memory.weights_fit, {"kv_cache_memory_bytes": 1000}),
    (memory.one_request_fits, {}),
    (memory.one_request_fits, {"accelerator": new_accelerator(memory_gib=16)}),
    (memory.sequences_have_states, {"shape": HYBRID, "max_num_seqs": 512, "kv_cache_memory_bytes": 512 * HYBRID_BLOCK}),
    (memory.sequences_have_states,
     {"shape": HYBRID, "max_num_seqs": 513, "kv_cache_memory_bytes": 512 * HYBRID_BLOCK, "enforce_eager": True}),
    (memory.sequences_have_states,
     {"shape": HYBRID, "max_num_seqs": 513, "kv_cache_memory_bytes": 512 * HYBRID_BLOCK, "vllm_version": "0.18.0"}),
    (memory.sequences_have_states, {"max_num_seqs": 1024, "kv_cache_memory_bytes": 2 * GIB, "max_model_len": 4096}),
    (memory.guarantee_holds, {"guarantee": Guarantee.FULL_CONTEXT, "max_num_seqs": 1}),
    (memory.guarantee_holds, {"guarantee": Guarantee.FULL_CONTEXT, "kv_cache_memory_bytes": GIB}),
    (setting_rules.workload_can_run, {**WORKLOAD, "workload": new_workload(8, 2048, 0)}),
    (setting_rules.workload_can_run, {**WORKLOAD, "guarantee": Guarantee.STARTUP, "workload": new_workload(9, 4096, 1)}),
    (support_rules.kinds_are_modelled, {}),
    (support_rules.release_is_known, {"vllm_version": "0.33.9"}),
    (memory.weights_do_not_choose_kv_cache, {"shape": new_model_shape(quantization=FP8), "kv_cache_dtype": "fp8"}),
    (memory.weights_do_not_choose_kv_cache, {"shape": new_model_shape(quantization=MODELOPT, kv_cache_scheme="fp8")}),
    (memory.weights_do_not_choose_kv_cache, {}),
    (memory.checkpoint_decides_weights, {}),
    (memory.headroom_is_thin, {"max_model_len": 4096}),
    (pinned_rules.pinned_capacity_is_told, {"max_model_len": 4096}),
    (pinned_rules.pinned_capacity_is_told, {**PINNED, **LOW_END_IS_SHORT}),
    (pinned_rules.pinned_capacity_is_known, {**PINNED, "max_model_len": 4096}),
    (pinned_rules.pinned_capacity_is_known, {**PINNED, "shape": new_model_shape(layer=KDA), "kv_cache_memory_bytes": GIB}),
    (support_rules.speculation_is_accepted, {**DRAFTS, "draft": EAGLE_8B}),
    (support_rules.draft_goes_with_model, {**DRAFTS, "draft": EAGLE_8B}),
    (support_rules.draft_is_smaller, {**DRAFTS, "draft": EAGLE_8B}),
    (support_rules.offload_is_taken, {"host": HostSettings(kv_offloading_bytes=0, kv_offloading_backend="lmcache")}),
    (support_rules.offload_is_taken, {"host": HostSettings(kv_offloading_bytes=0), "vllm_version": "0.12.0"}),
    (host_rules.host_memory_suffices, {"host": OFFLOADED}),
    (host_rules.host_memory_suffices, {"host": OFFLOADED, "pod": PodMemory(limit_bytes=208 * GIB, shm_bytes=201 * GIB)}),
    (host_rules.host_memory_suffices, {"tensor": 2, "pod": PodMemory(shm_bytes=GIB)}),
    (host_rules.host_memory_suffices, {"pod": PodMemory(shm_bytes=64 * MIB)}),
    (host_rules.host_memory_suffices, {"data": 2, "pod": PodMemory(shm_bytes=64 * MIB)}),
    (host_rules.host_memory_suffices, {"tensor": 2, "pod": PodMemory(shm_bytes=64 * MIB, num_gpus=1)}),
    (host_rules.host_memory_suffices, {"accelerator": new_accelerator(unified_memory=True)}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("check", "name", "severity", "field", "settings"), FIRES, ids=[f"{c[1]} {i}" for i, c in enumerate(FIRES)]
)
def test_a_rule_fires(check: Check, name: str, severity: Severity, field: str, settings: dict[str, Any]) -> None:
    findings: list[Finding] = list(check(plan(new_request(**settings))))
    assert [(f.rule.id, f.severity, f.field) for f in findings] == [(name, severity, field)]
    assert findings[0].message
    assert findings[0].remediation


@pytest.mark.parametrize(("check", "settings"), SILENT, ids=[f"{c[0].__name__} {i}" for i, c in enumerate(SILENT)])
def test_a_rule_stays_silent(check: Check, settings: dict[str, Any]) -> None:
    assert list(check(plan(new_request(**settings)))) == []


def test_every_rule_has_a_case_that_fires_and_one_that_does_not() -> None:
    assert {rule for rule, *_ in FIRES} == set(BUDGET_CHECKS)
    assert {rule for rule, _ in SILENT} == set(BUDGET_CHECKS)
    assert len(BUDGET_CHECKS) == len(set(BUDGET_CHECKS))


@table(("check", "settings"), [(c[0], c[4]) for c in FIRES])
def test_judging_a_budget_makes_every_check(check: Check, settings: dict[str, Any]) -> None:
    budget = plan(new_request(**settings))
    assert set(check(budget)) <= set(judge_budget(budget))


@table("settings", [c[4] for c in FIRES if c[2] is Severity.ERROR and c[0] is not memory.weights_fit])
def test_settings_that_a_rule_refuses_still_get_a_whole_plan(settings: dict[str, Any]) -> None:
    """No exception, no missing part unless a formula is missing, and the headroom has the sign of the verdict."""
    budget = plan(new_request(**settings))
    assert (budget.headroom is None) == (budget.stages == ()) == (budget.unmodelled != ())
    assert budget.headroom is None or (budget.headroom.low >= 0) == (budget.verdict is Verdict.FITS)


def test_more_stages_than_layers_and_a_wrong_tensor_size_still_name_sizes_that_work() -> None:
    findings = list(setting_rules.sizes_divide(plan(new_request(tensor=3, pipeline=1024))))
    assert [f.field for f in findings] == ["tensor_parallel_size", "pipeline_parallel_size"]
    assert findings[0].remediation == "set tensor_parallel_size to one of 1, 2, 4, 8, 16"


def test_does_not_fit_always_has_an_error_that_says_why() -> None:
    """Also where the KV memory is given, tiny, and nothing else is known."""
    for more in ({}, {"unmodelled_settings": ("LoRA",)}):
        budget = plan(new_request(kv_cache_memory_bytes=1, **more))
        assert budget.verdict == "DoesNotFit"
        assert [f.rule.id for f in judge_budget(budget) if f.severity is Severity.ERROR] == ["KVCacheTooSmall"]


def test_a_maybe_is_a_warning() -> None:
    budget = plan(new_request(accelerator=new_accelerator(memory_gib=34.75), max_model_len=131_072, max_num_seqs=8))
    assert budget.verdict == "MayNotFit"
    assert [(f.rule.id, f.severity) for f in judge_budget(budget)] == [("KVCacheTooSmall", Severity.WARNING)]


@pytest.mark.parametrize(
    ("shm_bytes", "has"),
    [(240 * MIB, "240 MiB"), (240 * MIB + 1, "240 MiB"), (MIB - 1, "1048575 bytes"), (2, "2 bytes")],
)
def test_a_size_that_is_too_small_never_reads_like_one_that_is_enough(shm_bytes: int, has: str) -> None:
    budget = plan(new_request(tensor=2, pod=PodMemory(shm_bytes=shm_bytes)))
    (finding,) = (each for each in host_rules.host_memory_suffices(budget))
    assert f"the container's /dev/shm has {has}, and vLLM makes a segment of 241 MiB" in finding.message


def test_each_data_parallel_engine_offloads_to_a_segment_of_its_own() -> None:
    offloaded = HostSettings(kv_offloading_bytes=10 * GIB)
    budget = plan(new_request(data=8, host=offloaded, pod=PodMemory(shm_bytes=32 * GIB)))
    (finding,) = host_rules.host_memory_suffices(budget)
    assert "has 32.00 GiB, and vLLM makes 8 segments of 10.00 GiB in it (offloaded KV cache)" in finding.message
