"""Further checks and failures of vLLM before it serves: memory outside the budget, batches, dtypes."""

from collections.abc import Iterable

from kvgate.budget.interval import Interval
from kvgate.budget.non_torch import startup_slack
from kvgate.budget.plan import Budget
from kvgate.budget.settings import uncut_item_tokens
from kvgate.budget.units import format_gib, share_of
from kvgate.rules.finding import Finding, Severity

_BFLOAT16_CAPABILITY = (8, 0)


def slack_holds_context(budget: Budget) -> Iterable[Finding]:
    """`Free memory on device … is less than desired GPU memory utilization`: what is gone before vLLM looks must fit beside it."""
    share = budget.resolved.gpu_memory_utilization
    slack, gone = _outside_budget(budget)
    if budget.request.settings.kv_cache_memory_bytes is not None or slack >= gone.expected:
        return
    refused = slack < gone.low
    yield Finding(
        rule="UtilizationTooHigh",
        severity=Severity.ERROR if refused else Severity.WARNING,
        field="gpu_memory_utilization",
        message=(
            f"gpu_memory_utilization {float(share):g} leaves {format_gib(slack)} of the GPU; CUDA context and communicators take "
            f"{format_gib(gone.low)} to {format_gib(gone.high)} before vLLM starts"
        ),
        remediation="set gpu_memory_utilization to 0.95 or less",
    )


def sampler_fits_beside_budget(budget: Budget) -> Iterable[Finding]:
    """The sampler's warm-up runs after the cache is allocated: max_num_seqs × vocabulary × 4 bytes (0.11 and 0.29, out-of-memory logs)."""
    accelerator, settings = budget.request.accelerator, budget.resolved
    if not budget.accounting.v1_engine or accelerator.unified_memory or budget.request.settings.kv_cache_memory_bytes:
        return
    slack, gone = _outside_budget(budget)
    left = slack - gone.expected
    rows_bytes = settings.max_num_seqs * budget.request.shape.vocab_size * 4
    if 0 <= left < rows_bytes:
        yield Finding(
            rule="SamplerWarmUpIsTight",
            severity=Severity.WARNING,
            field="max_num_seqs",
            message=(
                f"warming up the sampler may take {format_gib(rows_bytes)} ({settings.max_num_seqs} sequences × vocabulary) and about "
                f"{format_gib(left)} is left outside the budget"
            ),
            remediation="lower max_num_seqs or gpu_memory_utilization",
        )


def _outside_budget(budget: Budget) -> tuple[int, Interval]:
    """Bytes of the GPU that gpu_memory_utilization leaves, and those of them that are gone before vLLM looks."""
    accelerator = budget.request.accelerator
    slack = accelerator.memory_bytes - share_of(accelerator.memory_bytes, budget.resolved.gpu_memory_utilization)
    return slack, startup_slack(accelerator, budget.accounting, budget.request.settings.parallelism)


def whole_prompts_fit_a_batch(budget: Budget) -> Iterable[Finding]:
    """Check that a prompt of max_model_len fits into one batch where chunked prefill is off (`SchedulerConfig.verify_max_model_len`)."""
    settings = budget.resolved
    unchunked = budget.request.settings.enable_chunked_prefill is False
    if unchunked and settings.max_num_batched_tokens < settings.max_model_len:
        yield Finding(
            rule="BatchBelowMaxModelLen",
            severity=Severity.ERROR,
            field="max_num_batched_tokens",
            message=(
                f"max_num_batched_tokens {settings.max_num_batched_tokens} is below max_model_len {settings.max_model_len} and chunked "
                "prefill is off; vLLM refuses it"
            ),
            remediation=f"set max_num_batched_tokens to {settings.max_model_len} or more, or leave chunked prefill on",
        )


def dtype_has_kernels(budget: Budget) -> Iterable[Finding]:
    """`Bfloat16 is only supported on GPUs with compute capability of at least 8.0`: where it is asked, and before 0.9 always."""
    request, capability = budget.request, budget.request.accelerator.compute_capability
    if capability is None or capability >= _BFLOAT16_CAPABILITY or request.shape.dtype != "bfloat16":
        return
    if request.settings.dtype != "bfloat16" and budget.accounting.falls_back_to_float16:
        return
    yield Finding(
        rule="DtypeRefused",
        severity=Severity.ERROR,
        field="dtype",
        message=(
            f"bfloat16 needs compute capability 8.0 and {request.accelerator.name} has {capability[0]}.{capability[1]}; vLLM refuses it"
        ),
        remediation="set dtype to float16",
    )


def media_fit_a_batch(budget: Budget) -> Iterable[Finding]:
    """A batch below one image whose tokens attend both ways: refused by some releases (0.20), raised silently by others (0.25)."""
    settings, largest = budget.resolved, uncut_item_tokens(budget.request)
    if settings.max_num_batched_tokens < largest:
        yield Finding(
            rule="BatchBelowMediaItem",
            severity=Severity.WARNING,
            field="max_num_batched_tokens",
            message=(
                f"max_num_batched_tokens {settings.max_num_batched_tokens} is below the {largest} tokens of the largest item, which "
                "cannot be cut: some releases refuse that, others raise it"
            ),
            remediation=f"set max_num_batched_tokens to {largest} or more",
        )
