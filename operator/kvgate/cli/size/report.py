"""The answer of `kvgate size`: a table for people, JSON and CSV for programs."""

import csv
import io
from collections.abc import Iterator, Sequence
from fractions import Fraction
from typing import Any

from msgspec import Struct, to_builtins

from kvgate import catalogue
from kvgate.budget import AUTO_MAX_MODEL_LEN, Capacity, Guarantee, Verdict
from kvgate.budget.answers.figures import figures_of, head_of
from kvgate.budget.answers.sharing import least_cache
from kvgate.budget.ground.units import GIB, format_gib
from kvgate.catalogue.prices import Prices
from kvgate.cli import assessment_json as made
from kvgate.cli.reports.answer_records import CandidateRecord, LeftOut, PricesRecord, QuestionRecord, SizeRecord
from kvgate.cli.reports.engine_records import SCHEMA_VERSION
from kvgate.cli.terminal import COLOUR_OF, Line, Styled, folded, table, text_of, width_of_terminal
from kvgate.findings.finding import Severity
from kvgate.judgement.assess import takes_cache_bytes
from kvgate.judgement.summary import least_cache_text, verdict_text
from kvgate.planning.candidate import MANY_ENGINES, Candidate, why_not
from kvgate.planning.request_lengths import notes
from kvgate.planning.size import (
    HOST_MEMORY,
    Question,
    cache_of_requests,
    cheaper_perhaps,
    decode_bounds,
    hints,
    requests_held,
    usual,
)
from kvgate.text.inert import inert_json, inert_values
from kvgate.vllm.values import UnusableValue

_ROWS = 10
"""Number of candidates that fit and are shown without --all."""
_HEADROOM, _REQUESTS, _LONGEST = map(head_of, ("headroom_bytes", "full_length_requests", "max_model_len_that_fits"))
_HEADER = ("#", "PER HOUR", "GPUS", "ACCELERATOR", "ENGINES", "KV CACHE", "VERDICT", _HEADROOM, _REQUESTS, _LONGEST)
_SHOWN = (Verdict.FITS, Verdict.MAY_NOT_FIT)
_INTERVALS = ("available_kv_cache_bytes", "headroom_bytes", "gpu_memory_left_bytes")
_ENDS = ("low", "expected", "high")


class Found(Struct, frozen=True, kw_only=True):
    """The answer of the search, and what was left out of it."""

    question: Question
    candidates: tuple[Candidate, ...]
    every: bool
    num_slices: int
    """Slices of GPUs that were not searched."""
    num_many: int
    """Candidates of many engines that fit."""


def found_of(question: Question, candidates: Sequence[Candidate], *, every: bool, is_named: bool) -> Found:
    """Leave out what a person would not build, and count it; `is_named` where the user says which accelerators are meant."""
    kept = tuple(candidates) if every else usual(candidates)
    slices = 0 if every or is_named else sum(accelerator.is_slice for accelerator in catalogue.accelerators())
    return Found(
        question=question, candidates=kept, every=every, num_slices=slices, num_many=len(candidates) - len(kept)
    )


# ── for people ────────────────────────────────────────────────────────────────────────────────────────────────────


def text_report(found: Found, costs: Prices, *, choose: int | None) -> str:
    """Write the question, the table, the reasons why other candidates are missing, what one row holds, and what would be cheaper."""
    question, candidates, every = found.question, found.candidates, found.every
    lines: list[Line] = [*_title(question, candidates[0], costs)]
    shown = rows_of(found)
    if shown:
        lines += ["", *_table(shown)]
    fits = [c for c in candidates if c.verdict is Verdict.FITS]
    if left := sum(c not in shown for c in fits):
        lines.append(f"  not shown: {left} that fit; --gpus selects accelerators, --all shows every candidate")
    slices = f"{found.num_slices} slices of GPUs (MIG)" if found.num_slices else ""
    many = f"{found.num_many} of more than {MANY_ENGINES} engines" if found.num_many else ""
    if slices or many:
        lines.append(f"  left out: {', '.join(filter(None, (slices, many)))}; --all shows them")

    others = [c for c in candidates if c.verdict is not Verdict.FITS]
    explained = others if every or not any(c in shown for c in fits) or len(question.accelerators) <= _ROWS else []
    lines += _reasons(explained or [c for c in shown if c.verdict is Verdict.DOES_NOT_FIT])
    if rest := sum(c.verdict not in _SHOWN for c in others if c not in explained and c not in shown):
        lines.append(f"  not shown: {rest} that do not fit; --all says why")

    if choose or fits:
        best = chosen(found, choose)
        replicas = f"{best.replicas} replicas, each " if best.replicas > 1 else ""
        word = "Cheapest" if best.cost is not None else "Fewest GPUs"
        if question.fills:
            word += " per request"
        word = f"Row {choose}" if choose else word
        flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in best.options.items())
        lines += ["", f"{word}: {best.num_gpus} × {best.accelerator.name}: {replicas}{flags}"]
        lines.append(f"  {best.verdict.value}: {verdict_text(best.verdict, best.budget)}")
    lines += (f"  {hint}" for hint in hints(question, candidates))
    if any(c.verdict is Verdict.DOES_NOT_FIT for c in explained):
        lines.append(f"  {HOST_MEMORY}")
    if (choose or fits) and chosen(found, choose).verdict is Verdict.FITS:
        lines += ["", *_load(question, chosen(found, choose))]
    return text_of(folded(lines, width_of_terminal()))


def _reasons(candidates: Sequence[Candidate]) -> Iterator[Line]:
    """Yield why candidates do not fit, those of one reason on one line; nothing where there are none."""
    names_by_reason: dict[str, list[str]] = {}
    for candidate in candidates:
        asked_length = candidate.budget.resolved.max_model_len
        starts = 0 < candidate.longest < asked_length and not candidate.is_refused
        longest = f"; up to {candidate.longest} tokens start" if starts else ""
        packed = f" ({candidate.kv_cache_dtype} KV cache)" if candidate.kv_cache_dtype != "auto" else ""
        name = f"{candidate.num_gpus} × {candidate.accelerator.name}{packed}"
        names_by_reason.setdefault(f"{why_not(candidate)}{longest}", []).append(name)
    if names_by_reason:
        yield from ("", "Why not:")
    yield from (f"  {', '.join(names)}: {reason}" for reason, names in names_by_reason.items())


def chosen(found: Found, choose: int | None) -> Candidate:
    """Return the candidate of a row of the table; the first that fits without a number. Raises UnusableValue."""
    shown = rows_of(found)
    if choose is None:
        fits = (candidate for candidate in found.candidates if candidate.verdict is Verdict.FITS)
        first = next(fits, shown[0] if shown else None)
        if first is None:
            raise UnusableValue(
                "no candidate fits, so there is nothing to choose; kvgate size without -o yaml says why not"
            )
        return first
    if not 1 <= choose <= len(shown):
        rows = f"it has the rows 1 to {len(shown)}" if shown else "it has none"
        raise UnusableValue(f"--choose is {choose}; write the number of a row of the table: {rows}")
    return shown[choose - 1]


def _load(question: Question, candidate: Candidate) -> Iterator[Line]:
    """Say what the engines hold, that this counts memory only, and how fast the memory would let them decode."""
    held, accelerator, parallelism = requests_held(candidate), candidate.accelerator, candidate.parallelism
    within = max(1, question.gpus_of(accelerator) // parallelism.num_gpus)
    cut = f"tp{parallelism.tensor}" + (f" pp{parallelism.pipeline}" if parallelism.pipeline > 1 else "")
    needs = "" if candidate.engine.guarantee is Guarantee.STARTUP else f" (--max-num-seqs {held})"
    workload = candidate.budget.request.workload
    tokens = str(candidate.budget.resolved.max_model_len)
    if question.request.guarantee is Guarantee.WORKLOAD and workload is not None:
        tokens = f"{'up to ' * bool(workload.lengths)}{workload.prompt_tokens} + {workload.output_tokens}"
    yield f"One engine ({cut}) holds {held} requests of {tokens} tokens at the same time{needs}"
    for engines in sorted({candidate.replicas, within} - {1}):
        yield f"{engines} engines on {engines * parallelism.num_gpus} GPUs hold {engines * held}"
    if least := least_cache_text(candidate.budget):
        yield least
    yield from _in_the_cache(candidate)
    bounds = decode_bounds(candidate, held)
    if not bounds:
        reason = f"the memory bandwidth of {accelerator.name} is not known"
        if accelerator.memory_bandwidth_bytes_per_second is not None:
            reason = "a part of the model has no formula"
        yield f"These numbers count memory, not throughput; no bound of the decode speed: {reason}"
        return
    evenly = ", and experts are chosen evenly" if candidate.budget.request.shape.is_sparse else ""
    bandwidth = accelerator.memory_bandwidth_bytes_per_second or 0
    yield "These numbers count memory, not throughput. The decode speed of one engine has an upper bound, which is no prediction:"
    yield f"the memory bandwidth, {bandwidth / 1e9:g} GB/s of a GPU, ÷ the bytes that the GPU reads for a step."
    yield f"Each sequence has {bounds[0].sequence_tokens} tokens in the cache{evenly}."
    yield ""
    header = ("BATCH", "WEIGHTS READ", "KV CACHE READ", "TOKENS/S OF ALL", "TOKENS/S OF EACH")
    rows = [
        (
            str(bound.batch),
            f"{bound.weights_bytes / GIB:.2f} GiB",
            f"{bound.kv_cache_bytes / GIB:.2f} GiB",
            f"≤ {bound.tokens_per_second}",
            f"≤ {bound.tokens_per_second / bound.batch:.0f}",
        )
        for bound in bounds
    ]
    yield from (f"  {line}" for line in table([header, *rows], right=range(len(header)), width=_room()))


def _in_the_cache(candidate: Candidate) -> Iterator[str]:
    """Say what one request takes, what a shared prefix saves, and how many tokens each tier keeps."""
    if (cached := cache_of_requests(candidate)) is None:
        return
    saved = ""
    if cached.saved_bytes:
        saved = f"; the shared prefix is held once, which saves {format_gib(cached.saved_bytes)} of each GPU"
    yield f"A request of {cached.tokens} tokens takes {cached.blocks} blocks{saved}"
    yield (
        f"The GPUs of an engine keep {cached.gpu_tokens} tokens or more; each GiB of host memory (--kv-offloading-size) or disk "
        f"{cached.tokens_per_gib} more for later requests"
    )
    if (bound := cached.prefill) is None:
        yield f"No bound of the time to the first token: the peak FLOPS of {candidate.accelerator.name} in this format are not known"
        return
    yield (
        f"The first token of a prompt of {bound.prompt_tokens} tokens comes after {bound.seconds:.2g} s or more, a lower bound: 2 × "
        f"{bound.parameters / 1e9:.1f} G parameters × tokens ÷ {bound.peak_flops / 1e12:g} TFLOPS "
        f"of {bound.num_gpus} GPU{'s' if bound.num_gpus > 1 else ''}"
    )
    yield (
        f"A tier that gives an engine {(cached.reload_bytes_per_second or 0) / 1e9:.2g} GB/s or more is surely faster than computing its "
        "tokens again, a bound by the same peak"
    )


def _title(question: Question, candidate: Candidate, costs: Prices) -> Iterator[str]:
    request, settings, workload = question.request, question.request.settings, question.request.workload
    # An architecture without a formula may have no length of its own.
    has_length = settings.max_model_len or candidate.verdict is not Verdict.UNKNOWN or request.shape.max_model_len
    length = str(candidate.budget.resolved.max_model_len) if has_length else "unknown"
    if settings.max_model_len == AUTO_MAX_MODEL_LEN:
        length = "auto"
    pinned = ", capacity Pinned" if request.capacity is Capacity.PINNED else ""
    yield f"{request.shape.name}, vLLM {request.vllm_version}, max_model_len {length}{pinned}"
    guarantee = f"{candidate.assessment.decides} decides (guarantee {request.guarantee.value}):"
    if request.guarantee is Guarantee.WORKLOAD and workload:
        shared = f" ({workload.shared_prefix_tokens} of them shared)" if workload.shared_prefix_tokens else ""
        up_to = "up to " if workload.lengths else ""
        assumed = " (the output is assumed: --output-tokens)" if workload.is_output_assumed else ""
        tokens = f"requests of {up_to}{workload.prompt_tokens} + {workload.output_tokens} tokens{shared}{assumed} at the same time"
        yield (
            f"{guarantee} as many {tokens} as the GPUs hold"
            if question.fills
            else f"{guarantee} {question.concurrency} {tokens}"
        )
        yield from (note for *_, note in notes(workload))
    elif request.guarantee is Guarantee.FULL_CONTEXT:
        yield f"{guarantee} {question.concurrency} requests of max_model_len at the same time"
    else:
        yield f"{guarantee} one request of max_model_len, no load is promised"
        yield f"an engine holds {_REQUESTS} of them, and starts with up to {_LONGEST} tokens"
    yield f"prices in {costs.currency}: {costs.remark}"
    for finding in question.findings:
        if finding.severity is not Severity.INFO:
            yield f"{finding.severity.value} {finding.rule}: {finding.message}"


def rows_of(found: Found) -> list[Candidate]:
    """Choose the cheapest candidates that fit, and those that may fit for less; for Startup, all that may start. None that does not fit."""
    candidates = found.candidates
    works = [c for c in candidates if c.verdict in _SHOWN]
    if found.every or found.question.request.guarantee is Guarantee.STARTUP:
        return works
    fits = [c for c in works if c.verdict is Verdict.FITS][:_ROWS]
    return fits + (cheaper_perhaps(fits[0], works) if fits else works)[:_ROWS]


def _table(candidates: Sequence[Candidate]) -> Iterator[Line]:
    fills = any(candidate.fills for candidate in candidates)
    rows = [tuple(head_of("requests_held") if fills and name == _REQUESTS else name for name in _HEADER)]
    for number, candidate in enumerate(candidates, start=1):
        cost, parallelism, budget = candidate.cost, candidate.parallelism, candidate.budget
        times = f"{candidate.replicas} × " if candidate.replicas > 1 else ""
        stages = f" pp{parallelism.pipeline}" if parallelism.pipeline > 1 else ""
        headroom = "-"
        if budget.headroom is not None and budget.headroom_percent is not None:
            headroom = f"{budget.headroom.expected / GIB:.2f} GiB {budget.headroom_percent.expected:>4} %"
        rows.append((
            str(number),
            "-" if cost is None else f"{float(cost):.2f}",
            str(candidate.num_gpus),
            candidate.accelerator.name,
            f"{times}tp{parallelism.tensor}{stages}",
            candidate.kv_cache_dtype,
            candidate.verdict.value,
            headroom,
            f"{times}{candidate.surely}" if fills else f"{times}{float(candidate.full_requests):.1f}",
            str(candidate.longest or "-"),
        ))  # fmt: skip
    for line in table(rows, right=(0, 1, 2, 7, 8, 9), width=_room()):
        verdict = next((verdict for verdict in Verdict if verdict.value in line.split()), None)
        if verdict is None:
            yield f"  {line}"
            continue
        before, word, after = line.partition(verdict.value)
        yield f"  {before}", Styled(text=word, colour=COLOUR_OF[verdict]), after


def _room() -> int | None:
    """Columns for a table that is indented by two."""
    width = width_of_terminal()
    return width - 2 if width else None


# ── for programs ──────────────────────────────────────────────────────────────────────────────────────────────────


def json_report(found: Found, costs: Prices) -> str:
    """Write everything that the table is made from; a figure that is not known is null."""
    question, candidates, request = found.question, found.candidates, found.question.request
    record = SizeRecord(
        schemaVersion=SCHEMA_VERSION,
        question=QuestionRecord(
            model=request.shape.name,
            vllm_version=request.vllm_version,
            guarantee=request.guarantee.value,
            workload=None if question.fills else made.workload_record(request),
            concurrency=None if question.fills else question.concurrency,
            max_gpus=question.max_gpus,
            kv_cache_dtypes=tuple(question.kv_cache_dtypes),
            capacity=request.capacity.value,
        ),
        prices=PricesRecord(currency=costs.currency, remark=costs.remark),
        counts="memory, not throughput; decode_bounds are upper bounds from memory bandwidth, not predictions",
        left_out=LeftOut(slices=found.num_slices, candidates_of_many_engines=found.num_many),
        candidates=tuple(_candidate(question, candidate) for candidate in candidates),
        hints=tuple(hints(question, candidates)),
        findings=tuple(map(made.finding_record, question.findings)),
        assumed=made.assumed_records(request, question.findings),
        provenance=made.provenance_records(candidates[0].budget, question.findings),
    )
    return inert_json(to_builtins(record), indent=2)


def csv_report(found: Found) -> str:
    """Write one row per candidate; an interval has three columns, which are empty where it is not known."""
    rows: list[dict[str, Any]] = []
    for candidate in found.candidates:
        row: dict[str, Any] = {}
        for key, value in to_builtins(_candidate(found.question, candidate)).items():
            if key in ("decode_bounds", "starts", "holds", "ledger"):
                continue
            row |= {f"{key}_{end}": value and value[end] for end in _ENDS} if key in _INTERVALS else {key: value}
        rows.append(row)
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(inert_values, rows))
    return text.getvalue().rstrip("\n")


def _candidate(question: Question, candidate: Candidate) -> CandidateRecord:
    budget, parallelism, of = candidate.budget, candidate.parallelism, figures_of(candidate.budget)
    engines, part = candidate.on_one_gpu
    held = requests_held(candidate) if candidate.verdict is Verdict.FITS else 0
    bounds = decode_bounds(candidate, held) if candidate.verdict in _SHOWN else ()
    least = least_cache(budget) if takes_cache_bytes(budget.request) else None
    cached = cache_of_requests(candidate) if candidate.verdict in _SHOWN else None
    return CandidateRecord(
        accelerator=candidate.accelerator.name,
        **{**made.answers_of(candidate.assessment), "verdict": candidate.verdict},
        headroom_ratio=of.expected("headroom_ratio"),
        reason=why_not(candidate),
        num_gpus=candidate.num_gpus,
        replicas=candidate.replicas,
        tensor_parallel_size=parallelism.tensor,
        pipeline_parallel_size=parallelism.pipeline,
        kv_cache_dtype=candidate.kv_cache_dtype,
        max_model_len=budget.resolved.max_model_len,
        max_num_seqs=budget.resolved.max_num_seqs,
        price_per_gpu_hour=_number(candidate.price),
        cost_per_hour=_number(candidate.cost),
        engines_per_gpu=engines or None,
        gpu_memory_utilization_of_each=_number(part),
        requests_per_replica=candidate.share,
        requests_that_surely_fit_a_replica=candidate.surely,
        requests_that_one_engine_holds=held,
        engines_within_max_gpus=question.gpus_of(candidate.accelerator) // parallelism.num_gpus,
        full_requests_per_replica=round(float(candidate.full_requests), 2),
        max_model_len_that_surely_fits=candidate.longest,
        auto_max_model_len=of["auto_max_model_len"],
        demand_bytes=of["demand_bytes"],
        available_kv_cache_bytes=of["available_kv_cache_bytes"],
        headroom_bytes=of["headroom_bytes"],
        memory_bandwidth_bytes_per_second=candidate.accelerator.memory_bandwidth_bytes_per_second,
        decode_tokens_per_second_at_most=bounds[-1].tokens_per_second if bounds else None,
        decode_bounds=bounds,
        first_token_seconds_at_least=cached.prefill.seconds if cached and cached.prefill else None,
        reload_bytes_per_second_break_even=cached.reload_bytes_per_second if cached else None,
        pinned_blocks=of["pinned_blocks"],
        kv_cache_memory_bytes_needed=least.cache_memory_bytes if least else None,
        gpu_memory_left_bytes=least.left if least else None,
        ledger=dict(of.ledger.terms) if of.ledger else {},
    )


def _number(value: Fraction | None) -> float | None:
    return None if value is None else round(float(value), 4)
