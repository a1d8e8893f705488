"""Every rule with a budget that makes it fire, and one that does not."""

from collections.abc import Callable
from typing import Any

import pytest

from kvgate.budget.interval import Verdict
from kvgate.budget.matrix import WeightFormat
from kvgate.budget.model_shape import FullAttention, LayerShape, UnmodelledLayer
from kvgate.budget.plan import Budget, plan
from kvgate.budget.request import Guarantee
from kvgate.budget.units import GIB
from kvgate.rules import RULES, Severity, consistency, fit, judge_budget, start_up
from kvgate.rules.finding import Finding
from support import kinds
from support.builders import catalogue_shape, new_accelerator, new_layer, new_model_shape, new_request, new_workload

Rule = Callable[[Budget], Any]
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
OLD_GPU = new_accelerator(compute_capability=(7, 5))
WORKLOAD = {"guarantee": Guarantee.WORKLOAD, "max_model_len": 2048, "max_num_seqs": 8}

ERROR, WARNING, INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
FIRES: list[tuple[Rule, str, Severity, str, dict[str, Any]]] = [
    (consistency.length_within_model, "MaxModelLenAboveModel", ERROR, "max_model_len", {"max_model_len": 131_073}),
    (consistency.sizes_divide, "ParallelSizeRefused", ERROR, "tensor_parallel_size", {"tensor": 3}),
    (consistency.sizes_divide, "ParallelSizeRefused", ERROR, "tensor_parallel_size",
     {"tensor": 4, "shape": new_model_shape(layer=ODD, num_heads=12)}),
    (consistency.sizes_divide, "ParallelSizeRefused", ERROR, "tensor_parallel_size",
     {"tensor": 16, "shape": new_model_shape(quantization=BLOCKS, num_heads=64, layer=NARROW)}),
    (consistency.sizes_divide, "ParallelSizeRefused", ERROR, "pipeline_parallel_size", {"pipeline": 33}),
    (consistency.sizes_divide, "ParallelSizeRefused", ERROR, "decode_context_parallel_size", {"tensor": 32, "decode_context": 3}),
    (consistency.kv_cache_dtype_exists, "KVCacheDtypeRefused", ERROR, "kv_cache_dtype", {"kv_cache_dtype": "fp9"}),
    (consistency.kv_cache_dtype_exists, "KVCacheDtypeRefused", ERROR, "kv_cache_dtype",
     {"kv_cache_dtype": "bfloat16", "vllm_version": "0.10.2"}),
    (consistency.kv_cache_dtype_exists, "KVCacheDtypeRefused", ERROR, "kv_cache_dtype", {"kv_cache_dtype": "fp8", "accelerator": OLD_GPU}),
    (consistency.sizes_divide, "ParallelSizeRefused", ERROR, "decode_context_parallel_size", {"tensor": 8, "decode_context": 2}),
    (consistency.batch_holds_sequences, "BatchBelowMaxNumSeqs", ERROR, "max_num_batched_tokens",
     {"max_num_batched_tokens": 16, "max_num_seqs": 64}),
    (consistency.block_size_has_kernels, "BlockSizeRefused", ERROR, "block_size", {"block_size": 24}),
    (consistency.block_size_has_kernels, "BlockSizeRefused", ERROR, "block_size", {"block_size": 32, "shape": SPARSE}),
    (consistency.block_size_has_kernels, "BlockSizeRefused", ERROR, "block_size", {"block_size": 64, "shape": COMPRESSED}),
    (consistency.caches_have_kernels, "CacheKernelMissing", ERROR, "accelerator",
     {"shape": SPARSE, "accelerator": new_accelerator(compute_capability=(8, 9))}),
    (consistency.caches_have_kernels, "CacheKernelMissing", ERROR, "decode_context_parallel_size",
     {"shape": SPARSE, "tensor": 2, "decode_context": 2}),
    (consistency.caches_have_kernels, "CacheKernelMissing", ERROR, "disable_hybrid_kv_cache_manager",
     {"shape": COMPRESSED, "disable_hybrid_kv_cache_manager": True}),
    (consistency.caches_have_kernels, "CacheKernelMissing", ERROR, "mamba_ssm_cache_dtype",
     {"shape": kinds.kimi_linear(), "mamba_ssm_cache_dtype": "bfloat16"}),
    (consistency.weight_format_has_kernels, "WeightFormatRefused", ERROR, "accelerator",
     {"shape": new_model_shape(quantization=FP8), "accelerator": new_accelerator(compute_capability=(7, 0))}),
    (consistency.weight_format_is_kept, "WeightFormatDeprecated", ERROR, "model", {"shape": new_model_shape(quantization=FBGEMM)}),
    (consistency.pod_fits_a_node, "MoreGpusThanANode", WARNING, "tensor_parallel_size", {"tensor": 8, "pipeline": 2}),
    (consistency.slices_stand_alone, "SlicesCannotBeJoined", ERROR, "tensor_parallel_size",
     {"tensor": 2, "accelerator": new_accelerator(is_slice=True)}),
    (consistency.kv_cache_memory_within_gpu, "KVCacheMemoryAboveGpu", WARNING, "kv_cache_memory_bytes",
     {"kv_cache_memory_bytes": 70 * GIB}),
    (start_up.slack_holds_context, "UtilizationTooHigh", ERROR, "gpu_memory_utilization", {"utilization": "1"}),
    (start_up.slack_holds_context, "UtilizationTooHigh", WARNING, "gpu_memory_utilization", {"utilization": "0.996"}),
    (start_up.sampler_fits_beside_budget, "SamplerWarmUpIsTight", WARNING, "max_num_seqs",
     {"utilization": "0.99", "max_num_seqs": 1024}),
    (start_up.whole_prompts_fit_a_batch, "BatchBelowMaxModelLen", ERROR, "max_num_batched_tokens",
     {"enable_chunked_prefill": False, "max_num_batched_tokens": 2048, "max_model_len": 2049}),
    (start_up.dtype_has_kernels, "DtypeRefused", ERROR, "dtype", {"accelerator": OLD_GPU, "dtype": "bfloat16"}),
    (start_up.dtype_has_kernels, "DtypeRefused", ERROR, "dtype", {"accelerator": OLD_GPU, "vllm_version": "0.8.5"}),
    (start_up.media_fit_a_batch, "BatchBelowMediaItem", WARNING, "max_num_batched_tokens",
     {"shape": GEMMA, "max_num_batched_tokens": 128}),
    (fit.weights_fit, "WeightsTooLarge", ERROR, "accelerator", {"accelerator": new_accelerator(memory_gib=16)}),
    (fit.one_request_fits, "KVCacheTooSmall", ERROR, "max_model_len", {"accelerator": new_accelerator(memory_gib=24)}),
    (fit.one_request_fits, "KVCacheTooSmall", ERROR, "max_model_len", {"kv_cache_memory_bytes": 1000}),
    (fit.sequences_have_states, "MambaCacheBlocksExceeded", ERROR, "max_num_seqs",
     {"shape": HYBRID, "max_num_seqs": 513, "kv_cache_memory_bytes": 512 * HYBRID_BLOCK}),
    (fit.guarantee_holds, "GuaranteeNotMet", ERROR, "max_num_seqs", {"guarantee": Guarantee.FULL_CONTEXT}),
    (fit.guarantee_holds, "GuaranteeNotMet", ERROR, "workload", {**WORKLOAD, "workload": new_workload(1000)}),
    (consistency.workload_can_run, "ConcurrencyAboveMaxNumSeqs", WARNING, "max_num_seqs", {**WORKLOAD, "workload": new_workload(9)}),
    (consistency.workload_can_run, "RequestAboveMaxModelLen", ERROR, "workload", {**WORKLOAD, "workload": new_workload(8, 2048, 1)}),
    (consistency.kinds_are_modelled, "UnmodelledKind", WARNING, "model", {"shape": new_model_shape(layer=KDA)}),
    (consistency.kinds_are_modelled, "UnmodelledKind", WARNING, "extra_args", {"unmodelled_settings": ("LoRA",)}),
    (consistency.kinds_are_modelled, "UnmodelledKind", WARNING, "kv_cache_dtype", {"kv_cache_dtype": "octave_k3v4"}),
    (consistency.release_is_known, "ReleaseNotKnown", INFO, "vllm_version", {"vllm_version": "7.3.0"}),
    (consistency.checkpoint_decides_weights, "CheckpointDecidesWeights", INFO, "checkpoint_bytes",
     {"shape": new_model_shape(checkpoint_bytes=20 * GIB)}),
    (consistency.weights_do_not_choose_kv_cache, "KVCacheKeepsModelDtype", INFO, "kv_cache_dtype",
     {"shape": new_model_shape(quantization=FP8)}),
    (fit.headroom_is_thin, "ThinHeadroom", INFO, "max_num_seqs", {"kv_cache_memory_bytes": 16 * GIB + 3 * 2_097_152}),
]  # fmt: skip

SILENT: list[tuple[Rule, dict[str, Any]]] = [
    (consistency.length_within_model, {"max_model_len": 131_072}),
    (consistency.sizes_divide, {"tensor": 8, "pipeline": 32}),
    (consistency.sizes_divide, {"tensor": 16, "decode_context": 2}),
    (consistency.kv_cache_dtype_exists, {"kv_cache_dtype": "fp8"}),
    (consistency.kv_cache_dtype_exists, {"kv_cache_dtype": "auto", "accelerator": new_accelerator(compute_capability=(7, 0))}),
    (consistency.batch_holds_sequences, {"max_num_batched_tokens": 64, "max_num_seqs": 64}),
    (consistency.block_size_has_kernels, {"block_size": 48}),
    (consistency.block_size_has_kernels, {"block_size": 8, "vllm_version": "0.6.6"}),
    (consistency.block_size_has_kernels, {"block_size": 128, "shape": COMPRESSED}),
    (consistency.block_size_has_kernels, {"block_size": 128, "shape": SPARSE}),
    (consistency.caches_have_kernels, {"shape": SPARSE}),
    (consistency.caches_have_kernels, {"shape": SPARSE, "accelerator": new_accelerator(compute_capability=None)}),
    (consistency.caches_have_kernels, {"shape": SPARSE, "tensor": 2, "decode_context": 2, "kv_cache_dtype": "fp8"}),
    (consistency.caches_have_kernels, {"shape": COMPRESSED}),
    (consistency.caches_have_kernels, {"disable_hybrid_kv_cache_manager": True}),
    (consistency.caches_have_kernels, {"shape": kinds.kimi_linear(), "mamba_ssm_cache_dtype": "float32"}),
    (consistency.caches_have_kernels, {"shape": HYBRID, "mamba_ssm_cache_dtype": "bfloat16"}),
    (consistency.weight_format_has_kernels, {"shape": new_model_shape(quantization=FP8)}),
    (consistency.weight_format_has_kernels, {"accelerator": new_accelerator(compute_capability=(7, 0))}),
    (consistency.weight_format_is_kept, {"shape": new_model_shape(quantization=FBGEMM), "vllm_version": "0.13.0"}),
    (consistency.weight_format_is_kept, {"shape": new_model_shape(quantization=FBGEMM), "allow_deprecated_quantization": True}),
    (consistency.pod_fits_a_node, {"tensor": 8}),
    (consistency.slices_stand_alone, {"accelerator": new_accelerator(is_slice=True)}),
    (consistency.slices_stand_alone, {"tensor": 2}),
    (consistency.kv_cache_memory_within_gpu, {"kv_cache_memory_bytes": 62 * GIB}),
    (start_up.slack_holds_context, {"utilization": "0.95"}),
    (start_up.slack_holds_context, {"utilization": "1", "kv_cache_memory_bytes": GIB}),
    (start_up.sampler_fits_beside_budget, {"utilization": "0.99", "max_num_seqs": 64}),
    (start_up.whole_prompts_fit_a_batch, {"enable_chunked_prefill": False, "max_model_len": 100_000}),
    (start_up.whole_prompts_fit_a_batch, {"max_num_batched_tokens": 2048, "max_model_len": 2049}),
    (start_up.dtype_has_kernels, {"accelerator": OLD_GPU}),
    (start_up.dtype_has_kernels, {"dtype": "bfloat16"}),
    (start_up.media_fit_a_batch, {"shape": GEMMA, "max_num_batched_tokens": 4096}),
    (start_up.media_fit_a_batch, {"shape": GEMMA, "max_num_batched_tokens": 128, "language_model_only": True}),
    (fit.weights_fit, {}),
    (fit.weights_fit, {"kv_cache_memory_bytes": 1000}),
    (fit.one_request_fits, {}),
    (fit.one_request_fits, {"accelerator": new_accelerator(memory_gib=16)}),
    (fit.sequences_have_states, {"shape": HYBRID, "max_num_seqs": 512, "kv_cache_memory_bytes": 512 * HYBRID_BLOCK}),
    (fit.sequences_have_states,
     {"shape": HYBRID, "max_num_seqs": 513, "kv_cache_memory_bytes": 512 * HYBRID_BLOCK, "enforce_eager": True}),
    (fit.sequences_have_states,
     {"shape": HYBRID, "max_num_seqs": 513, "kv_cache_memory_bytes": 512 * HYBRID_BLOCK, "vllm_version": "0.18.0"}),
    (fit.sequences_have_states, {"max_num_seqs": 1024, "kv_cache_memory_bytes": 2 * GIB, "max_model_len": 4096}),
    (fit.guarantee_holds, {"guarantee": Guarantee.FULL_CONTEXT, "max_num_seqs": 1}),
    (fit.guarantee_holds, {"guarantee": Guarantee.FULL_CONTEXT, "kv_cache_memory_bytes": GIB}),
    (consistency.workload_can_run, {**WORKLOAD, "workload": new_workload(8, 2048, 0)}),
    (consistency.workload_can_run, {**WORKLOAD, "guarantee": Guarantee.STARTUP, "workload": new_workload(9, 4096, 1)}),
    (consistency.kinds_are_modelled, {}),
    (consistency.release_is_known, {"vllm_version": "0.33.9"}),
    (consistency.weights_do_not_choose_kv_cache, {"shape": new_model_shape(quantization=FP8), "kv_cache_dtype": "fp8"}),
    (consistency.weights_do_not_choose_kv_cache, {"shape": new_model_shape(quantization=MODELOPT, kv_cache_scheme="fp8")}),
    (consistency.weights_do_not_choose_kv_cache, {}),
    (consistency.checkpoint_decides_weights, {}),
    (fit.headroom_is_thin, {"max_model_len": 4096}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "name", "severity", "field", "settings"), FIRES, ids=[f"{c[1]} {i}" for i, c in enumerate(FIRES)]
)
def test_a_rule_fires(rule: Rule, name: str, severity: Severity, field: str, settings: dict[str, Any]) -> None:
    findings: list[Finding] = list(rule(plan(new_request(**settings))))
    assert [(f.rule, f.severity, f.field) for f in findings] == [(name, severity, field)]
    assert findings[0].message
    assert findings[0].remediation


@pytest.mark.parametrize(("rule", "settings"), SILENT, ids=[f"{c[0].__name__} {i}" for i, c in enumerate(SILENT)])
def test_a_rule_stays_silent(rule: Rule, settings: dict[str, Any]) -> None:
    assert list(rule(plan(new_request(**settings)))) == []


def test_every_rule_has_a_case_that_fires_and_one_that_does_not() -> None:
    assert {rule for rule, *_ in FIRES} == set(RULES)
    assert {rule for rule, _ in SILENT} == set(RULES)
    assert len(RULES) == len(set(RULES))


@pytest.mark.parametrize(("rule", "settings"), [(c[0], c[4]) for c in FIRES])
def test_judging_a_budget_asks_every_rule(rule: Rule, settings: dict[str, Any]) -> None:
    budget = plan(new_request(**settings))
    assert set(rule(budget)) <= set(judge_budget(budget))


@pytest.mark.parametrize("settings", [c[4] for c in FIRES if c[2] is Severity.ERROR and c[0] is not fit.weights_fit])
def test_settings_that_a_rule_refuses_still_get_a_whole_plan(settings: dict[str, Any]) -> None:
    """No exception, no missing part unless a formula is missing, and the headroom has the sign of the verdict."""
    budget = plan(new_request(**settings))
    assert (budget.headroom is None) == (budget.stages == ()) == (budget.unmodelled != ())
    assert budget.headroom is None or (budget.headroom.low >= 0) == (budget.verdict is Verdict.FITS)


def test_more_stages_than_layers_and_a_wrong_tensor_size_still_name_sizes_that_work() -> None:
    findings = list(consistency.sizes_divide(plan(new_request(tensor=3, pipeline=1024))))
    assert [f.field for f in findings] == ["tensor_parallel_size", "pipeline_parallel_size"]
    assert findings[0].remediation == "set tensor_parallel_size to one of 1, 2, 4, 8, 16"


def test_does_not_fit_always_has_an_error_that_says_why() -> None:
    """Also where the KV memory is given, tiny, and nothing else is known."""
    for more in ({}, {"unmodelled_settings": ("LoRA",)}):
        budget = plan(new_request(kv_cache_memory_bytes=1, **more))
        assert budget.verdict == "DoesNotFit"
        assert [f.rule for f in judge_budget(budget) if f.severity is Severity.ERROR] == ["KVCacheTooSmall"]


def test_a_maybe_is_a_warning() -> None:
    budget = plan(new_request(accelerator=new_accelerator(memory_gib=34.75), max_model_len=131_072, max_num_seqs=8))
    assert budget.verdict == "MayNotFit"
    assert [(f.rule, f.severity) for f in judge_budget(budget)] == [("KVCacheTooSmall", Severity.WARNING)]
