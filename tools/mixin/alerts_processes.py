"""Alerts about kvgate's own processes. Each kvgate is told apart by its cluster and its namespace."""

from kvgate.metrics import registry
from kvgate.metrics.registry import Metric
from mixin import queries
from mixin.alert import COUNT, DURATION, THRESHOLD, Alert
from mixin.queries import CERTIFICATE_MIN_DAYS, CLUSTER, INSTALLED, aggregate, on, over, present, select

_MEMORY = "6h"
"""Time after which a kvgate that was there counts as removed."""
_ITS_PROCESS = on((CLUSTER, "namespace", "pod", "instance", "job"))
SECONDS_PER_DAY = 86400
_ROUNDED = '{{ printf "%.0f" $value }}'
"""A count of `increase`, which extrapolates."""
_EXPIRES = f"{aggregate('min', INSTALLED, registry.CERTIFICATE_EXPIRY.name)} - time()"
_FAILED = select(registry.RECONCILES.name, 'result=~"failed|forbidden|unavailable"')
_REPLACED_IN_VAIN = select(registry.REPLACEMENTS.name, 'state="failed"')
_SAYS = over("last_over_time", select(registry.LEADER.name, present("lease")), "2m")
_LEADS = f"{aggregate('max', (CLUSTER, 'lease', 'namespace', 'pod'), _SAYS)} == 1"


def _lost(metric: Metric, comparison: str = "") -> str:
    """Return the installations of which the series was there and is gone for five minutes, or that there is none at all."""
    was, is_ = (
        aggregate("max", INSTALLED, over("max_over_time", metric.name, window)) + comparison
        for window in (_MEMORY, "5m")
    )
    nobody = f"absent({over('max_over_time', metric.name, '5m')}{comparison})"
    gone = f"({was} unless {is_})"
    return f"{gone} or ({nobody} unless on () {gone})"


def _happened(selector: str, window: str, by: tuple[str, ...], *, offset: str = "") -> str:
    """Return how often a counter rose in a window; of a process that began in it also the first count, which `increase` misses."""
    moment = f" offset {offset}" if offset else ""
    young = f"(time(){f' - {_seconds(offset)}' if offset else ''} - process_start_time_seconds{moment}) < {_seconds(window)}"
    return aggregate(
        "sum",
        by,
        f"({selector}{moment} and {_ITS_PROCESS} {young}) or {over('increase', selector, window, offset=offset)}",
    )


def _seconds(duration: str) -> int:
    """Return the seconds of a duration in minutes or hours."""
    return int(duration[:-1]) * {"m": 60, "h": 3600}[duration[-1]]


def _recurring(selector: str, by: tuple[str, ...]) -> str:
    """Return the count of an hour where something happened again and again: in the last ten minutes, and twenty minutes ago or earlier.

    The time between is longer than one outage of the API server, which is over before anybody looks.
    """
    return (
        f"{_happened(selector, '1h', by)} >= {THRESHOLD} and {_happened(selector, '10m', by)} > 0"
        f" and {_happened(selector, '40m', by, offset='20m')} > 0"
    )


NO_LEADER = Alert(
    name="KvgateNoLeader",
    when="no controller is the leader, or none is scraped",
    query=_lost(registry.LEADER, " == 1"),
    holds_for="2m",
    severity="critical",
    summary="No kvgate controller is the leader",
    description="InferenceDeployments are not reconciled, and the alerts about them have no data.",
)
TWO_LEADERS = Alert(
    name="KvgateTwoLeaders",
    when="more than one controller says that it holds the same Lease",
    query=f"{aggregate('count', (CLUSTER, 'lease'), _LEADS)} > 1",
    holds_for="3m",
    severity="critical",
    summary="Several kvgate controllers lead at once",
    description=f"{COUNT} controllers say that they hold the Lease {{{{ $labels.lease }}}}, and may undo each other's writes.",
    cause="kubectl get leases -A | grep kvgate    # one Lease in two clusters: give their series a label `cluster`",
    remedy="kubectl scale deployment/NAME -n NAMESPACE --replicas 0    # one of the two; then correct its clock or its API server",
)
NO_WEBHOOK = Alert(
    name="KvgateNoWebhook",
    when="no webhook runs, or none is scraped",
    query=_lost(registry.CERTIFICATE_EXPIRY),
    holds_for="2m",
    severity="critical",
    summary="No kvgate webhook answers",
    description="No webhook is scraped. While none runs, InferenceDeployments cannot be created and their specs cannot be changed.",
)
CERTIFICATE_EXPIRED = Alert(
    name="KvgateCertificateExpired",
    when="the webhook's certificate has expired",
    query=f"{_EXPIRES} <= 0",
    holds_for="2m",
    severity="critical",
    summary="The certificate of the kvgate webhook has expired",
    description="The API server does not trust the webhook, so InferenceDeployments cannot be created and their specs cannot be changed.",
)
CERTIFICATE_EXPIRING = Alert(
    name="KvgateCertificateExpiring",
    when="the webhook's certificate expires soon",
    query=f"({_EXPIRES}) > 0 < {SECONDS_PER_DAY} * {THRESHOLD}",
    threshold=CERTIFICATE_MIN_DAYS,
    unit="days",
    holds_for="1h",
    severity="warning",
    summary="The certificate of the kvgate webhook expires soon",
    description=f"It expires in {DURATION}. After that InferenceDeployments cannot be created and their specs cannot be changed.",
)
REVIEW_ERRORS = Alert(
    name="KvgateReviewErrors",
    when="reviews end without a verdict again and again, as often in an hour, also one every 15 minutes",
    query=_recurring(registry.ADMISSION_ERRORS.name, INSTALLED),
    threshold=3,
    unit="reviews in an hour",
    holds_for="1m",
    keeps_firing_for="15m",
    severity="warning",
    summary="The kvgate webhook fails to judge InferenceDeployments",
    description=f"{_ROUNDED} reviews of the last hour ended without a verdict (HTTP 429, 500 or 503), so the API server refused objects.",
)
RECONCILE_ERRORS = Alert(
    name="KvgateReconcileErrors",
    when="reconciles fail again and again, as often in an hour, also one every 15 minutes; conflicts do not count",
    query=_recurring(_FAILED, (*INSTALLED, "result")),
    threshold=3,
    unit="reconciles in an hour",
    holds_for="1m",
    keeps_firing_for="15m",
    severity="warning",
    summary="The kvgate controller fails to reconcile InferenceDeployments",
    description=f"{_ROUNDED} reconciles of the last hour ended with the result {{{{ $labels.result }}}}.",
)
REPLACEMENT_HALTED = Alert(
    name="KvgateReplacementHalted",
    when="an engine does not become ready with pods that kvgate replaced without an edit",
    query=f"{aggregate('max', INSTALLED, _REPLACED_IN_VAIN)} > 0",
    holds_for="3m",
    severity="warning",
    summary="kvgate has stopped replacing pods",
    description=f"Of the engines with pods of this release, {COUNT} did not become ready. All others keep the pods that they have.",
    cause="kubectl get infd -A    # the column WHY of those that are not ready, and `kubectl kvgate why`",
    remedy="helm rollback kvgate -n kvgate-system    # or repair, edit or delete those objects: then the others go on",
)
WEBHOOK_SLOW = Alert(
    name="KvgateWebhookSlow",
    when="one review in a hundred takes longer",
    query=f"{queries.ADMISSION_P99.name} > {THRESHOLD}",
    threshold=0.5,
    unit="seconds",
    holds_for="10m",
    severity="warning",
    summary="The kvgate webhook is slow",
    description=f"One admission review in a hundred takes {DURATION} or longer. The API server waits 5 s.",
    cause="kubectl top pods -n kvgate-system    # near its limit, or many reviews: two clients write one object in turns",
    remedy="helm upgrade kvgate charts/kvgate -n kvgate-system --reset-then-reuse-values --set webhook.replicas=3",
)

ALERTS = (
    NO_LEADER,
    TWO_LEADERS,
    NO_WEBHOOK,
    CERTIFICATE_EXPIRED,
    CERTIFICATE_EXPIRING,
    REVIEW_ERRORS,
    RECONCILE_ERRORS,
    REPLACEMENT_HALTED,
    WEBHOOK_SLOW,
)
