"""All metrics as data, for the collectors, the documentation, the alerts and the dashboards.

Names have no colons, which in Prometheus belong to recording rules.
"""

from enum import StrEnum

from msgspec import Struct

from kvgate.budget.answers.figures import FIGURES


class MetricType(StrEnum):
    GAUGE = "gauge"
    COUNTER = "counter"
    HISTOGRAM = "histogram"


_UNITS = ("bytes", "ratio", "seconds", "tokens")


class Metric(Struct, frozen=True, kw_only=True):
    """One metric family. Its name says of which type it is, and in which unit."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()
    """Upper bounds of a histogram, in its unit."""

    @property
    def kind(self) -> MetricType:
        counts = MetricType.COUNTER if self.name.endswith("_total") else MetricType.GAUGE
        return MetricType.HISTOGRAM if self.buckets else counts

    @property
    def unit(self) -> str:
        """The last word of the name; empty for counts and flags."""
        word = self.name.rpartition("_")[2]
        return word if word in _UNITS else ""


OWNER_LABELS = ("namespace", "inferencedeployment")
"""Labels of every metric of one InferenceDeployment; a uid is never a label."""
MAX_PODS = 256
"""Pods of one InferenceDeployment that have series of their own, the first ones by name; the figures over all pods count every pod."""
MAX_SERIES, MAX_SERIES_OF_A_POD = 72, 7
"""Budget of series of one InferenceDeployment, and of each pod. A figure on which an alert or a panel rests is worth one; what changes
with every spec or every request (a message, a uid, an image) never is a label."""


def _own(name: str, help_: str, *labels: str, buckets: tuple[float, ...] = ()) -> Metric:
    return Metric(name=name, help=help_, labels=labels, buckets=buckets)


def _owned(name: str, help_: str, *labels: str) -> Metric:
    return _own(name, help_, *OWNER_LABELS, *labels)


def _shown(figure: str, *labels: str) -> Metric:
    """Return the metric of a figure: the table has its name and meaning."""
    return _owned(FIGURES[figure].metric, FIGURES[figure].help, *labels)


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
BUDGET_SKIPPED = _owned(
    "kvgate_budget_skipped",
    "1 where the annotation kvgate.io/skip-budget admitted what runs although it does not fit; absent elsewhere.",
)
BUDGET_SKIP_EXPIRY = _owned(
    "kvgate_budget_skip_expiry_timestamp_seconds",
    "End of that annotation in seconds since 1970, by kvgate.io/skip-budget-until; absent where it has none.",
)
KV_CACHE_DEMAND_BYTES = _shown("demand_bytes")
KV_CACHE_DEMAND_TOKENS = _shown("demand_tokens")
KV_CACHE_HEADROOM_BYTES = _shown("headroom_bytes", "bound")
KV_CACHE_HEADROOM_RATIO = _shown("headroom_ratio", "bound")
GPU_MEMORY_BYTES = _owned(
    "kvgate_gpu_memory_bytes",
    "Expected memory by term, on the GPU with the least room. The terms sum to the memory of the GPU; "
    "one is negative where vLLM would ask for too much.",
    "term",
)
GPU_MEMORY_TERMS = {
    **{name.removesuffix("_bytes"): row.help for name, row in FIGURES.items() if row.metric == GPU_MEMORY_BYTES.name},
    "correction": "Bytes that starts observed before took more or less than the terms above; absent where there were none.",
    "kv_cache": "Bytes of the KV cache, or what is pinned of it; negative where the terms above take more than is requested.",
    "not_requested": "The rest of the GPU, which vLLM leaves to others.",
}
"""Values of the label `term`, in their order from the bottom of a GPU to its top."""
GPU_MEMORY_TOTAL_BYTES = _shown("total_bytes")
GPU_MEMORY_REQUESTED_BYTES = _shown("requested_bytes")
FULL_LENGTH_REQUESTS = _shown("full_length_requests", "bound")
MAX_MODEL_LEN_TOKENS = _owned("kvgate_max_model_len_tokens", "Longest request, as rendered.")
AUTO_MAX_MODEL_LEN_TOKENS = _shown("auto_max_model_len", "bound")
MIN_MAX_MODEL_LEN_TOKENS = _owned(
    "kvgate_min_max_model_len_tokens",
    "Longest request that every pod must serve where vLLM chooses max_model_len; absent where nobody states one.",
)
OBSERVED_MAX_MODEL_LEN_TOKENS = _owned(
    "kvgate_observed_max_model_len_tokens",
    "Longest request that vLLM serves where it chose max_model_len: the shortest of all ready pods of the current spec.",
)
MAX_NUM_SEQS = _owned("kvgate_max_num_seqs", "Requests that one engine runs at the same time, as rendered.")
GPUS = _owned(
    "kvgate_gpus",
    "GPUs that all wanted replicas need together; of a GPU that N engines share, each needs the Nth part.",
)
OBSERVED_KV_CACHE_CAPACITY_TOKENS = _owned(
    "kvgate_observed_kv_cache_capacity_tokens",
    "KV cache that vLLM reports, in tokens of one engine: the smallest of all ready pods.",
)
OBSERVED_KV_CACHE_USAGE_RATIO = _owned(
    "kvgate_observed_kv_cache_usage_ratio",
    "Share of the KV cache that requests hold, as vLLM reports it: the largest of all ready pods.",
)
OBSERVED_KV_CACHE_HEADROOM_TOKENS = _owned(
    "kvgate_observed_kv_cache_headroom_tokens",
    "Observed headroom: KV cache that vLLM reports less what requests hold, in tokens of one engine: the smallest of all ready pods.",
)
OBSERVED_KV_CACHE_HEADROOM_RATIO = _owned(
    "kvgate_observed_kv_cache_headroom_ratio",
    "Observed headroom as a share of the expected KV cache, the denominator of the predicted headroom: the smallest of all ready pods.",
)
OBSERVED_PODS = _owned("kvgate_observed_pods", "Ready pods whose capacity is known.")
PREDICTION_ERROR_RATIO = _owned(
    "kvgate_prediction_error_ratio",
    "Observed / expected KV cache capacity - 1; below 0 where vLLM has less than kvgate predicted.",
)
RECALIBRATED_KV_CACHE_CAPACITY_TOKENS = _owned(
    "kvgate_recalibrated_kv_cache_capacity_tokens",
    "Size of one engine's KV cache as it would be predicted now; absent where that is what was admitted.",
    "bound",
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
)
POD_RESTARTS = _owned(
    "kvgate_pod_restarts_total", "Restarts of the engine's container, as the kubelet counts them.", "pod"
)
POD_KV_CACHE_CAPACITY_TOKENS = _owned(
    "kvgate_pod_kv_cache_capacity_tokens",
    "KV cache that the vLLM of a ready pod reports, in tokens of one engine.",
    "pod",
)
POD_MAX_MODEL_LEN_TOKENS = _owned(
    "kvgate_pod_max_model_len_tokens", "Longest request that a ready pod serves where vLLM chose max_model_len.", "pod"
)
POD_KV_CACHE_HEADROOM_TOKENS = _owned(
    "kvgate_pod_kv_cache_headroom_tokens",
    "KV cache of a ready pod less what requests hold, in tokens of one engine.",
    "pod",
)

# ── of a process itself ─────────────────────────────────────────────────────────────────────────────────────────

BUILD_INFO = _own("kvgate_build_info", "Always 1; the label is the running release.", "version")
CATALOGUE_ENTRIES = _own(
    "kvgate_catalogue_entries", "Entries of the catalogues of models and accelerators.", "catalogue"
)
ADMISSION_REVIEWS = _own(
    "kvgate_admission_reviews_total",
    "Answered admission reviews, by decision (Invalid: the schema refused the object; WouldRefuse: the audit mode admitted it), policy and "
    "operation.",
    "decision",
    "policy",
    "operation",
)
ADMISSION_ERRORS = _own(
    "kvgate_admission_errors_total",
    "Admission reviews without a verdict, because of a defect of kvgate or because no worker was free.",
)
ADMISSION_REVIEW_DURATION = _own(
    "kvgate_admission_review_duration_seconds",
    "Time from the first byte of an admission review's body to its answer.",
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
RECONCILES = _own("kvgate_reconcile_total", "Finished reconciles, by result.", "result")
RECONCILE_DURATION = _own(
    "kvgate_reconcile_duration_seconds",
    "Time of one reconcile, API requests included.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
API_REQUESTS = _own(
    "kvgate_api_requests_total", "Requests to the Kubernetes API, by verb and HTTP status.", "verb", "code"
)
LEADER = _own(
    "kvgate_leader",
    "1 while this controller holds the Lease, as the API server answered last and for as long as the Lease is valid then; else 0.",
    "lease",
)
QUEUE_DEPTH = _own("kvgate_queue_depth", "InferenceDeployments that wait for a reconcile that is due.")
REPLACEMENTS = _own(
    "kvgate_replacements",
    "InferenceDeployments whose pods kvgate replaces although nobody edited them, by state (waiting, loading, failed, ready).",
    "state",
)
BACKGROUND_ERRORS = _own(
    "kvgate_background_errors_total",
    "Exceptions in background loops, which continue, by loop; the log has each cause once.",
    "loop",
)
EVENT_LOOP_LAG = _own("kvgate_event_loop_lag_seconds", "Delay with which the reconciling event loop last woke up.")
POD_SCRAPES = _own(
    "kvgate_pod_scrapes_total", "Scrapes of vLLM pods, by result (read, or the kind of failure).", "result"
)
POD_SCRAPE_DURATION = _own(
    "kvgate_pod_scrape_duration_seconds",
    "Time of one scrape of a vLLM pod, the parsing included.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
)
CALIBRATION_STARTS = _own(
    "kvgate_calibration_starts",
    "Observed starts, by state: those that correct predictions, and those that are stored but not used.",
    "state",
)
MODEL_RESOLUTIONS = _own(
    "kvgate_model_resolutions_total",
    "Models that the hub was asked for, by the reason that the condition ModelResolved then has.",
    "reason",
)
MODELS_WAITING = _own("kvgate_models_waiting", "Models that wait for a fetch from the hub, or are being fetched.")
MODELS_STORED = _own("kvgate_models_stored", "Fetched models that the controller keeps in its ConfigMap.")
CERTIFICATE_EXPIRY = _own(
    "kvgate_webhook_certificate_expiry_timestamp_seconds",
    "Expiry of the certificate that the webhook serves, in seconds since 1970.",
)

METRICS = tuple(each for each in tuple(globals().values()) if isinstance(each, Metric))
"""All metrics, in the order in which they stand here."""
PER_DEPLOYMENT = tuple(each for each in METRICS if each.labels[:2] == OWNER_LABELS)
"""Served by the controller; at most MAX_SERIES per InferenceDeployment, and MAX_SERIES_OF_A_POD for each of MAX_PODS pods."""
PER_PROCESS = tuple(each for each in METRICS if each not in PER_DEPLOYMENT)
"""Metrics of a process itself: the webhook serves those of admission, the controller those of reconciling."""
