"""One alert as data: its query with a threshold that a user may change, the times that it needs, and its words."""

from msgspec import Struct

from mixin.queries import OWNED_BY, on

THRESHOLD = "THRESHOLD"
"""Stands in a query where the threshold belongs."""

OWNER = "{{ $labels.namespace }}/{{ $labels.inferencedeployment }}"
SERVER = '{{ $labels.namespace }}/{{ or $labels.inferencedeployment $labels.workload "engines without a label" }}'
PERCENT = "{{ $value | humanizePercentage }}"
COUNT = "{{ $value | humanize }}"
DURATION = "{{ $value | humanizeDuration }}"
SAME_OWNER = on(OWNED_BY)
DESCRIBE = "kubectl describe infd NAME -n NAMESPACE"
SCALE = "kubectl scale infd NAME -n NAMESPACE --replicas N"
FEWER_SEQUENCES = """kubectl patch infd NAME -n NAMESPACE --type merge -p '{"spec":{"vllm":{"maxNumSeqs":N}}}'"""

SEVERITIES = {
    "critical": "cannot wait for the morning",
    "warning": "can wait for the morning",
    "info": "is for whoever plans next",
}


class Alert(Struct, frozen=True, kw_only=True):
    """An alert: its expression, the times for which it must hold and goes on, and its texts.

    `holds_for` is at most three minutes, or ten and more. Over its own restart Prometheus remembers how long an alert has held only if that
    is ten minutes or more (`--rules.alert.for-grace-period`), and Alertmanager ends an alert that nobody repeats for four. What must last
    between the two is a window in the query, because the stored series survive.
    """

    name: str
    when: str
    """The condition in words, for the table of all alerts."""
    query: str
    """The expression, with THRESHOLD in the place of the number."""
    threshold: float | None = None
    """None where the condition has no number that a user would change."""
    unit: str = ""
    """Meaning of the threshold, for the table of all alerts; empty where there is none."""
    holds_for: str
    keeps_firing_for: str = "10m"
    """Time for which a firing alert goes on after its condition, so that a restart of kvgate or a gap between scrapes does not end it."""
    severity: str
    summary: str
    description: str
    cause: str = ""
    """The command or the query that shows the cause. With `remedy` the row says all, and the runbook is written from it."""
    remedy: str = ""
    """The command that ends it."""

    @property
    def expression(self) -> str:
        """The query with the default threshold."""
        return self.query_with("" if self.threshold is None else f"{self.threshold:g}")

    def query_with(self, threshold: str) -> str:
        """Return the query with this text for the threshold."""
        return self.query.replace(THRESHOLD, threshold)

    @property
    def key(self) -> str:
        """Name of the alert among the values of the chart."""
        short = self.name.removeprefix("Kvgate")
        return short[0].lower() + short[1:]
