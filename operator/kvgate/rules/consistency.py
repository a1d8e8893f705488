"""Settings that vLLM refuses, or that contradict each other or the model."""

from collections.abc import Iterable
from dataclasses import replace

from kvgate.budget.plan import Budget
from kvgate.budget.request import Guarantee
from kvgate.budget.support import kv_cache_dtype_refusal, parallelism_refusals
from kvgate.budget.units import format_gib, gib, share_of
from kvgate.budget.versions import DEFAULT_VERSION, NEWEST, parse_release
from kvgate.rules.finding import Finding, Severity

CONTEXT_BYTES = gib(0.2)
"""The least that a CUDA context takes before vLLM looks (0.23 GiB on an L4, 0.35 to 0.6 elsewhere)."""


def kinds_are_modelled(budget: Budget) -> Iterable[Finding]:
    """Kinds of layers, caches, weights or features without a formula: Unknown, never a guess."""
    refused = kv_cache_dtype_refusal_of(budget) is not None
    for kind in budget.unmodelled:
        if refused and kind.startswith("kv_cache_dtype"):
            continue
        yield Finding(
            rule="UnmodelledKind",
            severity=Severity.WARNING,
            field="model",
            message=f"{budget.request.shape.name}: {kind} is not modelled, so no budget can be given",
            remediation="set kv_cache_memory_bytes if you know what a GPU has left, or start it once and measure",
        )


def length_within_model(budget: Budget) -> Iterable[Finding]:
    """max_model_len above what the model was made for."""
    limit, asked = budget.request.shape.max_model_len, budget.settings.max_model_len
    if limit and asked > limit:
        yield Finding(
            rule="MaxModelLenAboveModel",
            severity=Severity.ERROR,
            field="max_model_len",
            message=f"max_model_len {asked} is above the {limit} tokens of {budget.request.shape.name}; vLLM refuses it",
            remediation=f"set max_model_len to {limit} or less",
        )


def sizes_divide(budget: Budget) -> Iterable[Finding]:
    """Parallel sizes that do not go with heads, layers or quantisation blocks."""
    for field, reason in parallelism_refusals(budget.request.shape, budget.request.settings.parallelism):
        yield Finding(
            rule="ParallelSizeRefused",
            severity=Severity.ERROR,
            field=field,
            message=f"{field}: {reason}; vLLM refuses it",
            remediation=_possible_sizes(budget) if field == "tensor_parallel_size" else f"choose another {field}",
        )


def _possible_sizes(budget: Budget) -> str:
    parallelism = budget.request.settings.parallelism
    sizes = [
        tensor
        for tensor in (1, 2, 3, 4, 5, 6, 7, 8, 16)
        if not parallelism_refusals(
            budget.request.shape, replace(parallelism, tensor=tensor, pipeline=1, decode_context=1)
        )
    ]
    listed = ", ".join(map(str, sizes))
    return f"set tensor_parallel_size to one of {listed}" if sizes else "use another checkpoint of the model"


def cache_dtype_exists(budget: Budget) -> Iterable[Finding]:
    """A KV cache dtype that the release, the GPU or the model does not have."""
    name = budget.request.settings.kv_cache_dtype
    if reason := kv_cache_dtype_refusal_of(budget):
        yield Finding(
            rule="KVCacheDtypeRefused",
            severity=Severity.ERROR,
            field="kv_cache_dtype",
            message=f"kv_cache_dtype {name}: {reason}",
            remediation="set kv_cache_dtype to auto, or use a GPU or release that has it",
        )


def kv_cache_dtype_refusal_of(budget: Budget) -> str | None:
    """Why the cache dtype that was asked for does not exist here; None where it does."""
    request = budget.request
    return kv_cache_dtype_refusal(
        request.settings.kv_cache_dtype, request.shape, request.accelerator, budget.accounting
    )


def slices_stand_alone(budget: Budget) -> Iterable[Finding]:
    """MIG slices cannot talk to each other, so no layer can be spread over them."""
    accelerator, parallelism = budget.request.accelerator, budget.request.settings.parallelism
    if accelerator.is_slice and parallelism.tensor * parallelism.pipeline > 1:
        yield Finding(
            rule="SlicesCannotBeJoined",
            severity=Severity.ERROR,
            field="tensor_parallel_size",
            message=f"{accelerator.name} is a MIG slice: slices have no links, so tensor and pipeline sizes must be 1",
            remediation="use one larger slice, or whole GPUs",
        )


def cache_memory_within_gpu(budget: Budget) -> Iterable[Finding]:
    """kv_cache_memory_bytes that no GPU of this kind has: vLLM does not look, and dies when it allocates."""
    given, total = budget.request.settings.kv_cache_memory_bytes, budget.request.accelerator.memory_high_bytes
    if given is not None and given > total:
        yield Finding(
            rule="KVCacheMemoryAboveGpu",
            severity=Severity.WARNING,
            field="kv_cache_memory_bytes",
            message=f"kv_cache_memory_bytes is {format_gib(given)}; {budget.request.accelerator.name} has {format_gib(total)}",
            remediation="give what is left beside the weights, per GPU",
        )


def utilization_leaves_context(budget: Budget) -> Iterable[Finding]:
    """gpu_memory_utilization so high that not even the CUDA context fits beside it."""
    total, share = budget.request.accelerator.memory_bytes, budget.settings.gpu_memory_utilization
    if budget.request.settings.kv_cache_memory_bytes is None and share_of(total, share) > total - CONTEXT_BYTES:
        yield Finding(
            rule="UtilizationTooHigh",
            severity=Severity.ERROR,
            field="gpu_memory_utilization",
            message=(
                f"gpu_memory_utilization {float(share):g} leaves {format_gib(int(total * (1 - share)))} "
                "for the CUDA context, which takes more"
            ),
            remediation="set gpu_memory_utilization to 0.95 or less",
        )


def weights_do_not_choose_cache(budget: Budget) -> Iterable[Finding]:
    """FP8 weights do not make an FP8 cache."""
    shape, kv_cache = budget.request.shape, budget.kv_cache
    if kv_cache is None or shape.quantization is None or not shape.quantization.format.startswith("fp8"):
        return
    if budget.request.settings.kv_cache_dtype == "auto" and kv_cache.dtype.bytes_per_element == 2:
        yield Finding(
            rule="CacheKeepsModelDtype",
            severity=Severity.INFO,
            field="kv_cache_dtype",
            message=f"the weights are fp8 and the KV cache is {kv_cache.dtype.name}: kv_cache_dtype auto follows the model dtype",
            remediation="set kv_cache_dtype to fp8 for half the bytes per token",
        )


def workload_can_run(budget: Budget) -> Iterable[Finding]:
    """A declared workload that max_num_seqs or max_model_len cuts off."""
    workload, settings = budget.request.workload, budget.settings
    if workload is None or budget.request.guarantee is not Guarantee.WORKLOAD:
        return
    if workload.peak_concurrency > settings.max_num_seqs:
        yield Finding(
            rule="ConcurrencyAboveMaxNumSeqs",
            severity=Severity.WARNING,
            field="max_num_seqs",
            message=(
                f"the workload has {workload.peak_concurrency} requests at its peak and max_num_seqs is "
                f"{settings.max_num_seqs}: the rest wait"
            ),
            remediation=f"set max_num_seqs to {workload.peak_concurrency}, or declare what you expect",
        )
    if workload.request_tokens > settings.max_model_len:
        yield Finding(
            rule="RequestAboveMaxModelLen",
            severity=Severity.ERROR,
            field="workload",
            message=f"a request of {workload.request_tokens} tokens is longer than max_model_len {settings.max_model_len}; vLLM refuses it",
            remediation=f"set max_model_len to {workload.request_tokens} or more, or declare shorter requests",
        )


def release_is_known(budget: Budget) -> Iterable[Finding]:
    """A release newer than any that was read: its accounting may have changed."""
    if parse_release(budget.request.vllm_version) > NEWEST:
        yield Finding(
            rule="ReleaseNotKnown",
            severity=Severity.INFO,
            field="vllm_version",
            message=(
                f"vLLM {budget.request.vllm_version} is newer than {DEFAULT_VERSION}, the newest that kvgate knows: "
                "the interval is wider"
            ),
            remediation="upgrade kvgate, or hold the prediction against the first start",
        )
