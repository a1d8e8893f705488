"""Rules about support: formats and sizes that the release, the GPU or the model does not have, and kinds without a formula."""

from collections.abc import Iterable
from functools import partial

from kvgate.budget import NEWEST, Budget, accounting_of, host_accounting, is_newer_than_known, parse_release
from kvgate.budget.answers.speculation import draft_refusals, mismatches
from kvgate.budget.answers.support import block_size_refusal, cache_refusals, kv_cache_dtype_refusal
from kvgate.budget.gpu.lora import lora_refusals
from kvgate.budget.gpu.offload import offload_refusals
from kvgate.findings.finding import (
    Change,
    Finding,
    Rule,
    Scope,
    SettingName,
    Severity,
    any_one,
    change,
    do,
    leave_out,
    words,
)
from kvgate.hf_config.names import usual_quantization_config

_rule = partial(Rule, scope=Scope.SETTINGS)

_WEIGHT_CAPABILITY = {
    "fp8": (7, 5),
    "awq": (7, 5),
    "modelopt": (7, 5),
    "mxfp4": (8, 0),
    "fbgemm_fp8": (8, 0),
    "experts_int8": (8, 0),
}
"""The least compute capability by quantisation method; methods that are not here run on all that vLLM runs on."""
_BFLOAT16_CAPABILITY = (8, 0)

UNMODELLED_KIND = Rule(
    id="UnmodelledKind",
    severities=(Severity.WARNING, Severity.INFO),
    scope=Scope.FACTS,
    title="A layer, cache, weight format or feature has no formula in kvgate.",
    explanation="No budget is given; the message names the kind. It is an info for an engine of another platform whose verdict is Unknown.",
)


TOO_FEW_REPLICAS = Rule(
    id="TooFewReplicasLeft",
    severities=(Severity.WARNING, Severity.INFO),
    scope=Scope.SETTINGS,
    title="A rollout or an eviction leaves fewer replicas than the promised workload needs.",
    explanation="It is an info where the strategy is the default: a surge needs GPUs that are free.",
)


def kinds_are_modelled(budget: Budget) -> Iterable[Finding]:
    is_refused = kv_cache_dtype_refusal_of(budget) is not None
    setting, value = budget.unmodelled_value or ("", "")
    fields = {
        **dict.fromkeys(budget.request.unmodelled_settings, "extra_args"),
        **dict.fromkeys(budget.request.unmodelled_variables, "environment"),
        **dict.fromkeys(budget.request.unmodelled_containers, "containers"),
        f"{setting} {value}": setting,
    }
    for kind in budget.unmodelled:
        field = fields.get(kind, "model")
        is_missing = budget.request.shape.lacks_requested_format and kind in budget.request.shape.unmodelled
        if is_missing or (is_refused and field == "kv_cache_dtype"):
            continue
        measure = do("start it once and measure")
        known = do("set {kv_cache_memory_bytes} if you know what a GPU has left")
        stored = do("give total_size of its safetensors index to `kvgate explain --checkpoint-bytes`")
        of_weights = (stored,) if kind in budget.request.shape.unmodelled else ()
        is_value = field == setting
        yield UNMODELLED_KIND.finding(
            field,
            words(
                "{model}: {kind} is not modelled, so no budget can be given",
                model=budget.request.shape.name,
                kind=words("{setting} {value}", setting=SettingName(setting), value=value) if is_value else kind,
            ),
            measure if field == "prefill_context_parallel_size" else any_one(*of_weights, known, measure),
        )


KV_CACHE_DTYPE_REFUSED = _rule(
    id="KVCacheDtypeRefused",
    severities=(Severity.ERROR,),
    title="The release, the GPU or the model does not have this kv_cache_dtype.",
)


def kv_cache_dtype_exists(budget: Budget) -> Iterable[Finding]:
    name = budget.request.settings.kv_cache_dtype
    if reason := kv_cache_dtype_refusal_of(budget):
        yield KV_CACHE_DTYPE_REFUSED.finding(
            "kv_cache_dtype",
            words("{kv_cache_dtype} {name}: {reason}", name=name, reason=reason),
            any_one(
                change(Change.SET, "kv_cache_dtype", "fp8" if name == "auto" else "auto"),
                "use a GPU or a release that has it",
            ),
        )


def kv_cache_dtype_refusal_of(budget: Budget) -> str | None:
    """Return the reason why the requested cache dtype does not exist here; None where it does."""
    request = budget.request
    return kv_cache_dtype_refusal(
        request.settings.kv_cache_dtype,
        request.shape,
        request.accelerator,
        budget.accounting,
        request.settings.kv_cache_dtype_skip_layers,
    )


BLOCK_SIZE_REFUSED = _rule(
    id="BlockSizeRefused",
    severities=(Severity.ERROR,),
    title="No attention kernel of the model takes blocks of this size.",
)


def block_size_has_kernels(budget: Budget) -> Iterable[Finding]:
    request = budget.request
    size, accelerator = request.settings.block_size, request.accelerator
    if size is None or accelerator.vendor != "nvidia" or not budget.accounting.v1_engine:
        return
    if reason := block_size_refusal(request.shape, accelerator, size):
        yield BLOCK_SIZE_REFUSED.finding(
            "block_size",
            words("{block_size} {reason}", reason=reason),
            any_one(leave_out("block_size"), do("set {block_size} to a multiple that is named")),
        )


CACHE_KERNEL_MISSING = _rule(
    id="CacheKernelMissing",
    severities=(Severity.ERROR,),
    title="The GPU has no kernel for the model's kind of cache, or a setting does not go with that kind.",
)


def caches_have_kernels(budget: Budget) -> Iterable[Finding]:
    for field, reason in cache_refusals(budget.request):
        by_gpu = field == "accelerator"
        yield CACHE_KERNEL_MISSING.finding(
            field,
            f"{budget.request.shape.name}: {reason}",
            do("use a GPU of compute capability 9.0 or more") if by_gpu else leave_out(field),
        )


WEIGHT_FORMAT_REFUSED = _rule(
    id="WeightFormatRefused",
    severities=(Severity.ERROR,),
    title="The GPU has no kernels for the checkpoint's weight format.",
)


def weight_format_has_kernels(budget: Budget) -> Iterable[Finding]:
    """Compute capabilities that the kernels of a weight format require (0.6.6 to 0.33, `get_min_capability`)."""
    quantization, accelerator = budget.request.shape.quantization, budget.request.accelerator
    needed = _WEIGHT_CAPABILITY.get(quantization.method) if quantization else None
    capability = accelerator.compute_capability
    if (
        quantization
        and quantization.method == "fp8"
        and not accounting_of(budget.request.vllm_version).fp8_weights_on_turing
    ):
        needed = (8, 0)
    if quantization and needed and capability and capability < needed:
        yield WEIGHT_FORMAT_REFUSED.finding(
            "accelerator",
            f"{quantization.method} weights need compute capability {needed[0]}.{needed[1]} and {accelerator.name} has "
            f"{capability[0]}.{capability[1]}",
            any_one("use a newer GPU", "use another checkpoint of the model"),
        )


_OLDEST_CAPABILITY = (7, 0)
GPU_WITHOUT_KERNELS = _rule(
    id="GpuWithoutKernels",
    severities=(Severity.WARNING,),
    title="vLLM's wheel and image have no kernels for the GPU; only builds of other people run on it.",
)


def gpu_has_kernels(budget: Budget) -> Iterable[Finding]:
    """vLLM is built from a compute capability on (0.6 to 0.33, CUDA_SUPPORTED_ARCHS in CMakeLists.txt)."""
    accelerator = budget.request.accelerator
    capability = accelerator.compute_capability
    if capability and capability < _OLDEST_CAPABILITY:
        yield GPU_WITHOUT_KERNELS.finding(
            "accelerator",
            f"{accelerator.name} has compute capability {capability[0]}.{capability[1]}, and vLLM is built for 7.0 and more",
            any_one("use a newer GPU", "use an image that is built for this one"),
        )


WEIGHT_FORMAT_DEPRECATED = _rule(
    id="WeightFormatDeprecated",
    severities=(Severity.ERROR,),
    title="The release is about to drop the weight format, and refuses it unless an option allows it.",
)


def weight_format_is_kept(budget: Budget) -> Iterable[Finding]:
    """Formats that a release refuses without a flag (vLLM 0.14+, `DEPRECATED_QUANTIZATION_METHODS`)."""
    quantization = budget.request.shape.quantization
    if quantization is None or budget.request.settings.allow_deprecated_quantization:
        return
    if quantization.method in budget.accounting.deprecated_quantizations:
        yield WEIGHT_FORMAT_DEPRECATED.finding(
            "model",
            f"vLLM {budget.request.vllm_version} refuses {quantization.method} weights, which it is about to drop",
            any_one("use another checkpoint of the model", "add --allow-deprecated-quantization"),
        )


_OWN_CONFIGS = frozenset({"lock file", "fetched", "given"})
"""Sources of a model that are its own config."""
DTYPE_REFUSED = _rule(
    id="DtypeRefused",
    severities=(Severity.ERROR, Severity.WARNING),
    title=(
        "The dtype is bfloat16, which the GPU or the kernels of the weight format do not have, or float16, which vLLM refuses for the "
        "model."
    ),
)


def dtype_has_kernels(budget: Budget) -> Iterable[Finding]:
    """`Bfloat16 is only supported on GPUs with compute capability of at least 8.0`: where it is requested, and before 0.9 always."""
    request, capability = budget.request, budget.request.accelerator.compute_capability
    if (
        request.settings.dtype in ("float16", "half")
        and request.shape.architecture in budget.accounting.float16_refused
    ):
        other = "float32" if capability is not None and capability < _BFLOAT16_CAPABILITY else "bfloat16"
        message = f"vLLM refuses float16 for {request.shape.architecture}, because it is numerically unstable"
        yield DTYPE_REFUSED.finding("dtype", message, change(Change.SET, "dtype", other))
    if capability is None or capability >= _BFLOAT16_CAPABILITY or request.shape.dtype != "bfloat16":
        return
    if request.settings.dtype != "bfloat16" and budget.accounting.falls_back_to_float16:
        return
    yield DTYPE_REFUSED.finding(
        "dtype",
        f"bfloat16 needs compute capability 8.0 and {request.accelerator.name} has {capability[0]}.{capability[1]}; vLLM refuses it",
        change(Change.SET, "dtype", "float16"),
    )


def weight_format_takes_bfloat16(budget: Budget) -> Iterable[Finding]:
    """`torch.bfloat16 is not supported for quantization method awq`: where the option keeps vLLM from Marlin, and GPTQ on AMD always.

    Without the option, vLLM takes Marlin for AWQ and GPTQ on NVIDIA, which takes both types (`override_quantization_method`). A GPU
    without bfloat16 gets float16, or the refusal above. A type that nobody requests is that of the checkpoint's own config, or
    bfloat16 where vLLM refuses float16 for the class. The type of an assumed checkpoint is what the tool of its format writes, and the
    finding a warning; the catalogue's quantised models are derived from plain ones, whose type says nothing.
    """
    request, shape = budget.request, budget.request.shape
    capability, stored = request.accelerator.compute_capability, shape.quantization.method if shape.quantization else ""
    is_on_amd = request.accelerator.vendor == "amd"
    method = shape.requested_format or ("gptq" if is_on_amd and stored == "gptq" else "")
    is_guess = shape.assumed is not None and usual_quantization_config(shape.name) is None
    if method not in budget.accounting.float16_kernels or (stored != method and not is_guess):
        return
    if shape.dtype != "bfloat16" or (capability is not None and capability < _BFLOAT16_CAPABILITY):
        return
    takes_float16 = shape.architecture not in budget.accounting.float16_refused
    is_known = request.settings.dtype == "bfloat16" or (shape.origin is not None and shape.origin.kind in _OWN_CONFIGS)
    if takes_float16 and not is_known and not shape.assumed:
        return
    message = words(
        "vLLM {release} takes float16 alone with {quantization} {method}, and the model's type is bfloat16{why}", method=method,
        release=request.vllm_version, quantization=SettingName("quantization"),
        why="" if takes_float16 else ", because vLLM refuses float16 for its class",
    )  # fmt: skip
    yield DTYPE_REFUSED.finding(
        "dtype",
        message,
        any_one(
            *((change(Change.SET, "dtype", "float16"),) if takes_float16 else ()),
            *((leave_out("quantization"),) if not is_on_amd else ()),
            "use vLLM 0.24 or newer",
        ),
    )


RELEASE_NOT_KNOWN = Rule(
    id="ReleaseNotKnown",
    severities=(Severity.INFO,),
    scope=Scope.FACTS,
    title="The release of vLLM is newer than any that kvgate knows.",
    explanation="The prediction's interval is wider.",
)


def release_is_known(budget: Budget) -> Iterable[Finding]:
    if is_newer_than_known(budget.request.vllm_version):
        yield RELEASE_NOT_KNOWN.finding(
            "vllm_version",
            f"vLLM {budget.request.vllm_version} is newer than {NEWEST[0]}.{NEWEST[1]}, the newest that kvgate knows: the interval is "
            "wider",
            any_one("upgrade kvgate", "compare the prediction with the first start"),
        )


LORA_REFUSED = _rule(
    id="LoraRefused",
    severities=(Severity.ERROR, Severity.WARNING),
    title="vLLM refuses a setting of LoRA, the model's class takes no adapters in this release, or an adapter does not go with them.",
    explanation="Adapters are looked at where a lock file or a fetch knows them. One that was made for another model is a warning.",
)


def lora_is_taken(budget: Budget) -> Iterable[Finding]:
    for name, reason in lora_refusals(budget.request, budget.accounting):
        message = words("{setting} {reason}; vLLM does not start", setting=SettingName(name), reason=reason)
        yield LORA_REFUSED.finding(name, message, leave_out(name))


OFFLOAD_REFUSED = _rule(
    id="OffloadRefused",
    severities=(Severity.ERROR,),
    title="vLLM refuses what is to stay in host memory: the groups of layers, or a buffer of no bytes for the KV cache.",
)


def offload_is_taken(budget: Budget) -> Iterable[Finding]:
    for name, reason in offload_refusals(budget.request.settings.offload):
        message = words("{setting} {reason}; vLLM does not start", setting=SettingName(name), reason=reason)
        yield OFFLOAD_REFUSED.finding(name, message, leave_out(name))
    host, accounting = budget.request.settings.host, host_accounting(parse_release(budget.request.vllm_version))
    if host.kv_offloading_bytes == 0 and host.kv_offloading_backend == "native" and accounting.sizes_cache_offload:
        message = words("{kv_offloading_size} is 0, and vLLM does not start with an empty buffer")
        yield OFFLOAD_REFUSED.finding("kv_offloading_size", message, leave_out("kv_offloading_size"))


SPECULATION_REFUSED = _rule(
    id="SpeculationRefused",
    severities=(Severity.ERROR,),
    title="vLLM refuses a value of the speculative config.",
    explanation="The release has no such method, the draft does not go with the model, or a number does not divide another.",
)


def speculation_is_accepted(budget: Budget) -> Iterable[Finding]:
    for reason in draft_refusals(budget.request, budget.resolved, budget.accounting):
        yield SPECULATION_REFUSED.finding(
            "speculative_config",
            words("{speculative_config}: {reason}; vLLM refuses it", reason=reason),
            any_one("change that value", "leave speculative decoding out"),
        )


DRAFT_OF_ANOTHER_MODEL = _rule(
    id="DraftOfAnotherModel",
    severities=(Severity.WARNING,),
    title="The draft was made for another model.",
    explanation="vLLM does not compare the two; it fails while it loads the draft, or at the first request.",
)


def draft_goes_with_model(budget: Budget) -> Iterable[Finding]:
    draft = budget.request.draft
    for reason in mismatches(budget.request) if draft else ():
        yield DRAFT_OF_ANOTHER_MODEL.finding(
            "speculative_config",
            words("draft {name} was not made for {model}: {reason}", name=draft.shape.name if draft else "",
                  model=budget.request.shape.name, reason=reason),
            "use a draft that was made for the model",
        )  # fmt: skip


DRAFT_TOO_LARGE = _rule(
    id="DraftTooLarge",
    severities=(Severity.WARNING,),
    title="The draft is as large as the model, or larger.",
    explanation="Drafting then takes longer than what it saves.",
)


def draft_is_smaller(budget: Budget) -> Iterable[Finding]:
    draft, stage = budget.request.draft, budget.stages[-1] if budget.stages else None
    if draft is None or stage is None or stage.ledger is None:
        return
    inputs = dict(stage.ledger.lines[0].inputs)
    own, whole = int(inputs.get("draft_bytes", 0)), stage.ledger.weights.expected
    if 2 * own >= whole:
        yield DRAFT_TOO_LARGE.finding(
            "speculative_config",
            words("draft {name} is as large as {model}", name=draft.shape.name, model=budget.request.shape.name),
            "use a smaller draft",
        )
