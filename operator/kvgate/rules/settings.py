"""Rules about values of settings that contradict each other or the model, whatever the memory."""

from collections.abc import Iterable
from functools import partial

from msgspec.structs import replace

from kvgate.budget import Budget, Guarantee
from kvgate.budget.answers.support import parallelism_refusals, prompt_refusals
from kvgate.budget.engine.settings import longest_context, uncut_item_tokens
from kvgate.budget.kv_cache.hybrid_manager import hybrid_manager, manager_refusals
from kvgate.findings.finding import (
    Change,
    Finding,
    Remedy,
    Rule,
    Scope,
    SettingName,
    Severity,
    any_one,
    at_least,
    at_most,
    change,
    do,
    leave_out,
    words,
)

_rule = partial(Rule, scope=Scope.SETTINGS)

GPUS_PER_NODE = 8
"""GPUs per node of the boards that are sold. GB200 racks and the like share links beyond that, so that the finding is a warning."""

MAX_MODEL_LEN_ABOVE_MODEL = _rule(
    id="MaxModelLenAboveModel",
    severities=(Severity.ERROR, Severity.WARNING),
    title="max_model_len is above the length that the model was made for.",
    explanation=(
        "vLLM refuses it. It is a warning where the config that is given says less than the catalogue says of the same name: one of the "
        "two is not the published one."
    ),
)


def length_within_model(budget: Budget) -> Iterable[Finding]:
    limit, length = longest_context(budget.request.shape, budget.accounting), budget.resolved.max_model_len
    published = budget.request.shape.published_max_model_len
    if budget.has_disputed_length:
        yield MAX_MODEL_LEN_ABOVE_MODEL.finding(
            "max_model_len",
            words(
                "{max_model_len} {length} is above the {limit} tokens of the config that is given, and {model} is known with {published}; "
                "vLLM refuses it if that config is the one it loads",
                length=length,
                limit=limit,
                model=budget.request.shape.name,
                published=published,
            ),
            any_one(
                do("give the config.json that {model} is published with", model=budget.request.shape.name),
                at_most("max_model_len", limit, before=length),
            ),
            severity=Severity.WARNING,
        )
    elif limit and length > limit and not budget.request.is_stretched:
        yield length_above(length, limit, budget.request.shape.name)


def length_above(length: int, limit: int, model: str) -> Finding:
    message = "{max_model_len} {length} is above the {limit} tokens of {model}; vLLM refuses it"
    message_words = words(message, length=length, limit=limit, model=model)
    return MAX_MODEL_LEN_ABOVE_MODEL.finding(
        "max_model_len", message_words, at_most("max_model_len", limit, before=length)
    )


PARALLEL_SIZE_REFUSED = _rule(
    id="ParallelSizeRefused",
    severities=(Severity.ERROR,),
    title="A parallel size does not divide the model's heads, layers, experts or quantisation blocks, or does not go with the others.",
    explanation="vLLM refuses it.",
)


def sizes_divide(budget: Budget) -> Iterable[Finding]:
    shape, parallelism = budget.request.shape, budget.request.settings.parallelism
    version = budget.request.vllm_version
    for setting, reason in (*parallelism_refusals(shape, parallelism, version), *prompt_refusals(budget.request)):
        remedy = do("choose another {setting}", setting=SettingName(setting))
        if setting == "tensor_parallel_size":
            alone = (replace(parallelism, tensor=t, pipeline=1, decode_context=1) for t in (1, 2, 3, 4, 5, 6, 7, 8, 16))
            divide = (each for each in alone if not parallelism_refusals(shape, each, version))
            sizes = ", ".join(str(each.tensor) for each in divide)
            remedy = (
                change(Change.SET, setting, f"one of {sizes}") if sizes else do("use another checkpoint of the model")
            )
        message = words("{setting}: {reason}; vLLM refuses it", setting=SettingName(setting), reason=reason)
        yield PARALLEL_SIZE_REFUSED.finding(setting, message, remedy)


BATCH_BELOW_MAX_NUM_SEQS = _rule(
    id="BatchBelowMaxNumSeqs",
    severities=(Severity.ERROR,),
    title="max_num_batched_tokens is below max_num_seqs.",
    explanation="vLLM refuses it: a forward pass takes a token of every sequence.",
)


def batch_holds_sequences(budget: Budget) -> Iterable[Finding]:
    tokens, sequences = budget.resolved.max_num_batched_tokens, budget.resolved.max_num_seqs
    if tokens < sequences:
        yield BATCH_BELOW_MAX_NUM_SEQS.finding(
            "max_num_batched_tokens",
            words(
                "{max_num_batched_tokens} {tokens} is below {max_num_seqs} {sequences}; vLLM refuses it",
                tokens=tokens,
                sequences=sequences,
            ),
            any_one(
                at_least("max_num_batched_tokens", sequences, before=tokens),
                at_most("max_num_seqs", tokens, before=sequences),
            ),
        )


BATCH_BELOW_MAX_MODEL_LEN = _rule(
    id="BatchBelowMaxModelLen",
    severities=(Severity.ERROR, Severity.WARNING),
    title="Chunked prefill is off, and max_num_batched_tokens is below max_model_len.",
    explanation=(
        "vLLM refuses it: a whole prompt must fit into one batch. It is a warning where options that the input does not hold may say "
        "otherwise."
    ),
)


def whole_prompts_fit_a_batch(budget: Budget) -> Iterable[Finding]:
    """Check that a prompt of max_model_len fits into one batch where chunked prefill is off (`SchedulerConfig.verify_max_model_len`)."""
    settings = budget.resolved
    if budget.request.settings.enable_chunked_prefill is False:
        yield from batch_below_max_model_len(settings.max_num_batched_tokens, settings.max_model_len)


def batch_below_max_model_len(tokens: int, length: int) -> Iterable[Finding]:
    """The finding about a batch of `tokens` and prompts of `length` tokens that are not cut; empty where they fit."""
    if tokens < length:
        yield BATCH_BELOW_MAX_MODEL_LEN.finding(
            "max_num_batched_tokens",
            words(
                "{max_num_batched_tokens} {tokens} is below {max_model_len} {length} and chunked prefill is off; vLLM refuses it",
                tokens=tokens,
                length=length,
            ),
            any_one(
                at_least("max_num_batched_tokens", length, before=tokens),
                at_most("max_model_len", tokens, before=length),
                "leave chunked prefill on",
            ),
        )


BATCH_BELOW_MEDIA_ITEM = _rule(
    id="BatchBelowMediaItem",
    severities=(Severity.WARNING,),
    title="A batch is smaller than one image, whose tokens cannot be cut.",
    explanation="Some releases of vLLM refuse that, others raise the batch.",
)


def media_fit_a_batch(budget: Budget) -> Iterable[Finding]:
    """A batch below one image whose tokens attend both ways: refused by some releases (0.20), raised silently by others (0.25)."""
    tokens, largest = budget.resolved.max_num_batched_tokens, uncut_item_tokens(budget.request)
    if tokens < largest:
        yield BATCH_BELOW_MEDIA_ITEM.finding(
            "max_num_batched_tokens",
            words(
                "{max_num_batched_tokens} {tokens} is below the {largest} tokens of the largest item, which cannot be cut: some releases "
                "refuse that, others raise it",
                tokens=tokens,
                largest=largest,
            ),
            at_least("max_num_batched_tokens", largest, before=tokens),
        )


MORE_GPUS_THAN_A_NODE = _rule(
    id="MoreGpusThanANode",
    severities=(Severity.WARNING,),
    title="One pod requests more GPUs than most nodes have.",
    explanation="kvgate does not spread one engine over several nodes.",
)


def pod_fits_a_node(budget: Budget) -> Iterable[Finding]:
    count = budget.request.settings.parallelism.num_gpus
    if budget.request.is_one_pod and count > GPUS_PER_NODE:
        yield MORE_GPUS_THAN_A_NODE.finding(
            "tensor_parallel_size",
            f"one pod requests {count} GPUs; most nodes have {GPUS_PER_NODE}, and one engine is not spread over nodes",
            any_one(
                f"keep the product of the parallel sizes at {GPUS_PER_NODE} or less",
                f"use nodes with {count} GPUs",
            ),
        )


SLICES_CANNOT_BE_JOINED = _rule(
    id="SlicesCannotBeJoined",
    severities=(Severity.ERROR,),
    title="MIG slices have no links, so tensor and pipeline sizes must be 1.",
)


def slices_stand_alone(budget: Budget) -> Iterable[Finding]:
    accelerator, parallelism = budget.request.accelerator, budget.request.settings.parallelism
    if accelerator.is_slice and parallelism.tensor * parallelism.pipeline > 1:
        yield SLICES_CANNOT_BE_JOINED.finding(
            "tensor_parallel_size",
            f"{accelerator.name} is a MIG slice: slices have no links, so tensor and pipeline sizes must be 1",
            any_one("use one larger slice", "use whole GPUs"),
        )


CONCURRENCY_ABOVE_MAX_NUM_SEQS = _rule(
    id="ConcurrencyAboveMaxNumSeqs",
    severities=(Severity.WARNING,),
    title="The declared workload has more requests at its peak than max_num_seqs.",
    explanation="The requests above it wait.",
)
REQUEST_ABOVE_MAX_MODEL_LEN = _rule(
    id="RequestAboveMaxModelLen",
    severities=(Severity.ERROR, Severity.WARNING),
    title="A request of the declared workload is longer than max_model_len.",
    explanation="vLLM refuses it. It is a warning for engines of other platforms, whose start it does not prevent.",
)


def workload_can_run(budget: Budget) -> Iterable[Finding]:
    workload, settings = budget.request.workload, budget.resolved
    if workload is None or budget.request.guarantee is not Guarantee.WORKLOAD:
        return
    if workload.peak_concurrency > settings.max_num_seqs:
        yield CONCURRENCY_ABOVE_MAX_NUM_SEQS.finding(
            "max_num_seqs",
            words(
                "the workload has {peak} at its peak and {max_num_seqs} is {sequences}: the rest wait",
                peak=workload.requests_text,
                sequences=settings.max_num_seqs,
            ),
            any_one(
                at_least("max_num_seqs", workload.peak_concurrency, before=settings.max_num_seqs),
                "declare the concurrency that you expect",
            ),
        )
    # with `auto` the bytes decide about shorter lengths than the model's own
    length = settings.max_model_len if budget.auto_from is None else budget.auto_from
    if workload.request_tokens > length:
        yield REQUEST_ABOVE_MAX_MODEL_LEN.finding(
            "workload",
            words(
                "a request of {tokens} tokens is longer than {max_model_len} {length}; vLLM refuses it",
                tokens=workload.request_tokens,
                length=length,
            ),
            any_one(
                at_least("max_model_len", workload.request_tokens, before=length),
                "declare shorter requests",
            ),
        )


HYBRID_MANAGER_OFF = _rule(
    id="HybridManagerOff",
    severities=(Severity.ERROR, Severity.WARNING, Severity.INFO),
    title="A KV connector, KV events or an option switch vLLM's hybrid KV cache manager off, or do not go with it.",
    explanation=(
        "Without the manager, layers with a window or a chunk keep the whole context, and vLLM refuses models with recurrent states beside "
        "attention: that is an error. It is a warning where nobody has read the connector, and the engine starts only with the manager."
    ),
)


def hybrid_manager_is_on(budget: Budget) -> Iterable[Finding]:
    request = budget.request
    for setting, reason in manager_refusals(request, budget.accounting):
        message = words("{setting}: {reason}; vLLM does not start", setting=SettingName(setting), reason=reason)
        yield HYBRID_MANAGER_OFF.finding(setting, message, _manager_remedy(setting))
    manager = hybrid_manager(request, budget.accounting)
    names = " and ".join(manager.connectors)
    if budget.fits_only_with_manager:
        message = words(
            "{setting}: whether {names} goes with vLLM's hybrid KV cache manager is not known, and the engine starts only with it",
            setting=SettingName(manager.setting),
            names=names,
        )
        yield HYBRID_MANAGER_OFF.finding(
            manager.setting, message, _manager_remedy(manager.setting), severity=Severity.WARNING
        )
    windows = {
        bool(getattr(each, "sliding_window", 0) or getattr(each, "chunk_size", 0)) for each in request.shape.mixers
    }
    # layers with a window or a chunk beside full attention
    if not budget.fits_only_with_manager and manager.connectors and manager.is_certain and windows == {True, False}:
        message = words(
            "{setting}: {names} switches vLLM's hybrid KV cache manager off, so that layers with a window keep the whole context",
            setting=SettingName(manager.setting),
            names=names,
        )
        yield HYBRID_MANAGER_OFF.finding(
            manager.setting, message, _manager_remedy(manager.setting), severity=Severity.INFO
        )


def _manager_remedy(setting: str) -> Remedy:
    """Name what keeps the manager, or what goes without it."""
    if setting == "kv_transfer_config":
        return any_one(
            leave_out(setting),
            do("choose a connector that goes with the manager: NixlConnector in vLLM 0.22 and later"),
        )
    if setting == "kv_offloading_size":
        return any_one(leave_out(setting), do("add --disable-hybrid-kv-cache-manager"), do("use vLLM 0.22 or later"))
    return any_one(leave_out(setting))
