"""PromQL out of metrics: the words that rules, alerts and dashboards share; no name of a metric is written here."""

from collections.abc import Callable
from dataclasses import dataclass

from kvgate.api.conditions import ConditionType
from kvgate.metrics import registry
from kvgate.metrics.registry import OWNER_LABELS, Metric
from kvgate.vllm import metric_names
from kvgate.vllm.metric_names import EngineMetric


def select(name: str, *matchers: str) -> str:
    """A selector; without matchers the bare name."""
    return f"{name}{{{','.join(matchers)}}}" if matchers else name


def equals(label: str, value: str) -> str:
    """A matcher."""
    return f'{label}="{value}"'


def unlike(label: str, value: str) -> str:
    """A matcher: anything else, or nothing."""
    return f'{label}!="{value}"'


def present(label: str) -> str:
    """A matcher: the series has this label."""
    return f'{label}!=""'


def aggregate(operator: str, by: tuple[str, ...], expression: str) -> str:
    """`max by (a, b) (…)`; without labels one series of all."""
    return f"{operator} by ({', '.join(by)}) ({expression})" if by else f"{operator}({expression})"


def owned(metric: Metric, *matchers: str, by: tuple[str, ...] = OWNER_LABELS) -> str:
    """One series per InferenceDeployment, however many controllers answer while one replaces another."""
    return aggregate("max", by, select(metric.name, *matchers))


def condition(type_: ConditionType, status: str, *matchers: str) -> str:
    """1 where the condition has this status."""
    return owned(registry.CONDITION, *matchers, equals("type", type_), equals("status", status))


def engine(metric: EngineMetric, form: Callable[[str], str]) -> str:
    """The form of each name that releases gave the metric: `or` takes one of them where a release serves two."""
    return " or ".join(form(scraped.name) for scraped in metric.names)


def quantile(share: float, by: tuple[str, ...], bucket_rates: str) -> str:
    """Return a quantile of a histogram, over rates of its buckets."""
    return f"histogram_quantile({share:g}, {aggregate('sum', (*by, 'le'), bucket_rates)})"


def rate(selector: str, window: str) -> str:
    """Return the rate of a counter per second."""
    return f"rate({selector}[{window}])"


HEADROOM_LOW = 0.10
HEADROOM_AMPLE = 0.20
PREDICTION_ERROR_MAX = 0.10
ADMISSION_ERRORS_MAX = 0.01
ADMISSION_P99_MAX_SECONDS = 0.5
CERTIFICATE_MIN_DAYS = 14
"""cert-manager renews after two thirds of the time: below this a renewal is overdue."""


WINDOW = "5m"
"""Window of every rate: four scrapes at the usual interval of a minute or less."""
SERVED_BY = (*OWNER_LABELS, "workload")
"""Who runs an engine: an InferenceDeployment, or the workload of pods that have none; the label that does not apply is absent."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordingRule:
    """A query under a name of its own: level, metric, operation."""

    name: str
    expression: str
    meaning: str


def summed(metric: EngineMetric, by: tuple[str, ...]) -> str:
    """A gauge of vLLM over the engines of one owner."""
    return aggregate("sum", by, engine(metric, select))


def summed_rate(metric: EngineMetric, by: tuple[str, ...]) -> str:
    """A counter of vLLM, per second."""
    return aggregate("sum", by, engine(metric, lambda name: rate(name, WINDOW)))


def _process_rate(name: str) -> str:
    """Return the rate over all processes together."""
    return aggregate("sum", (), rate(name, WINDOW))


_ERRORS = _process_rate(registry.ADMISSION_ERRORS.name)
_REVIEWS = _process_rate(registry.ADMISSION_REVIEWS.name)
_P99 = quantile(0.99, (), rate(f"{registry.ADMISSION_REVIEW_DURATION.name}_bucket", WINDOW))
"""Not a number while nobody asks."""

HEADROOM = RecordingRule(
    name="kvgate:kv_cache_headroom:ratio",
    expression=owned(registry.KV_CACHE_HEADROOM_RATIO, equals("bound", "expected")),
    meaning="Predicted KV cache beyond what the guarantee needs, as a share of the KV cache; negative where it does not fit.",
)
PREDICTION_ERROR = RecordingRule(
    name="kvgate:prediction_error:ratio",
    expression=owned(registry.PREDICTION_ERROR_RATIO),
    meaning="Observed / predicted KV cache - 1; below 0 where kvgate promised more than there is.",
)
USAGE = RecordingRule(
    name="kvgate:kv_cache_usage_observed:max_ratio",
    expression=aggregate("max", SERVED_BY, engine(metric_names.KV_CACHE_USAGE, select)),
    meaning="Share of the KV cache that requests hold, in the fullest engine.",
)
RUNNING = RecordingRule(
    name="kvgate:requests_running:sum",
    expression=summed(metric_names.REQUESTS_RUNNING, SERVED_BY),
    meaning="Requests that engines work on.",
)
WAITING = RecordingRule(
    name="kvgate:requests_waiting:sum",
    expression=summed(metric_names.REQUESTS_WAITING, SERVED_BY),
    meaning="Requests that no engine has begun, or that were preempted.",
)
PREEMPTIONS = RecordingRule(
    name="kvgate:preemptions:rate5m",
    expression=summed_rate(metric_names.PREEMPTIONS, SERVED_BY),
    meaning="Requests per second that lost their KV cache to others and are computed again.",
)
ADMISSION_ERRORS = RecordingRule(
    name="kvgate:admission_errors:ratio_rate5m",
    expression=f"{_ERRORS} / ({_ERRORS} + ({_REVIEWS} or vector(0)) > 0)",
    meaning="Share of the admission reviews that the webhook failed to judge.",
)
ADMISSION_P99 = RecordingRule(
    name="kvgate:admission_review_duration_seconds:p99_rate5m",
    expression=f"{_P99} >= 0",
    meaning="Within this many seconds 99 of 100 admission reviews are answered.",
)

RECORDING_RULES = (HEADROOM, PREDICTION_ERROR, USAGE, RUNNING, WAITING, PREEMPTIONS, ADMISSION_ERRORS, ADMISSION_P99)
