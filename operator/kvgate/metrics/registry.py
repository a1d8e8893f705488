"""All metrics as data, for the collectors, the documentation, the alerts and the dashboards.

Names have no colons, which in Prometheus belong to recording rules.
"""

from enum import StrEnum

from msgspec import Struct

from kvgate.budget.figures import FIGURES


class MetricType(StrEnum):
    """Prometheus' name of the type."""

    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


class Metric(Struct, frozen=True, kw_only=True):
    """One metric family."""

    name: str
    kind: MetricType
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""
    """The last word of the name; empty for counts and flags."""
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, in its unit."""


OWNER_LABELS = ("namespace", "inferencedeployment")
"""Labels of every metric of one InferenceDeployment; a uid is never a label."""
MAX_PODS = 256
"""Pods of one InferenceDeployment that have series of their own, the first ones by name; the figures over all pods count every pod."""
MAX_SERIES, MAX_SERIES_OF_A_POD = 61, 6
"""Budget of series of one InferenceDeployment, and of each pod. A figure on which an alert or a panel rests is worth one; what changes
with every spec or every request (a message, a uid, an image) never is a label."""


def _owned(name: str, help_: str, *labels: str, unit: str = "") -> Metric:
    return Metric(name=name, kind=MetricType.GAUGE, help=help_, labels=(*OWNER_LABELS, *labels), unit=unit)


def _shown(figure: str, *labels: str) -> Metric:
    """Return the metric of a figure: the table has its name, meaning and unit."""
    row = FIGURES[figure]
    return _owned(row.metric, row.help, *labels, unit="" if row.unit == "requests" else row.unit)


DEPLOYMENT_INFO = _owned(
    "kvgate_deployment_info",
    "Always 1; the labels are what the InferenceDeployment requests.",
    "model",
    "accelerator",
    "kv_cache_dtype",
    "policy",
)
KV_CACHE_CAPACITY_TOKENS = _shown("capacity_tokens", "bound")
KV_CACHE_CAPACITY_BYTES = _shown("capacity_bytes", "bound")
PINNED_KV_CACHE_TOKENS = _shown("pinned_tokens")
FORGONE_KV_CACHE_BYTES = _shown("forgone_bytes")
HOST_MEMORY_BYTES = _shown("host_memory_bytes")
KV_CACHE_DEMAND_BYTES = _shown("demand_bytes")
KV_CACHE_DEMAND_TOKENS = _shown("demand_tokens")
KV_CACHE_HEADROOM_BYTES = _shown("headroom_bytes", "bound")
KV_CACHE_HEADROOM_RATIO = _shown("headroom_ratio", "bound")
GPU_MEMORY_TOTAL_BYTES = _shown("total_bytes")
GPU_MEMORY_REQUESTED_BYTES = _shown("requested_bytes")
FULL_LENGTH_REQUESTS = _shown("full_length_requests", "bound")
BUDGET_SKIPPED = _owned(
    "kvgate_budget_skipped",
    "1 where the annotation kvgate.io/skip-budget admitted what runs although it does not fit; absent elsewhere.",
)
BUDGET_SKIP_EXPIRY = _owned(
    "kvgate_budget_skip_expiry_timestamp_seconds",
    "End of that annotation in seconds since 1970, by kvgate.io/skip-budget-until; absent where it has none.",
    unit="seconds",
)
GPU_MEMORY_BYTES = _owned(
    "kvgate_gpu_memory_bytes",
    "Expected memory by term, on the GPU with the least room. The terms sum to the memory of the GPU; "
    "one is negative where vLLM would ask for too much.",
    "term",
    unit="bytes",
)
GPU_MEMORY_TERMS = {
    **{name.removesuffix("_bytes"): row.help for name, row in FIGURES.items() if row.metric == GPU_MEMORY_BYTES.name},
    "correction": "Bytes that starts observed before took more or less than the terms above; absent where there were none.",
    "kv_cache": "Bytes of the KV cache, or what is pinned of it; negative where the terms above take more than is requested.",
    "not_requested": "The rest of the GPU, which vLLM leaves to others.",
}
"""Values of the label `term`, in their order from the bottom of a GPU to its top."""
MAX_MODEL_LEN_TOKENS = _owned("kvgate_max_model_len_tokens", "Longest request, as rendered.", unit="tokens")
MAX_NUM_SEQS = _owned("kvgate_max_num_seqs", "Requests that one engine runs at the same time, as rendered.")
GPUS = _owned(
    "kvgate_gpus",
    "GPUs that all wanted replicas need together; of a GPU that N engines share, each needs the Nth part.",
)
OBSERVED_KV_CACHE_CAPACITY_TOKENS = _owned(
    "kvgate_observed_kv_cache_capacity_tokens",
    "KV cache that vLLM reports, in tokens of one engine: the smallest of all ready pods.",
    unit="tokens",
)
OBSERVED_KV_CACHE_USAGE_RATIO = _owned(
    "kvgate_observed_kv_cache_usage_ratio",
    "Share of the KV cache that requests hold, as vLLM reports it: the largest of all ready pods.",
    unit="ratio",
)
OBSERVED_KV_CACHE_HEADROOM_TOKENS = _owned(
    "kvgate_observed_kv_cache_headroom_tokens",
    "Observed headroom: KV cache that vLLM reports less what requests hold, in tokens of one engine: the smallest of all ready pods.",
    unit="tokens",
)
OBSERVED_KV_CACHE_HEADROOM_RATIO = _owned(
    "kvgate_observed_kv_cache_headroom_ratio",
    "Observed headroom as a share of the expected KV cache, the denominator of the predicted headroom: the smallest of all ready pods.",
    unit="ratio",
)
OBSERVED_PODS = _owned("kvgate_observed_pods", "Ready pods whose capacity is known.")
PREDICTION_ERROR_RATIO = _owned(
    "kvgate_prediction_error_ratio",
    "Observed / expected KV cache capacity - 1; below 0 where vLLM has less than kvgate predicted.",
    unit="ratio",
)
RECALIBRATED_KV_CACHE_CAPACITY_TOKENS = _owned(
    "kvgate_recalibrated_kv_cache_capacity_tokens",
    "Size of one engine's KV cache as it would be predicted now; absent where that is what was admitted.",
    "bound",
    unit="tokens",
)
CONDITION = _owned(
    "kvgate_condition", "1 for the current status and reason of each condition.", "type", "status", "reason"
)
REPLICAS = _owned("kvgate_replicas", "Replicas that the Deployment wants.")
READY_REPLICAS = _owned("kvgate_ready_replicas", "Ready replicas of the Deployment.")
UPDATED_REPLICAS = _owned("kvgate_updated_replicas", "Replicas of the Deployment's present template.")
LOAD_BUDGET_SECONDS = _owned(
    "kvgate_load_budget_seconds",
    "Time that the start of a pod may take: the startup probe gives up then, and the progress deadline is longer.",
    unit="seconds",
)
POD_INFO = _owned(
    "kvgate_pod_info",
    "Always 1, for each pod of the Deployment: joins on namespace and pod, or on node, with the series of others.",
    "pod",
    "node",
)
POD_READY = _owned("kvgate_pod_ready", "1 for a ready pod, 0 for another one.", "pod")
POD_START_TIME = _owned(
    "kvgate_pod_start_time_seconds",
    "Last start of the engine's container in seconds since 1970, or that of the pod while the container does not run.",
    "pod",
    unit="seconds",
)
POD_RESTARTS = Metric(
    name="kvgate_pod_restarts_total",
    kind=MetricType.COUNTER,
    help="Restarts of the engine's container, as the kubelet counts them.",
    labels=(*OWNER_LABELS, "pod"),
)
POD_KV_CACHE_CAPACITY_TOKENS = _owned(
    "kvgate_pod_kv_cache_capacity_tokens",
    "KV cache that the vLLM of a ready pod reports, in tokens of one engine.",
    "pod",
    unit="tokens",
)
POD_KV_CACHE_HEADROOM_TOKENS = _owned(
    "kvgate_pod_kv_cache_headroom_tokens",
    "KV cache of a ready pod less what requests hold, in tokens of one engine.",
    "pod",
    unit="tokens",
)

PER_DEPLOYMENT = (
    DEPLOYMENT_INFO,
    KV_CACHE_CAPACITY_TOKENS,
    KV_CACHE_CAPACITY_BYTES,
    PINNED_KV_CACHE_TOKENS,
    FORGONE_KV_CACHE_BYTES,
    HOST_MEMORY_BYTES,
    BUDGET_SKIPPED,
    BUDGET_SKIP_EXPIRY,
    KV_CACHE_DEMAND_BYTES,
    KV_CACHE_DEMAND_TOKENS,
    KV_CACHE_HEADROOM_BYTES,
    KV_CACHE_HEADROOM_RATIO,
    GPU_MEMORY_BYTES,
    GPU_MEMORY_TOTAL_BYTES,
    GPU_MEMORY_REQUESTED_BYTES,
    FULL_LENGTH_REQUESTS,
    MAX_MODEL_LEN_TOKENS,
    MAX_NUM_SEQS,
    GPUS,
    OBSERVED_KV_CACHE_CAPACITY_TOKENS,
    OBSERVED_KV_CACHE_USAGE_RATIO,
    OBSERVED_KV_CACHE_HEADROOM_TOKENS,
    OBSERVED_KV_CACHE_HEADROOM_RATIO,
    OBSERVED_PODS,
    PREDICTION_ERROR_RATIO,
    RECALIBRATED_KV_CACHE_CAPACITY_TOKENS,
    CONDITION,
    REPLICAS,
    READY_REPLICAS,
    UPDATED_REPLICAS,
    LOAD_BUDGET_SECONDS,
    POD_INFO,
    POD_READY,
    POD_START_TIME,
    POD_RESTARTS,
    POD_KV_CACHE_CAPACITY_TOKENS,
    POD_KV_CACHE_HEADROOM_TOKENS,
)
"""Served by the controller; at most MAX_SERIES per InferenceDeployment, and MAX_SERIES_OF_A_POD for each of MAX_PODS pods."""

BUILD_INFO = Metric(
    name="kvgate_build_info",
    kind=MetricType.GAUGE,
    help="Always 1; the label is the running release.",
    labels=("version",),
)
CATALOGUE_ENTRIES = Metric(
    name="kvgate_catalogue_entries",
    kind=MetricType.GAUGE,
    help="Entries of the catalogues of models and accelerators.",
    labels=("catalogue",),
)
ADMISSION_REVIEWS = Metric(
    name="kvgate_admission_reviews_total",
    kind=MetricType.COUNTER,
    help="Answered admission reviews, by decision (Invalid: the schema refused the object), policy and operation.",
    labels=("decision", "policy", "operation"),
)
ADMISSION_ERRORS = Metric(
    name="kvgate_admission_errors_total",
    kind=MetricType.COUNTER,
    help="Admission reviews without a verdict, because of a defect of kvgate or because no worker was free.",
)
ADMISSION_REVIEW_DURATION = Metric(
    name="kvgate_admission_review_duration_seconds",
    kind=MetricType.HISTOGRAM,
    help="Time from the first byte of an admission review's body to its answer.",
    unit="seconds",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
RECONCILES = Metric(
    name="kvgate_reconcile_total", kind=MetricType.COUNTER, help="Finished reconciles, by result.", labels=("result",)
)
RECONCILE_DURATION = Metric(
    name="kvgate_reconcile_duration_seconds",
    kind=MetricType.HISTOGRAM,
    help="Time of one reconcile, API requests included.",
    unit="seconds",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
API_REQUESTS = Metric(
    name="kvgate_api_requests_total",
    kind=MetricType.COUNTER,
    help="Requests to the Kubernetes API, by verb and HTTP status.",
    labels=("verb", "code"),
)
LEADER = Metric(
    name="kvgate_leader",
    kind=MetricType.GAUGE,
    help="1 while this controller holds the Lease, as the API server answered last and for as long as the Lease is valid then; else 0.",
    labels=("lease",),
)
QUEUE_DEPTH = Metric(
    name="kvgate_queue_depth", kind=MetricType.GAUGE, help="InferenceDeployments that wait for a reconcile that is due."
)
BACKGROUND_ERRORS = Metric(
    name="kvgate_background_errors_total",
    kind=MetricType.COUNTER,
    help="Exceptions in background loops, which continue, by loop; the log has each cause once.",
    labels=("loop",),
)
EVENT_LOOP_LAG = Metric(
    name="kvgate_event_loop_lag_seconds",
    kind=MetricType.GAUGE,
    help="Delay with which the reconciling event loop last woke up.",
    unit="seconds",
)
POD_SCRAPES = Metric(
    name="kvgate_pod_scrapes_total",
    kind=MetricType.COUNTER,
    help="Scrapes of vLLM pods, by result (read, or the kind of failure).",
    labels=("result",),
)
POD_SCRAPE_DURATION = Metric(
    name="kvgate_pod_scrape_duration_seconds",
    kind=MetricType.HISTOGRAM,
    help="Time of one scrape of a vLLM pod, the parsing included.",
    unit="seconds",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
)
CALIBRATION_STARTS = Metric(
    name="kvgate_calibration_starts",
    kind=MetricType.GAUGE,
    help="Observed starts, by state: those that correct predictions, and those that are stored but not used.",
    labels=("state",),
)
MODEL_RESOLUTIONS = Metric(
    name="kvgate_model_resolutions_total",
    kind=MetricType.COUNTER,
    help="Models that the hub was asked for, by the reason that the condition ModelResolved then has.",
    labels=("reason",),
)
MODELS_WAITING = Metric(
    name="kvgate_models_waiting",
    kind=MetricType.GAUGE,
    help="Models that wait for a fetch from the hub, or are being fetched.",
)
MODELS_STORED = Metric(
    name="kvgate_models_stored",
    kind=MetricType.GAUGE,
    help="Fetched models that the controller keeps in its ConfigMap.",
)
CERTIFICATE_EXPIRY = Metric(
    name="kvgate_webhook_certificate_expiry_timestamp_seconds",
    kind=MetricType.GAUGE,
    help="Expiry of the certificate that the webhook serves, in seconds since 1970.",
    unit="seconds",
)

PER_PROCESS = (
    BUILD_INFO,
    CATALOGUE_ENTRIES,
    ADMISSION_REVIEWS,
    ADMISSION_ERRORS,
    ADMISSION_REVIEW_DURATION,
    RECONCILES,
    RECONCILE_DURATION,
    API_REQUESTS,
    LEADER,
    QUEUE_DEPTH,
    BACKGROUND_ERRORS,
    EVENT_LOOP_LAG,
    POD_SCRAPES,
    POD_SCRAPE_DURATION,
    CALIBRATION_STARTS,
    MODEL_RESOLUTIONS,
    MODELS_WAITING,
    MODELS_STORED,
    CERTIFICATE_EXPIRY,
)
"""Metrics of a process itself: the webhook serves those of admission, the controller those of reconciling."""

METRICS = (*PER_DEPLOYMENT, *PER_PROCESS)
