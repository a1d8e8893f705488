"""All alerts, each with a runbook that says what to do, and all rules in the form in which Prometheus and its operator read them."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any, TypeVar

from kvgate import DOCS_URL
from mixin import alerts_budget, alerts_engines, alerts_pods, alerts_processes
from mixin.alert import Alert
from mixin.queries import RECORDING_RULES

MOST_RULES = 20
"""Rules that Mimir and Grafana Cloud take in a group by default (`ruler_max_rules_per_rule_group`)."""
_BY_ROOM = {
    "kvgate-engines": alerts_engines.ALERTS,
    "kvgate-pods": alerts_pods.ALERTS,
    "kvgate-budget": alerts_budget.ALERTS,
    "kvgate-processes": alerts_processes.ALERTS,
}
ALERTS = tuple(chain.from_iterable(_BY_ROOM.values()))

RUNBOOKS = f"{DOCS_URL}/runbooks" if DOCS_URL else "http://kvgate-webhook-metrics.kvgate-system.svc:8080/runbooks"
"""Address of the runbooks where nobody gives another one: docs/ where it is published, else the webhook that deploy/ installs."""


def runbook(alert: Alert, base: str = RUNBOOKS) -> dict[str, str]:
    """Return the annotation that leads to the runbook."""
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


Rule = TypeVar("Rule")


def grouped(rooms: Mapping[str, Sequence[Rule]]) -> Iterator[tuple[str, Sequence[Rule]]]:
    """Yield the name and the rules of each group, none above MOST_RULES."""
    for name, rules in rooms.items():
        for start in range(0, len(rules), MOST_RULES):
            yield f"{name}-{start // MOST_RULES + 1}" if start else name, rules[start : start + MOST_RULES]


def recording_groups() -> list[dict[str, Any]]:
    """Return the groups that come first, because the alerts read them."""
    return [{"name": name, "rules": list(rules)} for name, rules in grouped({"kvgate": recording_rules()})]


def alert_groups() -> list[tuple[str, Sequence[Alert]]]:
    """Return the alerts of each group."""
    return list(grouped(_BY_ROOM))


def rule_groups(runbooks: str = RUNBOOKS) -> dict[str, Any]:
    """Return all rules, in the order in which one reads another."""
    alerting = [
        {"name": name, "rules": [alerting_rule(alert, runbooks) for alert in alerts]} for name, alerts in alert_groups()
    ]
    return {"groups": [*recording_groups(), *alerting]}
