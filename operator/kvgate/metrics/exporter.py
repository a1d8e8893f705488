"""The text of the metrics of InferenceDeployments, and the instruments of a process.

The series of the InferenceDeployments are written here, because prometheus_client takes three times as long. Their names can be carried
by every format, so the formats differ by the line with the unit, and by the name of a counter's family.
"""

from collections.abc import Iterator, Mapping
from math import isfinite
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.utils import floatToGoString

from kvgate import __version__, catalogue
from kvgate.metrics import registry
from kvgate.metrics.registry import MAX_PODS, Metric, MetricType
from kvgate.metrics.samples import DeploymentSample, ObservedSample, PodSample

_BOUND_NAMES = ("low", "expected", "high")
_NOT_OBSERVED = ObservedSample(pods=None)


Series = tuple[Metric, tuple[str, ...], float]
"""(metric, labels after namespace and name, value)."""


def series_of(sample: DeploymentSample) -> Iterator[Series]:
    """Yield each series; a figure that is not known has none."""
    info = (sample.model, sample.accelerator, sample.kv_cache_dtype, sample.policy)
    yield registry.DEPLOYMENT_INFO, info, 1
    intervals = (
        (registry.KV_CACHE_CAPACITY_TOKENS, sample.capacity_tokens),
        (registry.KV_CACHE_CAPACITY_BYTES, sample.capacity_bytes),
        (registry.KV_CACHE_HEADROOM_BYTES, sample.headroom_bytes),
        (registry.KV_CACHE_HEADROOM_RATIO, sample.headroom_ratio),
        (registry.FULL_LENGTH_REQUESTS, sample.full_length_requests),
        (registry.RECALIBRATED_KV_CACHE_CAPACITY_TOKENS, sample.recalibrated_tokens),
    )
    for metric, bounds in intervals:
        for bound, value in zip(_BOUND_NAMES, bounds or (), strict=False):
            yield metric, (bound,), value
    for metric, figure in _figures(sample):
        if figure is not None:
            yield metric, (), figure
    for term, value in sample.memory.terms if sample.memory else ():
        yield registry.GPU_MEMORY_BYTES, (term,), value
    for condition in sample.conditions:
        yield registry.CONDITION, condition, 1
    for pod in sample.pods[:MAX_PODS]:
        yield from _series_of_pod(pod)


def _figures(sample: DeploymentSample) -> Iterator[tuple[Metric, float | None]]:
    """Yield the metrics without further labels."""
    yield registry.KV_CACHE_DEMAND_BYTES, sample.demand_bytes
    yield registry.KV_CACHE_DEMAND_TOKENS, sample.demand_tokens
    yield registry.HOST_MEMORY_BYTES, sample.host_memory_bytes
    yield registry.MAX_MODEL_LEN_TOKENS, sample.max_model_len_tokens
    yield registry.MAX_NUM_SEQS, sample.max_num_seqs
    yield registry.GPUS, sample.gpus
    yield registry.LOAD_BUDGET_SECONDS, sample.load_seconds
    if pinned := sample.pinned:
        yield registry.PINNED_KV_CACHE_TOKENS, pinned.tokens
        yield registry.FORGONE_KV_CACHE_BYTES, pinned.forgone_bytes
    if memory := sample.memory:
        yield registry.GPU_MEMORY_TOTAL_BYTES, memory.total_bytes
        yield registry.GPU_MEMORY_REQUESTED_BYTES, memory.requested_bytes
    if rollout := sample.rollout:
        yield registry.REPLICAS, rollout.wanted
        yield registry.READY_REPLICAS, rollout.ready
        yield registry.UPDATED_REPLICAS, rollout.updated
    observed = sample.observed or _NOT_OBSERVED
    yield registry.OBSERVED_KV_CACHE_CAPACITY_TOKENS, observed.capacity_tokens
    yield registry.OBSERVED_KV_CACHE_USAGE_RATIO, observed.usage_ratio
    yield registry.OBSERVED_PODS, observed.pods
    yield registry.PREDICTION_ERROR_RATIO, observed.error_ratio
    left = min((pod.headroom_tokens for pod in sample.pods if pod.headroom_tokens is not None), default=None)
    yield registry.OBSERVED_KV_CACHE_HEADROOM_TOKENS, left
    expected = sample.capacity_tokens[1] if sample.capacity_tokens else 0
    yield registry.OBSERVED_KV_CACHE_HEADROOM_RATIO, left / expected if left is not None and expected > 0 else None


def _series_of_pod(pod: PodSample) -> Iterator[Series]:
    yield registry.POD_INFO, (pod.name, pod.node), 1
    figures = (
        (registry.POD_READY, int(pod.is_ready)),
        (registry.POD_RESTARTS, pod.restarts),
        (registry.POD_START_TIME, pod.started_seconds),
        (registry.POD_KV_CACHE_CAPACITY_TOKENS, pod.capacity_tokens),
        (registry.POD_KV_CACHE_HEADROOM_TOKENS, pod.headroom_tokens),
    )
    for metric, figure in figures:
        if figure is not None:
            yield metric, (pod.name,), figure


def new_registry() -> CollectorRegistry:
    """Return a registry with what both processes serve: the build, the catalogues, and the process's CPU and memory."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # they would be a second series per counter
    into = CollectorRegistry()
    ProcessCollector(registry=into)
    gauge(registry.BUILD_INFO, into).labels(__version__).set(1)
    entries = gauge(registry.CATALOGUE_ENTRIES, into)
    entries.labels("models").set(len(catalogue.model_names()))
    entries.labels("accelerators").set(len(catalogue.accelerators()))
    return into


def counter(metric: Metric, into: CollectorRegistry) -> Counter:
    """Register a counter."""
    return Counter(metric.name, metric.help, metric.labels, registry=into)


def gauge(metric: Metric, into: CollectorRegistry) -> Gauge:
    """Register a gauge."""
    return Gauge(metric.name, metric.help, metric.labels, unit=metric.unit, registry=into)


def histogram(metric: Metric, into: CollectorRegistry) -> Histogram:
    """Register a histogram."""
    return Histogram(metric.name, metric.help, metric.labels, unit=metric.unit, buckets=metric.buckets, registry=into)


Samples = Mapping[tuple[str, str], DeploymentSample]
"""Samples by (namespace, name)."""


class DeploymentSnapshot:
    """The samples that were published last; an object without a sample has no series in the next scrape."""

    def __init__(self) -> None:
        self._samples: Samples = MappingProxyType({})

    @property
    def samples(self) -> Samples:
        """The samples of one publication."""
        return self._samples

    def publish(self, samples: Samples) -> None:
        """Replace all samples; a scrape sees the old ones or the new ones, never a mixture."""
        self._samples = MappingProxyType(dict(samples))

    def text(self, *, units: bool) -> str:
        """Return the text of all series, family by family, each in the order of the keys; `units` is for OpenMetrics."""
        lines: dict[str, list[str]] = {}
        for metric in registry.PER_DEPLOYMENT:
            name = metric.name.removesuffix("_total") if units and metric.kind is MetricType.COUNTER else metric.name
            unit = [f"# UNIT {name} {metric.unit}\n"] if units and metric.unit else []
            head = [f"# HELP {name} {metric.help}\n", f"# TYPE {name} {metric.kind}\n"]
            lines[metric.name] = [*head, *unit]
        for _, sample in sorted(self._samples.items()):
            for name, line in _lines(sample):
                lines[name].append(line)
        return "".join(line for family in lines.values() for line in family)


def _lines(sample: DeploymentSample) -> Iterator[tuple[str, str]]:
    owner = f'namespace="{_escaped(sample.namespace)}",inferencedeployment="{_escaped(sample.name)}"'
    for metric, values, figure in series_of(sample):
        more = "".join([f',{name}="{_escaped(value)}"' for name, value in zip(metric.labels[2:], values, strict=True)])
        number = repr(figure) if isfinite(figure) else floatToGoString(figure)  # type: ignore[no-untyped-call]
        yield metric.name, f"{metric.name}{{{owner}{more}}} {number}\n"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
