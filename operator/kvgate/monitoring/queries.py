"""PromQL for rules, alerts and dashboards, the thresholds that they share, and the recording rules. No metric's name is written here."""

from collections.abc import Callable

from msgspec import Struct

from kvgate.api.conditions import ConditionType
from kvgate.metrics import registry
from kvgate.metrics.registry import OWNER_LABELS, Metric
from kvgate.vllm import metric_names
from kvgate.vllm.metric_names import EngineMetric


def select(name: str, *matchers: str) -> str:
    """Return a selector; without matchers the bare name."""
    return f"{name}{{{','.join(matchers)}}}" if matchers else name


def equals(label: str, value: str) -> str:
    """Return a matcher: the label has this value."""
    return f'{label}="{value}"'


def present(label: str) -> str:
    """Return a matcher: the series has this label."""
    return f'{label}!=""'


def aggregate(operator: str, by: tuple[str, ...], expression: str) -> str:
    """Return `max by (a, b) (…)`; without labels all series become one."""
    return f"{operator} by ({', '.join(by)}) ({expression})" if by else f"{operator}({expression})"


CLUSTER = "cluster"
"""Label that many Prometheus servers add; it is kept wherever series are put together, and is absent where nobody adds it."""
OWNED_BY = (CLUSTER, *OWNER_LABELS)


def owned(metric: Metric, *matchers: str, by: tuple[str, ...] = OWNED_BY) -> str:
    """Return one series per InferenceDeployment, even while two controllers answer because one replaces the other."""
    return aggregate("max", by, select(metric.name, *matchers))


def condition(type_: ConditionType, status: str, *matchers: str) -> str:
    """Return a query that is 1 where the condition has this status."""
    return owned(registry.CONDITION, *matchers, equals("type", type_), equals("status", status))


def any_name(metric: EngineMetric, form: Callable[[str], str]) -> str:
    """Return the form for each name that vLLM's releases gave the metric, joined by `or`, which takes one where a release has two."""
    return " or ".join(form(scraped.name) for scraped in metric.names)


def quantile(share: float, by: tuple[str, ...], bucket_rates: str) -> str:
    """Return a quantile of a histogram, over rates of its buckets."""
    return f"histogram_quantile({share:g}, {aggregate('sum', (*by, 'le'), bucket_rates)})"


def rate(selector: str, window: str) -> str:
    """Return the rate of a counter per second."""
    return f"rate({selector}[{window}])"


HEADROOM_LOW = 0.10
"""Thresholds at which alerts begin and dashboards change colour."""
HEADROOM_AMPLE = 0.20
PREDICTION_ERROR_MAX = 0.10
ADMISSION_ERRORS_MAX = 0.01
ADMISSION_P99_MAX_SECONDS = 0.5
CERTIFICATE_MIN_DAYS = 14
"""cert-manager renews a certificate after two thirds of its time, so below this a renewal is overdue."""


WINDOW = "5m"
"""Window of every rate: at least four scrapes at the usual interval of a minute or less."""
SERVED_BY = (*OWNED_BY, "workload")
"""Labels of who runs an engine: an InferenceDeployment, or the workload of pods without one; the label that does not apply is absent."""


class RecordingRule(Struct, frozen=True, kw_only=True):
    """A query under a name of its own: level, metric, operation."""

    name: str
    expression: str
    meaning: str


def summed(metric: EngineMetric, by: tuple[str, ...]) -> str:
    """Return the sum of vLLM's gauge over the engines of one owner."""
    return aggregate("sum", by, any_name(metric, select))


def summed_rate(metric: EngineMetric, by: tuple[str, ...]) -> str:
    """Return the rate of vLLM's counter per second, summed."""
    return aggregate("sum", by, any_name(metric, lambda name: rate(name, WINDOW)))


def _process_rate(name: str) -> str:
    """Return the rate over all processes together."""
    return aggregate("sum", (), rate(name, WINDOW))


_ERRORS = _process_rate(registry.ADMISSION_ERRORS.name)
_REVIEWS = _process_rate(registry.ADMISSION_REVIEWS.name)
_P99 = quantile(0.99, (), rate(f"{registry.ADMISSION_REVIEW_DURATION.name}_bucket", WINDOW))
"""It is NaN while there are no reviews."""

HEADROOM = RecordingRule(
    name="kvgate:kv_cache_headroom:ratio",
    expression=owned(registry.KV_CACHE_HEADROOM_RATIO, equals("bound", "expected")),
    meaning="Predicted KV cache beyond what the guarantee needs, as a share of the KV cache; negative where it does not fit.",
)
PREDICTION_ERROR = RecordingRule(
    name="kvgate:prediction_error:ratio",
    expression=owned(registry.PREDICTION_ERROR_RATIO),
    meaning="Observed / predicted KV cache - 1; below 0 where vLLM has less than kvgate predicted.",
)
USAGE = RecordingRule(
    name="kvgate:kv_cache_usage_observed:max_ratio",
    expression=aggregate("max", SERVED_BY, any_name(metric_names.KV_CACHE_USAGE, select)),
    meaning="Share of the KV cache that requests hold, in the fullest engine.",
)
RUNNING = RecordingRule(
    name="kvgate:requests_running:sum",
    expression=summed(metric_names.REQUESTS_RUNNING, SERVED_BY),
    meaning="Requests that engines are computing.",
)
WAITING = RecordingRule(
    name="kvgate:requests_waiting:sum",
    expression=summed(metric_names.REQUESTS_WAITING, SERVED_BY),
    meaning="Requests that wait for an engine, because none has begun them or because they were preempted.",
)
PREEMPTIONS = RecordingRule(
    name="kvgate:preemptions:rate5m",
    expression=summed_rate(metric_names.PREEMPTIONS, SERVED_BY),
    meaning="Requests per second that lost their KV cache to other requests and are computed again.",
)
ADMISSION_ERRORS = RecordingRule(
    name="kvgate:admission_errors:ratio_rate5m",
    expression=f"{_ERRORS} / ({_ERRORS} + ({_REVIEWS} or vector(0)) > 0)",
    meaning="Share of the admission reviews that the webhook failed to judge.",
)
ADMISSION_P99 = RecordingRule(
    name="kvgate:admission_review_duration_seconds:p99_rate5m",
    expression=f"{_P99} >= 0",
    meaning="Seconds within which 99 of 100 admission reviews are answered.",
)

RECORDING_RULES = (HEADROOM, PREDICTION_ERROR, USAGE, RUNNING, WAITING, PREEMPTIONS, ADMISSION_ERRORS, ADMISSION_P99)
