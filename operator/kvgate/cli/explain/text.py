"""The ledger of one GPU for people."""

from collections import Counter
from collections.abc import Iterator

from kvgate import catalogue
from kvgate.budget import adjust
from kvgate.budget.capacity import KVCache
from kvgate.budget.interval import Interval, Term, Verdict
from kvgate.budget.kv_cache_spec import KVCacheSpec
from kvgate.budget.ledger import Ledger
from kvgate.budget.plan import Budget
from kvgate.budget.textbook import textbook_of
from kvgate.budget.units import GIB, format_gib
from kvgate.cli.terminal import Line, Styled
from kvgate.judge.assess import Assessment, is_about_bytes
from kvgate.judge.summary import alternative_text, correction_text

_COLOURS = {
    Verdict.FITS: "green",
    Verdict.MAY_NOT_FIT: "yellow",
    Verdict.DOES_NOT_FIT: "red",
    Verdict.UNKNOWN: "yellow",
}


def report(assessment: Assessment) -> Iterator[Line]:
    """Title, ledger, cache, verdict, findings, and what else would fit."""
    budget = assessment.budget
    if budget is not None:
        yield from title(budget)
        if budget.tightest and budget.tightest.ledger:
            yield from _ledger(budget.tightest.ledger)
        if budget.tightest and budget.request.settings.gives_cache_memory:
            yield _row("given instead", format_gib(budget.tightest.available.expected))
        yield from _cache(budget)
        yield ""
    yield (Styled(text=assessment.verdict.value, colour=_COLOURS[assessment.verdict], is_bold=True),)
    for finding in assessment.findings:
        yield f"  {finding.severity.value} {finding.rule}: {finding.message}"
        if finding.remediation:
            yield f"      {finding.remediation}"
    if budget is not None and is_about_bytes(assessment):
        found = adjust.alternatives(budget.request, catalogue.accelerators())
        if found:
            yield f"  would fit: {', '.join(map(alternative_text, found))}"


def title(budget: Budget) -> Iterator[str]:
    """Return the question in two lines."""
    request, parallelism = budget.request, budget.request.settings.parallelism
    gpus = f"{parallelism.num_gpus} × " if parallelism.num_gpus > 1 else ""
    yield f"{request.shape.name} on {gpus}{request.accelerator.name}, vLLM {request.vllm_version}"
    resolved = budget.resolved
    yield (
        f"max_model_len {resolved.max_model_len}, max_num_seqs {resolved.max_num_seqs}, "
        f"max_num_batched_tokens {resolved.max_num_batched_tokens}, kv_cache_dtype {request.settings.kv_cache_dtype}"
    )


_TERMS = {
    "weights": "weights",
    "peak_activation": "peak activation",
    "non_torch": "non-torch",
    "cuda_graph": "CUDA graphs",
}
_SHORT = {
    "weights": ("tensors as loaded", {"layers": "{} layers", "quantization": "{}", "tensor_parallel_size": "tp {}"}),
    "peak_activation": (
        "profile run",
        {"max_num_batched_tokens": "T {}", "sampler_rows": "S {}", "vocabulary": "V {}", "hidden_size": "H {}"},
    ),
    "non_torch": ("driver and links", {"tensor_parallel_size": "tp {}", "links": "{}"}),
    "cuda_graph": (
        "captured graphs",
        {"piecewise_graphs": "{} piecewise", "full_graphs": "{} full", "layers": "{} layers"},
    ),
}
"""Short name of each line's formula, with the inputs that people know; `--why` has the formula itself."""


def _ledger(ledger: Ledger) -> Iterator[str]:
    share = ledger.requested_bytes / ledger.total_bytes if ledger.total_bytes else 0.0
    yield ""
    yield _row("GPU memory", format_gib(ledger.total_bytes))
    yield _row("requested", format_gib(ledger.requested_bytes), f"total × gpu_memory_utilization {share:.2f}")
    for line in ledger.lines:
        yield _row(f"− {_TERMS[line.name]}", format_gib(line.amount.expected), _range(line.amount), _short(line))
    available = ledger.available
    remark = correction_text(ledger.correction) if ledger.correction else "requested − all of these"
    yield _row("= for the KV cache", format_gib(available.expected), _range(available), remark)


def _short(line: Term) -> str:
    """`profile run: T 8192, S 64`."""
    name, shown = _SHORT[line.name]
    inputs = ", ".join(shown[key].format(value) for key, value in line.inputs if key in shown and value != "none")
    return f"{name}: {inputs}" if inputs and line.amount.high else line.formula


def _row(name: str, figure: str, *remarks: str) -> str:
    return f"  {name:<22}{figure:>12}  {'  '.join(remarks)}".rstrip()


def _range(interval: Interval) -> str:
    return f"{interval.low / GIB:>6.2f} to {interval.high / GIB:>6.2f}"


def _cache(budget: Budget) -> Iterator[str]:
    kv_cache, pool = budget.kv_cache, budget.num_blocks
    if kv_cache is None:
        return
    yield ""
    yield from _groups(kv_cache)
    yield _row("bytes per block", f"{kv_cache.bytes_per_block}", f"kv_cache_dtype {kv_cache.dtype.name}")
    yield _row(
        "one request", format_gib(kv_cache.request_bytes), f"{kv_cache.request_blocks} blocks of max_model_len tokens"
    )
    if pool is not None:
        yield _row("blocks", f"{pool.expected}", f"{pool.low} to {pool.high}", "KV cache / bytes per block")
        yield _row(
            "full requests", f"{float(kv_cache.max_concurrency(pool.expected)):.2f}", "blocks / those of a request"
        )
        yield _row("tokens", f"{kv_cache.num_tokens(pool.expected)}", "as vLLM logs the size of the cache")
    yield from _textbook(budget, kv_cache)


def _groups(kv_cache: KVCache) -> Iterator[str]:
    """A line for every kind of cache; equal groups are told once."""
    yield f"  {'KV cache':<26}{'layers':>8}{'block':>8}{'page bytes':>12}{'blocks of a request':>21}"
    groups = Counter(tuple((spec, len(layers)) for spec, layers in group.parts) for group in kv_cache.groups)
    for parts, count in groups.items():
        blocks = parts[0][0].blocks(kv_cache.reach)
        for index, (spec, layers) in enumerate(parts):
            needed = "" if index else str(blocks) if count == 1 else f"{count} × {blocks}"
            yield _group(spec, f"{count} × {layers}" if count > 1 else str(layers), needed)


def _group(spec: KVCacheSpec, layers: str, blocks: str) -> str:
    size = spec.block_size or "-"
    return f"  {spec.kind:<26}{layers:>8}{size:>8}{spec.page_size_bytes:>12}{blocks:>21}".rstrip()


def _textbook(budget: Budget, kv_cache: KVCache) -> Iterator[str]:
    """Return the reasons why the well-known formula does not hold here; nothing where it does."""
    textbook = textbook_of(budget)
    if textbook is None or not textbook.reasons:
        return
    yield ""
    comparison = textbook.comparison(kv_cache.request_bytes)
    yield f"  {comparison[0].upper()}{comparison[1:]}:"
    yield from (f"    {reason}" for reason in textbook.reasons)
