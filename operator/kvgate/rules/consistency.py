"""Settings that vLLM refuses, or that contradict each other or the model."""

from collections.abc import Iterable
from dataclasses import replace

from kvgate.budget.plan import Budget
from kvgate.budget.request import Guarantee
from kvgate.budget.support import block_size_refusal, cache_refusals, kv_cache_dtype_refusal, parallelism_refusals
from kvgate.budget.units import format_gib
from kvgate.budget.versions import NEWEST, is_newer_than_known
from kvgate.budget.weights import checkpoint_ratio
from kvgate.rules.finding import Finding, Severity

_WEIGHT_CAPABILITY = {"fp8": (7, 5), "awq": (7, 5), "modelopt": (7, 5), "mxfp4": (8, 0)}
"""The least compute capability by quantisation method; methods that are not here run on all that vLLM runs on."""
_CUT = "prefill_context_parallel_size"
_SETTINGS = ("kv_cache_dtype", _CUT)
"""Settings that a kind without a formula begins with."""
_MEASURE = "start it once and measure"
GPUS_PER_NODE = 8
"""GPUs per node of the boards that are sold; GB200 racks and their like share links beyond that, and the finding says so."""


def kinds_are_modelled(budget: Budget) -> Iterable[Finding]:
    """Kinds of layers, caches, weights or features without a formula: Unknown, never a guess."""
    refused = kv_cache_dtype_refusal_of(budget) is not None
    for kind in budget.unmodelled:
        if refused and kind.startswith("kv_cache_dtype"):
            continue
        setting = kind.partition(" ")[0]
        field = setting if setting in _SETTINGS else "model"
        yield Finding(
            rule="UnmodelledKind",
            severity=Severity.WARNING,
            field=_place_of(kind) if kind in budget.request.unmodelled_settings else field,
            message=f"{budget.request.shape.name}: {kind} is not modelled, so no budget can be given",
            remediation=_MEASURE
            if field == _CUT
            else f"set kv_cache_memory_bytes if you know what a GPU has left, or {_MEASURE}",
        )


def _place_of(kind: str) -> str:
    """Variables are named, and options are not."""
    return "environment" if kind.startswith("VLLM_") else "extra_args"


def length_within_model(budget: Budget) -> Iterable[Finding]:
    """max_model_len above what the model was made for; what an override makes of that is not worked out."""
    limit, asked = budget.request.shape.max_model_len, budget.resolved.max_model_len
    if limit and asked > limit and not budget.request.is_stretched:
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


def kv_cache_dtype_exists(budget: Budget) -> Iterable[Finding]:
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
    """Return the reason why the requested cache dtype does not exist here; None where it does."""
    request = budget.request
    return kv_cache_dtype_refusal(
        request.settings.kv_cache_dtype, request.shape, request.accelerator, budget.accounting
    )


def batch_holds_sequences(budget: Budget) -> Iterable[Finding]:
    """One token of every running sequence must fit into a forward pass."""
    settings = budget.resolved
    if settings.max_num_batched_tokens < settings.max_num_seqs:
        yield Finding(
            rule="BatchBelowMaxNumSeqs",
            severity=Severity.ERROR,
            field="max_num_batched_tokens",
            message=(
                f"max_num_batched_tokens {settings.max_num_batched_tokens} is below max_num_seqs {settings.max_num_seqs}; "
                "vLLM refuses it"
            ),
            remediation=f"set max_num_batched_tokens to {settings.max_num_seqs} or more, or lower max_num_seqs",
        )


def block_size_has_kernels(budget: Budget) -> Iterable[Finding]:
    """CUDA attention kernels of the V1 engine take multiples of 16 tokens, or of more."""
    request = budget.request
    asked, accelerator = request.settings.block_size, request.accelerator
    if asked is None or accelerator.vendor != "nvidia" or not budget.accounting.v1_engine:
        return
    if reason := block_size_refusal(request.shape, accelerator, asked):
        yield Finding(
            rule="BlockSizeRefused",
            severity=Severity.ERROR,
            field="block_size",
            message=reason,
            remediation="leave block_size out, or set it to a multiple that is named",
        )


def caches_have_kernels(budget: Budget) -> Iterable[Finding]:
    """A kind of cache that the GPU has no kernel for, or that a setting does not go with."""
    for field, reason in cache_refusals(budget.request):
        yield Finding(
            rule="CacheKernelMissing",
            severity=Severity.ERROR,
            field=field,
            message=f"{budget.request.shape.name}: {reason}",
            remediation="use a GPU of compute capability 9.0 or more"
            if field == "accelerator"
            else f"leave {field} out",
        )


def weight_format_has_kernels(budget: Budget) -> Iterable[Finding]:
    """Compute capabilities that the kernels of a weight format ask for (vLLM 0.32, `get_min_capability`)."""
    quantization, accelerator = budget.request.shape.quantization, budget.request.accelerator
    needed = _WEIGHT_CAPABILITY.get(quantization.method) if quantization else None
    capability = accelerator.compute_capability
    if quantization and needed and capability and capability < needed:
        yield Finding(
            rule="WeightFormatRefused",
            severity=Severity.ERROR,
            field="accelerator",
            message=(
                f"{quantization.method} weights need compute capability {needed[0]}.{needed[1]} and {accelerator.name} has "
                f"{capability[0]}.{capability[1]}"
            ),
            remediation="use a newer GPU or another checkpoint of the model",
        )


def weight_format_is_kept(budget: Budget) -> Iterable[Finding]:
    """Formats that a release refuses without a flag (vLLM 0.14+, `DEPRECATED_QUANTIZATION_METHODS`)."""
    quantization = budget.request.shape.quantization
    if quantization is None or budget.request.settings.allow_deprecated_quantization:
        return
    if quantization.method in budget.accounting.deprecated_quantizations:
        yield Finding(
            rule="WeightFormatDeprecated",
            severity=Severity.ERROR,
            field="model",
            message=f"vLLM {budget.request.vllm_version} refuses {quantization.method} weights, which it is about to drop",
            remediation="use another checkpoint of the model, or pass --allow-deprecated-quantization",
        )


def pod_fits_a_node(budget: Budget) -> Iterable[Finding]:
    """All GPUs of an engine are asked for by one pod; engines over several nodes are not rendered."""
    count = budget.request.settings.parallelism.num_gpus
    if count > GPUS_PER_NODE:
        yield Finding(
            rule="MoreGpusThanANode",
            severity=Severity.WARNING,
            field="tensor_parallel_size",
            message=f"one pod asks for {count} GPUs; most nodes have {GPUS_PER_NODE}, and one engine is not spread over nodes",
            remediation=f"keep the product of the parallel sizes at {GPUS_PER_NODE} or less, or have such nodes",
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


def kv_cache_memory_within_gpu(budget: Budget) -> Iterable[Finding]:
    """kv_cache_memory_bytes that no GPU of this kind has: vLLM does not look, and dies when it allocates."""
    given, free = budget.request.settings.kv_cache_memory_bytes, _free_beside_cache(budget)
    if given is not None and given > free:
        yield Finding(
            rule="KVCacheMemoryAboveGpu",
            severity=Severity.WARNING,
            field="kv_cache_memory_bytes",
            message=(
                f"kv_cache_memory_bytes is {format_gib(given)}; beside the weights {budget.request.accelerator.name} has at "
                f"most {format_gib(free)}"
            ),
            remediation="give what is left beside the weights, per GPU",
        )


def _free_beside_cache(budget: Budget) -> int:
    """Bytes of one GPU beside weights, activation and driver, at their least."""
    total, stage = budget.request.accelerator.memory_high_bytes, budget.tightest
    if stage is None or stage.ledger is None:
        return total
    return max(0, total - sum(term.low for _, term in stage.ledger.terms))


def checkpoint_decides_weights(budget: Budget) -> Iterable[Finding]:
    """The checkpoint's index and the formulas count different bytes: the index is right about the total."""
    shape, ratio = budget.request.shape, checkpoint_ratio(budget.request.shape)
    if ratio != 1 and budget.request.weights_bytes is None:
        yield Finding(
            rule="CheckpointDecidesWeights",
            severity=Severity.INFO,
            field="checkpoint_bytes",
            message=(
                f"the checkpoint holds {format_gib(shape.checkpoint_bytes)} and its config describes "
                f"{format_gib(int(shape.checkpoint_bytes / ratio))}: the weights of every rank are scaled to the checkpoint"
            ),
            remediation="see that config.json and checkpoint belong together",
        )


def weights_do_not_choose_kv_cache(budget: Budget) -> Iterable[Finding]:
    """FP8 weights do not make an FP8 cache."""
    shape, kv_cache = budget.request.shape, budget.kv_cache
    if kv_cache is None or shape.quantization is None or not shape.quantization.format.startswith("fp8"):
        return
    if budget.request.settings.kv_cache_dtype == "auto" and kv_cache.dtype.bytes_per_element == 2:
        yield Finding(
            rule="KVCacheKeepsModelDtype",
            severity=Severity.INFO,
            field="kv_cache_dtype",
            message=f"the weights are fp8 and the KV cache is {kv_cache.dtype.name}: kv_cache_dtype auto follows the model dtype",
            remediation="set kv_cache_dtype to fp8 for half the bytes per token",
        )


def workload_can_run(budget: Budget) -> Iterable[Finding]:
    """A declared workload that max_num_seqs or max_model_len cuts off."""
    workload, settings = budget.request.workload, budget.resolved
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
    if is_newer_than_known(budget.request.vllm_version):
        yield Finding(
            rule="ReleaseNotKnown",
            severity=Severity.INFO,
            field="vllm_version",
            message=(
                f"vLLM {budget.request.vllm_version} is newer than {NEWEST[0]}.{NEWEST[1]}, the newest that kvgate knows: "
                "the interval is wider"
            ),
            remediation="upgrade kvgate, or hold the prediction against the first start",
        )
