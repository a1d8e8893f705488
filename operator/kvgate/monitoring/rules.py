"""The rules as Prometheus reads them: for its rules file, and for the operator's PrometheusRule."""

from typing import Any

from kvgate.monitoring.alerts import ALERTS, Alert
from kvgate.monitoring.recording import RECORDING_RULES, RecordingRule

RUNBOOKS = "docs/runbooks"
"""Folder of the runbooks in the repository; no site shows them yet."""

SEVERITIES = {
    "critical": "cannot wait for the morning",
    "warning": "can wait for the morning",
    "info": "is for whoever plans next",
}


def rule_groups(runbooks: str = RUNBOOKS) -> dict[str, Any]:
    """Recorded first, because the alerts read what was recorded."""
    return {
        "groups": [
            {
                "name": "kvgate",
                "rules": [*map(_recorded, RECORDING_RULES), *(_alerting(alert, runbooks) for alert in ALERTS)],
            }
        ]
    }


def _recorded(rule: RecordingRule) -> dict[str, Any]:
    return {"record": rule.name, "expr": rule.expression}


def _alerting(alert: Alert, runbooks: str) -> dict[str, Any]:
    """The one place that names the runbook, so that no alert is without."""
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.holds_for,
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": f"{runbooks}/{alert.name}.md",
        },
    }
