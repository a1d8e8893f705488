"""Queries of the dashboards, over the InferenceDeployments that their variables choose."""

from kvgate.api.conditions import ConditionType
from kvgate.metrics import registry
from kvgate.metrics.registry import OWNER_LABELS, Metric
from kvgate.vllm import metric_names
from kvgate.vllm.metric_names import EngineMetric
from mixin import queries
from mixin.queries import (
    DCGM_MEMORY_USED,
    MEBIBYTE,
    OWNED_POD,
    POD,
    SERVED_BY,
    aggregate,
    any_name,
    equals,
    owned,
    present,
    quantile,
    rate,
    select,
    unlike,
)

OWNER = queries.OWNED_BY
CLUSTER, NAMESPACE, NAME = (f'{label}=~"${label}"' for label in OWNER)
CHOSEN = (CLUSTER, NAMESPACE, NAME)
RATE_INTERVAL, RANGE = "$__rate_interval", "$__range"
PER_MINUTE = 60
TOP = 10
"""Lines of a graph over all deployments: those with the largest values at each moment."""


def chosen(metric: Metric, *matchers: str, by: tuple[str, ...] = OWNER) -> str:
    """Return one series per chosen InferenceDeployment."""
    return owned(metric, *CHOSEN, *matchers, by=by)


def per_pod(metric: Metric) -> str:
    """Return one series per pod of the chosen InferenceDeployments."""
    return chosen(metric, by=OWNED_POD)


def bound(metric: Metric, name: str) -> str:
    """Return one bound of a prediction: `low`, `expected` or `high`."""
    return chosen(metric, equals("bound", name))


def gauge(metric: EngineMetric, *matchers: str) -> str:
    """Return vLLM's gauge, one series per engine."""
    return any_name(metric, lambda name: select(name, *(matchers or CHOSEN)))


def per_second(metric: EngineMetric, *matchers: str, suffix: str = "") -> str:
    """Return the rate of vLLM's counter, or of the buckets of its histogram."""
    return any_name(metric, lambda name: rate(select(name + suffix, *(matchers or CHOSEN)), RATE_INTERVAL))


def latency(metric: EngineMetric, share: float, *by: str) -> str:
    """Return a quantile of vLLM's histogram; nothing, and not NaN, where no request was measured."""
    return f"{quantile(share, by, per_second(metric, suffix='_bucket'))} >= 0"


def ratio(part: EngineMetric, whole: EngineMetric, *by: str) -> str:
    """Return one rate as a share of another; nothing where the other is zero."""
    return f"{summed(per_second(part), *by)} / ({summed(per_second(whole), *by)} > 0)"


def summed(expression: str, *by: str) -> str:
    """Return the sum by these labels; without labels the sum of everything."""
    return aggregate("sum", by, expression)


def top(expression: str) -> str:
    """Return the largest values only."""
    return f"topk({TOP}, {expression})"


def or_zero(expression: str, known: str) -> str:
    """Return zero where the expression finds nothing although the other one, a single series, finds something."""
    return f"{expression} or 0 * {known}"


def condition(type_: ConditionType, status: str) -> str:
    """Return a query that is 1 where the condition of a chosen InferenceDeployment has this status."""
    return chosen(registry.CONDITION, equals("type", type_), equals("status", status))


# Fleet

INFO = chosen(registry.DEPLOYMENT_INFO, by=(*OWNER, "model", "accelerator", "kv_cache_dtype", "policy"))
HEADROOM = bound(registry.KV_CACHE_HEADROOM_RATIO, "expected")
PREDICTION_ERROR = chosen(registry.PREDICTION_ERROR_RATIO)
USAGE = chosen(registry.OBSERVED_KV_CACHE_USAGE_RATIO)
GPUS = chosen(registry.GPUS)
HEADROOM_OF_ACCEPTED = f"{HEADROOM} unless {condition(ConditionType.ACCEPTED, 'False')}"
NOT_READY = f"{chosen(registry.REPLICAS)} - {chosen(registry.READY_REPLICAS)}"
NOT_UPDATED = f"{chosen(registry.REPLICAS)} - {chosen(registry.UPDATED_REPLICAS)}"
WAITING = summed(gauge(metric_names.REQUESTS_WAITING), *OWNER)
PREEMPTIONS = f"{PER_MINUTE} * {summed(per_second(metric_names.PREEMPTIONS), *OWNER)}"
FIRST_TOKEN, BETWEEN_TOKENS, END_TO_END = (
    latency(metric, 0.95, *OWNER)
    for metric in (metric_names.TIME_TO_FIRST_TOKEN, metric_names.INTER_TOKEN_LATENCY, metric_names.E2E_LATENCY)
)

DEPLOYMENTS = f"count({chosen(registry.DEPLOYMENT_INFO)})"


def deployments_where(expression: str) -> str:
    """Return the number of chosen InferenceDeployments for which the expression finds something."""
    return or_zero(f"count({expression})", DEPLOYMENTS)


_PEAK = f"max_over_time({select(registry.OBSERVED_KV_CACHE_USAGE_RATIO.name, *CHOSEN)}[{RANGE}])"
UNUSED_GPUS = f"{GPUS} * (1 - {aggregate('max', OWNER, _PEAK)})"
"""GPUs that are not needed for memory: an unused share of the KV cache of all replicas is the same share of their GPUs."""

_OWNERLESS = (CLUSTER, NAMESPACE, equals(OWNER_LABELS[1], ""))
_OWNED = (CLUSTER, NAMESPACE, present(OWNER_LABELS[1]))
WORKLOAD = ("cluster", "namespace", "workload", "model_name")
"""Labels used instead of an InferenceDeployment where there is none; our scrape configuration adds `workload`."""


def ownerless(by_engine: str) -> str:
    """Leave out pods that are scraped a second time with our label: those belong to an InferenceDeployment."""
    ours = gauge(metric_names.KV_CACHE_USAGE, *_OWNED)
    return f"({by_engine}) unless on ({', '.join(POD)}) ({ours})"


_OWNERLESS_USAGE = ownerless(gauge(metric_names.KV_CACHE_USAGE, *_OWNERLESS))
OWNERLESS_USAGE = aggregate("max", WORKLOAD, _OWNERLESS_USAGE)
OWNERLESS_WAITING = summed(ownerless(gauge(metric_names.REQUESTS_WAITING, *_OWNERLESS)), *WORKLOAD)
OWNERLESS_PREEMPTIONS = (
    f"{PER_MINUTE} * {summed(ownerless(per_second(metric_names.PREEMPTIONS, *_OWNERLESS)), *WORKLOAD)}"
)
OWNERLESS_PODS = f"count({aggregate('max', POD, _OWNERLESS_USAGE)})"

# Alerts

ALERT = (*SERVED_BY, "alertname", "severity")
_OURS = f'alertname=~"Kvgate.+",{unlike("severity", "info")}'
"""Alerts of kvgate that somebody has to act on; those of severity info are for whoever plans next."""
_FIRING = equals("alertstate", "firing")
RULES_EVALUATED = f"count({queries.PREDICTION_ERROR.name} or {queries.HEADROOM.name})"


def alerts_since(*matchers: str) -> str:
    """Return one series per firing alert; its value is the time since which its expression holds, in milliseconds since 1970."""
    since = aggregate("min", ALERT, select("ALERTS_FOR_STATE", _OURS, *matchers))
    firing = aggregate("max", ALERT, select("ALERTS", _OURS, _FIRING, *matchers))
    return f"1000 * {since} and {firing}"


def alerts_firing(*matchers: str) -> str:
    """Return the number of firing alerts; zero where none fires, and nothing where no rule is evaluated."""
    return or_zero(f"count({select('ALERTS', _OURS, _FIRING, *matchers)})", RULES_EVALUATED)


ALERT_MARKS = aggregate("max", ("alertname",), select("ALERTS", _OURS, _FIRING, *CHOSEN))

# One deployment

EXPECTED = f"({bound(registry.KV_CACHE_CAPACITY_TOKENS, 'expected')} > 0)"
"""The denominator of every share of the KV cache: the expected predicted capacity of one engine, in tokens."""


def share_of_expected(tokens: str) -> str:
    """Return tokens of one engine as a share of the expected capacity; there may be several pods of a deployment."""
    return f"{tokens} / on ({', '.join(OWNER)}) group_left () {EXPECTED}"


POD_CAPACITY = share_of_expected(per_pod(registry.POD_KV_CACHE_CAPACITY_TOKENS))
POD_USED = share_of_expected(
    f"({per_pod(registry.POD_KV_CACHE_CAPACITY_TOKENS)} - {per_pod(registry.POD_KV_CACHE_HEADROOM_TOKENS)})"
)
LONGEST_REQUEST = f"{chosen(registry.OBSERVED_MAX_MODEL_LEN_TOKENS)} or {chosen(registry.MAX_MODEL_LEN_TOKENS)}"
SMALLEST_CAPACITY = share_of_expected(chosen(registry.OBSERVED_KV_CACHE_CAPACITY_TOKENS))
DEMAND = share_of_expected(chosen(registry.KV_CACHE_DEMAND_TOKENS))
STARTED_AT = f"1000 * {per_pod(registry.POD_START_TIME)}"
ROLLOUT = f"max({NOT_UPDATED}) > 0"
RESTARTS = f"sum(increase({select(registry.POD_RESTARTS.name, *CHOSEN)}[{RANGE}]))"
POD_RESTARTS = per_pod(registry.POD_RESTARTS)
SLOTS = f"sum({chosen(registry.MAX_NUM_SEQS)} * count by ({', '.join(OWNER)}) ({gauge(metric_names.REQUESTS_RUNNING)}))"
ADAPTERS = f"1000 * topk by ({', '.join(POD)}) (1, {gauge(metric_names.LORA_INFO)} > 0)"
CONDITIONS = " or ".join(
    f"{value} * {chosen(registry.CONDITION, equals('status', status), by=('type',))}"
    for status, value in (("True", 1), ("False", 0), ("Unknown", -1))
)

# GPUs, as NVIDIA's exporter (DCGM) reports them

GPU_BUSY, LAST_XID = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_XID_ERRORS"
DCGM = (DCGM_MEMORY_USED, GPU_BUSY, LAST_XID)
_GPU = (*POD, "gpu")
_OUR_PODS = aggregate("max", OWNED_POD, select(registry.POD_INFO.name, *CHOSEN))


def of_gpu(metric: str) -> str:
    """Return one series per GPU of our pods, with the InferenceDeployment.

    A scrape without `honorLabels` calls the labels of DCGM `exported_namespace` and `exported_pod`, and that is the exporter's default.
    """
    renamed = metric
    for label in ("namespace", "pod"):
        renamed = f'label_replace({renamed}, "{label}", "$1", "exported_{label}", "(.+)")'
    return f"{aggregate('max', _GPU, renamed)} * on ({', '.join(POD)}) group_left ({OWNER_LABELS[1]}) {_OUR_PODS}"


GPU_MEMORY_USED = f"{MEBIBYTE} * {of_gpu(DCGM_MEMORY_USED)}"

# kvgate's own processes


def process_rate(metric: Metric, *matchers: str, by: tuple[str, ...] = ()) -> str:
    """Return the rate of a counter of kvgate's own processes."""
    return aggregate("sum", by, rate(select(metric.name, CLUSTER, *matchers), RATE_INTERVAL))


def process_quantile(metric: Metric, share: float) -> str:
    """Return a quantile of a histogram of kvgate's own processes; nothing, and not NaN, where nothing was measured."""
    buckets = rate(select(f"{metric.name}_bucket", CLUSTER), RATE_INTERVAL)
    return f"{quantile(share, (), buckets)} >= 0"


def process_worst(metric: Metric, *matchers: str, by: tuple[str, ...] = ()) -> str:
    """Return the largest value of kvgate's own processes."""
    return aggregate("max", by, select(metric.name, CLUSTER, *matchers))


def process_count(metric: Metric, *matchers: str) -> str:
    """Return how much a counter of kvgate's own processes grew in the time range."""
    return f"sum(increase({select(metric.name, CLUSTER, *matchers)}[{RANGE}]))"


def of_kvgate(expression: str) -> str:
    """Restrict a metric that every Python process exports to kvgate's own targets."""
    return aggregate(
        "max", ("cluster", "pod"), f"{expression} and on (cluster, job, instance) {registry.BUILD_INFO.name}"
    )


CONTROLLER = f"count({select(registry.LEADER.name, CLUSTER)})"
WEBHOOK = f"count({select(registry.CERTIFICATE_EXPIRY.name, CLUSTER)})"
"""Number of processes of each kind that are scraped: nothing where none is."""
LEADERS = f"sum by (cluster) ({process_worst(registry.LEADER, by=('cluster', 'pod'))})"
CERTIFICATE_DAYS = f"(min({select(registry.CERTIFICATE_EXPIRY.name, CLUSTER)}) - time()) / 86400"
CPU_CORES = of_kvgate(rate(select("process_cpu_seconds_total", CLUSTER), RATE_INTERVAL))
MEMORY_BYTES = of_kvgate(select("process_resident_memory_bytes", CLUSTER))
