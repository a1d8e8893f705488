"""Does it fit: the weights, one request of max_model_len, and what the user asks to be guaranteed."""

from collections.abc import Iterable

from kvgate.budget.interval import Interval, Verdict, verdict_of
from kvgate.budget.plan import Budget
from kvgate.budget.request import Guarantee
from kvgate.budget.units import format_gib
from kvgate.rules.finding import Finding, Severity


def weights_fit(budget: Budget) -> Iterable[Finding]:
    """The weights, activations and reserves alone overdraw the budget."""
    stage = budget.tightest
    if stage is None or stage.ledger is None or not _overdrawn(budget):
        return
    ledger = stage.ledger
    used_bytes = sum(term.expected for _, term in ledger.terms)
    yield Finding(
        rule="WeightsTooLarge",
        severity=Severity.ERROR,
        field="accelerator",
        message=(
            f"weights ({format_gib(ledger.weights.expected)} per GPU) and vLLM's own needs take {format_gib(used_bytes)} of the "
            f"{format_gib(ledger.requested_bytes)} that gpu_memory_utilization allows; nothing is left for the KV cache"
        ),
        remediation="use more GPUs (tensor_parallel_size), a GPU with more memory, or a quantised checkpoint",
    )


def _overdrawn(budget: Budget) -> bool:
    """Not even one block is left; a given kv_cache_memory_bytes is never overdrawn, only small."""
    stage = budget.tightest
    given = budget.request.settings.gives_cache_memory
    return stage is not None and not given and stage.available.high < stage.bytes_per_block


def one_request_fits(budget: Budget) -> Iterable[Finding]:
    """vLLM's own start condition: one request of max_model_len beside the null block."""
    usable, demand, stage, kv_cache = budget.usable_blocks, budget.demand, budget.tightest, budget.kv_cache
    if usable is None or demand is None or stage is None or kv_cache is None or _overdrawn(budget):
        return
    verdict = verdict_of(demand.startup_blocks, usable)
    if verdict is Verdict.FITS:
        return
    size = stage.bytes_per_block
    pool = budget.num_blocks
    longest = kv_cache.max_model_len_that_fits(pool.low, at_most=budget.resolved.max_model_len) if pool else 0
    yield Finding(
        rule="KVCacheTooSmall",
        severity=Severity.ERROR if verdict is Verdict.DOES_NOT_FIT else Severity.WARNING,
        field="max_model_len",
        message=(
            f"one request of max_model_len {budget.resolved.max_model_len} needs {format_gib(demand.startup_blocks * size)} of KV cache "
            f"per GPU and {_has(usable.times(size), verdict)}"
        ),
        remediation=f"set max_model_len to {longest} or less" if longest else "use a GPU with more memory or more GPUs",
    )


def sequences_have_states(budget: Budget) -> Iterable[Finding]:
    """vLLM's second start condition: full CUDA graphs want a block for the recurrent state of every sequence (0.19+)."""
    pool, demand, usable = budget.num_blocks, budget.demand, budget.usable_blocks
    if pool is None or demand is None or usable is None or not demand.sequence_blocks:
        return
    verdict = verdict_of(demand.sequence_blocks, usable)
    if verdict is Verdict.FITS or verdict_of(demand.startup_blocks, usable) is Verdict.DOES_NOT_FIT:
        return
    refused = verdict is Verdict.DOES_NOT_FIT
    most = pool.high if refused else pool.low
    yield Finding(
        rule="MambaCacheBlocksExceeded",
        severity=Severity.ERROR if refused and not budget.guesses_sequences else Severity.WARNING,
        field="max_num_seqs",
        message=(
            f"max_num_seqs ({budget.resolved.max_num_seqs}) exceeds available Mamba cache blocks ({most}): with full CUDA graphs "
            f"vLLM wants one for every sequence, and {pool.low} to {pool.high} are available ({pool.expected} expected)"
        ),
        remediation=f"set max_num_seqs to {max(1, pool.low)} or less, or give the KV cache more memory",
    )


def guarantee_holds(budget: Budget) -> Iterable[Finding]:
    """The demand beyond one request: declared workload, or max_num_seqs full-length requests."""
    usable, demand, stage = budget.usable_blocks, budget.demand, budget.tightest
    if (
        usable is None
        or demand is None
        or stage is None
        or demand.guarantee is Guarantee.STARTUP
        or demand.is_for_sequences
    ):
        return
    verdict = verdict_of(demand.blocks, usable)
    if verdict is Verdict.FITS or verdict_of(demand.startup_blocks, usable) is Verdict.DOES_NOT_FIT:
        return
    size = stage.bytes_per_block
    yield Finding(
        rule="GuaranteeNotMet",
        severity=Severity.ERROR if verdict is Verdict.DOES_NOT_FIT else Severity.WARNING,
        field="workload" if demand.guarantee is Guarantee.WORKLOAD else "max_num_seqs",
        message=(
            f"{_asked(budget)} needs {format_gib(demand.blocks * size)} of KV cache per GPU and "
            f"{_has(usable.times(size), verdict)}"
        ),
        remediation="lower max_num_seqs or max_model_len, use an fp8 KV cache, or add GPU memory; or guarantee less",
    )


def _asked(budget: Budget) -> str:
    settings, workload = budget.resolved, budget.request.workload
    if budget.request.guarantee is Guarantee.WORKLOAD and workload is not None:
        return f"the workload ({workload.peak_concurrency} requests of {workload.request_tokens} tokens)"
    return f"full context ({settings.max_num_seqs} requests of {settings.max_model_len} tokens)"


def _has(available: Interval, verdict: Verdict) -> str:
    """The side of the interval that decided, first."""
    low, expected, high = (format_gib(max(0, end)) for end in (available.low, available.expected, available.high))
    if verdict is Verdict.DOES_NOT_FIT:
        return f"at most {high} is available ({expected} expected)"
    return f"{low} to {high} is available ({expected} expected)"


def headroom_is_thin(budget: Budget) -> Iterable[Finding]:
    """Fits, and yet less than a twentieth of the pool is to spare."""
    headroom, stage = budget.headroom, budget.tightest
    if budget.verdict is not Verdict.FITS or headroom is None or stage is None or stage.ledger is None:
        return
    if headroom.expected * 20 < stage.available.expected:
        yield Finding(
            rule="ThinHeadroom",
            severity=Severity.INFO,
            field="max_num_seqs",
            message=f"only {format_gib(headroom.expected)} of {format_gib(stage.available.expected)} of KV cache per GPU are to spare",
            remediation="watch preemptions, or leave more room",
        )
