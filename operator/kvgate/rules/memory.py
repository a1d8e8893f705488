"""Rules about bytes of a GPU: the weights, one request, the guarantee, and what lives outside vLLM's budget."""

from collections.abc import Iterable
from functools import partial

from kvgate.budget import Budget, Guarantee, Interval, Verdict, verdict_of
from kvgate.budget.gpu.non_torch import startup_slack
from kvgate.budget.ground.units import format_gib, share_of
from kvgate.budget.kv_cache.dtype import takes_cache_dtype
from kvgate.budget.model.weights import checkpoint_ratio
from kvgate.findings.finding import (
    Change,
    Finding,
    Remedy,
    Rule,
    Scope,
    Severity,
    Words,
    any_one,
    at_most,
    change,
    do,
    words,
)
from kvgate.rules.pinned import instead_of_pinned, what_is_pinned

_rule = partial(Rule, scope=Scope.MEMORY)

WEIGHTS_TOO_LARGE = _rule(
    id="WeightsTooLarge",
    severities=(Severity.ERROR,),
    title="The weights and the memory that vLLM itself needs leave nothing for the KV cache.",
)


def weights_fit(budget: Budget) -> Iterable[Finding]:
    stage = budget.tightest
    if stage is None or stage.ledger is None or not _is_overdrawn(budget):
        return
    ledger = stage.ledger
    yield WEIGHTS_TOO_LARGE.finding(
        "accelerator",
        words(
            "weights ({weights} per GPU) and vLLM's own needs take {used} of the {allowed} that {gpu_memory_utilization} allows; "
            "nothing is left for the KV cache",
            weights=format_gib(ledger.weights.expected),
            used=format_gib(sum(term.expected for _, term in ledger.terms)),
            allowed=format_gib(ledger.requested_bytes),
        ),
        any_one(
            change(Change.RAISE, "tensor_parallel_size", before=budget.request.settings.parallelism.tensor),
            "use a GPU with more memory",
            "use a quantised checkpoint of the model",
        ),
    )


def _is_overdrawn(budget: Budget) -> bool:
    """Not even one block is left; a given kv_cache_memory_bytes is never overdrawn, only small."""
    stage = budget.tightest
    if stage is None or budget.request.settings.gives_cache_memory:
        return False
    available = budget.pin.available if budget.pin else stage.available
    return available.high < stage.bytes_per_block


KV_CACHE_TOO_SMALL = _rule(
    id="KVCacheTooSmall",
    severities=(Severity.ERROR, Severity.WARNING, Severity.INFO),
    title="One request of max_model_len does not fit into the KV cache.",
    explanation=(
        "vLLM does not start. It is a warning where the request may fit, because the prediction is an interval, and an info for an engine "
        "of another platform where it is expected to fit."
    ),
)


def one_request_fits(budget: Budget) -> Iterable[Finding]:
    usable, demand, stage, kv_cache = budget.usable_blocks, budget.demand, budget.tightest, budget.kv_cache
    if usable is None or demand is None or stage is None or kv_cache is None or _is_overdrawn(budget):
        return
    verdict = verdict_of(demand.startup_blocks, usable)
    if verdict is Verdict.FITS:
        return
    size, length, pool = stage.bytes_per_block, budget.resolved.max_model_len, budget.num_blocks
    longest = kv_cache.max_model_len_that_fits(pool.low, at_most=length) if pool else 0
    is_summed = demand.startup_blocks > kv_cache.request_blocks
    yield KV_CACHE_TOO_SMALL.finding(
        "max_model_len",
        words(
            "one request of {max_model_len} {length} needs {needed} of KV cache per GPU{why} and {available}",
            length=length,
            needed=format_gib(demand.startup_blocks * size),
            why=f", because vLLM {budget.request.vllm_version} counts all pipeline stages," if is_summed else "",
            available=_available(budget, usable.times(size), verdict),
        ),
        any_one(
            *([at_most("max_model_len", longest, before=length)] if longest else []),
            *instead_of_pinned(budget, demand.startup_blocks),
            *([] if longest else ["use a GPU with more memory", "use more GPUs"]),
        ),
        severity=_severity(verdict),
    )


MAMBA_CACHE_BLOCKS_EXCEEDED = _rule(
    id="MambaCacheBlocksExceeded",
    severities=(Severity.ERROR, Severity.WARNING, Severity.INFO),
    title="The KV cache has fewer blocks than max_num_seqs.",
    explanation=(
        "A model with recurrent states needs a block for each sequence when vLLM captures full CUDA graphs; vLLM does not start "
        "otherwise. It is a warning where the blocks may suffice, and an info for an engine of another platform where they are expected to."
    ),
)


def sequences_have_states(budget: Budget) -> Iterable[Finding]:
    """vLLM's second start condition: full CUDA graphs want a block for the recurrent state of every sequence (0.19+)."""
    pool, demand, usable = budget.num_blocks, budget.demand, budget.usable_blocks
    if pool is None or demand is None or usable is None or not demand.sequence_blocks:
        return
    verdict = verdict_of(demand.sequence_blocks, usable)
    if verdict is Verdict.FITS or verdict_of(demand.startup_blocks, usable) is Verdict.DOES_NOT_FIT:
        return
    is_refused, sequences = verdict is Verdict.DOES_NOT_FIT, budget.resolved.max_num_seqs
    yield MAMBA_CACHE_BLOCKS_EXCEEDED.finding(
        "max_num_seqs",
        words(
            "{max_num_seqs} ({sequences}) exceeds available Mamba cache blocks ({most}): with full CUDA graphs vLLM needs one for "
            "every sequence, and {available}",
            sequences=sequences,
            most=pool.high if is_refused else pool.low,
            available=words("{capacity} Pinned gives it {most}", most=pool.low)
            if budget.pin
            else f"{pool.low} to {pool.high} are available ({pool.expected} expected)",
        ),
        any_one(
            at_most("max_num_seqs", max(1, pool.low), before=sequences),
            *instead_of_pinned(budget, demand.sequence_blocks),
            "give the KV cache more memory",
        ),
        severity=Severity.ERROR if is_refused and not budget.guesses_sequences else Severity.WARNING,
    )


GUARANTEE_NOT_MET = _rule(
    id="GuaranteeNotMet",
    severities=(Severity.ERROR, Severity.WARNING),
    title="The KV cache does not hold what is to be guaranteed: the workload, or max_num_seqs requests of max_model_len.",
    explanation="It is a warning where the KV cache may hold it, because the prediction is an interval.",
)


def guarantee_holds(budget: Budget) -> Iterable[Finding]:
    usable, demand, stage = budget.usable_blocks, budget.demand, budget.tightest
    if usable is None or demand is None or stage is None:
        return
    if demand.guarantee is Guarantee.STARTUP or demand.is_for_sequences:
        return
    verdict = verdict_of(demand.blocks, usable)
    if verdict is Verdict.FITS or verdict_of(demand.startup_blocks, usable) is Verdict.DOES_NOT_FIT:
        return
    yield GUARANTEE_NOT_MET.finding(
        "workload" if demand.guarantee is Guarantee.WORKLOAD else "max_num_seqs",
        words(
            "{demanded} needs {needed} of KV cache per GPU and {available}{auto}",
            auto=_all_the_same(budget),
            demanded=demanded(budget),
            needed=format_gib(demand.blocks * stage.bytes_per_block),
            available=_available(budget, usable.times(stage.bytes_per_block), verdict),
        ),
        any_one(
            less_demand(budget),
            *instead_of_pinned(budget, demand.blocks),
            *(
                [change(Change.SET, "kv_cache_dtype", "fp8")]
                if budget.request.settings.kv_cache_dtype == "auto"
                and takes_cache_dtype(budget.request.shape, budget.accounting)
                else []
            ),
            "use GPUs with more memory",
            "request a smaller guarantee",
        ),
        severity=_severity(verdict),
    )


WORKLOAD_MISSING = _rule(
    id="WorkloadMissing",
    severities=(Severity.WARNING,),
    title="The guarantee Workload is requested, and no workload is declared.",
    explanation="The verdict is about the start alone.",
)


def workload_missing(remedy: str | Remedy) -> Finding:
    """The guarantee Workload has nothing to hold."""
    message = "the guarantee Workload is requested, and no workload is declared: only the start is judged"
    return WORKLOAD_MISSING.finding("workload", message, remedy)


def demanded(budget: Budget) -> str:
    """Return what the guarantee demands, in words; empty for one request, which vLLM itself demands."""
    settings, workload = budget.resolved, budget.request.workload
    if budget.request.guarantee is Guarantee.FULL_CONTEXT:
        length = budget.request.least_model_len or settings.max_model_len
        return f"full context ({settings.max_num_seqs} requests of {length} tokens)"
    if budget.request.guarantee is Guarantee.WORKLOAD and workload is not None:
        least = budget.request.least_model_len
        return f"the workload ({workload})" + (f" and one request of {least} tokens" if least else "")
    return ""


def _all_the_same(budget: Budget) -> str:
    """Say that vLLM starts without the promise where it chooses the length itself; empty where the length is stated."""
    if budget.auto_from is None:
        return ""
    return f"; max_model_len auto starts all the same, with {budget.resolved.max_model_len} tokens of the model's {budget.auto_from}"


def less_demand(budget: Budget) -> Remedy:
    """Shorter requests, or fewer of them where there are several."""
    settings = budget.resolved
    fewer = change(Change.LOWER, "max_num_seqs", before=settings.max_num_seqs)
    shorter = [change(Change.LOWER, "max_model_len", before=settings.max_model_len)]
    if budget.auto_from is not None:  # vLLM chooses the length itself
        floor = budget.request.least_model_len
        shorter = [change(Change.LOWER, "min_max_model_len", before=floor)] if floor else []
    return any_one(*([fewer] if settings.max_num_seqs > 1 or not shorter else []), *shorter)


def _severity(verdict: Verdict) -> Severity:
    return Severity.ERROR if verdict is Verdict.DOES_NOT_FIT else Severity.WARNING


def _available(budget: Budget, available: Interval, verdict: Verdict) -> str | Words:
    """The end of the interval that decided, first."""
    if budget.pin is not None:
        return what_is_pinned(budget)
    low, expected, high = (format_gib(max(0, end)) for end in (available.low, available.expected, available.high))
    if verdict is Verdict.DOES_NOT_FIT:
        return f"at most {high} is available ({expected} expected)"
    return f"{low} to {high} is available ({expected} expected)"


THIN_HEADROOM = _rule(
    id="ThinHeadroom",
    severities=(Severity.INFO,),
    title="The demand fits, and less than a twentieth of the KV cache remains free.",
)


def headroom_is_thin(budget: Budget) -> Iterable[Finding]:
    headroom, stage = budget.headroom, budget.tightest
    if budget.verdict is not Verdict.FITS or headroom is None or stage is None or stage.ledger is None:
        return
    if budget.demand_bytes and headroom.expected * 20 < stage.available.expected:
        free, pool = format_gib(headroom.expected), format_gib(stage.available.expected)
        yield THIN_HEADROOM.finding(
            "max_num_seqs",
            f"only {free} of {pool} of KV cache per GPU remain free",
            any_one("watch the preemptions", change(Change.LOWER, "max_num_seqs", before=budget.resolved.max_num_seqs)),
        )


KV_CACHE_MEMORY_ABOVE_GPU = _rule(
    id="KVCacheMemoryAboveGpu",
    severities=(Severity.WARNING,),
    title="kv_cache_memory_bytes is more than a GPU has beside the weights.",
    explanation="vLLM does not check it, and runs out of memory when it allocates the KV cache.",
)


def kv_cache_memory_within_gpu(budget: Budget) -> Iterable[Finding]:
    given, stage = budget.request.settings.kv_cache_memory_bytes, budget.tightest
    free = budget.request.accelerator.memory_high_bytes
    if stage is not None and stage.ledger is not None:
        free = max(0, free - sum(term.low for _, term in stage.ledger.terms))
    if given is not None and given > free:
        yield KV_CACHE_MEMORY_ABOVE_GPU.finding(
            "kv_cache_memory_bytes",
            words(
                "{kv_cache_memory_bytes} is {given}; beside the weights {gpu} has at most {free}",
                given=format_gib(given),
                gpu=budget.request.accelerator.name,
                free=format_gib(free),
            ),
            at_most("kv_cache_memory_bytes", free, before=given),
        )


UTILIZATION_TOO_HIGH = _rule(
    id="UtilizationTooHigh",
    severities=(Severity.ERROR, Severity.WARNING),
    title="gpu_memory_utilization leaves less outside the budget than CUDA and the communicators take before vLLM starts.",
    explanation=(
        "vLLM 0.9.1 and later refuses to start, also where kv_cache_memory_bytes gives the KV cache. It is a warning where what is left "
        "may suffice, and for releases that do not check."
    ),
)


def slack_holds_context(budget: Budget) -> Iterable[Finding]:
    """`Free memory on device … is less than desired GPU memory utilization`: what is gone before vLLM looks must fit beside it."""
    share = budget.resolved.gpu_memory_utilization
    slack, gone = _outside_budget(budget)
    if slack >= gone.expected:
        return
    # a process that has all of the memory to request never finds all of it free
    is_refused = (slack < gone.low or not slack) and budget.accounting.checks_free_memory
    yield UTILIZATION_TOO_HIGH.finding(
        "gpu_memory_utilization",
        words(
            "{gpu_memory_utilization} {share} leaves {slack} of the GPU; CUDA context and communicators take {low} to {high} before "
            "vLLM starts",
            share=f"{float(share):g}",
            slack=format_gib(slack),
            low=format_gib(gone.low),
            high=format_gib(gone.high),
        ),
        at_most("gpu_memory_utilization", "0.95", before=f"{float(share):g}"),
        severity=Severity.ERROR if is_refused else Severity.WARNING,
    )


SAMPLER_WARM_UP_IS_TIGHT = _rule(
    id="SamplerWarmUpIsTight",
    severities=(Severity.WARNING,),
    title="The sampler's warm-up may need more memory than is left outside the budget.",
    explanation="vLLM runs it after the KV cache is allocated.",
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
        yield SAMPLER_WARM_UP_IS_TIGHT.finding(
            "max_num_seqs",
            words(
                "warming up the sampler may take {rows} ({sequences} sequences × vocabulary) and about {left} is left outside the budget",
                rows=format_gib(rows_bytes),
                sequences=settings.max_num_seqs,
                left=format_gib(left),
            ),
            any_one(
                change(Change.LOWER, "max_num_seqs", before=settings.max_num_seqs),
                change(Change.LOWER, "gpu_memory_utilization", before=f"{float(settings.gpu_memory_utilization):g}"),
            ),
        )


def _outside_budget(budget: Budget) -> tuple[int, Interval]:
    """Bytes of the GPU that gpu_memory_utilization leaves, and those of them that are gone before vLLM looks."""
    accelerator = budget.request.accelerator
    slack = accelerator.memory_bytes - share_of(accelerator.memory_bytes, budget.resolved.gpu_memory_utilization)
    return slack, startup_slack(accelerator, budget.accounting, budget.request.settings.parallelism)


KV_CACHE_KEEPS_MODEL_DTYPE = _rule(
    id="KVCacheKeepsModelDtype",
    severities=(Severity.INFO,),
    title="FP8 weights do not make an FP8 KV cache.",
    explanation="kv_cache_dtype auto follows the model's dtype.",
)


def weights_do_not_choose_kv_cache(budget: Budget) -> Iterable[Finding]:
    shape, kv_cache = budget.request.shape, budget.kv_cache
    if kv_cache is None or shape.quantization is None or not takes_cache_dtype(shape, budget.accounting):
        return
    is_fp8 = shape.quantization.format.startswith("fp8")
    if is_fp8 and budget.request.settings.kv_cache_dtype == "auto" and kv_cache.dtype.bytes_per_element == 2:
        yield KV_CACHE_KEEPS_MODEL_DTYPE.finding(
            "kv_cache_dtype",
            words(
                "the weights are FP8 and the KV cache is {dtype}: {kv_cache_dtype} auto follows the model dtype",
                dtype=kv_cache.dtype.name,
            ),
            change(Change.SET, "kv_cache_dtype", "fp8", reason="a token then takes half the bytes"),
        )


CHECKPOINT_DECIDES_WEIGHTS = _rule(
    id="CheckpointDecidesWeights",
    severities=(Severity.INFO,),
    title="The checkpoint's index and the formulas count different bytes.",
    explanation="The weights are scaled to the index; so are those of a format that has no formula.",
)


def checkpoint_decides_weights(budget: Budget) -> Iterable[Finding]:
    shape, ratio = budget.request.shape, checkpoint_ratio(budget.request.shape)
    if budget.request.weights_bytes is not None:
        return
    stored = format_gib(shape.checkpoint_bytes)
    unknown = shape.unmodelled
    if shape.quantization is not None and not shape.quantization.has_formula:
        unknown = (f"the format {shape.quantization.method}",)
    if unknown and shape.checkpoint_bytes:
        yield CHECKPOINT_DECIDES_WEIGHTS.finding(
            "checkpoint_bytes",
            f"{', '.join(unknown)} has no formula: the weights are the {stored} of the checkpoint, shared out over the ranks "
            "and known to a tenth",
            do("compare the prediction with the first start"),
        )
    elif ratio != 1:
        described = format_gib(int(shape.checkpoint_bytes / ratio))
        yield CHECKPOINT_DECIDES_WEIGHTS.finding(
            "checkpoint_bytes",
            f"the checkpoint holds {stored} and its config describes {described}: the weights of every rank are scaled to the "
            "checkpoint",
            do("check that config.json and checkpoint belong together"),
        )
