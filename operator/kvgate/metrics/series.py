"""The series of one InferenceDeployment, as data: for the text of a scrape and for a push."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain

from msgspec import Struct
from msgspec.structs import replace

from kvgate.metrics import registry
from kvgate.metrics.registry import MAX_PODS, Metric
from kvgate.metrics.samples import DeploymentSample

MAX_LABEL_CHARACTERS = 256
"""Longest value of a label. Names in Kubernetes and in the schema are shorter, so that only an API server that lies meets it."""
_BOUND_NAMES = ("low", "expected", "high")

Series = tuple[Metric, tuple[str, ...], float]
"""(metric, labels after namespace and name, value)."""


def label(value: str) -> str:
    """Return a value as it may stand in a label, cut where it is too long."""
    return value if len(value) <= MAX_LABEL_CHARACTERS else f"{value[: MAX_LABEL_CHARACTERS - 1]}…"


_Row = tuple[Metric, str, str]
"""A metric without further labels, the part of the sample that it belongs to (empty: the sample itself), and its field there."""
_INTERVALS = (
    (registry.KV_CACHE_CAPACITY_TOKENS, "capacity_tokens"),
    (registry.KV_CACHE_CAPACITY_BYTES, "capacity_bytes"),
    (registry.KV_CACHE_HEADROOM_BYTES, "headroom_bytes"),
    (registry.KV_CACHE_HEADROOM_RATIO, "headroom_ratio"),
    (registry.FULL_LENGTH_REQUESTS, "full_length_requests"),
    (registry.RECALIBRATED_KV_CACHE_CAPACITY_TOKENS, "recalibrated_tokens"),
)
_FIGURES: tuple[_Row, ...] = (
    (registry.KV_CACHE_DEMAND_BYTES, "", "demand_bytes"),
    (registry.KV_CACHE_DEMAND_TOKENS, "", "demand_tokens"),
    (registry.HOST_MEMORY_BYTES, "", "host_memory_bytes"),
    (registry.MAX_MODEL_LEN_TOKENS, "", "max_model_len_tokens"),
    (registry.MAX_NUM_SEQS, "", "max_num_seqs"),
    (registry.GPUS, "", "gpus"),
    (registry.LOAD_BUDGET_SECONDS, "", "load_seconds"),
    (registry.PINNED_KV_CACHE_TOKENS, "pinned", "tokens"),
    (registry.FORGONE_KV_CACHE_BYTES, "pinned", "forgone_bytes"),
    (registry.BUDGET_SKIP_EXPIRY, "skip", "until_seconds"),
    (registry.GPU_MEMORY_TOTAL_BYTES, "memory", "total_bytes"),
    (registry.GPU_MEMORY_REQUESTED_BYTES, "memory", "requested_bytes"),
    (registry.REPLICAS, "rollout", "wanted"),
    (registry.READY_REPLICAS, "rollout", "ready"),
    (registry.UPDATED_REPLICAS, "rollout", "updated"),
)
_OBSERVED: tuple[_Row, ...] = (
    (registry.OBSERVED_KV_CACHE_CAPACITY_TOKENS, "observed", "capacity_tokens"),
    (registry.OBSERVED_PODS, "observed", "pods"),
    (registry.PREDICTION_ERROR_RATIO, "observed", "error_ratio"),
)
_OF_A_POD = (
    (registry.POD_READY, "is_ready"),
    (registry.POD_RESTARTS, "restarts"),
    (registry.POD_START_TIME, "started_seconds"),
    (registry.POD_KV_CACHE_CAPACITY_TOKENS, "capacity_tokens"),
)


def _known(sample: DeploymentSample, rows: Iterable[_Row]) -> Iterator[Series]:
    """Yield the figures of these rows that are known."""
    for metric, part, name in rows:
        figure = getattr(getattr(sample, part) if part else sample, name, None)
        if figure is not None:
            yield metric, (), figure


def _of_verdict(sample: DeploymentSample) -> Iterator[Series]:
    """Yield the series that change with the spec and the state of the rollout."""
    info = (label(sample.model), label(sample.accelerator), label(sample.kv_cache_dtype), label(sample.policy))
    yield registry.DEPLOYMENT_INFO, info, 1
    for metric, name in _INTERVALS:
        for bound, value in zip(_BOUND_NAMES, getattr(sample, name) or (), strict=False):
            yield metric, (bound,), value
    yield from _known(sample, _FIGURES)
    if sample.skip:
        yield registry.BUDGET_SKIPPED, (), 1
    for term, value in sample.memory.terms if sample.memory else ():
        yield registry.GPU_MEMORY_BYTES, (term,), value
    for condition in sample.conditions:
        yield registry.CONDITION, tuple(map(label, condition)), 1


def _of_pods(sample: DeploymentSample) -> Iterator[Series]:
    """Yield the series that change when a pod starts, ends or becomes ready."""
    yield from _known(sample, _OBSERVED)
    for pod in sample.pods[:MAX_PODS]:
        name = label(pod.name)
        yield registry.POD_INFO, (name, label(pod.node)), 1
        for metric, field in _OF_A_POD:
            if (figure := getattr(pod, field)) is not None:
                yield metric, (name,), +figure  # that of True is 1


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


_OF_USAGE = (
    registry.OBSERVED_KV_CACHE_USAGE_RATIO,
    registry.OBSERVED_KV_CACHE_HEADROOM_TOKENS,
    registry.OBSERVED_KV_CACHE_HEADROOM_RATIO,
    registry.POD_KV_CACHE_HEADROOM_TOKENS,
)
_OF_PODS = (*(row[0] for row in _OBSERVED), registry.POD_INFO, *(metric for metric, _ in _OF_A_POD))
PARTS = (
    Part(
        metrics=tuple(metric for metric in registry.PER_DEPLOYMENT if metric not in (*_OF_PODS, *_OF_USAGE)),
        series=_of_verdict,
        basis=lambda sample: replace(sample, observed=None, pods=()),
    ),
    Part(
        metrics=_OF_PODS,
        series=_of_pods,
        basis=lambda sample: (
            sample.observed and replace(sample.observed, usage_ratio=None),
            [replace(pod, usage_ratio=None) for pod in sample.pods],
        ),
    ),
    Part(metrics=_OF_USAGE, series=_of_usage, basis=lambda sample: sample),
)


def series_of(sample: DeploymentSample) -> Iterator[Series]:
    """Yield each series; a figure that is not known has none."""
    return chain.from_iterable(part.series(sample) for part in PARTS)
