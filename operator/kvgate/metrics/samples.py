"""The figures of one InferenceDeployment, those of the verdict and those of its pods, and the series that a scrape sees of them."""

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvgate.api.status import Condition, Effective
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.budget.answers.figure_values import Figures
from kvgate.budget.answers.figures import LEDGER_TERMS, figures_of
from kvgate.judgement.assess import effective_values
from kvgate.judgement.assessment import Assessment
from kvgate.metrics import registry
from kvgate.metrics.registry import MAX_PODS, Metric

Bounds = tuple[float, float, float]
"""low, expected, high: the values of the label `bound`."""


class ObservedSample(Struct, frozen=True, kw_only=True):
    """Figures that the ready pods of one InferenceDeployment reported."""

    pods: int | None
    capacity_tokens: int | None = None
    usage_ratio: float | None = None
    error_ratio: float | None = None
    max_model_len_tokens: int | None = None


class PodSample(Struct, frozen=True, kw_only=True):
    """One pod of the Deployment, and what its engine reported."""

    name: str
    node: str = ""
    is_ready: bool = False
    started_seconds: float | None = None
    """Time since 1970."""
    restarts: int = 0
    capacity_tokens: int | None = None
    usage_ratio: float | None = None
    max_model_len_tokens: int | None = None
    """None where the length is given, and where it is not known."""

    @property
    def headroom_tokens(self) -> int | None:
        """Tokens that no request holds."""
        if self.capacity_tokens is None or self.usage_ratio is None:
            return None
        return round(self.capacity_tokens * (1 - self.usage_ratio))


class PinnedSample(Struct, frozen=True, kw_only=True):
    """The size of the KV cache that is pinned, and the bytes that are given away for that."""

    tokens: int
    forgone_bytes: int


class SkipSample(Struct, frozen=True, kw_only=True):
    """The break glass that admitted what runs."""

    until_seconds: float | None
    """Its end in seconds since 1970; None where it has none."""


class RolloutSample(Struct, frozen=True, kw_only=True):
    wanted: int
    ready: int
    updated: int


class MemorySample(Struct, frozen=True, kw_only=True):
    """Memory of one GPU; the terms sum to the total."""

    total_bytes: int
    requested_bytes: int
    terms: tuple[tuple[str, int], ...]
    """(term, bytes)."""

    @classmethod
    def of(
        cls, total_bytes: int, requested_bytes: int, terms: Iterable[tuple[str, int]], *, kv_cache_bytes: int,
        found_bytes: int,
    ) -> "MemorySample":  # fmt: skip
        """Return the terms with the KV cache and the rest.

        `found_bytes` is what vLLM is expected to find, and `kv_cache_bytes` what it takes: less where the size is pinned. `correction` is
        what observed starts correct in the sum of the terms; it is absent where they correct nothing.
        """
        taken = tuple(terms)
        correction = requested_bytes - sum(size for _, size in taken) - found_bytes
        whole = (*taken, *([("correction", correction)] if correction else []), ("kv_cache", kv_cache_bytes))
        rest = total_bytes - sum(size for _, size in whole)
        return cls(total_bytes=total_bytes, requested_bytes=requested_bytes, terms=(*whole, ("not_requested", rest)))


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
    skip: SkipSample | None = None
    """None where the budget admitted it."""
    demand_bytes: int | None = None
    demand_tokens: int | None = None
    headroom_bytes: Bounds | None = None
    headroom_ratio: Bounds | None = None
    """Shares of the expected capacity; None where none is expected."""
    full_length_requests: Bounds | None = None
    host_memory_bytes: int | None = None
    max_model_len_tokens: int | None = None
    auto_max_model_len: Bounds | None = None
    """None where the length is given."""
    min_max_model_len_tokens: int | None = None
    max_num_seqs: int | None = None
    gpus: float | None = None
    observed: ObservedSample | None = None
    """None until the pods were read."""
    pods: tuple[PodSample, ...] = ()
    memory: MemorySample | None = None
    recalibrated_tokens: Bounds | None = None
    """Capacity as it would be predicted now; None where that is what was admitted."""
    load_seconds: int | None = None
    """Time that a start may take; None where nothing is rendered."""
    rollout: RolloutSample | None = None
    """None where there is no Deployment."""
    conditions: tuple[tuple[str, str, str], ...] = ()
    """(type, status, reason) of each current condition."""


def sample_of(
    deployment: InferenceDeployment,
    assessment: Assessment,
    conditions: Iterable[Condition],
    observed: ObservedSample | None = None,
) -> DeploymentSample:
    spec, budget = deployment.spec, assessment.effective
    request = budget.request if budget else None
    effective = effective_values(spec, assessment)
    sample = DeploymentSample(
        namespace=deployment.namespace,
        name=deployment.name,
        model=spec.model.name,
        accelerator=request.accelerator.name if request else spec.accelerator.type or "",
        kv_cache_dtype=request.settings.kv_cache_dtype if request else spec.vllm.kv_cache_dtype,
        policy=spec.admission.policy,
        max_model_len_tokens=effective.max_model_len,
        min_max_model_len_tokens=request.least_model_len if request else None,
        max_num_seqs=effective.max_num_seqs,
        gpus=spec.vllm.num_gpus * spec.replicas / spec.accelerator.shared_by,
        observed=observed,
        conditions=conditions_of(conditions),
    )
    return replace(sample, **_figures(figures_of(budget))) if budget else sample


def as_admitted(sample: DeploymentSample, effective: Effective, figures: Figures | None) -> DeploymentSample:
    """Replace the present figures by those of the admission, whose verdict stands; a record may have none."""
    return replace(
        sample,
        kv_cache_dtype=effective.kv_cache_dtype,
        max_model_len_tokens=effective.max_model_len,
        max_num_seqs=effective.max_num_seqs,
        **(_figures(figures) if figures is not None else {}),
    )


def conditions_of(conditions: Iterable[Condition]) -> tuple[tuple[str, str, str], ...]:
    return tuple((condition.type, condition.status, condition.reason) for condition in conditions)


_PREDICTED = (
    "capacity_tokens",
    "capacity_bytes",
    "headroom_bytes",
    "headroom_ratio",
    "full_length_requests",
    "auto_max_model_len",
)


def _figures(of: Figures) -> dict[str, Any]:
    """Return what a sample has of the table of figures; the predicted ones only where every part of them has a formula."""
    is_whole = of["capacity_tokens"] is not None and of["headroom_bytes"] is not None
    predicted = {name: of.ends(name) if is_whole else None for name in _PREDICTED}
    numbers = {name: of.expected(name) if is_whole else None for name in ("demand_tokens", "host_memory_bytes")}
    pinned, terms = of["pinned_tokens"] is not None, ((name, of.expected(f"{name}_bytes")) for name in LEDGER_TERMS)
    kv_cache_bytes, found_bytes = of.expected("available_kv_cache_bytes"), of.expected("profiled_kv_cache_bytes")
    return {
        **predicted,
        **numbers,
        "demand_bytes": of["demand_bytes"],
        "pinned": PinnedSample(tokens=of["pinned_tokens"], forgone_bytes=of["forgone_bytes"]) if pinned else None,
        "memory": MemorySample.of(
            of["total_bytes"],
            of["requested_bytes"],
            ((name, size) for name, size in terms if size is not None),
            kv_cache_bytes=kv_cache_bytes,
            found_bytes=kv_cache_bytes if found_bytes is None else found_bytes,
        )
        if of["total_bytes"] is not None
        else None,
    }


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
    (registry.AUTO_MAX_MODEL_LEN_TOKENS, "auto_max_model_len"),
    (registry.RECALIBRATED_KV_CACHE_CAPACITY_TOKENS, "recalibrated_tokens"),
)
_FIGURES: tuple[_Row, ...] = (
    (registry.KV_CACHE_DEMAND_BYTES, "", "demand_bytes"),
    (registry.KV_CACHE_DEMAND_TOKENS, "", "demand_tokens"),
    (registry.HOST_MEMORY_BYTES, "", "host_memory_bytes"),
    (registry.MAX_MODEL_LEN_TOKENS, "", "max_model_len_tokens"),
    (registry.MIN_MAX_MODEL_LEN_TOKENS, "", "min_max_model_len_tokens"),
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
    (registry.OBSERVED_MAX_MODEL_LEN_TOKENS, "observed", "max_model_len_tokens"),
)
_OF_A_POD = (
    (registry.POD_READY, "is_ready"),
    (registry.POD_RESTARTS, "restarts"),
    (registry.POD_START_TIME, "started_seconds"),
    (registry.POD_KV_CACHE_CAPACITY_TOKENS, "capacity_tokens"),
    (registry.POD_MAX_MODEL_LEN_TOKENS, "max_model_len_tokens"),
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
