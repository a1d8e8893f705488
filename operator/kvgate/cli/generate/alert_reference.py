"""docs/reference/alerts.md: every alert with its runbook, every recording rule with its expression."""

from kvgate.monitoring.alerts import ALERTS, SEVERITIES, Alert
from kvgate.monitoring.queries import RECORDING_RULES, RecordingRule

_INTRODUCTION = """\
# Alerts and recording rules

In [deploy/prometheus/rules.yaml](../../deploy/prometheus/rules.yaml), and as PrometheusRule in [the chart](../../charts/kvgate/README.md);
how to plug them in: [monitoring](../monitoring.md). Thresholds are the same in the dashboards.
"""


def alerts_reference(head: str) -> str:
    """Alerts by severity, then what is recorded."""
    severities = "; ".join(f"`{name}` {meaning}" for name, meaning in SEVERITIES.items())
    alerts = [_row(alert) for severity in SEVERITIES for alert in ALERTS if alert.severity == severity]
    return "\n".join([
        head, _INTRODUCTION, f"Severities: {severities}.\n",
        "| alert | severity | for | when |", "|---|---|---|---|", *alerts,
        "\n## Recording rules\n", "| name | meaning | expression |", "|---|---|---|", *map(_recorded, RECORDING_RULES), "",
    ])  # fmt: skip


def _row(alert: Alert) -> str:
    link = f"[{alert.name}](../runbooks/{alert.name}.md)"
    return f"| {link} | {alert.severity} | {alert.holds_for} | {alert.when}: `{alert.expression}` |"


def _recorded(rule: RecordingRule) -> str:
    return f"| `{rule.name}` | {rule.meaning} | `{rule.expression}` |"
