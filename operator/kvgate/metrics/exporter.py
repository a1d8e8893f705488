"""Fills the metrics: instruments of the process, and a collector that reads the controller's snapshot at every scrape."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from kvgate import __version__, catalogue
from kvgate.api.status import Condition
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.budget.gpu_memory import Ledger
from kvgate.budget.plan import Budget
from kvgate.engine import Assessment
from kvgate.metrics import registry
from kvgate.metrics.registry import Metric

Bounds = tuple[float, float, float]
"""low, expected, high: the values of the label `bound`."""
_BOUND_NAMES = ("low", "expected", "high")


@dataclass(frozen=True, kw_only=True, slots=True)
class DeploymentSample:
    """The figures of one InferenceDeployment; None and empty where no budget can be given."""

    namespace: str
    name: str
    model: str
    accelerator: str
    kv_cache_dtype: str
    policy: str
    capacity_tokens: Bounds | None = None
    capacity_bytes: Bounds | None = None
    demand_bytes: int | None = None
    headroom_bytes: Bounds | None = None
    headroom_ratio: Bounds | None = None
    gpu_memory_bytes: tuple[tuple[str, int], ...] = ()
    """(term, bytes) of the ledger."""
    conditions: tuple[tuple[str, str], ...] = ()
    """(type, status), the current ones."""


Samples = Mapping[tuple[str, str], DeploymentSample]
"""By (namespace, name)."""


def sample_of(
    deployment: InferenceDeployment, assessment: Assessment, conditions: Iterable[Condition]
) -> DeploymentSample:
    """What is rendered, in figures."""
    spec, budget = deployment.spec, assessment.effective
    asked = budget.request if budget else None
    figures = _figures(budget) if budget else {}
    return DeploymentSample(
        namespace=deployment.namespace,
        name=deployment.name,
        model=spec.model.name,
        accelerator=asked.accelerator.name if asked else spec.accelerator.type,
        kv_cache_dtype=asked.settings.kv_cache_dtype if asked else spec.vllm.kv_cache_dtype,
        policy=spec.admission.policy,
        demand_bytes=budget.demand_bytes if budget else None,
        gpu_memory_bytes=_ledger_terms(budget.tightest.ledger if budget and budget.tightest else None),
        conditions=tuple((condition.type, condition.status) for condition in conditions),
        **figures,
    )


def _figures(budget: Budget) -> dict[str, Bounds]:
    """Everything that is an interval; nothing where the budget has a part without a formula."""
    stage, tokens, headroom, shares = budget.tightest, budget.num_tokens, budget.headroom, budget.headroom_shares
    if stage is None or tokens is None or headroom is None or shares is None:
        return {}
    capacity = (max(0, stage.available.low), max(0, stage.available.expected), max(0, stage.available.high))
    return {
        "capacity_tokens": (tokens.low, tokens.expected, tokens.high),
        "capacity_bytes": capacity,
        "headroom_bytes": (headroom.low, headroom.expected, headroom.high),
        "headroom_ratio": (float(shares[0]), float(shares[1]), float(shares[2])),
    }  # fmt: skip


def _ledger_terms(ledger: Ledger | None) -> tuple[tuple[str, int], ...]:
    if ledger is None:
        return ()
    return (
        ("total", ledger.total_bytes),
        ("requested", ledger.requested_bytes),
        *((name, term.expected) for name, term in ledger.terms),
    )


class DeploymentCollector(Collector):
    """Serves the last published snapshot; whoever is not in it has no series at the next scrape."""

    def __init__(self) -> None:
        self._samples: Samples = MappingProxyType({})

    def publish(self, samples: Samples) -> None:
        """Swap the whole snapshot; a scrape sees the old one or the new one, never a mixture."""
        self._samples = MappingProxyType(dict(samples))

    def describe(self) -> list[GaugeMetricFamily]:
        """The families without samples, so that registering does not scrape."""
        return [_family(metric) for metric in registry.PER_DEPLOYMENT]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """All families, sample by sample in the order of the keys."""
        families = {metric.name: _family(metric) for metric in registry.PER_DEPLOYMENT}
        for _, sample in sorted(self._samples.items()):
            for metric, labels, value in series_of(sample):
                families[metric.name].add_metric([sample.namespace, sample.name, *labels], value)
        yield from families.values()


def _family(metric: Metric) -> GaugeMetricFamily:
    return GaugeMetricFamily(metric.name, metric.help, labels=metric.labels, unit=metric.unit)


def series_of(sample: DeploymentSample) -> Iterator[tuple[Metric, tuple[str, ...], float]]:
    """(metric, labels after namespace and name, value): one item per series."""
    info = (sample.model, sample.accelerator, sample.kv_cache_dtype, sample.policy)
    yield registry.DEPLOYMENT_INFO, info, 1
    intervals = (
        (registry.KV_CACHE_CAPACITY_TOKENS, sample.capacity_tokens),
        (registry.KV_CACHE_CAPACITY_BYTES, sample.capacity_bytes),
        (registry.KV_CACHE_HEADROOM_BYTES, sample.headroom_bytes),
        (registry.KV_CACHE_HEADROOM_RATIO, sample.headroom_ratio),
    )
    for metric, bounds in intervals:
        for bound, value in zip(_BOUND_NAMES, bounds or (), strict=False):
            yield metric, (bound,), value
    if sample.demand_bytes is not None:
        yield registry.KV_CACHE_DEMAND_BYTES, (), sample.demand_bytes
    for term, value in sample.gpu_memory_bytes:
        yield registry.GPU_MEMORY_BYTES, (term,), value
    for condition in sample.conditions:
        yield registry.CONDITION, condition, 1


def new_registry() -> CollectorRegistry:
    """A registry with what both processes serve: the build, the catalogues, and the process's CPU and memory."""
    disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series per counter that nobody reads
    into = CollectorRegistry()
    ProcessCollector(registry=into)
    gauge(registry.BUILD_INFO, into).labels(__version__).set(1)
    entries = gauge(registry.CATALOGUE_ENTRIES, into)
    entries.labels("models").set(len(catalogue.model_names()))
    entries.labels("accelerators").set(len(catalogue.accelerators()))
    return into


def counter(metric: Metric, into: CollectorRegistry) -> Counter:
    """The instrument of a counter, registered."""
    return Counter(metric.name, metric.help, metric.labels, registry=into)


def gauge(metric: Metric, into: CollectorRegistry) -> Gauge:
    """The instrument of a gauge, registered."""
    return Gauge(metric.name, metric.help, metric.labels, unit=metric.unit, registry=into)


def histogram(metric: Metric, into: CollectorRegistry) -> Histogram:
    """The instrument of a histogram, registered."""
    return Histogram(metric.name, metric.help, metric.labels, unit=metric.unit, buckets=metric.buckets, registry=into)
