"""Figures that a log or a message states itself → sentences, which need neither the model nor the GPU."""

import re
from collections.abc import Iterator

from kvgate import catalogue
from kvgate.budget.ground.units import format_gib
from kvgate.sources.start_failure import StartFailure
from kvgate.sources.startup_log import StartupLog
from kvgate.vllm.options import options

_SAME_TOKENS_PERCENT = 2
"""Tokens and concurrency × length are rounded to blocks."""
_CLASS = re.compile(r"\b[A-Z]\w{2,80}(?:LM|Model|Generation|Classification|Embedding)\b")


def reported(log: StartupLog) -> Iterator[str]:
    """Yield the memory of the tightest rank, and how many requests the KV cache holds."""
    rank = log.tightest
    names = {
        "total_bytes": "GPU", "free_bytes": "free at the start", "weights_bytes": "weights", "peak_activation_bytes": "peak activation",
        "non_torch_bytes": "non-torch", "cuda_graph_bytes": "CUDA graphs", "cuda_graph_estimate_bytes": "CUDA graphs (estimated)",
        "available_kv_cache_bytes": "KV cache",
    }  # fmt: skip
    shown = [
        f"{words} {format_gib(size)}"
        for name, words in names.items()
        if (size := getattr(rank, name, None)) is not None
    ]
    if shown:
        yield f"the log reports: {', '.join(shown)}"
    yield from _capacity(log)


def _capacity(log: StartupLog) -> Iterator[str]:
    tokens, requests, length = log.kv_cache_tokens, log.max_concurrency, log.max_model_len
    if tokens is None and requests is None:
        return
    if requests is None or not length:
        yield f"the log reports a KV cache of {tokens} tokens"
        return
    whole = round(requests * length)
    of = "" if tokens is None else f" of {tokens} tokens"
    yield (
        f"the log reports a KV cache{of}, which holds {requests:g} requests of {length} tokens at the same time ({whole} tokens), "
        "or more of shorter ones; the others wait"
    )
    if tokens is not None and abs(whole - tokens) * 100 > tokens * _SAME_TOKENS_PERCENT:
        yield (
            "the number of requests counts: for a model with several kinds of layers vLLM divides its tokens by the groups of layers, of "
            "which some keep few blocks, and each request takes whole blocks of every group"
        )


def stated(failure: StartFailure) -> Iterator[str]:
    """Yield what the figures and names of a message mean."""
    needed, available, total = failure.needed_bytes, failure.available_bytes, failure.total_bytes
    if needed is not None and available is not None:
        over = f": {format_gib(needed - available)} too much" if needed > available else ""
        yield f"vLLM states that {format_gib(needed)} is needed and {format_gib(available)} is there{over}"
    if failure.id == "GpuMemoryTaken" and available and total:
        yield f"{format_gib(available)} of {format_gib(total)} is free: at most {available * 100 // total / 100:.2f} of the GPU"
    length = failure.max_model_len
    match failure.id, failure.found:
        case "QuantizationNotOnGpu", {"needed_capability": int(least), "capability": int(own)}:
            yield f"the format needs compute capability {least / 10}, and the GPU has {own / 10}"
        case "RequestTooLong", {"input_tokens": int(given)} if length and given < length:
            yield f"prompt and output share {length} tokens: beside {given} tokens of input max_tokens may be {length - given} at most"
        case "UnknownArgument", {"arguments_text": str(words)}:
            yield from _releases_of_options(words)
        case "ArchitectureNotSupported", _:
            yield from _releases_of_classes(failure.sentence)


def _releases_of_options(words: str) -> Iterator[str]:
    for word in words.split():
        known = options().get(word.partition("=")[0].replace("_", "-")) if word.startswith("--") else None
        if known is None:
            continue
        instead = f"; use {known.replacement}" if known.replacement.startswith("-") else ""
        if known.removed_in:
            yield f"{known.flag} is gone since vLLM {'.'.join(map(str, known.removed_in))}{instead}"
        else:
            yield f"{known.flag} came with vLLM {'.'.join(map(str, known.since))}"


def _releases_of_classes(sentence: str) -> Iterator[str]:
    named = sentence.partition("Supported architectures")[0]
    for name in dict.fromkeys(_CLASS.findall(named)):
        known = catalogue.find_model_class(name)
        if known and known.removed_in:
            yield f"{name} was last in vLLM {known.until}"
        elif known:
            yield f"vLLM {known.since} has {name}: use that or a newer release"
