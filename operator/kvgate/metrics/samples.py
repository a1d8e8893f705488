"""The figures of one InferenceDeployment that a scrape sees: those of the verdict, and those of its pods."""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from kvgate.api.status import Condition, Effective
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.budget.answers.figure_values import Figures
from kvgate.budget.answers.figures import LEDGER_TERMS, figures_of
from kvgate.judge.assess import effective_values
from kvgate.judge.assessment import Assessment

Bounds = tuple[float, float, float]
"""low, expected, high: the values of the label `bound`."""


class ObservedSample(Struct, frozen=True, kw_only=True):
    """Figures that the ready pods of one InferenceDeployment reported."""

    pods: int | None
    """None where nothing was observed."""
    capacity_tokens: int | None = None
    usage_ratio: float | None = None
    error_ratio: float | None = None


class PodSample(Struct, frozen=True, kw_only=True):
    """One pod of the Deployment, and what its engine reported."""

    name: str
    node: str = ""
    """Empty while it has none."""
    is_ready: bool = False
    started_seconds: float | None = None
    """Time since 1970."""
    restarts: int = 0
    capacity_tokens: int | None = None
    usage_ratio: float | None = None

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
    """Replicas of the Deployment."""

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
    max_num_seqs: int | None = None
    gpus: float | None = None
    observed: ObservedSample | None = None
    """None until the pods were read."""
    pods: tuple[PodSample, ...] = ()
    memory: MemorySample | None = None
    """None where there is no ledger."""
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
    """Return the figures of what is rendered."""
    spec, budget = deployment.spec, assessment.effective
    request = budget.request if budget else None
    effective = effective_values(spec, assessment)
    sample = DeploymentSample(
        namespace=deployment.namespace,
        name=deployment.name,
        model=spec.model.name,
        accelerator=request.accelerator.name if request else spec.accelerator.type,
        kv_cache_dtype=request.settings.kv_cache_dtype if request else spec.vllm.kv_cache_dtype,
        policy=spec.admission.policy,
        max_model_len_tokens=effective.max_model_len,
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
    """Return (type, status, reason) of each condition."""
    return tuple((condition.type, condition.status, condition.reason) for condition in conditions)


_PREDICTED = ("capacity_tokens", "capacity_bytes", "headroom_bytes", "headroom_ratio", "full_length_requests")


def _figures(of: Figures) -> dict[str, Any]:
    """Return what a sample has of the table of figures; the predicted ones only where every part of them has a formula."""
    is_whole = of["capacity_tokens"] is not None and of["headroom_bytes"] is not None
    predicted = {name: of.ends(name) if is_whole else None for name in _PREDICTED}
    numbers = {name: of.expected(name) if is_whole else None for name in ("demand_tokens", "host_memory_bytes")}
    pinned = of["pinned_tokens"] is not None
    return {
        **predicted,
        **numbers,
        "demand_bytes": of["demand_bytes"],
        "pinned": PinnedSample(tokens=of["pinned_tokens"], forgone_bytes=of["forgone_bytes"]) if pinned else None,
        "memory": _memory(of) if of["total_bytes"] is not None else None,
    }


def _memory(of: Figures) -> MemorySample:
    terms = ((name, of.expected(f"{name}_bytes")) for name in LEDGER_TERMS)
    kv_cache_bytes, found_bytes = of.expected("available_kv_cache_bytes"), of.expected("profiled_kv_cache_bytes")
    return MemorySample.of(
        of["total_bytes"],
        of["requested_bytes"],
        ((name, size) for name, size in terms if size is not None),
        kv_cache_bytes=kv_cache_bytes,
        found_bytes=kv_cache_bytes if found_bytes is None else found_bytes,
    )
