"""The report of `kvgate check` for programs."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

from kvgate.api import KIND
from kvgate.api.fields import field_path
from kvgate.cli.check import Checked, exit_code
from kvgate.engine import Decision, effective_values
from kvgate.manifests import Broken, Manifests
from kvgate.rules.finding import Finding

Json = dict[str, Any]


def report(checked: Sequence[Checked], manifests: Manifests, paths: Sequence[str]) -> str:  # noqa: ARG001 - as check_text
    """{documents, unreadable, summary}."""
    return json.dumps(
        {
            "documents": [_document(item) for item in checked],
            "unreadable": [_unreadable(item) for item in manifests.broken],
            "summary": {
                "exit_code": int(exit_code(list(checked), manifests)),
                "decisions": dict(Counter(item.decision.value for item in checked)),
                "unreadable": len(manifests.broken),
                "other_kinds": manifests.num_others,
            },
        },
        indent=2,
    )


def _document(item: Checked) -> Json:
    subject, document, assessment = item.subject, item.subject.document, item.assessment
    spec = subject.deployment.spec if subject.deployment else None
    reason, message = item.reason
    return {
        "file": document.file,
        "line": document.position.line,
        "kind": KIND,
        "name": subject.name,
        "namespace": subject.namespace,
        "verdict": item.verdict,
        "decision": item.decision.value,
        "reason": reason.value,
        "message": message,
        "accelerator": spec.accelerator.type if spec else None,
        "vllm_version": spec.vllm.version if spec else None,
        "effective": _effective(item),
        "findings": [_finding(item, finding) for finding in item.findings],
        "alternatives": [
            {"field": a.field, "path": field_path(a.field), "value": a.value} for a in assessment.alternatives
        ]
        if assessment
        else [],
    }


def _effective(item: Checked) -> Json | None:
    """What would be rendered; null where it is not."""
    deployment, assessment = item.subject.deployment, item.assessment
    if deployment is None or assessment is None or assessment.decision is Decision.REFUSE:
        return None
    return effective_values(deployment.spec, assessment).model_dump()


def _finding(item: Checked, finding: Finding) -> Json:
    path = field_path(finding.field)
    position = item.subject.document.position_of(path)
    return {
        "rule": finding.rule,
        "severity": finding.severity.value,
        "file": item.subject.document.file,
        "line": position.line,
        "column": position.column,
        "field": finding.field,
        "path": path,
        "message": finding.message,
        "remediation": finding.remediation,
    }


def _unreadable(item: Broken) -> Json:
    return {
        "file": item.file,
        "line": item.position.line,
        "column": item.position.column,
        "rule": item.finding.rule,
        "message": item.finding.message,
        "remediation": item.finding.remediation,
    }
