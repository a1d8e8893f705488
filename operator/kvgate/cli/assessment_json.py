"""An Assessment as the records of JSON: the same parts behind every door. What is not known is null."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import UNSET, convert, to_builtins
from msgspec.structs import asdict

from kvgate.budget import (
    COSTS,
    PINNED_SAFETY_BYTES,
    TOGETHER,
    Alternative,
    Budget,
    BudgetRequest,
    KnobChange,
    ModelShape,
    Most,
    Verdict,
)
from kvgate.budget.answers.figure_values import FiguresOfBudget
from kvgate.budget.answers.figures import FIGURES, figures_of
from kvgate.budget.host.settings import NO_HOST_SETTINGS, UNKNOWN_POD
from kvgate.cli.provenance import Provenance, sources_of_facts
from kvgate.cli.reports import engine_records as records
from kvgate.cli.reports.records import ExplainRecord
from kvgate.findings.finding import Finding
from kvgate.judgement.assess import field_name, pinned_option
from kvgate.judgement.assessment import NOT_JUDGED, Assessment, Confidence, Decision, Unjudged
from kvgate.judgement.gpus_in_words import sentence
from kvgate.judgement.summary import together_text
from kvgate.rules.facts import VERSION_ASSUMED

if TYPE_CHECKING:
    from kvgate.planning.sweep import Cell

_REQUEST_KEYS = {"accelerator": "gpu", "config": "model_config"}
"""Name of a field in the engine → its key in a request, where they differ."""
_Finding = TypeVar("_Finding", bound=records.PlainFinding)
_Ledger = TypeVar("_Ledger", bound=records.RequestLedger)
_Cache = TypeVar("_Cache", bound=records.RequestCache)


def request_answer(assessment: Assessment) -> records.RequestAnswer:
    """Return the answer to a line of --requests, without its id.

    `host_memory` is there where the request is about it: most of a million what-ifs are not.
    """
    budget = assessment.budget
    of = figures_of(budget) if budget else None
    return records.RequestAnswer(
        **answers_of(assessment),
        findings=tuple(map(finding_record, assessment.findings)),
        ledger=ledger_record(of, records.RequestLedger) if of else None,
        kv_cache=_cache_record(of, records.RequestCache) if of else None,
        host_memory=host_record(of) if of and is_about_host(of.budget) else UNSET,
        judged_on=(assessment.on_gpus.judged_on or UNSET) if assessment.on_gpus else UNSET,
    )


def to_json(assessment: Assessment) -> dict[str, Any]:
    answer: dict[str, Any] = to_builtins(request_answer(assessment))
    return answer


def answers_of(judged: Assessment | Cell) -> dict[str, Any]:
    """Return both answers, which of them decides, its verdict, and what follows from it: the fields of AnswersRecord."""
    return {
        "verdict": judged.verdict,
        "decides": judged.decides,
        "starts": judged.starts,
        "holds": judged.holds,
        "confidence": judged.confidence,
        "decision": decision_of(judged.verdict, is_refusal=judged.is_refusal),
    }


def decision_of(verdict: Verdict | Unjudged | None, *, is_refusal: bool) -> Decision | None:
    """Return what follows from the verdict on an engine that no policy decides about; None where there is none."""
    if verdict is None or verdict is NOT_JUDGED:
        return None
    fits = Decision.ADMIT if verdict is Verdict.FITS else Decision.ADMIT_WITH_WARNING
    return Decision.REFUSE if is_refusal else fits


def finding_record(finding: Finding, kind: type[_Finding] = records.PlainFinding, **place: Any) -> _Finding:  # type: ignore[assignment]
    """Return the five parts of a finding, and its place where it has one."""
    return kind(
        rule=finding.rule.id,
        severity=finding.severity.value,
        field=finding.field if place else _REQUEST_KEYS.get(finding.field, finding.field),
        message=finding.message,
        remediation=finding.remediation,
        **place,
    )


def ledger_record(of: FiguresOfBudget, kind: type[_Ledger]) -> _Ledger | None:
    """Return the ledger of the tightest stage, with every key and every interval where `kind` is LedgerRecord."""
    stage, ledger = of.budget.tightest, of.ledger
    if stage is None or ledger is None:
        return None
    found, terms = ledger.correction, dict(ledger.terms)
    values: dict[str, Any] = {f"{name}_bytes": term.expected for name, term in terms.items()}
    if ledger.host_bytes.high:
        values["host_bytes"], terms["host"] = ledger.host_bytes.expected, ledger.host_bytes
    if found is not None:
        values["calibration"] = records.CalibrationRecord(starts=found.starts, same_setting=found.is_same_setting)
    if issubclass(kind, records.LedgerRecord):
        values = {"lora_bytes": 0, "host_bytes": 0, "calibration": None, "terms": terms, **values}
    return kind(
        total_bytes=ledger.total_bytes,
        requested_bytes=ledger.requested_bytes,
        parameter_bytes=ledger.parameter_bytes,
        available_kv_cache_bytes=stage.available,
        circumstances={
            fact.name: (fact.value,) if fact.is_known else (fact.value, fact.other)
            for line in ledger.lines
            for fact in line.facts
        },
        **values,
    )


def _cache_record(of: FiguresOfBudget, kind: type[_Cache]) -> _Cache | None:
    """Return the KV cache, with the keys that `kvgate check` adds where `kind` is CacheRecord."""
    budget, kv_cache = of.budget, of.budget.kv_cache
    if kv_cache is None:
        return None
    values: dict[str, Any] = {}
    if issubclass(kind, records.CacheRecord):
        is_known = of["capacity_tokens"] is not None
        values = {key: of.expected(name) if is_known else None for key, name in _OF_CHECK.items()}
    # A state that is kept once has a block as long as the whole request, unless the user set mamba_block_size.
    whole = budget.request.settings.mamba_block_size or budget.resolved.max_model_len
    return kind(
        groups=tuple(
            records.GroupRecord(
                kind=group.spec.kind,
                num_layers=group.num_layers,
                block_size=group.spec.block_size or whole,
                page_size_bytes=group.page_size_bytes,
            )
            for group in kv_cache.groups
        ),
        bytes_per_block=kv_cache.bytes_per_block,
        num_blocks=of.expected("num_blocks"),
        num_tokens=of.expected("capacity_tokens"),
        max_concurrency=of.expected("full_length_requests"),
        headroom_ratio=of.expected("headroom_ratio"),
        request_blocks=kv_cache.request_blocks,
        request_bytes=kv_cache.request_bytes,
        max_model_len_that_fits=of["max_model_len_that_fits"],
        auto_max_model_len=of["auto_max_model_len"] or UNSET,
        pinned=_pinned_record(of) if budget.pin else UNSET,
        **values,
    )


def _pinned_record(of: FiguresOfBudget) -> records.PinnedRecord:
    return records.PinnedRecord(
        option=next(iter(pinned_option(of.budget).items()), None),
        num_blocks=of["pinned_blocks"],
        num_tokens=of["pinned_tokens"],
        kv_cache_bytes=of["pinned_bytes"],
        safety_bytes=PINNED_SAFETY_BYTES,
        profiled_kv_cache_bytes=of["profiled_kv_cache_bytes"],
        forgone_bytes=of["forgone_bytes"],
        forgone_tokens=of["forgone_tokens"],
    )


_OF_CHECK = {
    path.rpartition(".")[2]: name
    for name, row in FIGURES.items()
    for path in row.json
    if path.rpartition(".")[2] in {*records.CacheRecord.__struct_fields__} - {*records.RequestCache.__struct_fields__}
}
"""Key of the KV cache in `kvgate check` → the figure that it shows."""
_NO_CACHE: records.CacheRecord = convert(dict.fromkeys(_OF_CHECK), records.CacheRecord)


def gpus_of(assessment: Assessment | None) -> dict[str, Any]:
    """Return the verdict on each GPU that the engine may run on, and what one must have: fields of EngineRecord."""
    found = assessment.on_gpus if assessment else None
    if assessment is None or found is None:
        return {"accelerators": [], "needed": None}
    verb = "start" if assessment.decides == "starts" else "fit"
    listed = [records.AcceleratorRecord(**asdict(each), message=sentence(each, verb=verb)) for each in found.verdicts]
    return {"accelerators": listed, "needed": found.needed}


def judged_parts(assessment: Assessment | None, budget: Budget | None) -> dict[str, Any]:
    """Return the parts of an engine's record that are the same at every door; `budget` is that of what is rendered."""
    of = figures_of(budget) if budget else None
    return {
        "workload": workload_record(budget.request if budget else None),
        "kv_cache": (of and _cache_record(of, records.CacheRecord)) or _NO_CACHE,
        "ledger": ledger_record(of, records.LedgerRecord) if of else None,
        "host": host_record(of) if of and of.budget.stages else None,
        "decides": assessment.decides if assessment else None,
        "starts": assessment.starts if assessment else None,
        "holds": assessment.holds if assessment else None,
        "confidence": assessment.confidence if assessment else Confidence.KNOWN,
    }


def explain_record(assessment: Assessment, **more: Any) -> ExplainRecord:
    """Return the record of `kvgate check` for an engine that no file has, with the keys of an answer."""
    budget, on_gpus = assessment.budget, assessment.on_gpus
    nowhere = {"file": "", "line": 1, "column": 1, "path": ""}
    engine = None
    if budget:
        name = budget.request.accelerator.name
        engine = records.EngineRecord(
            model=budget.request.shape.name,
            accelerator=None if on_gpus else name,
            judged_on=name,
            vllm_version=budget.request.vllm_version,
            **gpus_of(assessment),
            **judged_settings(budget),
        )
    return ExplainRecord(
        file="",
        line=1,
        path="",
        rendered_by=None,
        rendered_line=None,
        platform="command line",
        kind="",
        namespace="",
        name="",
        engine=engine,
        guarantee=assessment.guarantee.value,
        **{**judged_parts(assessment, budget), **answers_of(assessment)},
        assumed=assumed_records(budget.request if budget else None, assessment.findings),
        findings=[finding_record(each, records.FindingRecord, **nowhere) for each in assessment.findings],
        ignored=[],
        admission=None,
        id=None,
        host_memory=host_record(figures_of(budget)) if budget and is_about_host(budget) else UNSET,
        error=None,
        **more,
    )


def is_about_host(budget: Budget) -> bool:
    return budget.request.pod != UNKNOWN_POD or budget.request.settings.host != NO_HOST_SETTINGS


def host_record(of: FiguresOfBudget) -> records.HostRecord:
    """Return the ledger of one pod. The page cache is wanted and no need."""
    return records.HostRecord(
        needs_bytes=of["host_memory_bytes"],
        shared_memory_bytes=of["shared_memory_bytes"],
        terms={line.name: line.amount for line in of.host.lines},
        page_cache_bytes=of["page_cache_bytes"],
    )


def judged_settings(budget: Budget) -> dict[str, Any]:
    """Return the settings as they are judged: the fields of EngineRecord that a budget decides."""
    parallel = budget.request.settings.parallelism
    return {
        "tensor_parallel_size": parallel.tensor,
        "pipeline_parallel_size": parallel.pipeline,
        "data_parallel_size": parallel.data,
        "max_model_len": budget.resolved.max_model_len,
        "max_num_seqs": budget.resolved.max_num_seqs,
        "kv_cache_dtype": budget.request.settings.kv_cache_dtype,
    }


def workload_record(request: BudgetRequest | None) -> records.WorkloadRecord | None:
    """Return the load of one engine; None where another guarantee is judged."""
    workload = request.promised_workload if request else None
    if workload is None:
        return None
    return convert(workload, records.WorkloadRecord, from_attributes=True)


def provenance_record(source: Provenance) -> records.ProvenanceRecord:
    return records.ProvenanceRecord(
        fact=source.fact, source=source.source, place=source.place, is_file=bool(source.file), detail=source.detail
    )


def provenance_records(budget: Budget, findings: Iterable[Finding]) -> list[records.ProvenanceRecord]:
    """Return the sources of the facts that a command line does not state, where nothing was observed."""
    sources = sources_of_facts(budget, released="; ".join(released(findings)))
    return list(map(provenance_record, sources))


def alternative_record(each: Alternative) -> records.AlternativeRecord:
    is_set = each.field == TOGETHER
    return records.AlternativeRecord(
        field=each.field,
        path="" if is_set else field_name(each.field),
        value=together_text(each) if is_set else each.value,
        changes=list(map(_change_record, each.changes)),
        points=each.points,
    )


def maximum_record(what: str, most: Most) -> records.MaximumRecord:
    return records.MaximumRecord(
        what=what, value=most.value, as_it_is=most.as_it_is, changes=list(map(_change_record, most.changes))
    )


def _change_record(change: KnobChange) -> records.SettingChangeRecord:
    name = change.field
    return records.SettingChangeRecord(
        field=name, path=field_name(name), before=change.before, value=change.after, loss=COSTS[name].loss
    )


def assumed_records(request: BudgetRequest | None, findings: Iterable[Finding]) -> list[records.AssumedRecord]:
    """Return the facts that a command line does not state."""
    if request is None:
        return []
    workload, facts = request.workload, [("vllm_version", request.vllm_version, why) for why in released(findings)]
    if workload and (workload.lengths or workload.average_concurrency is not None):
        from kvgate.planning.request_lengths import notes

        facts += notes(workload)
    if workload and workload.is_output_assumed:
        why = "no --output-tokens: 512, at most the prompt and what --max-model-len leaves"
        facts.append(("output_tokens", str(workload.output_tokens), why))
    assumed = (records.AssumedRecord(fact=fact, value=value, why=why) for fact, value, why in facts)
    return [*assumed_model(request.shape), *assumed]


def assumed_model(shape: ModelShape) -> Iterator[records.AssumedRecord]:
    """Yield the model where its facts are those of another one."""
    if shape.assumed:
        yield records.AssumedRecord(fact="model", value=shape.name, why=f"assumed from {shape.assumed.words}")


def released(findings: Iterable[Finding]) -> list[str]:
    """Return the reason why the release is assumed; empty where it is stated."""
    return [each.message for each in findings if each.rule == VERSION_ASSUMED]
