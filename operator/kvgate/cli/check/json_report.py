"""The report of `kvgate check` for programs."""

from collections import Counter
from typing import Any

from kvgate.api import field_path
from kvgate.cli.check.report import Item, Placed, Report
from kvgate.judge.assess import Decision, effective_values
from kvgate.text.inert import inert_json

Json = dict[str, Any]


def render(report: Report) -> str:
    """{documents, unreadable, summary}; one document per engine found."""
    told = {
        "documents": [_document(item) for item in report.items],
        "unreadable": [_unreadable(item) for item in report.unreadable],
        "summary": {
            "exit_code": int(report.exit_code),
            "verdicts": dict(Counter(item.verdict or "None" for item in report.items)),
            "decisions": dict(Counter(item.checked.decision.value for item in report.items if item.checked)),
            "unreadable": len(report.unreadable),
            "ignored": report.num_ignored,
            "other_kinds": report.num_others,
            "skipped": {why.name.lower(): count for why, count in report.passed_over.items()},
        },
    }
    return inert_json(told, indent=2)


def _document(item: Item) -> Json:
    return {
        "file": item.document.file,
        "line": item.line,
        "path": item.path,
        "kind": item.kind,
        "name": item.name,
        "namespace": item.namespace,
        "platform": item.platform,
        "verdict": item.verdict,
        "accelerator": item.accelerator,
        "vllm_version": item.vllm_version,
        "assumed": list(item.assumed),
        "findings": [placed_json(placed) for placed in item.findings],
        "ignored": [_ignored(placed) for placed in item.told if placed.ignored],
        **(_decision(item) if item.checked else {}),
    }


def _decision(item: Item) -> Json:
    """Return the decision about one of our own objects."""
    checked = item.checked
    if checked is None:
        return {}
    reason, message = checked.reason
    alternatives = checked.assessment.alternatives if checked.assessment else ()
    return {
        "decision": checked.decision.value,
        "reason": reason.value,
        "message": message,
        "effective": _effective(item),
        "alternatives": [{"field": a.field, "path": field_path(a.field), "value": a.value} for a in alternatives],
    }


def _effective(item: Item) -> Json | None:
    """Return the values that would be rendered; null where nothing is."""
    checked = item.checked
    if checked is None or checked.assessment is None or checked.subject.deployment is None:
        return None
    if checked.decision is Decision.REFUSE:
        return None
    return effective_values(checked.subject.deployment.spec, checked.assessment).model_dump()


def placed_json(placed: Placed) -> Json:
    """One finding with its place."""
    finding = placed.finding
    return {
        "rule": finding.rule,
        "severity": finding.severity.value,
        "file": placed.file,
        "line": placed.line,
        "column": placed.column,
        "path": placed.path,
        "field": finding.field,
        "message": finding.message,
        "remediation": finding.remediation,
    }


def _ignored(placed: Placed) -> Json:
    why = {"by": placed.ignored.by, "reason": placed.ignored.reason} if placed.ignored else {}
    return {**placed_json(placed), **why}


def _unreadable(placed: Placed) -> Json:
    return {
        "file": placed.file,
        "line": placed.line,
        "column": placed.column,
        "rule": placed.rule,
        "message": placed.finding.message,
        "remediation": placed.finding.remediation,
    }
