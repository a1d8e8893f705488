"""The spec that was admitted last: it is made from an assessment, written to the status, read from there, and rendered.

A verdict stands for its spec: neither later observations, nor a restart, nor another catalogue changes a pod. Another spec is judged anew;
where it is refused, the last admitted spec keeps running.
"""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from pydantic import ValidationError

from kvgate import __version__
from kvgate.api.base import Document
from kvgate.api.status import (
    BudgetStatus,
    Bytes,
    Effective,
    HostMemoryStatus,
    LedgerStatus,
    PinnedStatus,
    Provenance,
    Standing,
)
from kvgate.api.v1alpha1 import InferenceDeployment, InferenceDeploymentSpec
from kvgate.api.validation import InvalidDocument, parse_document
from kvgate.budget import Capacity, Interval, Knob
from kvgate.budget.figure_values import FigureValues
from kvgate.budget.figures import figures_of
from kvgate.judge.assessment import Assessment, Decision
from kvgate.judge.summary import accepted, changes_text
from kvgate.judge.worlds import Confidence
from kvgate.rendering.workload import Figures
from kvgate.text.patterns import pattern


def budget_status(assessment: Assessment) -> Document | None:
    """Return status.budget: of what is rendered, or of the spec as written where nothing is. None where a part of it is unknown."""
    budget = assessment.effective
    if budget is None or budget.kv_cache is None or budget.tightest is None:
        return None
    if budget.num_blocks is None or budget.demand is None or budget.headroom is None:
        return None
    adjusted = assessment.decision is Decision.ADMIT_ADJUSTED
    ledger, of = budget.tightest.ledger, figures_of(budget)
    correction = ledger.correction if ledger else None
    status = BudgetStatus(
        verdict=(budget.verdict if adjusted else assessment.verdict).value,
        guarantee=budget.demand.guarantee.value,
        demand_bytes=of["demand_bytes"],
        available_kv_cache_bytes=_bytes(of["available_kv_cache_bytes"]),
        headroom_bytes=_bytes(of["headroom_bytes"]),
        headroom_percent=of.expected("headroom_percent"),
        capacity_tokens=of.expected("capacity_tokens"),
        max_concurrency=f"{of.expected('full_length_requests') or 0:.2f}",
        observed_starts=of["observed_starts"] if correction and correction.is_same_setting else None,
        pinned=_pinned_status(of) if budget.pinned else None,
        ledger=LedgerStatus(**{name: of.expected(name) for name in LedgerStatus.model_fields}) if ledger else None,
        host_memory=HostMemoryStatus(
            needs_bytes=_bytes(of["host_memory_bytes"]), shared_memory_bytes=of.expected("shared_memory_bytes")
        ),
    )
    dumped: Document = status.model_dump(by_alias=True, exclude_none=True)
    return dumped


def _pinned_status(of: FigureValues) -> PinnedStatus:
    return PinnedStatus(
        num_blocks=of["pinned_blocks"],
        kv_cache_bytes=of["pinned_bytes"],
        capacity_tokens=of["pinned_tokens"],
        profiled_kv_cache_bytes=_bytes(of["profiled_kv_cache_bytes"]),
        forgone_bytes=of["forgone_bytes"],
        forgone_tokens=of["forgone_tokens"],
    )


def _bytes(interval: Interval) -> Bytes:
    return Bytes(low=interval.low, expected=interval.expected, high=interval.high)


MAX_SPEC_BYTES = 512 << 10
"""Largest spec, as JSON in the API server's store, of which a copy is kept in the status."""
MAX_OBJECT_BYTES = 1344 << 10
"""Largest object together with the copy of its spec: etcd takes 1.5 MiB, and the rest of the status needs some of them."""
_MARKUP = pattern("[<>&\u2028\u2029]")
"""Characters that take six bytes each in the API server's store: Go escapes them, so that JSON is safe in HTML."""
_DEVICE = pattern(r"([a-z]+\.)?(nvidia|amd|intel|habana)\.(com|ai)/[A-Za-z0-9._-]+")
"""Extended resources of GPUs, whether or not the catalogue of this release has them."""
_UNSIGNED = ("digest", "budget")
"""Fields outside the digest. `budget` is added when another generation is refused, and removed when this one stands again."""


class Admitted(Struct, frozen=True, kw_only=True):
    """The record of an admitted spec, and the object as it was admitted."""

    record: Standing
    owner: InferenceDeployment | None
    """None where the spec was too large to be stored."""
    budget: Document | None
    """status.budget at the time of admission; None where it could not be computed."""
    provenance: Provenance = Provenance()
    """More about the admission. The record stands without it."""

    def is_of(self, owner: InferenceDeployment, generation: int, config_digest: str | None) -> bool:
        """Return True where this very spec was admitted.

        Scaling needs no new verdict, nor does the wish to follow later predictions, and a deleted ConfigMap does not revoke one.
        """
        record = self.record
        if record.skip_reason != owner.skip_reason or (
            config_digest is not None and config_digest != record.config_digest
        ):
            return False
        if self.owner is None:
            return record.generation == generation
        return judged_part(self.owner.spec) == judged_part(owner.spec)

    @property
    def figures(self) -> Figures:
        record = self.record
        return Figures(
            effective=record.effective,
            placement=record.placement,
            load_seconds=record.load_seconds,
            predicted_tokens=record.predicted_tokens,
        )

    def scaled(self, replicas: object) -> InferenceDeployment | None:
        """Return the object as it was admitted, with as many replicas as are requested now."""
        if self.owner is None:
            return None
        is_number = type(replicas) is int and 0 <= replicas <= 10_000
        spec = self.owner.spec.model_copy(update={"replicas": replicas} if is_number else {})
        return self.owner.model_copy(update={"spec": spec})


def judged_part(spec: InferenceDeploymentSpec) -> InferenceDeploymentSpec:
    """Return the spec without what no verdict depends on."""
    admission = spec.admission
    if admission.recalibrate:
        admission = admission.model_copy(update={"recalibrate": False})
    return spec.model_copy(update={"replicas": 0, "admission": admission})


def config_digest(config: object) -> str | None:
    """Return the digest of the text behind configFrom; None where there is none."""
    return hashlib.sha256(config.encode(errors="replace")).hexdigest() if isinstance(config, str) else None


def standing_of(
    document: Mapping[str, Any], owner: InferenceDeployment, assessment: Assessment, figures: Figures, *,
    calibration_revision: int, config: object, model_source: str = "",
) -> Admitted:  # fmt: skip
    """Return the record of a spec that is admitted now."""
    status, reason, message = accepted(assessment)
    changes = changes_text(assessment) if assessment.decision is Decision.ADMIT_ADJUSTED else None
    record = Standing(
        generation=document["metadata"].get("generation", 1),
        decision=assessment.decision.value,
        accepted="True" if status else "Unknown",
        reason=reason.value,
        message=message[:4096],
        changes=changes[:4096] if changes is not None else None,
        skip_reason=owner.skip_reason,
        config_digest=config_digest(config),
        model_source=model_source[:1024] or None,
        calibration_revision=calibration_revision or None,
        effective=figures.effective,
        placement=figures.placement,
        load_seconds=figures.load_seconds,
        predicted_tokens=figures.predicted_tokens,
        spec=document["spec"] if has_room(document) else None,
        digest="",
    )
    budget = budget_status(assessment)
    is_assumed = assessment.confidence is Confidence.ASSUMED
    provenance = Provenance(kvgate_version=__version__, model_assumed=is_assumed or None)
    return Admitted(record=_signed(record, document, budget), owner=owner, budget=budget, provenance=provenance)


def has_room(document: Mapping[str, Any]) -> bool:
    """Return True where the object can hold its spec a second time; without that check no status at all could be written."""
    spec_bytes = _stored_bytes(document["spec"])
    written_bytes = _stored_bytes({key: value for key, value in document.items() if key != "status"})
    return spec_bytes <= MAX_SPEC_BYTES and written_bytes + spec_bytes <= MAX_OBJECT_BYTES


def _stored_bytes(value: Any) -> int:
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    return len(_MARKUP.sub("\\\\u0000", text).encode(errors="replace"))


def renewed(admitted: Admitted, document: Mapping[str, Any]) -> Admitted:
    """Return the record for the present generation, whose spec is the admitted one; its budget is in status.budget."""
    update = {"generation": document["metadata"].get("generation", 1), "budget": None}
    record = admitted.record.model_copy(update=update)
    return replace(admitted, record=_signed(record, document, admitted.budget))


def with_budget(admitted: Admitted) -> Admitted:
    """Return the record with its own budget, while status.budget is that of another generation."""
    budget = BudgetStatus.from_document(admitted.budget) if admitted.budget else None
    return replace(admitted, record=admitted.record.model_copy(update={"budget": budget}))


def _signed(record: Standing, document: Mapping[str, Any], budget: Document | None) -> Standing:
    """Add the digest, which reveals accidental edits by others. Whoever may write a status can forge it."""
    return record.model_copy(update={"digest": _digest(dumped(record), document, budget)})


def resigned(record: Document, document: Mapping[str, Any], budget: Document | None) -> Document:
    """Return a record that was kept without its digest, with a digest for this object."""
    return {**record, "digest": _digest(record, document, budget)}


def dumped(record: Standing) -> Document:
    """Return the record as it is written."""
    written: Document = record.model_dump(by_alias=True, exclude_none=True, mode="json")
    return written


def _digest(record: Document, document: Mapping[str, Any], budget: Document | None) -> str:
    signed = {key: value for key, value in record.items() if key not in _UNSIGNED}
    value = [document["metadata"].get("uid", ""), budget, signed]
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_standing(document: Mapping[str, Any], status: Mapping[str, Any]) -> Admitted | None:
    """Read the record from a status. Returns None where nothing was admitted, or where kvgate cannot have written the record."""
    written = status.get("standing")
    if not isinstance(written, Mapping):
        return None
    try:
        record = Standing.from_document(written)
        owner = None if record.spec is None else parse_document({**document, "spec": record.spec})
    except (ValidationError, InvalidDocument):
        return None
    is_plausible = (
        record.generation <= document["metadata"].get("generation", 1)
        and _DEVICE.fullmatch(record.placement.resource) is not None
        and (owner is None or _is_reachable(record.effective, owner.spec, is_adjusted=record.changes is not None))
    )
    # Its budget is in the record, else in the status, or there is none and the status has another generation's.
    budgets = (written["budget"],) if "budget" in written else (status.get("budget"), None)
    known = {name: value for name, value in written.items() if name in _FIELDS}  # later releases may sign only these
    for budget in budgets:
        digests = (_digest(dict(written), document, budget), _digest(known, document, budget))
        if is_plausible and record.digest in digests and _may_be_pinned(record.effective, owner, budget):
            provenance = Provenance()
            with suppress(ValidationError):
                provenance = Provenance.from_document(status.get("provenance") or {})
            return Admitted(record=record, owner=owner, budget=budget, provenance=provenance)
    return None


_FIELDS = frozenset(field.alias or name for name, field in Standing.model_fields.items())


def _may_be_pinned(effective: Effective, owner: InferenceDeployment | None, budget: Any) -> bool:
    """Return True where nothing is pinned, or what is pinned fits into the memory that the GPU has by the record's own ledger."""
    sizes = (effective.kv_cache_memory_bytes, effective.num_gpu_blocks_override)
    if sizes == (None, None):
        return True
    ledger = budget.get("ledger") if isinstance(budget, Mapping) else None
    total = ledger.get("totalBytes") if isinstance(ledger, Mapping) else None
    allows = owner is None or owner.spec.admission.capacity is Capacity.PINNED
    return (
        allows
        and isinstance(total, int)
        and None in sizes
        and all(1 <= size <= total for size in sizes if size is not None)
    )


def _is_reachable(effective: Effective, spec: InferenceDeploymentSpec, *, is_adjusted: bool) -> bool:
    """Return True where no value is above the spec's, and none is below it except where the policy Adjust allows that."""
    vllm, asked = spec.vllm, spec.admission.adjust
    may = frozenset(asked.knobs) if is_adjusted and spec.admission.policy == "Adjust" else frozenset()
    length = vllm.max_model_len if isinstance(vllm.max_model_len, int) else None
    return (
        _is_within(effective.max_model_len, length, asked.min_max_model_len, may=Knob.MAX_MODEL_LEN in may)
        and _is_within(effective.max_num_seqs, vllm.max_num_seqs, asked.min_max_num_seqs, may=Knob.MAX_NUM_SEQS in may)
        and (effective.kv_cache_dtype == vllm.kv_cache_dtype or Knob.KV_CACHE_DTYPE in may)
        and (effective.gpu_memory_utilization is None or Knob.GPU_MEMORY_UTILIZATION in may)
    )


def _is_within(value: int | None, written: int | None, floor: int, *, may: bool) -> bool:
    if value is None or written is None:
        return value is None or value >= 1
    return value == written or (may and min(floor, written) <= value < written)
