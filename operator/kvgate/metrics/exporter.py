"""The metrics' values: the figures of each InferenceDeployment, their text, and the instruments of a process.

The series of the InferenceDeployments are written here, because prometheus_client takes three times as long. All are gauges with names
that every format can carry, so the formats differ by the line with the unit only.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from math import isfinite
from types import MappingProxyType

from msgspec import Struct
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.utils import floatToGoString

from kvgate import __version__, catalogue
from kvgate.api.base import Document
from kvgate.api.status import Condition, Effective
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.budget import Budget, Interval
from kvgate.budget.pod_ledger import pod_ledger
from kvgate.budget.units import cdiv
from kvgate.judge.assess import Assessment, effective_values
from kvgate.metrics import registry
from kvgate.metrics.registry import Metric

Bounds = tuple[float, float, float]
"""low, expected, high: the values of the label `bound`."""
_BOUND_NAMES = ("low", "expected", "high")


class ObservedSample(Struct, frozen=True, kw_only=True):
    """Figures that the ready pods of one InferenceDeployment reported."""

    pods: int | None
    """None where nothing was observed."""
    capacity_tokens: int | None = None
    usage_ratio: float | None = None
    error_ratio: float | None = None


_NOT_OBSERVED = ObservedSample(pods=None)


class PinnedSample(Struct, frozen=True, kw_only=True):
    """The size of the KV cache that is pinned, and the bytes that are given away for that."""

    tokens: int
    forgone_bytes: int


class DeploymentSample(Struct, frozen=True, kw_only=True):
    """The figures of one InferenceDeployment; None or empty where there is no budget."""

    namespace: str
    name: str
    model: str
    accelerator: str
    kv_cache_dtype: str
    policy: str
    capacity_tokens: Bounds | None = None
    capacity_bytes: Bounds | None = None
    pinned: PinnedSample | None = None
    """None where vLLM measures."""
    demand_bytes: int | None = None
    headroom_bytes: Bounds | None = None
    headroom_ratio: Bounds | None = None
    full_length_requests: Bounds | None = None
    host_memory_bytes: int | None = None
    max_model_len_tokens: int | None = None
    max_num_seqs: int | None = None
    gpus: int | None = None
    observed: ObservedSample | None = None
    """None until the pods were read."""
    gpu_memory_bytes: tuple[tuple[str, int], ...] = ()
    """(term, bytes) of the ledger."""
    conditions: tuple[tuple[str, str], ...] = ()
    """(type, status) of each current condition."""


def sample_of(
    deployment: InferenceDeployment,
    assessment: Assessment,
    conditions: Iterable[Condition],
    observed: ObservedSample | None = None,
) -> DeploymentSample:
    """Return the figures of what is rendered."""
    spec, budget = deployment.spec, assessment.effective
    request = budget.request if budget else None
    ledger = budget.tightest.ledger if budget and budget.tightest else None
    terms = () if ledger is None else (("total", ledger.total_bytes), ("requested", ledger.requested_bytes))
    effective = effective_values(spec, assessment)
    figures, pinned = _figures(budget) if budget else {}, budget.pinned if budget else None
    return DeploymentSample(
        namespace=deployment.namespace,
        name=deployment.name,
        model=spec.model.name,
        accelerator=request.accelerator.name if request else spec.accelerator.type,
        kv_cache_dtype=request.settings.kv_cache_dtype if request else spec.vllm.kv_cache_dtype,
        policy=spec.admission.policy,
        demand_bytes=budget.demand_bytes if budget else None,
        max_model_len_tokens=effective.max_model_len,
        max_num_seqs=effective.max_num_seqs,
        gpus=cdiv(spec.vllm.num_gpus * spec.replicas, spec.accelerator.shared_by),
        observed=observed,
        gpu_memory_bytes=(*terms, *((name, term.expected) for name, term in (ledger.terms if ledger else ()))),
        conditions=tuple((condition.type, condition.status) for condition in conditions),
        pinned=PinnedSample(tokens=pinned.num_tokens, forgone_bytes=pinned.forgone_bytes) if pinned else None,
        host_memory_bytes=pod_ledger(budget).needs.expected if figures and budget else None,
        **figures,
    )


def as_admitted(sample: DeploymentSample, effective: Effective, budget: Document | None) -> DeploymentSample:
    """Replace the present figures by those of the admission where they differ, because the verdict of the admission stands."""
    sample = replace(
        sample,
        kv_cache_dtype=effective.kv_cache_dtype,
        max_model_len_tokens=effective.max_model_len,
        max_num_seqs=effective.max_num_seqs,
    )
    if budget is None:
        return sample
    available, headroom = (
        (budget[key]["low"], budget[key]["expected"], budget[key]["high"])
        for key in ("availableKvCacheBytes", "headroomBytes")
    )
    if (available, headroom) == (sample.capacity_bytes, sample.headroom_bytes):
        return sample
    shares = [bound / available[1] if available[1] > 0 else 0.0 for bound in available]
    tokens, requests = budget["capacityTokens"], float(budget["maxConcurrency"])
    ledger, pinned = budget.get("ledger") or {}, budget.get("pinned")
    return replace(
        sample,
        capacity_tokens=(int(tokens * shares[0]), tokens, int(tokens * shares[2])),
        capacity_bytes=(max(0, available[0]), max(0, available[1]), max(0, available[2])),
        pinned=PinnedSample(tokens=pinned["capacityTokens"], forgone_bytes=pinned["forgoneBytes"]) if pinned else None,
        demand_bytes=budget["demandBytes"],
        headroom_bytes=headroom,
        headroom_ratio=(
            _share(headroom[0], available[0]),
            _share(headroom[1], available[1]),
            _share(headroom[2], available[2]),
        ),
        full_length_requests=(requests * shares[0], requests, requests * shares[2]),
        gpu_memory_bytes=tuple(
            (re.sub("[A-Z]", lambda letter: f"_{letter[0].lower()}", name.removesuffix("Bytes")), size)
            for name, size in ledger.items()
        ),
    )


def _share(left: float, of: float) -> float:
    return max(-1.0, left / of) if of > 0 else -1.0


def _figures(budget: Budget) -> dict[str, Bounds]:
    """Return all figures that are intervals; none where the budget has a part without a formula."""
    stage, tokens, headroom, shares = budget.tightest, budget.num_tokens, budget.headroom, budget.headroom_shares
    cache, pool = budget.kv_cache, budget.num_blocks
    if stage is None or tokens is None or headroom is None or shares is None or cache is None or pool is None:
        return {}
    return {
        "capacity_tokens": _bounds(tokens),
        "capacity_bytes": _bounds(stage.available, lambda available: max(0, available)),
        "headroom_bytes": _bounds(headroom),
        "headroom_ratio": (float(shares[0]), float(shares[1]), float(shares[2])),
        "full_length_requests": _bounds(pool, lambda blocks: float(cache.max_concurrency(blocks))),
    }


def _bounds(interval: Interval, of: Callable[[int], float] = lambda value: value) -> Bounds:
    return of(interval.low), of(interval.expected), of(interval.high)


def series_of(sample: DeploymentSample) -> Iterator[tuple[Metric, tuple[str, ...], float]]:
    """Yield (metric, labels after namespace and name, value) for each series."""
    info = (sample.model, sample.accelerator, sample.kv_cache_dtype, sample.policy)
    yield registry.DEPLOYMENT_INFO, info, 1
    intervals = (
        (registry.KV_CACHE_CAPACITY_TOKENS, sample.capacity_tokens),
        (registry.KV_CACHE_CAPACITY_BYTES, sample.capacity_bytes),
        (registry.KV_CACHE_HEADROOM_BYTES, sample.headroom_bytes),
        (registry.KV_CACHE_HEADROOM_RATIO, sample.headroom_ratio),
        (registry.FULL_LENGTH_REQUESTS, sample.full_length_requests),
    )
    for metric, bounds in intervals:
        for bound, value in zip(_BOUND_NAMES, bounds or (), strict=False):
            yield metric, (bound,), value
    if pinned := sample.pinned:
        yield registry.PINNED_KV_CACHE_TOKENS, (), pinned.tokens
        yield registry.FORGONE_KV_CACHE_BYTES, (), pinned.forgone_bytes
    observed = sample.observed or _NOT_OBSERVED
    figures = (
        (registry.KV_CACHE_DEMAND_BYTES, sample.demand_bytes),
        (registry.HOST_MEMORY_BYTES, sample.host_memory_bytes),
        (registry.MAX_MODEL_LEN_TOKENS, sample.max_model_len_tokens),
        (registry.MAX_NUM_SEQS, sample.max_num_seqs),
        (registry.GPUS, sample.gpus),
        (registry.OBSERVED_KV_CACHE_CAPACITY_TOKENS, observed.capacity_tokens),
        (registry.OBSERVED_KV_CACHE_USAGE_RATIO, observed.usage_ratio),
        (registry.OBSERVED_PODS, observed.pods),
        (registry.PREDICTION_ERROR_RATIO, observed.error_ratio),
    )
    for metric, figure in figures:
        if figure is not None:
            yield metric, (), figure
    for term, value in sample.gpu_memory_bytes:
        yield registry.GPU_MEMORY_BYTES, (term,), value
    for condition in sample.conditions:
        yield registry.CONDITION, condition, 1


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
            unit = [f"# UNIT {metric.name} {metric.unit}\n"] if units and metric.unit else []
            head = [f"# HELP {metric.name} {metric.help}\n", f"# TYPE {metric.name} {metric.kind}\n"]
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
