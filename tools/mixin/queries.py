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


def unlike(label: str, value: str) -> str:
    """Return a matcher: the label has another value, or none."""
    return f'{label}!="{value}"'


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
    return over("rate", selector, window)


def over(function: str, selector: str, window: str, *, offset: str = "") -> str:
    """Return a function of a range; `offset` moves the range into the past."""
    return f"{function}({selector}[{window}]{f' offset {offset}' if offset else ''})"


def on(labels: tuple[str, ...]) -> str:
    """Return the matching of two sides of an operator, which no other label disturbs."""
    return f"on ({', '.join(labels)})"


HEADROOM_LOW = 0.10
"""Thresholds at which alerts begin and dashboards change colour."""
HEADROOM_AMPLE = 0.20
PREDICTION_ERROR_MAX = 0.10
CERTIFICATE_MIN_DAYS = 14
"""cert-manager renews a certificate after two thirds of its time, so below this a renewal is overdue."""


WINDOW = "5m"
"""Window of every rate: at least four scrapes at the usual interval of a minute or less."""
LONG_WINDOW = "15m"
"""Window of rates that must last before somebody is told; WINDOW then says whether they still do."""
PREEMPTIONS_MIN = 10
"""Preemptions in LONG_WINDOW below which no share counts."""
SERVED_BY = (*OWNED_BY, "workload")
"""Labels of who runs an engine: an InferenceDeployment, or the workload of pods without one; the label that does not apply is absent."""
POD = (CLUSTER, "namespace", "pod")
"""Labels of a pod, which kvgate's, vLLM's and DCGM's series share."""
INSTALLED = (CLUSTER, "namespace")
"""Labels of one kvgate: the namespace is that of its own pods."""
OWNED_POD = (*OWNED_BY, "pod")
DCGM_MEMORY_USED = "DCGM_FI_DEV_FB_USED"
"""Framebuffer in use, in MiB, by GPU, of NVIDIA's dcgm-exporter; with the pod that holds the GPU, where it maps pods."""
MEBIBYTE = 1 << 20
RESTARTS_WINDOW = "1h"


class RecordingRule(Struct, frozen=True, kw_only=True):
    """A query under a name of its own: level, metric, operation."""

    name: str
    expression: str
    meaning: str


def summed(metric: EngineMetric, by: tuple[str, ...]) -> str:
    """Return the sum of vLLM's gauge over the engines of one owner."""
    return aggregate("sum", by, any_name(metric, select))


def summed_over(
    function: str, metric: EngineMetric, window: str, by: tuple[str, ...], *, suffix: str = "", offset: str = ""
) -> str:
    """Return the sum of a function over a range of vLLM's gauge or counter."""
    return aggregate("sum", by, any_name(metric, lambda name: over(function, name + suffix, window, offset=offset)))


def owned_over(function: str, metric: Metric, window: str, *matchers: str, pick: str = "max") -> str:
    """Return a function over a range of kvgate's own figure, one series per InferenceDeployment."""
    return aggregate(pick, OWNED_BY, over(function, select(metric.name, *matchers), window))


def _process_rate(name: str) -> str:
    """Return the rate over all processes of one kvgate."""
    return aggregate("sum", INSTALLED, rate(name, WINDOW))


RESTARTED_AGAIN = f"{aggregate('max', OWNED_BY, over('increase', registry.POD_RESTARTS.name, RESTARTS_WINDOW))} >= 2"
"""One container ended twice in an hour. Many that ended once were on a node that began anew."""
_ERRORS = _process_rate(registry.ADMISSION_ERRORS.name)
_REVIEWS = _process_rate(registry.ADMISSION_REVIEWS.name)
_P99 = quantile(0.99, INSTALLED, rate(f"{registry.ADMISSION_REVIEW_DURATION.name}_bucket", WINDOW))
"""It is NaN while there are no reviews."""


def _preempted_share(window: str) -> str:
    """Return preemptions per request that lived in the window. The sum below the line is not 0 where anything can be preempted."""
    finished = summed_over("increase", metric_names.REQUEST_SUCCESS, window, SERVED_BY)
    running = summed_over("avg_over_time", metric_names.REQUESTS_RUNNING, window, SERVED_BY)
    return f"{summed_over('increase', metric_names.PREEMPTIONS, window, SERVED_BY)} / ({finished} + {running} > 0)"


def _first_token(window: str) -> str:
    buckets = any_name(metric_names.TIME_TO_FIRST_TOKEN, lambda name: rate(f"{name}_bucket", window))
    return f"{quantile(0.95, SERVED_BY, buckets)} >= 0"


_HITS, _LOOKED_UP = (
    summed_over("rate", metric, "1h", SERVED_BY)
    for metric in (metric_names.PREFIX_CACHE_HITS, metric_names.PREFIX_CACHE_QUERIES)
)
_POD_LOADS = (
    f"{owned(registry.POD_START_TIME, by=OWNED_POD)} + {on(OWNED_BY)} group_left () {owned(registry.LOAD_BUDGET_SECONDS)}"
    f" > time() and {on(OWNED_POD)} {owned(registry.POD_READY, by=OWNED_POD)} == 0"
    f" unless {on(OWNED_POD)} {aggregate('max', OWNED_POD, over('increase', registry.POD_RESTARTS.name, RESTARTS_WINDOW))} >= 2"
)


def _renamed(target: str, expression: str) -> str:
    """Return a label without the prefix that Prometheus adds where `honor_labels` is off."""
    return f'label_replace({expression}, "{target}", "$1", "exported_{target}", "(.+)")'


HEADROOM = RecordingRule(
    name="kvgate:kv_cache_headroom:ratio",
    expression=owned(registry.KV_CACHE_HEADROOM_RATIO, equals("bound", "expected")),
    meaning="Predicted KV cache beyond what the guarantee needs, as a share of the expected KV cache; negative where it does not fit.",
)
OBSERVED_HEADROOM = RecordingRule(
    name="kvgate:kv_cache_headroom_observed:ratio",
    expression=aggregate("min", OWNED_BY, registry.OBSERVED_KV_CACHE_HEADROOM_RATIO.name),
    meaning="KV cache that no request holds in the fullest pod, as a share of the expected KV cache: the same denominator.",
)
POD_OBSERVED_HEADROOM = RecordingRule(
    name="kvgate:pod_kv_cache_headroom_observed:ratio",
    expression=(
        f"{aggregate('min', OWNED_POD, registry.POD_KV_CACHE_HEADROOM_TOKENS.name)} / {on(OWNED_BY)} group_left ()"
        f" ({owned(registry.KV_CACHE_CAPACITY_TOKENS, equals('bound', 'expected'))} > 0)"
    ),
    meaning="The same of each ready pod. Beside the predicted headroom it says how much of what was promised a pod has left.",
)
HEADROOM_RULES = (HEADROOM, OBSERVED_HEADROOM, POD_OBSERVED_HEADROOM)
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
    expression=summed_over("rate", metric_names.PREEMPTIONS, WINDOW, SERVED_BY),
    meaning="Requests per second that lost their KV cache to other requests and are computed again.",
)
PREEMPTED_LONG, PREEMPTED_SHORT = (
    RecordingRule(
        name=f"kvgate:requests_preempted:ratio{window}",
        expression=_preempted_share(window),
        meaning=f"Preemptions per request that finished or ran in {window}; above 1 where requests are preempted again and again.",
    )
    for window in (LONG_WINDOW, WINDOW)
)
FIRST_TOKEN_LONG, FIRST_TOKEN_SHORT = (
    RecordingRule(
        name=f"kvgate:time_to_first_token_seconds:p95_rate{window}",
        expression=_first_token(window),
        meaning=f"Seconds within which 95 of 100 requests of the last {window} got their first token.",
    )
    for window in (LONG_WINDOW, WINDOW)
)
PREFIX_HITS = RecordingRule(
    name="kvgate:prefix_cache_hits:ratio_rate1h",
    expression=f"{_HITS} / ({_LOOKED_UP} > 0)",
    meaning="Share of the prompt tokens of the last hour that the prefix cache had.",
)
LOADING = RecordingRule(
    name="kvgate:pods_loading:count",
    expression=aggregate("count", OWNED_BY, _POD_LOADS),
    meaning="Pods that are not ready, are within the time that a start may take, and did not restart twice in an hour.",
)
GPU_MEMORY_USED = RecordingRule(
    name="kvgate:gpu_memory_used_bytes:max",
    expression=f"{MEBIBYTE} * {aggregate('max', POD, _renamed('pod', _renamed('namespace', DCGM_MEMORY_USED)))}",
    meaning="Memory in use on the fullest GPU of a pod, as NVIDIA's dcgm-exporter reports it.",
)
GPUS_OF_POD = RecordingRule(
    name="kvgate:pod_gpus:count",
    expression=aggregate("count", POD, _renamed("pod", _renamed("namespace", DCGM_MEMORY_USED))),
    meaning="GPUs of a pod, as NVIDIA's dcgm-exporter reports them.",
)
ADMISSION_ERRORS = RecordingRule(
    name="kvgate:admission_errors:ratio_rate5m",
    expression=f"{_ERRORS} / ({_ERRORS} + ({_REVIEWS} or 0 * {_ERRORS}) > 0)",
    meaning="Share of the admission reviews that the webhook failed to judge.",
)
ADMISSION_P99 = RecordingRule(
    name="kvgate:admission_review_duration_seconds:p99_rate5m",
    expression=f"{_P99} >= 0",
    meaning="Seconds within which 99 of 100 admission reviews are answered.",
)

RECORDING_RULES = (
    *HEADROOM_RULES,
    PREDICTION_ERROR,
    USAGE,
    RUNNING,
    WAITING,
    PREEMPTIONS,
    PREEMPTED_LONG,
    PREEMPTED_SHORT,
    FIRST_TOKEN_LONG,
    FIRST_TOKEN_SHORT,
    PREFIX_HITS,
    LOADING,
    GPU_MEMORY_USED,
    GPUS_OF_POD,
    ADMISSION_ERRORS,
    ADMISSION_P99,
)
