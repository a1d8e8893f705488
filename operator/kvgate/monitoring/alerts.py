"""Alerts: each means that somebody has something to do, and its runbook says what."""

from dataclasses import dataclass
from typing import Any

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
    RecordingRule,
    condition,
    owned,
    present,
    select,
    summed,
    summed_rate,
    unlike,
)
from kvgate.vllm import metric_names

SECONDS_PER_DAY = 86400
SECONDS_PER_MINUTE = 60

_OWNER = "{{ $labels.namespace }}/{{ $labels.inferencedeployment }}"
_SERVER = "{{ $labels.namespace }}/{{ or $labels.inferencedeployment $labels.workload $labels.pod }}"
_PERCENT = "{{ $value | humanizePercentage }}"
_SAME_OWNER = f"on ({', '.join(OWNER_LABELS)})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Alert:
    """An alert: its expression, the time for which it must hold, and the words for people."""

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
"""Scaled to nothing: Ready, and nothing runs."""
_HEADROOM, _ERROR = queries.HEADROOM.name, queries.PREDICTION_ERROR.name
_UP_OF_OWNED = select("up", present(OWNER_LABELS[1]))
"""Prometheus' own metric of each target; the scrape configuration gives it the label."""
_ENGINE = (*SERVED_BY, "pod", "engine")

HEADROOM_NEGATIVE = Alert(
    name="KvgateHeadroomNegative",
    when="the expected KV cache is smaller than what is guaranteed, and it runs all the same",
    expression=f"{_HEADROOM} < 0 unless {_SAME_OWNER} {_REFUSED} unless {_SAME_OWNER} {_WITHOUT_REPLICAS}",
    holds_for="5m",
    severity="critical",
    summary=f"{_OWNER} runs with less KV cache than its guarantee needs",
    description=f"The predicted headroom is {_PERCENT} of the KV cache, and the InferenceDeployment was admitted all the same:"
    " expect preemptions, or engines that do not start.",
)
LITTLE_HEADROOM = Alert(
    name="KvgateHeadroomLow",
    when="what is guaranteed fits with less than 10 % to spare",
    expression=f"{_HEADROOM} >= 0 < {HEADROOM_LOW}",
    holds_for="15m",
    severity="info",
    summary=f"{_OWNER} has little KV cache to spare",
    description=f"The predicted headroom is {_PERCENT} of the KV cache: what is guaranteed fits, more requests or longer ones do not.",
)
PREDICTION_WRONG = Alert(
    name="KvgatePredictionWrong",
    when="observed and predicted KV cache differ by more than 10 %",
    expression=f"{_ERROR} > {PREDICTION_ERROR_MAX} or {_ERROR} < -{PREDICTION_ERROR_MAX}",
    holds_for="15m",
    severity="warning",
    summary=f"kvgate is wrong about {_OWNER}",
    description=f"vLLM's KV cache differs from the prediction by {_PERCENT}; below 0 kvgate promised more than there is.",
)
UNEXPECTED_PREEMPTIONS = Alert(
    name="KvgateUnexpectedPreemptions",
    when="requests are preempted although 20 % was to be left over",
    expression=f"{SECONDS_PER_MINUTE} * {queries.PREEMPTIONS.name} > 0 and {_SAME_OWNER} {_HEADROOM} > {HEADROOM_AMPLE}",
    holds_for="10m",
    severity="warning",
    summary=f"{_OWNER} preempts requests although KV cache was to be left over",
    description='{{ printf "%.3g" $value }} requests per minute lose their KV cache and are computed again; the predicted headroom'
    f" is above {HEADROOM_AMPLE:.0%}.",
)
NOT_ACCEPTED = Alert(
    name="KvgateNotAccepted",
    when="a stored InferenceDeployment is refused",
    expression=_REFUSED,
    holds_for="10m",
    severity="warning",
    summary=f"{_OWNER} is refused and not rendered",
    description="Its condition Accepted is False: nothing runs for the current spec; what was admitted before goes on.",
)
NO_LEADER = Alert(
    name="KvgateNoLeader",
    when="no controller acts, or none is scraped",
    expression=f"absent({registry.LEADER.name} == 1)",
    holds_for="5m",
    severity="critical",
    summary="No kvgate controller acts",
    description="InferenceDeployments are not reconciled, and the alerts about them have no figures.",
)
NO_WEBHOOK = Alert(
    name="KvgateNoWebhook",
    when="no webhook runs, or none is scraped",
    expression=f"absent({registry.CERTIFICATE_EXPIRY.name})",
    holds_for="5m",
    severity="critical",
    summary="No kvgate webhook answers",
    description="No webhook is scraped; while none runs, InferenceDeployments cannot be created and their specs not changed.",
)
WEBHOOK_ERRORS = Alert(
    name="KvgateWebhookErrors",
    when="more than 1 % of the reviews end in HTTP 500",
    expression=f"{queries.ADMISSION_ERRORS.name} > {ADMISSION_ERRORS_MAX}",
    holds_for="10m",
    severity="warning",
    summary="The kvgate webhook fails to judge InferenceDeployments",
    description=f"{_PERCENT} of the admission reviews end in HTTP 500, and the API server refuses what they were about.",
)
WEBHOOK_SLOW = Alert(
    name="KvgateWebhookSlow",
    when="one review in a hundred takes longer than 0.5 s",
    expression=f"{queries.ADMISSION_P99.name} > {ADMISSION_P99_MAX_SECONDS}",
    holds_for="10m",
    severity="warning",
    summary="The kvgate webhook is slow",
    description="One admission review in a hundred takes {{ $value | humanizeDuration }} or longer; the API server waits 5 s.",
)
CERTIFICATE_EXPIRING = Alert(
    name="KvgateCertificateExpiring",
    when="the webhook's certificate ends within 14 days",
    expression=f"min({registry.CERTIFICATE_EXPIRY.name}) - time() < {CERTIFICATE_MIN_DAYS * SECONDS_PER_DAY}",
    holds_for="1h",
    severity="warning",
    summary="The certificate of the kvgate webhook is about to end",
    description="It ends in {{ $value | humanizeDuration }}; after that InferenceDeployments cannot be created and their specs not"
    " changed.",
)
ENGINE_STUCK = Alert(
    name="KvgateEngineStuck",
    when="requests wait, no prompt is read and no token generated, in pods without an InferenceDeployment too",
    expression=(
        f"{summed(metric_names.REQUESTS_WAITING, _ENGINE)} > 0"
        f" and {summed_rate(metric_names.GENERATION_TOKENS, _ENGINE)} == 0"
        f" unless {summed_rate(metric_names.PROMPT_TOKENS, _ENGINE)} > 0"
    ),
    holds_for="5m",
    severity="critical",
    summary=f"An engine of {_SERVER} generates nothing while requests wait",
    description="Pod {{ $labels.pod }}: {{ $value | humanize }} requests wait, and for 10 minutes it has read no prompt and"
    " generated no token.",
)
PODS_NOT_SCRAPED = Alert(
    name="KvgatePodsNotScraped",
    when="Prometheus cannot scrape a pod although all replicas are ready",
    expression=f"{_UP_OF_OWNED} == 0 and {_SAME_OWNER} {_READY}",
    holds_for="15m",
    severity="warning",
    summary=f"Prometheus cannot scrape pods of {_OWNER}",
    description="{{ $labels.instance }} does not answer Prometheus although all replicas are ready: usage, waiting requests and"
    " preemptions of it are unknown.",
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
    description="All replicas are ready, and of none the KV cache is known: the prediction is not held against reality.",
)
CALIBRATION_UNUSED = Alert(
    name="KvgateCalibrationUnused",
    when="observed starts are contradictory, implausible, of an image that is not trusted, or unreadable",
    expression=f"max by (state) ({select(registry.CALIBRATION_STARTS.name, unlike('state', 'used'))}) > 0",
    holds_for="15m",
    severity="warning",
    summary="Observed starts are kept that correct no prediction",
    description="{{ $value | humanize }} recorded starts are {{ $labels.state }}.",
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
