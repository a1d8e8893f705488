"""The answer of `kvgate size`: a table for people, JSON and CSV for programs."""

import csv
import io
from collections.abc import Iterator, Sequence
from fractions import Fraction

from kvgate.budget import AUTO_MAX_MODEL_LEN, Capacity, Guarantee, Interval, Verdict
from kvgate.budget.units import GIB
from kvgate.catalogue.prices import Prices
from kvgate.cli.assessment_json import Json, finding_json
from kvgate.cli.terminal import Line, Styled, table, text_of
from kvgate.judge.pinning import pinned_option
from kvgate.planning.candidate import Candidate, why_not
from kvgate.planning.hints import HOST_MEMORY, cheaper_perhaps, hints
from kvgate.planning.size import Question
from kvgate.rules.finding import Severity
from kvgate.text.inert import inert_json, inert_values

_ROWS = 10
"""Number of candidates that fit and are shown without --all."""
_HEADER = ("PER HOUR", "GPUS", "ACCELERATOR", "ENGINES", "KV CACHE", "VERDICT", "HEADROOM", "FULL REQUESTS", "LONGEST")
_SHOWN = (Verdict.FITS, Verdict.MAY_NOT_FIT)
_COLOURS = {
    Verdict.FITS: "green",
    Verdict.MAY_NOT_FIT: "yellow",
    Verdict.UNKNOWN: "yellow",
    Verdict.DOES_NOT_FIT: "red",
}
_INTERVALS = ("available_kv_cache_bytes", "headroom_bytes")
_ENDS = ("low", "expected", "high")

# ── for people ────────────────────────────────────────────────────────────────────────────────────────────────────


def text_report(question: Question, candidates: Sequence[Candidate], costs: Prices, *, every: bool) -> str:
    """Write the question, the table, the reasons why other candidates are missing, and what would be cheaper."""
    lines: list[Line] = [*_title(question, candidates[0], costs)]
    shown = _shown(question, candidates, every=every)
    if shown:
        lines += ["", *_table(shown)]
    fits = [c for c in candidates if c.verdict is Verdict.FITS]
    if left := sum(c not in shown for c in fits):
        lines.append(f"  not shown: {left} that fit; --gpus selects accelerators, --all shows every candidate")

    others = [c for c in candidates if c.verdict is not Verdict.FITS]
    explained = others if every or not any(c in shown for c in fits) or len(question.accelerators) <= _ROWS else []
    names_by_reason: dict[str, list[str]] = {}
    for candidate in explained or [c for c in shown if c.verdict is Verdict.DOES_NOT_FIT]:
        asked_length = candidate.budget.resolved.max_model_len
        starts = 0 < candidate.longest < asked_length and not candidate.is_refused
        longest = f"; up to {candidate.longest} tokens start" if starts else ""
        packed = f" ({candidate.kv_cache_dtype} KV cache)" if candidate.kv_cache_dtype != "auto" else ""
        name = f"{candidate.num_gpus} × {candidate.accelerator.name}{packed}"
        names_by_reason.setdefault(f"{why_not(candidate)}{longest}", []).append(name)
    if names_by_reason:
        lines += ["", "Why not:", *(f"  {', '.join(names)}: {reason}" for reason, names in names_by_reason.items())]
    if rest := sum(c.verdict not in _SHOWN for c in others if c not in explained and c not in shown):
        lines.append(f"  not shown: {rest} that do not fit; --all says why")

    if fits:
        best = fits[0]
        replicas = f"{best.replicas} replicas, each " if best.replicas > 1 else ""
        word = "Cheapest" if best.cost is not None else "Fewest GPUs"
        lines += ["", f"{word}: {best.num_gpus} × {best.accelerator.name}: {replicas}{_flags(best)}"]
    lines += (f"  {hint}" for hint in hints(question, candidates))
    if any(c.verdict is Verdict.DOES_NOT_FIT for c in explained):
        lines.append(f"  {HOST_MEMORY}")
    return text_of(lines)


def _title(question: Question, candidate: Candidate, costs: Prices) -> Iterator[str]:
    request, settings, workload = question.request, question.request.settings, question.request.workload
    # An architecture without a formula may have no length of its own.
    has_length = settings.max_model_len or candidate.verdict is not Verdict.UNKNOWN or request.shape.max_model_len
    length = str(candidate.budget.resolved.max_model_len) if has_length else "unknown"
    if settings.max_model_len == AUTO_MAX_MODEL_LEN:
        length = "auto"
    pinned = ", capacity Pinned" if request.capacity is Capacity.PINNED else ""
    yield f"{request.shape.name}, vLLM {request.vllm_version}, max_model_len {length}{pinned}"
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


def _shown(question: Question, candidates: Sequence[Candidate], *, every: bool) -> list[Candidate]:
    """Choose the cheapest candidates that fit, and those that may fit for less; for Startup, all that start with some length."""
    works = [c for c in candidates if c.verdict in _SHOWN]
    if every:
        return works
    if question.request.guarantee is Guarantee.STARTUP:
        return works + [c for c in candidates if c not in works and c.longest and not c.is_refused]
    fits = [c for c in works if c.verdict is Verdict.FITS][:_ROWS]
    return fits + (cheaper_perhaps(fits[0], works) if fits else works)[:_ROWS]


def _table(candidates: Sequence[Candidate]) -> Iterator[Line]:
    rows = [_HEADER]
    for candidate in candidates:
        cost, parallelism, budget = candidate.cost, candidate.parallelism, candidate.budget
        times = f"{candidate.replicas} × " if candidate.replicas > 1 else ""
        stages = f" pp{parallelism.pipeline}" if parallelism.pipeline > 1 else ""
        headroom = "-"
        if budget.headroom is not None and budget.headroom_shares is not None:
            share = round(float(budget.headroom_shares[1]) * 100)
            headroom = f"{budget.headroom.expected / GIB:.2f} GiB {share:>4} %"
        rows.append((
            "-" if cost is None else f"{float(cost):.2f}",
            str(candidate.num_gpus),
            candidate.accelerator.name,
            f"{times}tp{parallelism.tensor}{stages}",
            candidate.kv_cache_dtype,
            candidate.verdict.value,
            headroom,
            f"{times}{float(candidate.full_requests):.1f}",
            str(candidate.longest or "-"),
        ))  # fmt: skip
    header, *lines = table(rows, right=(0, 1, 6, 7, 8))
    yield f"  {header}"
    for line, candidate in zip(lines, candidates, strict=True):
        before, word, after = line.partition(candidate.verdict.value)
        yield f"  {before}", Styled(text=word, colour=_COLOURS[candidate.verdict]), after


def _flags(candidate: Candidate) -> str:
    """Return the settings that the search chose, as vLLM's flags."""
    settings, parallelism = candidate.budget.request.settings, candidate.parallelism
    chosen: dict[str, int | str] = {"tensor-parallel-size": parallelism.tensor}
    if parallelism.pipeline > 1:
        chosen["pipeline-parallel-size"] = parallelism.pipeline
    chosen["max-model-len"] = candidate.budget.resolved.max_model_len
    if settings.max_num_seqs:
        chosen["max-num-seqs"] = settings.max_num_seqs
    if settings.kv_cache_dtype != "auto":
        chosen["kv-cache-dtype"] = settings.kv_cache_dtype
    chosen |= {name.replace("_", "-"): value for name, value in pinned_option(candidate.budget).items()}
    return " ".join(f"--{name} {value}" for name, value in chosen.items())


# ── for programs ──────────────────────────────────────────────────────────────────────────────────────────────────


def json_report(question: Question, candidates: Sequence[Candidate], costs: Prices) -> str:
    """Write everything that the table is made from; a figure that is not known is null."""
    request = question.request
    answer = {
        "question": {
            "model": request.shape.name,
            "vllm_version": request.vllm_version,
            "guarantee": request.guarantee.value,
            "concurrency": question.concurrency,
            "max_gpus": question.max_gpus,
            "kv_cache_dtypes": list(question.kv_cache_dtypes),
            "capacity": request.capacity.value,
        },
        "prices": {"currency": costs.currency, "remark": costs.remark},
        "candidates": [_candidate(candidate) for candidate in candidates],
        "hints": list(hints(question, candidates)),
        "findings": [finding_json(finding) for finding in question.findings],
    }
    return inert_json(answer, indent=2)


def csv_report(candidates: Sequence[Candidate]) -> str:
    """Write one row per candidate; an interval has three columns, which are empty where it is not known."""
    rows: list[Json] = []
    for candidate in candidates:
        row: Json = {}
        for key, value in _candidate(candidate).items():
            row |= {f"{key}_{end}": value and value[end] for end in _ENDS} if key in _INTERVALS else {key: value}
        rows.append(row)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(inert_values, rows))
    return text.getvalue().rstrip("\n")


def _candidate(candidate: Candidate) -> Json:
    budget, parallelism = candidate.budget, candidate.parallelism
    engines, part = candidate.on_one_gpu
    return {
        "accelerator": candidate.accelerator.name,
        "verdict": candidate.verdict.value,
        "reason": why_not(candidate),
        "num_gpus": candidate.num_gpus,
        "replicas": candidate.replicas,
        "tensor_parallel_size": parallelism.tensor,
        "pipeline_parallel_size": parallelism.pipeline,
        "kv_cache_dtype": candidate.kv_cache_dtype,
        "max_model_len": budget.resolved.max_model_len,
        "max_num_seqs": budget.resolved.max_num_seqs,
        "price_per_gpu_hour": _number(candidate.price),
        "cost_per_hour": _number(candidate.cost),
        "engines_per_gpu": engines or None,
        "gpu_memory_utilization_of_each": _number(part),
        "requests_per_replica": candidate.share,
        "requests_that_surely_fit_a_replica": candidate.surely,
        "full_requests_per_replica": round(float(candidate.full_requests), 2),
        "max_model_len_that_surely_fits": candidate.longest,
        "demand_bytes": budget.demand_bytes,
        "available_kv_cache_bytes": _interval(budget.tightest.available if budget.tightest else None),
        "headroom_bytes": _interval(budget.headroom),
        "pinned_blocks": budget.pin.num_blocks if budget.pin else None,
    }


def _number(value: Fraction | None) -> float | None:
    return None if value is None else round(float(value), 4)


def _interval(interval: Interval | None) -> Json | None:
    return {"low": interval.low, "expected": interval.expected, "high": interval.high} if interval else None
