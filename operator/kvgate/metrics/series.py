"""The series of one InferenceDeployment, as data: for the text of a scrape and for a push."""

from collections.abc import Callable, Iterator
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from kvgate.metrics import registry
from kvgate.metrics.registry import MAX_PODS, Metric
from kvgate.metrics.samples import DeploymentSample, ObservedSample

MAX_LABEL_CHARACTERS = 256
"""Longest value of a label. Names in Kubernetes and in the schema are shorter, so that only an API server that lies meets it."""
_BOUND_NAMES = ("low", "expected", "high")
_NOT_OBSERVED = ObservedSample(pods=None)


Series = tuple[Metric, tuple[str, ...], float]
"""(metric, labels after namespace and name, value)."""


def label(value: str) -> str:
    """Return a value as it may stand in a label, cut where it is too long."""
    return value if len(value) <= MAX_LABEL_CHARACTERS else f"{value[: MAX_LABEL_CHARACTERS - 1]}…"


def _of_verdict(sample: DeploymentSample) -> Iterator[Series]:
    """Yield the series that change with the spec and the state of the rollout."""
    info = (label(sample.model), label(sample.accelerator), label(sample.kv_cache_dtype), label(sample.policy))
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
        yield registry.CONDITION, tuple(map(label, condition)), 1


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
    if skip := sample.skip:
        yield registry.BUDGET_SKIPPED, 1
        yield registry.BUDGET_SKIP_EXPIRY, skip.until_seconds
    if memory := sample.memory:
        yield registry.GPU_MEMORY_TOTAL_BYTES, memory.total_bytes
        yield registry.GPU_MEMORY_REQUESTED_BYTES, memory.requested_bytes
    if rollout := sample.rollout:
        yield registry.REPLICAS, rollout.wanted
        yield registry.READY_REPLICAS, rollout.ready
        yield registry.UPDATED_REPLICAS, rollout.updated


def _of_pods(sample: DeploymentSample) -> Iterator[Series]:
    """Yield the series that change when a pod starts, ends or becomes ready."""
    observed = sample.observed or _NOT_OBSERVED
    figures = (
        (registry.OBSERVED_KV_CACHE_CAPACITY_TOKENS, observed.capacity_tokens),
        (registry.OBSERVED_PODS, observed.pods),
        (registry.PREDICTION_ERROR_RATIO, observed.error_ratio),
    )
    for metric, figure in figures:
        if figure is not None:
            yield metric, (), figure
    for pod in sample.pods[:MAX_PODS]:
        name = label(pod.name)
        yield registry.POD_INFO, (name, label(pod.node)), 1
        yield registry.POD_READY, (name,), int(pod.is_ready)
        yield registry.POD_RESTARTS, (name,), pod.restarts
        if pod.started_seconds is not None:
            yield registry.POD_START_TIME, (name,), pod.started_seconds
        if pod.capacity_tokens is not None:
            yield registry.POD_KV_CACHE_CAPACITY_TOKENS, (name,), pod.capacity_tokens


def _of_usage(sample: DeploymentSample) -> Iterator[Series]:
    """Yield the series that change with every look at the pods."""
    expected = sample.capacity_tokens[1] if sample.capacity_tokens else 0
    left = [(pod.name, tokens) for pod in sample.pods if (tokens := pod.headroom_tokens) is not None]
    if sample.observed is not None and sample.observed.usage_ratio is not None:
        yield registry.OBSERVED_KV_CACHE_USAGE_RATIO, (), sample.observed.usage_ratio
    if left:
        worst = min(tokens for _, tokens in left)
        yield registry.OBSERVED_KV_CACHE_HEADROOM_TOKENS, (), worst
        if expected > 0:
            yield registry.OBSERVED_KV_CACHE_HEADROOM_RATIO, (), worst / expected
    for name, tokens in left[:MAX_PODS]:
        yield registry.POD_KV_CACHE_HEADROOM_TOKENS, (label(name),), tokens


class Part(Struct, frozen=True, kw_only=True):
    """Series that change together."""

    metrics: tuple[Metric, ...]
    series: Callable[[DeploymentSample], Iterator[Series]]
    basis: Callable[[DeploymentSample], object]
    """Returns all that these series depend on."""


def _pods_without_usage(sample: DeploymentSample) -> object:
    seen = replace(sample.observed, usage_ratio=None) if sample.observed else None
    return seen, [replace(pod, usage_ratio=None) for pod in sample.pods]


_OF_USAGE = (
    registry.OBSERVED_KV_CACHE_USAGE_RATIO,
    registry.OBSERVED_KV_CACHE_HEADROOM_TOKENS,
    registry.OBSERVED_KV_CACHE_HEADROOM_RATIO,
    registry.POD_KV_CACHE_HEADROOM_TOKENS,
)
_OF_PODS = (
    registry.OBSERVED_KV_CACHE_CAPACITY_TOKENS,
    registry.OBSERVED_PODS,
    registry.PREDICTION_ERROR_RATIO,
    registry.POD_INFO,
    registry.POD_READY,
    registry.POD_RESTARTS,
    registry.POD_START_TIME,
    registry.POD_KV_CACHE_CAPACITY_TOKENS,
)
PARTS = (
    Part(
        metrics=tuple(metric for metric in registry.PER_DEPLOYMENT if metric not in (*_OF_PODS, *_OF_USAGE)),
        series=_of_verdict,
        basis=lambda sample: replace(sample, observed=None, pods=()),
    ),
    Part(metrics=_OF_PODS, series=_of_pods, basis=_pods_without_usage),
    Part(metrics=_OF_USAGE, series=_of_usage, basis=lambda sample: sample),
)


def series_of(sample: DeploymentSample) -> Iterator[Series]:
    """Yield each series; a figure that is not known has none."""
    return chain.from_iterable(part.series(sample) for part in PARTS)
