"""Recording rules: what alerts and dashboards ask often, and what joins a prediction with vLLM's own figures."""

from dataclasses import dataclass

from kvgate.metrics import registry
from kvgate.metrics.registry import OWNER_LABELS
from kvgate.monitoring.queries import aggregate, engine, equals, owned, quantile, rate, select
from kvgate.vllm import metric_names
from kvgate.vllm.metric_names import EngineMetric

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
