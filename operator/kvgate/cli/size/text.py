"""The table of `kvgate size` for people."""

from collections.abc import Iterator, Sequence

from kvgate.budget.interval import Verdict
from kvgate.budget.request import AUTO_MAX_MODEL_LEN, BudgetRequest, Guarantee
from kvgate.budget.units import GIB
from kvgate.catalogue.prices import Prices
from kvgate.cli.terminal import Line, Styled, table, text_of
from kvgate.planning.candidate import Candidate, why_not
from kvgate.planning.hints import HOST_MEMORY, cheaper_perhaps, hints
from kvgate.planning.size import Question
from kvgate.rules.finding import Severity

ROWS = 10
"""Rows of candidates that fit, unless all are requested."""
_HEADER = ("PER HOUR", "GPUS", "ACCELERATOR", "ENGINES", "KV CACHE", "VERDICT", "HEADROOM", "FULL REQUESTS", "LONGEST")
_SHOWN = (Verdict.FITS, Verdict.MAY_NOT_FIT)
_COLOURS = {
    Verdict.FITS: "green",
    Verdict.MAY_NOT_FIT: "yellow",
    Verdict.UNKNOWN: "yellow",
    Verdict.DOES_NOT_FIT: "red",
}


def text_report(question: Question, candidates: Sequence[Candidate], costs: Prices, *, every: bool) -> str:
    """Return the question, the table, the reasons why others are missing, and what would be cheaper."""
    return text_of(_lines(question, candidates, costs, every=every))


def _lines(question: Question, candidates: Sequence[Candidate], costs: Prices, *, every: bool) -> Iterator[Line]:
    yield from _title(question, candidates, costs)
    shown = _shown(question, candidates, every=every)
    if shown:
        yield ""
        yield from _table(shown)
    fits = [c for c in candidates if c.verdict is Verdict.FITS]
    if left := sum(c not in shown for c in fits):
        yield f"  not shown: {left} that fit; --gpus names some, --all shows every candidate"
    others = [c for c in candidates if c.verdict is not Verdict.FITS]
    told = others if every or not any(c in shown for c in fits) or len(question.accelerators) <= ROWS else []
    yield from _reasons(told or [c for c in shown if c.verdict is Verdict.DOES_NOT_FIT])
    if rest := sum(c.verdict not in _SHOWN for c in others if c not in told and c not in shown):
        yield f"  not shown: {rest} that do not fit; --all says why"
    yield from _advice(question, candidates)
    if any(c.verdict is Verdict.DOES_NOT_FIT for c in told):
        yield f"  {HOST_MEMORY}"


def _title(question: Question, candidates: Sequence[Candidate], costs: Prices) -> Iterator[str]:
    request, workload = question.request, question.request.workload
    yield f"{request.shape.name}, vLLM {request.vllm_version}, max_model_len {_length(request, candidates[0])}"
    if request.guarantee is Guarantee.WORKLOAD and workload:
        shared = f", {workload.shared_prefix_tokens} of them shared" if workload.shared_prefix_tokens else ""
        yield f"{question.concurrency} requests of {workload.prompt_tokens} + {workload.output_tokens} tokens at the same time{shared}"
    elif request.guarantee is Guarantee.FULL_CONTEXT:
        yield f"{question.concurrency} requests of max_model_len at the same time"
    else:
        yield "one request of max_model_len; FULL REQUESTS is how many an engine holds, LONGEST the context that it starts with"
    yield f"prices in {costs.currency}: {costs.remark}"
    for finding in question.findings:
        if finding.severity is not Severity.INFO:
            yield f"{finding.severity.value} {finding.rule}: {finding.message}"


def _length(request: BudgetRequest, candidate: Candidate) -> str:
    """Return the requested length, or the model's own; an architecture without a formula may have none."""
    if request.settings.max_model_len == AUTO_MAX_MODEL_LEN:
        return "auto"
    known = request.settings.max_model_len or candidate.verdict is not Verdict.UNKNOWN or request.shape.max_model_len
    return str(candidate.budget.resolved.max_model_len) if known else "unknown"


def _shown(question: Question, candidates: Sequence[Candidate], *, every: bool) -> list[Candidate]:
    """The cheapest that fit, and what may do for less; where only starting is asked for, all that starts with some length."""
    works = [c for c in candidates if c.verdict in _SHOWN]
    if every:
        return works
    if question.request.guarantee is Guarantee.STARTUP:
        return works + [c for c in candidates if c not in works and c.longest and not c.is_refused]
    fits = [c for c in works if c.verdict is Verdict.FITS][:ROWS]
    return fits + (cheaper_perhaps(fits[0], works) if fits else works)[:ROWS]


def _table(candidates: Sequence[Candidate]) -> Iterator[Line]:
    lines = list(table([_HEADER, *map(_cells, candidates)], right=(0, 1, 6, 7, 8)))
    yield f"  {lines[0]}"
    for line, candidate in zip(lines[1:], candidates, strict=True):
        before, word, after = line.partition(candidate.verdict.value)
        yield f"  {before}", Styled(text=word, colour=_COLOURS[candidate.verdict]), after


def _cells(candidate: Candidate) -> tuple[str, ...]:
    cost, times = candidate.cost, f"{candidate.replicas} × " if candidate.replicas > 1 else ""
    return (
        "-" if cost is None else f"{float(cost):.2f}",
        str(candidate.num_gpus),
        candidate.accelerator.name,
        times + engine_text(candidate),
        candidate.kv_cache_dtype,
        candidate.verdict.value,
        _headroom(candidate),
        f"{times}{float(candidate.full_requests):.1f}",
        str(candidate.longest or "-"),
    )


def engine_text(candidate: Candidate) -> str:
    """`tp4`, `tp8 pp2`."""
    stages = f" pp{candidate.parallelism.pipeline}" if candidate.parallelism.pipeline > 1 else ""
    return f"tp{candidate.parallelism.tensor}{stages}"


def _headroom(candidate: Candidate) -> str:
    """Expected, per GPU, and as a share of its KV cache."""
    headroom, shares = candidate.budget.headroom, candidate.budget.headroom_shares
    if headroom is None or shares is None:
        return "-"
    return f"{headroom.expected / GIB:.2f} GiB {round(float(shares[1]) * 100):>4} %"


def _reasons(told: Sequence[Candidate]) -> Iterator[str]:
    """Those with the same reason share a line."""
    reasons: dict[str, list[str]] = {}
    for candidate in told:
        longest = f"; up to {candidate.longest} tokens start" if _starts_with_less(candidate) else ""
        packed = f" ({candidate.kv_cache_dtype} KV cache)" if candidate.kv_cache_dtype != "auto" else ""
        name = f"{candidate.num_gpus} × {candidate.accelerator.name}{packed}"
        reasons.setdefault(f"{why_not(candidate)}{longest}", []).append(name)
    if reasons:
        yield ""
        yield "Why not:"
        yield from (f"  {', '.join(names)}: {reason}" for reason, names in reasons.items())


def _starts_with_less(candidate: Candidate) -> bool:
    return 0 < candidate.longest < candidate.budget.resolved.max_model_len and not candidate.is_refused


def _advice(question: Question, candidates: Sequence[Candidate]) -> Iterator[str]:
    best = next((c for c in candidates if c.verdict is Verdict.FITS), None)
    if best:
        replicas = f"{best.replicas} replicas, each " if best.replicas > 1 else ""
        word = "Cheapest" if best.cost is not None else "Fewest GPUs"
        yield ""
        yield f"{word}: {best.num_gpus} × {best.accelerator.name}: {replicas}{flags(best)}"
    yield from (f"  {hint}" for hint in hints(question, candidates))


def flags(candidate: Candidate) -> str:
    """Return the settings that the search chose, as vLLM's flags."""
    settings, resolved, parallelism = (
        candidate.budget.request.settings,
        candidate.budget.resolved,
        candidate.parallelism,
    )
    chosen: dict[str, int | str] = {"tensor-parallel-size": parallelism.tensor}
    if parallelism.pipeline > 1:
        chosen["pipeline-parallel-size"] = parallelism.pipeline
    chosen["max-model-len"] = resolved.max_model_len
    if settings.max_num_seqs:
        chosen["max-num-seqs"] = settings.max_num_seqs
    if settings.kv_cache_dtype != "auto":
        chosen["kv-cache-dtype"] = settings.kv_cache_dtype
    return " ".join(f"--{name} {value}" for name, value in chosen.items())
