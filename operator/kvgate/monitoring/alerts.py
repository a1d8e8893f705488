"""All alerts, each with a runbook that says what to do, and all rules in the form in which Prometheus and its operator read them."""

from typing import Any

from kvgate import DOCS_URL
from kvgate.monitoring import alerts_budget, alerts_engines, alerts_pods, alerts_processes
from kvgate.monitoring.alert import Alert
from kvgate.monitoring.queries import RECORDING_RULES

ALERTS = (*alerts_engines.ALERTS, *alerts_pods.ALERTS, *alerts_budget.ALERTS, *alerts_processes.ALERTS)

RUNBOOK_FOLDER = "docs/runbooks"
RUNBOOKS = f"{DOCS_URL}/runbooks" if DOCS_URL else ""
"""Address of the runbooks; empty while docs/ has none."""


def runbook(alert: Alert, base: str = RUNBOOKS) -> dict[str, str]:
    """Return the annotation that leads to the runbook: its address, or its path in the repository where no address is known."""
    if not base:
        return {"runbook": f"{RUNBOOK_FOLDER}/{alert.name}.md"}
    return {"runbook_url": f"{base}/{alert.name}.md"}


def alerting_rule(alert: Alert, runbooks: str = RUNBOOKS) -> dict[str, Any]:
    """Return the rule with the alert's own defaults."""
    return {
        "alert": alert.name,
        "expr": alert.expression,
        "for": alert.holds_for,
        "keep_firing_for": alert.keeps_firing_for,
        "labels": {"severity": alert.severity},
        "annotations": {"summary": alert.summary, "description": alert.description, **runbook(alert, runbooks)},
    }


def recording_rules() -> list[dict[str, Any]]:
    """Return the recording rules, in an order in which each reads only those before it."""
    return [{"record": rule.name, "expr": rule.expression} for rule in RECORDING_RULES]


def rule_groups(runbooks: str = RUNBOOKS) -> dict[str, Any]:
    """Return the rules in one group. The recording rules come first, because the alerts read them."""
    rules = [*recording_rules(), *(alerting_rule(alert, runbooks) for alert in ALERTS)]
    return {"groups": [{"name": "kvgate", "rules": rules}]}
