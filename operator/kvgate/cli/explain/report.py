"""The answer of `kvgate explain` about one request: the ledger of one GPU, or the views of it that are requested."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import floor
from types import MappingProxyType
from typing import Any

from msgspec import to_builtins
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import (
    PINNED_SAFETY_BYTES,
    Alternative,
    Budget,
    Calibration,
    Interval,
    KVCache,
    Ledger,
    Most,
)
from kvgate.budget.answers.figures import host_label, label_of
from kvgate.budget.answers.pod_ledger import pod_ledger
from kvgate.budget.ground.units import GIB, format_gib
from kvgate.budget.host.memory import HostLedger
from kvgate.cli.exits import Exit, exit_of
from kvgate.cli.gpu_names import on_gpus
from kvgate.cli.known_models import ModelOptions
from kvgate.cli.model_names import resolved
from kvgate.cli.shared_options import given_settings
from kvgate.cli.stated_workload import promise_of
from kvgate.cli.terminal import COLOUR_OF, Line, Styled, folded, table, text_of, width_of_terminal
from kvgate.cli.workload_options import taken_workload
from kvgate.explained.textbook import textbook_of
from kvgate.judgement.assess import is_about_bytes, judge
from kvgate.judgement.assessment import WORST_FIRST, Assessment
from kvgate.judgement.summary import (
    alternatives_text,
    answer_text,
    correction_text,
    least_cache_text,
    most_text,
    share_text,
)
from kvgate.judgement.what_if import assess_request
from kvgate.text.inert import inert_json
from kvgate.vllm.arguments import option_name

_FORMULAS = {
    "weights": (
        "tensors as loaded",
        {"layers": "{} layers", "quantization": "{}", "tensor_parallel_size": "tp {}", "draft": "draft {}"},
    ),
    "peak_activation": (
        "profile run",
        {"max_num_batched_tokens": "T {}", "sampler_rows": "S {}", "vocabulary": "V {}", "hidden_size": "H {}"},
    ),
    "non_torch": ("driver and links", {"tensor_parallel_size": "tp {}", "links": "{}"}),
    "cuda_graph": (
        "captured graphs",
        {"piecewise_graphs": "{} piecewise", "full_graphs": "{} full", "layers": "{} layers"},
    ),
    "lora": ("adapters", {"max_loras": "{} slots", "max_lora_rank": "rank {}", "tensor_parallel_size": "tp {}"}),
}
"""Term of the ledger → a short name of its formula, and the inputs that people know; `--why` shows the formula itself."""


def answer(
    assessment: Assessment,
    output: str,
    *,
    why: str | None,
    lengths: tuple[int, ...] | None,
    facts: Mapping[str, Any] = MappingProxyType({}),
    keep: frozenset[str] = frozenset(),
    maximize: str | None = None,
) -> str:
    """Write the answer as `text`, `json` or `jsonl`; in text, a requested view replaces the ledger.

    `facts` are the places of facts that a command line names, as `sources_of_facts` takes them. `why` names one figure, `lengths` are the
    requests to compare allocations for; an empty tuple stands for lengths that kvgate chooses. Raises UnusableValue where there is no such
    figure or a length is above max_model_len.
    """
    if output == "text":
        # Where nothing is known about a request, the report says why.
        has_views = assessment.budget is not None and (why is not None or lengths is not None)
        report = () if has_views else _report(assessment, keep, maximize)
        lines = (*report, *view_lines(assessment.budget, why=why, lengths=lengths))
        return text_of(folded(lines, width_of_terminal()))
    views = added_views(assessment.budget, why=why, lengths=lengths)
    from kvgate.cli import assessment_json as made
    from kvgate.cli.provenance import sources_of_facts

    found = sources_of_facts(assessment.budget, released="; ".join(made.released(assessment.findings)), **facts)
    changes = list(map(made.alternative_record, _alternatives(assessment, keep)))
    if (budget := assessment.budget) and maximize:
        views["maximized"] = made.maximum_record(maximize, _most(budget, maximize, keep))
    provenance = list(map(made.provenance_record, found))
    record = made.explain_record(assessment, provenance=provenance, alternatives=changes, **views)
    return inert_json(to_builtins(record), indent=2 if output == "json" else None)


def explain_flags(
    given: dict[str, Any],
    options: ModelOptions,
    output: str,
    *,
    guarantee: str | None,
    starts: Calibration,
    place: str,
    **views: Any,
) -> tuple[str, Exit]:
    """Return the answer about an engine that flags describe, one ledger for each GPU that they name, and the exit code.

    `starts` are the observed starts, and `place` is their file; `views` are options of `answer`. Raises UnusableValue.
    """
    workload = taken_workload(given)
    settings = {"usage_context": "server", **given_settings(given)}  # its options are those of `vllm serve`
    promise = promise_of(guarantee, workload, settings)
    settings, models = resolved(settings, options)
    question: dict[str, Any] = {"guarantee": promise, "workload": workload, "calibration": starts, "models": models}
    assessments = [assess_request(each, among=meant, **question) for each, meant in on_gpus(settings)]
    facts: dict[str, Any] = {"starts": place, "models": models}
    if modules := settings.get("lora_modules"):
        from kvgate.judgement.adapters import MOST_ADAPTERS, named_adapters

        facts["adapters"] = list(named_adapters(modules))[:MOST_ADAPTERS]
    texts = [answer(each, output, facts=facts, **views) for each in assessments]
    between = "\n" if output == "jsonl" else "\n\n"
    text = f"[{','.join(texts)}]" if output == "json" and len(texts) > 1 else between.join(texts)
    worst = min((each.verdict for each in assessments), key=WORST_FIRST.index)
    return text, exit_of(worst, is_refusal=any(each.is_refusal for each in assessments))


def _alternatives(assessment: Assessment, keep: frozenset[str]) -> Sequence[Alternative]:
    """Return the changes that would fit, where it is bytes that lack."""
    budget = assessment.budget
    if budget is None or not is_about_bytes(assessment):
        return ()
    from kvgate.judgement.advisor import EVERYTHING, advice  # for answers that do not fit

    return advice(budget.request, replace(EVERYTHING, keep=keep))


def _most(budget: Budget, what: str, keep: frozenset[str]) -> Most:
    from kvgate.judgement.advisor import EVERYTHING, most

    return most(budget.request, what, replace(EVERYTHING, keep=keep))


def added_views(budget: Budget | None, *, why: str | None, lengths: tuple[int, ...] | None) -> dict[str, object]:
    """Return the views that are requested, under their keys. Raises UnusableValue."""
    if why is None and lengths is None:
        return {}
    from kvgate.cli.explain.views import paging_json, why_json

    return {
        **({"why": why_json(budget, why)} if why is not None else {}),
        **({"paging": paging_json(budget, lengths)} if lengths is not None else {}),
    }


def view_lines(budget: Budget | None, *, why: str | None, lengths: tuple[int, ...] | None) -> Iterator[Line]:
    """Return the question, then the views of it that are requested; nothing where none is. Raises UnusableValue."""
    if why is None and lengths is None:
        return
    from kvgate.cli.explain.views import paging_lines, why_lines

    yield from _title(budget) if budget else ()
    if why is not None:
        yield from ("", *why_lines(budget, why))
    if lengths is not None:
        yield from ("", *paging_lines(budget, lengths))


def _report(assessment: Assessment, keep: frozenset[str], maximize: str | None) -> Iterator[Line]:
    """Verdict with both answers, ledger, findings, the changes that would fit, and the most that settings make room for."""
    budget = assessment.budget
    shown = Styled(text=assessment.verdict.value, colour=COLOUR_OF[assessment.verdict], is_bold=True)
    yield shown, f": {answer_text(assessment)}"
    if budget is not None:
        yield from _on_each(assessment, budget)
        yield from ledger_lines(budget)
        if least := least_cache_text(budget):
            yield f"  {least}"
        workload = budget.request.promised_workload
        if workload and (workload.lengths or workload.average_concurrency is not None):
            from kvgate.planning.request_lengths import notes

            yield from (f"  {note}" for *_, note in notes(workload))
    for finding in assessment.findings:
        yield f"  {finding.severity.value} {finding.rule}: {finding.message}"
        yield from (f"      {line}" for line in finding.remedy_lines)
    if found := _alternatives(assessment, keep):
        yield f"  would fit: {alternatives_text(found, naming=option_name)}"
        if budget and any(each.field == "gpu_memory_utilization" for one in found for each in one.changes):
            yield f"    {share_text(budget)}"
    if maximize and budget is not None:
        yield f"  {most_text(_most(budget, maximize, keep), maximize)}"


def _on_each(assessment: Assessment, budget: Budget) -> Iterator[str]:
    """Return a table of the GPUs that a name means; nothing where one is named, or none."""
    found = assessment.on_gpus
    if found is None or found.is_whole:
        return
    rows = [("GPU", "MEMORY", "VERDICT", "KV CACHE", "REQUESTS AT ONCE")]
    for name in (each.name for each in found.verdicts):
        accelerator = catalogue.find_accelerator(name)
        judged = judge(replace(budget.request, accelerator=accelerator)) if accelerator else None
        if accelerator is None or judged is None or judged.budget is None:
            continue
        cache, stage, pool = judged.budget.kv_cache, judged.budget.tightest, judged.budget.num_blocks
        available = format_gib(stage.available.expected) if stage else "-"
        held = floor(cache.max_concurrency(pool.expected) * 10) / 10 if cache and pool and cache.groups else None
        requests = "-" if held is None else f"{held:.1f}"
        rows.append((name, format_gib(accelerator.memory_bytes), judged.verdict.value, available, requests))
    yield ""
    yield from (f"  {line}" for line in table(rows))
    yield ""


def ledger_lines(budget: Budget) -> Iterator[Line]:
    """Return title, ledger and cache."""
    yield from _title(budget)
    if budget.tightest and budget.tightest.ledger:
        yield from _ledger(budget.tightest.ledger)
    if budget.tightest and budget.request.settings.gives_cache_memory:
        yield _row("given instead", format_gib(budget.tightest.available.expected))
    if pinned := budget.pinned:
        forgone, safety = format_gib(pinned.forgone_bytes), format_gib(PINNED_SAFETY_BYTES)
        low = format_gib(pinned.profiled_bytes.low)
        remark = f"low end {low} − {safety}, in whole blocks; {forgone} less than expected"
        yield _row(label_of("pinned_bytes"), format_gib(pinned.kv_cache_bytes), remark)
    yield from _host(pod_ledger(budget))
    if budget.kv_cache is not None:
        yield from _cache(budget, budget.kv_cache)
    yield ""


def _title(budget: Budget) -> Iterator[str]:
    request, parallelism = budget.request, budget.request.settings.parallelism
    gpus = f"{parallelism.num_gpus} × " if parallelism.num_gpus > 1 else ""
    yield f"{request.shape.name} on {gpus}{request.accelerator.name}, vLLM {request.vllm_version}"
    resolved = budget.resolved
    yield (
        f"max_model_len {resolved.max_model_len}, max_num_seqs {resolved.max_num_seqs}, "
        f"max_num_batched_tokens {resolved.max_num_batched_tokens}, kv_cache_dtype {request.settings.kv_cache_dtype}"
    )


def _row(name: str, figure: str, *remarks: str) -> str:
    return f"  {name:<22}{figure:>12}  {'  '.join(remarks)}".rstrip()


def _range(interval: Interval) -> str:
    return f"{interval.low / GIB:>6.2f} to {interval.high / GIB:>6.2f}"


def _ledger(ledger: Ledger) -> Iterator[str]:
    share = ledger.requested_bytes / ledger.total_bytes if ledger.total_bytes else 0.0
    yield ""
    yield _row(label_of("total_bytes"), format_gib(ledger.total_bytes))
    yield _row(
        label_of("requested_bytes"), format_gib(ledger.requested_bytes), f"total × gpu_memory_utilization {share:.2f}"
    )
    for line in ledger.lines:
        name, shown = _FORMULAS[line.name]
        inputs = ", ".join(shown[key].format(value) for key, value in line.inputs if key in shown and value != "none")
        formula = f"{name}: {inputs}" if inputs and line.amount.high else line.formula
        yield _row(
            f"− {label_of(line.name + '_bytes')}", format_gib(line.amount.expected), _range(line.amount), formula
        )
    available = ledger.available
    remark = correction_text(ledger.correction) if ledger.correction else "requested − all of these"
    yield _row(label_of("available_kv_cache_bytes"), format_gib(available.expected), _range(available), remark)
    for fact in (fact for line in ledger.lines for fact in line.facts):
        other = f"or {fact.other}: " if fact.other else ""
        yield _row(fact.name, fact.value, f"{other}{fact.why}")


_OF_EVERY_ENGINE = ("processes", "token_ids", "messages")
"""Terms of the host's ledger that alone need no line of their own."""


def _host(ledger: HostLedger) -> Iterator[str]:
    """Return the memory of the host that one pod of the engine takes, and what of it lies in /dev/shm."""
    found, needs, shared = ledger.processes, ledger.needs, ledger.shared_needs
    counts = ((found.servers, "API server"), (found.engines, "engine"), (found.ranks, "rank"))
    words = ", ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts)
    wanted = "".join(f"; {format_gib(line.amount.expected)} of page cache are wanted" for line in ledger.wanted)
    yield _row(label_of("host_memory_bytes"), format_gib(needs.expected), _range(needs), f"{words}{wanted}")
    for line in ledger.lines if any(line.name not in _OF_EVERY_ENGINE for line in ledger.lines) else ():
        yield _row(f"  {host_label(line.name)}", format_gib(line.amount.expected), _range(line.amount))
    if shared.high:
        yield _row(
            label_of("shared_memory_bytes"), format_gib(shared.expected), _range(shared), "its size should be no less"
        )


def _cache(budget: Budget, kv_cache: KVCache) -> Iterator[str]:
    """Return the kinds of cache, the blocks, and the reasons why the textbook formula does not hold here."""
    yield ""
    yield f"  {'KV cache':<26}{'layers':>8}{'block':>8}{'page bytes':>12}{'blocks of a request':>21}"
    # Groups that are equal share their lines.
    groups = Counter(tuple((spec, len(layers)) for spec, layers in group.parts) for group in kv_cache.groups)
    for parts, count in groups.items():
        times = f"{count} × " if count > 1 else ""
        needed = f"{times}{parts[0][0].blocks(kv_cache.reach)}"
        for spec, layers in parts:
            block, of_layers = spec.block_size or "-", f"{times}{layers}"
            yield f"  {spec.kind:<26}{of_layers:>8}{block:>8}{spec.page_size_bytes:>12}{needed:>21}".rstrip()
            needed = ""
    yield _row(label_of("bytes_per_block"), f"{kv_cache.bytes_per_block}", f"kv_cache_dtype {kv_cache.dtype.name}")
    request = f"{kv_cache.request_blocks} blocks of max_model_len tokens"
    yield _row(label_of("request_bytes"), format_gib(kv_cache.request_bytes), request)
    pool, textbook = budget.num_blocks, textbook_of(budget)
    if pool is not None:
        requests = f"{float(kv_cache.max_concurrency(pool.expected)):.2f}"
        yield _row(
            label_of("num_blocks"), f"{pool.expected}", f"{pool.low} to {pool.high}", "KV cache / bytes per block"
        )
        yield _row(label_of("full_length_requests"), requests, "blocks / those of a request")
        yield _row(
            label_of("capacity_tokens"), f"{kv_cache.num_tokens(pool.expected)}", "as vLLM logs the size of the cache"
        )
        if (length := budget.auto_lengths) is not None:
            workload = budget.request.promised_workload
            promised = max(budget.request.least_model_len or 0, workload.request_tokens if workload else 0)
            beside = f"tokens, of the model's {budget.auto_from}" + (f"; {promised} are promised" if promised else "")
            yield _row(label_of("auto_max_model_len"), f"{length.expected}", f"{length.low} to {length.high}", beside)
    if textbook is not None and textbook.reasons:
        comparison = textbook.comparison(kv_cache.request_bytes)
        yield ""
        yield f"  {comparison[0].upper()}{comparison[1:]}:"
        yield from (f"    {reason}" for reason in textbook.reasons)
