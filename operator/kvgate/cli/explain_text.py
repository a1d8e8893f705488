"""The ledger of one GPU for people."""

from collections.abc import Iterator

import click

from kvgate import catalogue
from kvgate.budget import adjust
from kvgate.budget.gpu_memory import Ledger
from kvgate.budget.interval import Interval, Verdict
from kvgate.budget.plan import Budget
from kvgate.budget.units import format_gib
from kvgate.engine import Assessment, is_about_bytes
from kvgate.summary import alternative_text

_COLOURS = {
    Verdict.FITS: "green",
    Verdict.MAY_NOT_FIT: "yellow",
    Verdict.DOES_NOT_FIT: "red",
    Verdict.UNKNOWN: "yellow",
}


def report(assessment: Assessment) -> str:
    """Title, ledger, cache, verdict, findings, and what else would fit."""
    return "\n".join(_lines(assessment))


def _lines(assessment: Assessment) -> Iterator[str]:
    budget = assessment.budget
    if budget is not None:
        yield from _title(budget)
        if budget.tightest and budget.tightest.ledger:
            yield from _ledger(budget.tightest.ledger)
        yield from _cache(budget)
        yield ""
    yield click.style(assessment.verdict.value, fg=_COLOURS[assessment.verdict], bold=True)
    for finding in assessment.findings:
        yield f"  {finding.severity.value} {finding.rule}: {finding.message}"
        if finding.remediation:
            yield f"      {finding.remediation}"
    if budget is not None and is_about_bytes(assessment):
        found = adjust.alternatives(budget.request, catalogue.accelerators())
        if found:
            yield f"  would fit: {', '.join(map(alternative_text, found))}"


_TERMS = {
    "weights": "weights",
    "peak_activation": "peak activation",
    "non_torch": "non-torch",
    "cuda_graph": "CUDA graphs",
}


def _title(budget: Budget) -> Iterator[str]:
    request, parallelism = budget.request, budget.request.settings.parallelism
    gpus = f"{parallelism.num_gpus} × " if parallelism.num_gpus > 1 else ""
    yield f"{request.shape.name} on {gpus}{request.accelerator.name}, vLLM {request.vllm_version}"
    settings = budget.settings
    yield (
        f"max_model_len {settings.max_model_len}, max_num_seqs {settings.max_num_seqs}, "
        f"max_num_batched_tokens {settings.max_num_batched_tokens}, kv_cache_dtype {request.settings.kv_cache_dtype}"
    )


def _ledger(ledger: Ledger) -> Iterator[str]:
    share = ledger.requested_bytes / ledger.total_bytes if ledger.total_bytes else 0.0
    yield ""
    yield _row("GPU memory", format_gib(ledger.total_bytes))
    yield _row("requested", format_gib(ledger.requested_bytes), f"gpu_memory_utilization {share:.2f}")
    for name, term in ledger.terms:
        yield _row(f"− {_TERMS[name]}", format_gib(term.expected), _range(term))
    yield _row("= for the KV cache", format_gib(ledger.available.expected), _range(ledger.available))


def _row(name: str, figure: str, remark: str = "") -> str:
    return f"  {name:<26}{figure:>13}  {remark}".rstrip()


def _range(interval: Interval) -> str:
    return f"{format_gib(interval.low)} to {format_gib(interval.high)}"


def _cache(budget: Budget) -> Iterator[str]:
    kv_cache, pool = budget.kv_cache, budget.num_blocks
    if kv_cache is None:
        return
    yield ""
    for spec, layers in (part for group in kv_cache.groups for part in group.parts):
        block = f"a block of {spec.block_size} tokens" if spec.block_size else "a request"
        yield _row(
            f"KV cache: {spec.kind}", f"{len(layers)} layers", f"{block} has {spec.page_size_bytes} bytes in each"
        )
    yield _row("bytes per block", f"{kv_cache.bytes_per_block}", f"kv_cache_dtype {kv_cache.dtype.name}")
    yield _row(
        "one request", format_gib(kv_cache.request_bytes), f"{kv_cache.request_blocks} blocks of max_model_len tokens"
    )
    if pool is not None:
        yield _row("blocks", f"{pool.expected}", f"{pool.low} to {pool.high}")
        yield _row("tokens", f"{kv_cache.num_tokens(pool.expected)}")
        yield _row("full requests", f"{float(kv_cache.max_concurrency(pool.expected)):.2f}", "at the same time")
