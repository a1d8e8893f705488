"""Alerts about replicas and pods that do not get ready, that end, or that nobody can read."""

from kvgate.api.conditions import ConditionType
from kvgate.metrics import registry
from kvgate.metrics.registry import OWNER_LABELS
from kvgate.vllm import metric_names
from mixin import queries
from mixin.alert import COUNT, OWNER, PERCENT, SAME_OWNER, THRESHOLD, Alert
from mixin.queries import (
    CLUSTER,
    OWNED_BY,
    OWNED_POD,
    POD,
    RESTARTED_AGAIN,
    RESTARTS_WINDOW,
    aggregate,
    any_name,
    condition,
    on,
    over,
    owned,
    owned_over,
    present,
    select,
)  # fmt: skip

_WANTED, _HAS = owned(registry.REPLICAS), owned(registry.READY_REPLICAS)
_REFUSED, _READY = condition(ConditionType.ACCEPTED, "False"), condition(ConditionType.READY, "True")
_LOADING = queries.LOADING.name
_WITHOUT_REPLICAS = f"{owned(registry.GPUS)} == 0"
_RESTARTS = registry.POD_RESTARTS.name
_UP_OF_OWNED = select("up", present(OWNER_LABELS[1]))
"""Prometheus' own metric of each target; the scrape configuration adds the label."""
_SERVES = aggregate(
    "max", POD, any_name(metric_names.REQUESTS_RUNNING, lambda name: over("last_over_time", name, "5m"))
)
_DOWN = f"{aggregate('max', OWNED_POD, over('max_over_time', _UP_OF_OWNED, '5m'))} == 0"
_SERIES = aggregate(
    "count",
    OWNED_BY,
    any_name(
        metric_names.REQUESTS_RUNNING,
        lambda name: over("last_over_time", select(name, present(OWNER_LABELS[1])), "15m"),
    ),
)

NO_REPLICA_READY = Alert(
    name="KvgateNoReplicaReady",
    when="no replica is ready although some served within the last day; not while they load for the first hour",
    query=(
        f"{_WANTED} > 0 and {SAME_OWNER} {_HAS} == 0 and {SAME_OWNER} {owned_over('max_over_time', registry.READY_REPLICAS, '1d')} > 0"
        f" unless {SAME_OWNER} ({_LOADING} > 0 and {SAME_OWNER} ({owned_over('max_over_time', registry.READY_REPLICAS, '1h')} > 0"
        f" or {owned_over('min_over_time', registry.REPLICAS, '1h', pick='min')} == 0))"
    ),
    holds_for="3m",
    severity="critical",
    summary=f"No replica of {OWNER} is ready",
    description=f"{COUNT} replicas are wanted and none is ready, so every request fails.",
)
REPLICAS_NOT_READY = Alert(
    name="KvgateReplicasNotReady",
    when="fewer replicas are ready than wanted, and none is loading within its time",
    query=f"1 - {_HAS} / ({_WANTED} > 0) > {THRESHOLD} unless {SAME_OWNER} {_LOADING} > 0",
    threshold=0,
    unit="share of the replicas",
    holds_for="15m",
    severity="warning",
    summary=f"Replicas of {OWNER} are not ready",
    description=f"{PERCENT} of the wanted replicas are not ready, and none of them is loading within the time that it may take.",
)
LOADING_TOO_LONG = Alert(
    name="KvgateLoadingTooLong",
    when="a pod has used most of the time that its start may take, and its vLLM does not answer",
    query=aggregate(
        "count",
        OWNED_BY,
        f"time() - {owned(registry.POD_START_TIME, by=OWNED_POD)} > {SAME_OWNER} group_left ()"
        f" {THRESHOLD} * {owned(registry.LOAD_BUDGET_SECONDS)}"
        f" and {on(OWNED_POD)} {owned(registry.POD_READY, by=OWNED_POD)} == 0 unless {on(POD)} {_SERVES}",
    ),
    threshold=0.8,
    unit="share of the time that a start may take",
    holds_for="2m",
    keeps_firing_for="15m",
    severity="warning",
    summary=f"Pods of {OWNER} take long to load",
    description=f"{COUNT} of its pods used most of the time that a start may take. After all of it the kubelet begins their start anew.",
)
STALLED = Alert(
    name="KvgateStalled",
    when="the cluster does not get to the admitted spec, or containers restart three times in an hour, one of them twice",
    query=(
        f"({condition(ConditionType.STALLED, 'True')} unless {SAME_OWNER} {_REFUSED})"
        f" or ({aggregate('sum', OWNED_BY, over('increase', _RESTARTS, RESTARTS_WINDOW))} >= {THRESHOLD} and {RESTARTED_AGAIN}"
        f" unless {SAME_OWNER} {aggregate('sum', OWNED_BY, over('increase', _RESTARTS, '30m'))} == 0)"
    ),
    threshold=3,
    unit="restarts in an hour",
    holds_for="10m",
    severity="warning",
    summary=f"{OWNER} does not get to its spec",
    description="Its condition Stalled is True, or its engines end again and again. The condition's message says why, if it is known.",
)
NOT_ACCEPTED = Alert(
    name="KvgateNotAccepted",
    when="a stored InferenceDeployment is refused",
    query=_REFUSED,
    holds_for="10m",
    severity="warning",
    summary=f"{OWNER} is refused and not rendered",
    description="Its condition Accepted is False. Nothing runs for the current spec; the spec that was admitted before keeps running.",
)
NO_ENGINE_TARGET = Alert(
    name="KvgateNoEngineTarget",
    when="replicas are ready, and Prometheus has no metric of their vLLM",
    query=(
        f"{_READY} and {SAME_OWNER} {_HAS} > 0 unless {SAME_OWNER} {_SERIES}"
        f" unless {SAME_OWNER} {aggregate('max', OWNED_BY, over('max_over_time', _UP_OF_OWNED, '5m'))} == 0"
    ),
    holds_for="15m",
    severity="warning",
    summary=f"Prometheus has no metrics of the engines of {OWNER}",
    description="All replicas are ready, but Prometheus has no series of their vLLM with the label inferencedeployment. No alert about"
    " their requests can fire.",
)
PODS_NOT_SCRAPED = Alert(
    name="KvgatePodsNotScraped",
    when="Prometheus cannot scrape a pod although all replicas are ready",
    query=f"{aggregate('count', OWNED_BY, _DOWN)} > {THRESHOLD} and {SAME_OWNER} {_READY}",
    threshold=0,
    unit="pods",
    holds_for="15m",
    severity="warning",
    summary=f"Prometheus cannot scrape pods of {OWNER}",
    description=f"{COUNT} of its pods did not answer Prometheus although all replicas are ready. Their usage, waiting requests and"
    " preemptions are unknown.",
)
PODS_NOT_OBSERVED = Alert(
    name="KvgatePodsNotObserved",
    when="the controller knows the KV cache of no pod although all replicas are ready",
    query=(
        f"{_READY} unless {SAME_OWNER} {owned(registry.OBSERVED_PODS)} > 0 unless {SAME_OWNER} {_WITHOUT_REPLICAS}"
        f" and {on((CLUSTER,))} {aggregate('count', (CLUSTER,), registry.POD_SCRAPES.name)}"
    ),
    holds_for="15m",
    severity="warning",
    summary=f"The controller cannot observe {OWNER}",
    description="All replicas are ready, but the KV cache of none is known, so the prediction is not compared with reality.",
)

ALERTS = (
    NO_REPLICA_READY,
    REPLICAS_NOT_READY,
    LOADING_TOO_LONG,
    STALLED,
    NOT_ACCEPTED,
    NO_ENGINE_TARGET,
    PODS_NOT_SCRAPED,
    PODS_NOT_OBSERVED,
)
