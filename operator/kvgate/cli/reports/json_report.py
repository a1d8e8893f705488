"""The reports as JSON, for programs."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from kvgate.api import field_path
from kvgate.cli.reports.report import Item, JudgedDeployment, Placed, Report
from kvgate.judge.assess import Decision, effective_values
from kvgate.text.inert import inert_json

if TYPE_CHECKING:
    from kvgate.cli.reports.difference import Difference, EngineChange

Json = dict[str, Any]

_UNREADABLE_KEYS = ("file", "line", "column", "rule", "message", "remediation")
"""Parts of a finding about a document that cannot be read, which has no fields and is always an error."""


def render(report: Report) -> str:
    """Write {documents, unreadable, summary}, with one document per engine found."""
    document = {
        "documents": [_document(item) for item in report.items],
        "unreadable": [{key: finding[key] for key in _UNREADABLE_KEYS} for finding in map(_placed, report.unreadable)],
        "summary": {
            "exit_code": int(report.exit_code),
            "verdicts": dict(Counter(item.verdict or "None" for item in report.items)),
            "decisions": dict(Counter(item.deployment.decision.value for item in report.items if item.deployment)),
            "unreadable": len(report.unreadable),
            "ignored": report.num_ignored,
            "other_kinds": report.num_others,
            "skipped": {why.name.lower(): count for why, count in report.passed_over.items()},
        },
    }
    return inert_json(document, indent=2)


def _document(item: Item) -> Json:
    return {
        "file": item.document.file,
        "line": item.line,
        "path": item.path,
        **_identity(item),
        "verdict": item.verdict,
        **_facts(item),
        "findings": [_placed(placed) for placed in item.findings],
        "ignored": [{**_placed(placed), "by": why.by, "reason": why.reason} for placed, why in item.ignored],
        **(_decision(item.deployment) if item.deployment else {}),
    }


def _identity(item: Item) -> Json:
    return {"kind": item.kind, "name": item.name, "namespace": item.namespace, "platform": item.platform}


def _facts(item: Item) -> Json:
    return {"accelerator": item.accelerator, "vllm_version": item.vllm_version, "assumed": list(item.assumed)}


def _decision(deployment: JudgedDeployment) -> Json:
    """Return the decision about an InferenceDeployment; `effective` holds the values that would be rendered."""
    reason, message = deployment.reason
    assessment, valid = deployment.assessment, deployment.subject.deployment
    effective = None
    if assessment and valid and deployment.decision is not Decision.REFUSE:
        effective = effective_values(valid.spec, assessment).model_dump()
    alternatives = assessment.alternatives if assessment else ()
    return {
        "decision": deployment.decision.value,
        "reason": reason.value,
        "message": message,
        "effective": effective,
        "alternatives": [{"field": a.field, "path": field_path(a.field), "value": a.value} for a in alternatives],
    }


def _placed(placed: Placed) -> Json:
    finding = placed.finding
    return {
        "rule": placed.rule,
        "severity": finding.severity.value,
        "file": placed.file,
        "line": placed.line,
        "column": placed.column,
        "path": placed.path,
        "field": finding.field,
        "message": finding.message,
        "remediation": finding.remediation,
    }


def render_difference(difference: Difference) -> str:
    """Write {engines, unreadable, summary}; `before` is null for an engine that is new, `after` for one that is gone."""
    kinds = [change.kind for change in difference.changes]
    document = {
        "engines": [_change(change) for change in difference.changes],
        "unreadable": [_placed(placed) for placed in difference.unreadable],
        "summary": {
            "exit_code": int(difference.exit_code),
            **{kind: kinds.count(kind) for kind in ("changed", "new", "removed", "unchanged")},
            "worse": sum(change.is_worse for change in difference.changes),
        },
    }
    return inert_json(document, indent=2)


def _change(change: EngineChange) -> Json:
    item = change.item
    return {
        "file": change.file or item.document.file,
        "path": item.path,
        **_identity(item),
        "change": change.kind,
        "worse": change.is_worse,
        "changed_defaults": [
            {"option": each.flag, "before": each.before, "after": each.after} for each in change.changed_defaults
        ],
        "before": _side(change.before) if change.before else None,
        "after": _side(change.after) if change.after else None,
    }


def _side(item: Item) -> Json:
    return {
        "file": item.document.file,
        "line": item.line,
        "verdict": item.verdict,
        "refused": item.is_refused,
        **_facts(item),
        **asdict(item.figures),
        "findings": [_placed(placed) for placed in item.findings],
    }
