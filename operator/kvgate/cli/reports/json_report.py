"""The reports as JSON, for programs; records.py has every key, and docs/reference the schemas."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins
from msgspec.structs import asdict

from kvgate.budget import Budget
from kvgate.cli import assessment_json as made
from kvgate.cli.reports import engine_records as parts
from kvgate.cli.reports import records
from kvgate.cli.reports.placed import Placed
from kvgate.cli.reports.report import Item, Report
from kvgate.judgement.assess import chosen_settings, effective_values
from kvgate.judgement.assessment import Decision
from kvgate.text.inert import inert_json

if TYPE_CHECKING:
    from kvgate.cli.reports.difference import Difference, EngineChange


def render(report: Report) -> str:
    """Write {schemaVersion, documents, unreadable, summary}, with one document per engine found."""
    record = records.CheckRecord(
        schemaVersion=parts.SCHEMA_VERSION,
        documents=[document_record(item) for item in report.items],
        unreadable=[_finding(placed) for placed in report.unreadable],
        unrendered=[records.UnrenderedRecord(**asdict(each)) for each in report.unrendered],
        skipped=[
            records.SkippedRecord(path=str(each.path), reason=each.why.partition("|")[0], by=each.by)
            for each in report.skipped
        ],
        provenance=list(map(made.provenance_record, report.sources)),
        summary=records.SummaryRecord(
            exit_code=int(report.exit_code),
            engines=sum(1 for item in report.items if not item.is_not_understood),
            verdicts=dict(Counter(item.verdict.value if item.verdict else "None" for item in report.items)),
            decisions=dict(Counter(item.decision.value for item in report.items if item.decision)),
            unreadable=len(report.unreadable),
            ignored=report.num_ignored,
            other_kinds=report.num_others,
            skipped={why.name.lower(): count for why, count in report.passed_over.items()},
        ),
    )
    return inert_json(to_builtins(record), indent=2)


def document_record(item: Item) -> records.DocumentRecord:
    budget, alternatives = item.effective, item.assessment.alternatives if item.assessment else ()
    return records.DocumentRecord(
        file=item.file,
        line=item.line,
        path=item.path,
        rendered_by=item.document.file if item.document.origin else None,
        rendered_line=item.rendered_line or None,
        platform=item.platform,
        kind=item.kind,
        namespace=item.namespace,
        name=item.name,
        engine=None if item.is_not_understood else _engine(item, budget),
        guarantee=item.guarantee.value if item.guarantee else None,
        verdict=item.verdict.value if item.verdict else None,  # type: ignore[arg-type]  # the values of two enumerations
        **made.judged_parts(item.assessment, budget),
        assumed=[
            *(parts.AssumedRecord(fact=each.fact, value=each.value, why=each.why) for each in item.assumed),
            *(made.assumed_model(budget.request.shape) if item.subject and budget else ()),
        ],
        findings=[_finding(placed) for placed in item.findings],
        ignored=[
            records.IgnoredRecord(**asdict(_finding(placed)), by=why.by, reason=why.reason, place=why.place)
            for placed, why in item.ignored
        ],
        decision=item.decision or made.decision_of(item.verdict, is_refusal=item.is_refused),
        alternatives=list(map(made.alternative_record, alternatives)),
        provenance=list(map(made.provenance_record, item.provenance)),
        admission=_admission(item, item.decision) if item.decision else None,
    )


def explain_record(item: Item, **views: Any) -> records.ExplainRecord:
    """Return the same with the keys of an answer of `kvgate explain`."""
    budget, values = item.effective, asdict(document_record(item))
    if budget is not None and made.is_about_host(budget):
        values["host_memory"] = values["host"]
    return records.ExplainRecord(**values, **views, id=item.name, error=None)


def _engine(item: Item, budget: Budget | None) -> parts.EngineRecord:
    """Return the settings as they are judged; where nothing could be judged, those that the manifest writes."""
    judged, spec = item.engine, item.spec
    written: dict[str, Any] = dict(judged.settings) if judged else dict(spec.vllm) if spec else {}
    return parts.EngineRecord(
        model=(judged.model if judged else spec.model.name if spec else None) or None,
        accelerator=item.accelerator,
        judged_on=item.accelerator or (judged.judged_on if judged else None),
        **made.gpus_of(judged.assessment if judged else None),
        vllm_version=item.vllm_version,
        **(made.judged_settings(budget) if budget else _written_settings(written)),
    )


def _written_settings(written: dict[str, Any]) -> dict[str, Any]:
    """Return the fields of EngineRecord that a manifest writes, where nothing could be judged."""
    names = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "max_model_len", "max_num_seqs")
    values = {name: written.get(name) for name in names}
    numbers = {name: value if type(value) is int and value > 0 else None for name, value in values.items()}
    return {**numbers, "kv_cache_dtype": str(written.get("kv_cache_dtype") or "") or None}


def _admission(item: Item, decision: Decision) -> records.AdmissionRecord:
    """Return the decision about an InferenceDeployment; `effective` holds the values that would be rendered."""
    (reason, message), assessment, spec, effective = item.reason, item.assessment, item.spec, None
    skip = assessment.skip if assessment else None
    if assessment and spec and decision is not Decision.REFUSE:
        values = effective_values(spec, assessment)
        effective = {**values.model_dump(), "chosen": list(chosen_settings(spec, values.max_num_seqs)) or None}
    return records.AdmissionRecord(
        decision=decision.value,
        reason=reason.value,
        message=message,
        effective=effective,
        skip=records.SkipRecord(reason=skip.reason, until=skip.end or None) if skip else None,
        alternatives=list(map(made.alternative_record, assessment.alternatives if assessment else ())),
    )


def _finding(placed: Placed) -> parts.FindingRecord:
    return made.finding_record(
        placed.finding,
        parts.FindingRecord,
        file=placed.file,
        line=placed.line,
        column=placed.column,
        path=placed.path,
    )


def render_difference(difference: Difference) -> str:
    """Write {schemaVersion, engines, unreadable, summary}; `before` is null for an engine that is new, `after` for one that is gone."""
    kinds = Counter(change.kind for change in difference.changes)
    record = records.DifferenceRecord(
        schemaVersion=parts.SCHEMA_VERSION,
        engines=[_change(change) for change in difference.changes],
        unreadable=[_finding(placed) for placed in difference.unreadable],
        summary=records.DifferenceSummary(
            exit_code=int(difference.exit_code),
            changed=kinds["changed"],
            new=kinds["new"],
            removed=kinds["removed"],
            unchanged=kinds["unchanged"],
            worse=sum(change.is_worse for change in difference.changes),
        ),
    )
    return inert_json(to_builtins(record), indent=2)


def _change(change: EngineChange) -> records.ChangeRecord:
    item, starts_on = change.item, change.gpus.starts_on if change.gpus else None
    return records.ChangeRecord(
        file=change.file or item.file,
        path=item.path,
        platform=item.platform,
        kind=item.kind,
        namespace=item.namespace,
        name=item.name,
        change=change.kind,
        worse=change.is_worse,
        effects=list(change.effects),
        changed_defaults=[
            records.DefaultRecord(option=each.flag, before=each.before, after=each.after)
            for each in change.changed_defaults
        ],
        changed_sources=[
            records.ChangedSourceRecord(
                fact=fact,
                before=made.provenance_record(before) if before else None,
                after=made.provenance_record(after) if after else None,
            )
            for fact, before, after in change.changed_sources
        ],
        before=_side(change.before) if change.before else None,
        after=_side(change.after) if change.after else None,
        compared_on=change.gpus.gpu if change.gpus else None,
        starts_on=records.StartsOnRecord(before=starts_on[0], after=starts_on[1]) if starts_on else None,
    )


def _side(item: Item) -> records.SideRecord:
    return records.SideRecord(**asdict(document_record(item)), refused=item.is_refused)
