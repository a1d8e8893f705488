"""Queries of the dashboards, over the InferenceDeployments that their variables choose."""

from kvgate.api.conditions import ConditionType
from kvgate.metrics import registry
from kvgate.metrics.registry import OWNER_LABELS, Metric
from kvgate.monitoring import queries
from kvgate.monitoring.queries import aggregate, any_name, equals, owned, present, quantile, rate, select
from kvgate.vllm import metric_names
from kvgate.vllm.metric_names import EngineMetric

NAMESPACE, NAME = (f'{label}=~"${label}"' for label in OWNER_LABELS)
CHOSEN = (NAMESPACE, NAME)
POD = ("namespace", "pod")
RATE_INTERVAL, RANGE = "$__rate_interval", "$__range"
PER_MINUTE = 60


def chosen(metric: Metric, *matchers: str, by: tuple[str, ...] = OWNER_LABELS) -> str:
    """Return one series per chosen InferenceDeployment."""
    return owned(metric, *CHOSEN, *matchers, by=by)


def bound(metric: Metric, name: str) -> str:
    """Return one bound of a prediction: `low`, `expected` or `high`."""
    return chosen(metric, equals("bound", name))


def gauge(metric: EngineMetric, *matchers: str) -> str:
    """Return vLLM's gauge, one series per engine."""
    return any_name(metric, lambda name: select(name, *(matchers or CHOSEN)))


def per_second(metric: EngineMetric, *matchers: str, suffix: str = "") -> str:
    """Return the rate of vLLM's counter, or of the buckets of its histogram."""
    return any_name(metric, lambda name: rate(select(name + suffix, *(matchers or CHOSEN)), RATE_INTERVAL))


def summed(expression: str, *by: str) -> str:
    """Return the sum by these labels; without labels the sum of everything."""
    return aggregate("sum", by, expression)


def process_rate(metric: Metric, *by: str) -> str:
    """Return the rate of a counter of kvgate's own processes."""
    return summed(rate(metric.name, RATE_INTERVAL), *by)


def process_quantile(metric: Metric, share: float) -> str:
    """Return a quantile of a histogram of kvgate's own processes."""
    return quantile(share, (), rate(f"{metric.name}_bucket", RATE_INTERVAL))


def process_worst(metric: Metric, *by: str) -> str:
    """Return the largest value of kvgate's own processes."""
    return aggregate("max", by, metric.name)


def of_kvgate(expression: str) -> str:
    """Restrict a metric that every Python process exports to kvgate's own targets."""
    return aggregate("max", ("pod",), f"{expression} and on (job, instance) {registry.BUILD_INFO.name}")


def catalogue(kind: str) -> str:
    """Return the number of entries of a catalogue, of the release that has most."""
    return aggregate("max", (), select(registry.CATALOGUE_ENTRIES.name, equals("catalogue", kind)))


def condition(type_: ConditionType, status: str) -> str:
    """Return a query that is 1 where the condition of a chosen InferenceDeployment has this status."""
    return queries.condition(type_, status, *CHOSEN)


INFO = chosen(registry.DEPLOYMENT_INFO, by=(*OWNER_LABELS, "model", "accelerator", "kv_cache_dtype", "policy"))
HEADROOM = bound(registry.KV_CACHE_HEADROOM_RATIO, "expected")
PREDICTION_ERROR = chosen(registry.PREDICTION_ERROR_RATIO)
USAGE = chosen(registry.OBSERVED_KV_CACHE_USAGE_RATIO)
GPUS = chosen(registry.GPUS)
HEADROOM_OF_ACCEPTED = f"{HEADROOM} unless {condition(ConditionType.ACCEPTED, 'False')}"
CAPACITY_BYTES = bound(registry.KV_CACHE_CAPACITY_BYTES, "expected")
DEMAND_SHARE = f"{chosen(registry.KV_CACHE_DEMAND_BYTES)} / ({CAPACITY_BYTES} > 0)"
"""The demand as a share of the expected KV cache; `> 0` avoids an infinite share where there is none."""

PREEMPTIONS = f"{PER_MINUTE} * {summed(per_second(metric_names.PREEMPTIONS), *OWNER_LABELS)}"
PREFIX_HIT_RATIO = f"{summed(per_second(metric_names.PREFIX_CACHE_HITS))} / ({summed(per_second(metric_names.PREFIX_CACHE_QUERIES))} > 0)"

DEPLOYMENTS = f"count({chosen(registry.DEPLOYMENT_INFO)})"
REFUSED = f"count({condition(ConditionType.ACCEPTED, 'False')}) or 0 * {DEPLOYMENTS}"
DRIFTING = f"count({condition(ConditionType.PREDICTION_DRIFT, 'True')}) or 0 * {DEPLOYMENTS}"
_PEAK = f"max_over_time({select(registry.OBSERVED_KV_CACHE_USAGE_RATIO.name, *CHOSEN)}[{RANGE}])"
UNUSED_GPUS = f"{GPUS} * (1 - {aggregate('max', OWNER_LABELS, _PEAK)})"
"""GPUs that are not needed for memory: an unused share of the KV cache of all replicas is the same share of their GPUs."""

_OWNERLESS = (NAMESPACE, equals(OWNER_LABELS[1], ""))
_OWNED = (NAMESPACE, present(OWNER_LABELS[1]))
WORKLOAD = ("namespace", "workload", "model_name")
"""Labels used instead of an InferenceDeployment where there is none; our scrape configuration adds `workload`."""


def ownerless(by_engine: str) -> str:
    """Leave out pods that are scraped a second time with our label: those belong to an InferenceDeployment."""
    ours = gauge(metric_names.KV_CACHE_USAGE, *_OWNED)
    return f"({by_engine}) unless on ({', '.join(POD)}) ({ours})"


OWNERLESS_USAGE = aggregate("max", WORKLOAD, ownerless(gauge(metric_names.KV_CACHE_USAGE, *_OWNERLESS)))
OWNERLESS_PREEMPTIONS = (
    f"{PER_MINUTE} * {summed(ownerless(per_second(metric_names.PREEMPTIONS, *_OWNERLESS)), *WORKLOAD)}"
)
OWNERLESS_PODS = f"count({aggregate('max', POD, ownerless(gauge(metric_names.KV_CACHE_USAGE, *_OWNERLESS)))})"

CONDITIONS = " or ".join(
    f"{value} * {chosen(registry.CONDITION, equals('status', status), by=('type',))}"
    for status, value in (("True", 1), ("False", 0), ("Unknown", -1))
)
DEFECTS = f"sum(increase({registry.ADMISSION_ERRORS.name}[{RANGE}]))"
CERTIFICATE_DAYS = f"(min({registry.CERTIFICATE_EXPIRY.name}) - time()) / 86400"
CPU_CORES = of_kvgate(rate("process_cpu_seconds_total", RATE_INTERVAL))
MEMORY_BYTES = of_kvgate("process_resident_memory_bytes")
