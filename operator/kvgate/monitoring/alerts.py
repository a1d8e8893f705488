"""Alerts, each with a runbook that says what to do, and all rules in the form in which Prometheus and its operator read them."""

from typing import Any

from msgspec import Struct

from kvgate import DOCS_URL
from kvgate.api.conditions import ConditionType
from kvgate.metrics import registry
from kvgate.metrics.registry import OWNER_LABELS
from kvgate.monitoring import queries
from kvgate.monitoring.queries import (
    ADMISSION_ERRORS_MAX,
    ADMISSION_P99_MAX_SECONDS,
    CERTIFICATE_MIN_DAYS,
    HEADROOM_AMPLE,
    HEADROOM_LOW,
    PREDICTION_ERROR_MAX,
    RECORDING_RULES,
    SERVED_BY,
    condition,
    owned,
    present,
    select,
    summed,
    summed_rate,
)
from kvgate.vllm import metric_names

SECONDS_PER_DAY = 86400
SECONDS_PER_MINUTE = 60

_OWNER = "{{ $labels.namespace }}/{{ $labels.inferencedeployment }}"
_SERVER = "{{ $labels.namespace }}/{{ or $labels.inferencedeployment $labels.workload $labels.pod }}"
_PERCENT = "{{ $value | humanizePercentage }}"
_SAME_OWNER = f"on ({', '.join(queries.OWNED_BY)})"


class Alert(Struct, frozen=True, kw_only=True):
    """An alert: its expression, the time for which it must hold, and its texts."""

    name: str
    when: str
    """The condition in words, for the table of all alerts."""
    expression: str
    holds_for: str
    severity: str
    summary: str
    description: str


_REFUSED = condition(ConditionType.ACCEPTED, "False")
_READY = condition(ConditionType.READY, "True")
_WITHOUT_REPLICAS = f"{owned(registry.GPUS)} == 0"
"""InferenceDeployments without replicas: they are Ready although nothing runs."""
_HEADROOM, _ERROR = queries.HEADROOM.name, queries.PREDICTION_ERROR.name
_UP_OF_OWNED = select("up", present(OWNER_LABELS[1]))
"""Prometheus' own metric of each target; the scrape configuration adds the label."""
_ENGINE = (*SERVED_BY, "pod", "engine")

HEADROOM_NEGATIVE = Alert(
    name="KvgateHeadroomNegative",
    when="the expected KV cache is smaller than the guarantee needs, but the InferenceDeployment was admitted",
    expression=f"{_HEADROOM} < 0 unless {_SAME_OWNER} {_REFUSED} unless {_SAME_OWNER} {_WITHOUT_REPLICAS}",
    holds_for="5m",
    severity="critical",
    summary=f"{_OWNER} runs with less KV cache than its guarantee needs",
    description=f"The predicted headroom is {_PERCENT} of the KV cache, but the InferenceDeployment was admitted."
    " Expect preemptions, or engines that do not start.",
)
LITTLE_HEADROOM = Alert(
    name="KvgateHeadroomLow",
    when="the guarantee fits, but less than 10 % of the KV cache is left",
    expression=f"{_HEADROOM} >= 0 < {HEADROOM_LOW}",
    holds_for="15m",
    severity="info",
    summary=f"{_OWNER} has little KV cache left",
    description=f"The predicted headroom is {_PERCENT} of the KV cache. The guarantee fits; more requests or longer ones do not.",
)
PREDICTION_WRONG = Alert(
    name="KvgatePredictionWrong",
    when="observed and predicted KV cache differ by more than 10 %",
    expression=f"{_ERROR} > {PREDICTION_ERROR_MAX} or {_ERROR} < -{PREDICTION_ERROR_MAX}",
    holds_for="15m",
    severity="warning",
    summary=f"The prediction for {_OWNER} is wrong",
    description=f"vLLM's KV cache differs from the prediction by {_PERCENT}. Below 0, vLLM has less than kvgate predicted.",
)
UNEXPECTED_PREEMPTIONS = Alert(
    name="KvgateUnexpectedPreemptions",
    when="requests are preempted although 20 % of the KV cache should be left",
    expression=f"{SECONDS_PER_MINUTE} * {queries.PREEMPTIONS.name} > 0 and {_SAME_OWNER} {_HEADROOM} > {HEADROOM_AMPLE}",
    holds_for="10m",
    severity="warning",
    summary=f"{_OWNER} preempts requests although KV cache should be left",
    description='{{ printf "%.3g" $value }} requests per minute lose their KV cache and are computed again, although the predicted'
    f" headroom is above {HEADROOM_AMPLE:.0%}.",
)
NOT_ACCEPTED = Alert(
    name="KvgateNotAccepted",
    when="a stored InferenceDeployment is refused",
    expression=_REFUSED,
    holds_for="10m",
    severity="warning",
    summary=f"{_OWNER} is refused and not rendered",
    description="Its condition Accepted is False. Nothing runs for the current spec; the spec that was admitted before keeps running.",
)
NO_LEADER = Alert(
    name="KvgateNoLeader",
    when="no controller is the leader, or none is scraped",
    expression=f"absent({registry.LEADER.name} == 1)",
    holds_for="5m",
    severity="critical",
    summary="No kvgate controller is the leader",
    description="InferenceDeployments are not reconciled, and the alerts about them have no data.",
)
NO_WEBHOOK = Alert(
    name="KvgateNoWebhook",
    when="no webhook runs, or none is scraped",
    expression=f"absent({registry.CERTIFICATE_EXPIRY.name})",
    holds_for="5m",
    severity="critical",
    summary="No kvgate webhook answers",
    description="No webhook is scraped. While none runs, InferenceDeployments cannot be created and their specs cannot be changed.",
)
WEBHOOK_ERRORS = Alert(
    name="KvgateWebhookErrors",
    when="more than 1 % of the reviews end without a verdict",
    expression=f"{queries.ADMISSION_ERRORS.name} > {ADMISSION_ERRORS_MAX}",
    holds_for="10m",
    severity="warning",
    summary="The kvgate webhook fails to judge InferenceDeployments",
    description=f"{_PERCENT} of the admission reviews end without a verdict (HTTP 429, 500 or 503), and the API server refuses"
    " their objects.",
)
WEBHOOK_SLOW = Alert(
    name="KvgateWebhookSlow",
    when="one review in a hundred takes longer than 0.5 s",
    expression=f"{queries.ADMISSION_P99.name} > {ADMISSION_P99_MAX_SECONDS}",
    holds_for="10m",
    severity="warning",
    summary="The kvgate webhook is slow",
    description="One admission review in a hundred takes {{ $value | humanizeDuration }} or longer. The API server waits 5 s.",
)
CERTIFICATE_EXPIRING = Alert(
    name="KvgateCertificateExpiring",
    when="the webhook's certificate expires within 14 days",
    expression=f"min({registry.CERTIFICATE_EXPIRY.name}) - time() < {CERTIFICATE_MIN_DAYS * SECONDS_PER_DAY}",
    holds_for="1h",
    severity="warning",
    summary="The certificate of the kvgate webhook expires soon",
    description="It expires in {{ $value | humanizeDuration }}. After that InferenceDeployments cannot be created and their specs cannot"
    " be changed.",
)
ENGINE_STUCK = Alert(
    name="KvgateEngineStuck",
    when="requests wait, but no prompt is read and no token generated; also for pods without an InferenceDeployment",
    expression=(
        f"{summed(metric_names.REQUESTS_WAITING, _ENGINE)} > 0"
        f" and {summed_rate(metric_names.GENERATION_TOKENS, _ENGINE)} == 0"
        f" unless {summed_rate(metric_names.PROMPT_TOKENS, _ENGINE)} > 0"
    ),
    holds_for="5m",
    severity="critical",
    summary=f"An engine of {_SERVER} generates nothing while requests wait",
    description="In pod {{ $labels.pod }} {{ $value | humanize }} requests wait. For 10 minutes it has read no prompt and generated"
    " no token.",
)
PODS_NOT_SCRAPED = Alert(
    name="KvgatePodsNotScraped",
    when="Prometheus cannot scrape a pod although all replicas are ready",
    expression=f"{_UP_OF_OWNED} == 0 and {_SAME_OWNER} {_READY}",
    holds_for="15m",
    severity="warning",
    summary=f"Prometheus cannot scrape pods of {_OWNER}",
    description="{{ $labels.instance }} does not answer Prometheus although all replicas are ready. Its usage, waiting requests and"
    " preemptions are unknown.",
)
PODS_NOT_OBSERVED = Alert(
    name="KvgatePodsNotObserved",
    when="the controller knows the KV cache of no pod although all replicas are ready",
    expression=(
        f"{_READY} unless {_SAME_OWNER} {owned(registry.OBSERVED_PODS)} > 0 unless {_SAME_OWNER} {_WITHOUT_REPLICAS}"
        f" and on () count({registry.POD_SCRAPES.name})"
    ),
    holds_for="15m",
    severity="warning",
    summary=f"The controller cannot observe {_OWNER}",
    description="All replicas are ready, but the KV cache of none is known, so the prediction is not compared with reality.",
)
_WRONG_STARTS = 'state=~"contradictory|implausible|untrusted|unreadable"'
"""Not those that widen predictions, that newer starts have replaced, or that somebody has dropped."""
CALIBRATION_UNUSED = Alert(
    name="KvgateCalibrationUnused",
    when="observed starts are stored but not used: contradictory, implausible, untrusted or unreadable",
    expression=f"max by (state) ({select(registry.CALIBRATION_STARTS.name, _WRONG_STARTS)}) > 0",
    holds_for="15m",
    severity="warning",
    summary="Some stored starts correct no prediction",
    description="{{ $value | humanize }} stored starts are {{ $labels.state }}, so kvgate does not use them.",
)

ALERTS = (
    HEADROOM_NEGATIVE,
    LITTLE_HEADROOM,
    PREDICTION_WRONG,
    UNEXPECTED_PREEMPTIONS,
    NOT_ACCEPTED,
    NO_LEADER,
    NO_WEBHOOK,
    WEBHOOK_ERRORS,
    WEBHOOK_SLOW,
    CERTIFICATE_EXPIRING,
    ENGINE_STUCK,
    PODS_NOT_SCRAPED,
    PODS_NOT_OBSERVED,
    CALIBRATION_UNUSED,
)


RUNBOOKS = f"{DOCS_URL or 'docs'}/runbooks"
"""Address of the runbooks; their folder in the repository while docs/ has no address."""

SEVERITIES = {
    "critical": "cannot wait for the morning",
    "warning": "can wait for the morning",
    "info": "is for whoever plans next",
}


def rule_groups(runbooks: str = RUNBOOKS) -> dict[str, Any]:
    """Return the rules in one group. The recording rules come first, because the alerts read them."""
    recorded = [{"record": rule.name, "expr": rule.expression} for rule in RECORDING_RULES]
    alerting = [
        {
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
        for alert in ALERTS
    ]
    return {"groups": [{"name": "kvgate", "rules": [*recorded, *alerting]}]}
