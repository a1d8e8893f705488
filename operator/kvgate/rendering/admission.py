"""The record of an admission, and the figures that it promises.

It is made from an assessment, stored as an object that never changes, read from there, and rendered. A verdict stands for its spec: neither
later observations, nor a restart, nor another catalogue changes a pod. Another spec is judged anew; where it is refused, the last admitted
spec keeps running. Status, annotations and metrics show what the record says.
"""

import hashlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict
from pydantic import ValidationError
from pydantic.alias_generators import to_camel

from kvgate import __version__
from kvgate.api import API_VERSION
from kvgate.api.base import Document
from kvgate.api.status import (
    RECORD_KIND,
    AdmissionRecordSpec,
    AdmissionStatus,
    BudgetStatus,
    Bytes,
    Effective,
    HostMemoryStatus,
    LedgerStatus,
    PinnedStatus,
    Predicted,
    RecordedFigure,
)
from kvgate.api.v1alpha1 import InferenceDeployment, InferenceDeploymentSpec
from kvgate.api.validation import InvalidDocument, parse_document
from kvgate.budget import Capacity, Interval, Knob
from kvgate.budget.answers.figure_values import Bounds, Figures
from kvgate.budget.answers.figures import FIGURES, figures_of
from kvgate.judgement.assessment import Assessment, Confidence, Decision
from kvgate.judgement.summary import accepted, changes_text
from kvgate.rendering.labels import is_owned_by, owner_reference, selector, was_ours
from kvgate.rendering.workload import PodFigures
from kvgate.text.patterns import pattern

_NAMES = MappingProxyType({to_camel(name): name for name in FIGURES})


class Prediction(Struct, frozen=True, kw_only=True):
    """A verdict with the guarantee that it is about, and its figures."""

    verdict: str
    guarantee: str
    figures: Figures
    observed_starts: int | None = None
    """Number of observed starts with the same settings, which make the prediction certain; None where there were none."""

    @property
    def capacity_tokens(self) -> int:
        tokens: int = self.figures.expected("capacity_tokens")
        return tokens


class RecordedFigures(dict[str, Any], Figures):
    """The figures as a record has them."""

    def __missing__(self, name: str) -> None:
        """Return None for a figure that the record lacks."""
        if name not in FIGURES:
            raise KeyError(name)


def prediction_of(assessment: Assessment) -> Prediction | None:
    """Return the prediction of what is rendered, or of the spec as written where nothing is; None where a part of it is unknown."""
    budget = assessment.effective
    if budget is None or budget.kv_cache is None or budget.tightest is None:
        return None
    if budget.num_blocks is None or budget.demand is None or budget.headroom is None:
        return None
    correction = budget.tightest.ledger.correction if budget.tightest.ledger else None
    verdict = budget.verdict if assessment.decision is Decision.ADMIT_ADJUSTED else assessment.verdict
    return Prediction(
        verdict=verdict.value,
        guarantee=budget.demand.guarantee.value,
        figures=figures_of(budget),
        observed_starts=correction.starts if correction is not None and correction.is_same_setting else None,
    )


def admitted_prediction(record: AdmissionRecordSpec) -> Prediction | None:
    """Return the prediction of a record; None where it has no figures. Raises ValueError where ends do not enclose the expected value."""
    if record.verdict is None or record.guarantee is None:
        return None
    figures = RecordedFigures({
        _NAMES[name]: _value(figure) for name, figure in record.figures.items() if name in _NAMES
    })  # fmt: skip
    return Prediction(
        verdict=record.verdict,
        guarantee=record.guarantee,
        figures=figures,
        observed_starts=figures["observed_starts"],
    )


def recorded_figures(prediction: Prediction) -> dict[str, RecordedFigure]:
    values = {**prediction.figures, "observed_starts": prediction.observed_starts}
    return {
        to_camel(name): RecordedFigure(
            low=_stored(value.low), expected=_stored(value.expected), high=_stored(value.high)
        )
        if isinstance(value, Interval | Bounds)
        else RecordedFigure(expected=_stored(value))
        for name, value in values.items()
        if value is not None
    }


def _stored(value: Any) -> int | str:
    return value if isinstance(value, int) else repr(float(value))


def _value(figure: RecordedFigure) -> Any:
    if figure.low is None or figure.high is None:
        return _read(figure.expected)
    ends = _read(figure.low), _read(figure.expected), _read(figure.high)
    if any(isinstance(end, float) for end in ends):
        return Bounds(*ends)
    return Interval(low=ends[0], expected=ends[1], high=ends[2])


def _read(number: int | str) -> Any:
    return number if isinstance(number, int) else float(number)


def budget_status(prediction: Prediction | None) -> Document | None:
    if prediction is None:
        return None
    of = prediction.figures
    return BudgetStatus(
        verdict=prediction.verdict,
        guarantee=prediction.guarantee,
        demand_bytes=of["demand_bytes"],
        available_kv_cache_bytes=as_bytes(of["available_kv_cache_bytes"]),
        headroom_bytes=as_bytes(of["headroom_bytes"]),
        headroom_percent=of.expected("headroom_percent"),
        capacity_tokens=prediction.capacity_tokens,
        auto_max_model_len=Predicted(**asdict(of["auto_max_model_len"])) if of["auto_max_model_len"] else None,
        max_concurrency=f"{of.expected('full_length_requests') or 0:.2f}",
        observed_starts=prediction.observed_starts,
        pinned=PinnedStatus(
            num_blocks=of["pinned_blocks"],
            kv_cache_bytes=of["pinned_bytes"],
            capacity_tokens=of["pinned_tokens"],
            profiled_kv_cache_bytes=as_bytes(of["profiled_kv_cache_bytes"]),
            forgone_bytes=of["forgone_bytes"],
            forgone_tokens=of["forgone_tokens"],
        )
        if of["pinned_blocks"] is not None
        else None,
        ledger=LedgerStatus(**{name: of.expected(name) for name in LedgerStatus.model_fields})
        if of["total_bytes"] is not None
        else None,
        host_memory=HostMemoryStatus(
            needs_bytes=as_bytes(of["host_memory_bytes"]), shared_memory_bytes=of.expected("shared_memory_bytes")
        )
        if of["host_memory_bytes"] is not None
        else None,
    ).model_dump(by_alias=True, exclude_none=True)


def as_bytes(interval: Interval) -> Bytes:
    return Bytes(low=interval.low, expected=interval.expected, high=interval.high)


MAX_RECORD_BYTES = (1536 << 10) - (4 << 10)
"""Largest record in the API server's store: etcd takes 1.5 MiB, and the request itself needs some of them."""
_MARKUP = pattern("[<>&\u2028\u2029]")
"""Characters that take six bytes each in the API server's store: Go escapes them, so that JSON is safe in HTML."""
_DEVICE = pattern(r"([a-z]+\.)?(nvidia|amd|intel|habana)\.(com|ai)/[A-Za-z0-9._-]+")
"""Extended resources of GPUs, whether or not the catalogue of this release has them."""
_BESIDE = frozenset({"generation", "admitted", "kvgateVersion", "calibrationRevision", "recalibrations"})
"""Fields outside the digest: the same decision with the same figures is the same admission. The digest of the spec stands for it."""
_DIGITS = 16
"""Digits of the digest in a name; that of an InferenceDeployment has 45 characters at most."""


class Admitted(Struct, frozen=True, kw_only=True):
    """The record of an admission, and the object as it was admitted."""

    record: AdmissionRecordSpec
    owner: InferenceDeployment | None
    """None where the spec was too large to be stored."""
    prediction: Prediction | None
    """The promised figures; None where they could not be computed."""
    digest: str
    """SHA-256 of the decision and its figures."""
    template_digest: str | None = None
    """Digest of the pod template that was rendered for it, as its Deployment has it."""

    @property
    def name(self) -> str:
        return f"{self.record.inference_deployment}-{self.digest[:_DIGITS]}"

    def is_of(self, owner: InferenceDeployment, config_digest: str | None) -> bool:
        """Return True where this very spec was admitted.

        Scaling needs no new verdict, nor does the wish to follow later predictions, and a deleted ConfigMap does not revoke one.
        """
        record = self.record
        if record.skip_reason != owner.skip_reason or (
            config_digest is not None and config_digest != record.config_digest
        ):
            return False
        if self.owner is None:
            return record.spec_digest == spec_digest(owner, owner.skip_reason)
        return judged_part(self.owner.spec) == judged_part(owner.spec)

    @property
    def figures(self) -> PodFigures:
        record = self.record
        return PodFigures(
            effective=record.effective,
            placement=record.placement,
            load_seconds=record.load_seconds,
            predicted_tokens=self.predicted_tokens,
        )

    @property
    def predicted_tokens(self) -> int | None:
        return self.prediction.capacity_tokens if self.prediction else None

    def scaled(self, replicas: object, *, is_suspended: bool = False) -> InferenceDeployment | None:
        """Return the object as it was admitted, with as many replicas as are requested now, or suspended as it is now."""
        if self.owner is None:
            return None
        is_number = type(replicas) is int and 0 <= replicas <= 10_000
        changes = {"suspend": is_suspended or None, **({"replicas": replicas} if is_number else {})}
        spec = self.owner.spec.model_copy(update=changes)
        return self.owner.model_copy(update={"spec": spec})


class Lost(Struct, frozen=True, kw_only=True):
    """What a Deployment says of an admission whose record is gone: the same judgement makes the same record again."""

    digest: str
    calibration_revision: int


def judged_part(spec: InferenceDeploymentSpec) -> InferenceDeploymentSpec:
    """Return the spec without what no verdict depends on."""
    admission = spec.admission
    if admission.recalibrate:
        admission = admission.model_copy(update={"recalibrate": False})
    beside = {"replicas": 0, "suspend": None, "strategy": None, "pod_disruption_budget": None}
    return spec.model_copy(update={**beside, "admission": admission})


def spec_digest(owner: InferenceDeployment, skip_reason: str | None) -> str:
    """Digest all that a verdict depends on; a field that a later release adds counts only where it is set."""
    written = judged_part(owner.spec).model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return sha256_of([written, skip_reason])


def config_digest(config: object) -> str | None:
    """Return the digest of the text behind configFrom; None where there is none."""
    return hashlib.sha256(config.encode(errors="replace")).hexdigest() if isinstance(config, str) else None


def admitted_now(
    document: Mapping[str, Any], owner: InferenceDeployment, assessment: Assessment, figures: PodFigures, *,
    calibration_revision: int, config: object, model_source: str = "",
) -> Admitted:  # fmt: skip
    status, reason, message = accepted(assessment)
    changes = changes_text(assessment) if assessment.decision is Decision.ADMIT_ADJUSTED else None
    prediction = prediction_of(assessment)
    record = AdmissionRecordSpec(
        inference_deployment=owner.name,
        generation=document["metadata"].get("generation", 1),
        spec_digest=spec_digest(owner, owner.skip_reason),
        decision=assessment.decision.recorded,
        accepted="True" if status else "Unknown",
        reason=reason.value,
        message=message[:4096],
        changes=changes[:4096] if changes is not None else None,
        skip_reason=owner.skip_reason,
        config_digest=config_digest(config),
        model_source=model_source[:1024] or None,
        model_assumed=assessment.confidence is Confidence.ASSUMED or None,
        calibration_revision=calibration_revision or None,
        effective=figures.effective,
        placement=figures.placement,
        load_seconds=figures.load_seconds,
        verdict=prediction.verdict if prediction else None,
        guarantee=prediction.guarantee if prediction else None,
        figures=recorded_figures(prediction) if prediction else {},
        kvgate_version=__version__,
        admitted=document["spec"],
    )
    return admitted_as(record, owner)


def admitted_as(record: AdmissionRecordSpec, owner: InferenceDeployment | None) -> Admitted:
    """Return a new record with its figures and its digest; it leaves the spec out where the API server could not store it."""
    written = dumped(record)
    text = json.dumps(written, separators=(",", ":"), ensure_ascii=False)
    if len(_MARKUP.sub("\\\\u0000", text).encode(errors="replace")) > MAX_RECORD_BYTES:
        record, owner = record.model_copy(update={"admitted": None}), None
    return Admitted(record=record, owner=owner, prediction=admitted_prediction(record), digest=_digest_of(written))


def _digest_of(written: Mapping[str, Any]) -> str:
    return sha256_of({name: value for name, value in written.items() if name not in _BESIDE})


def dumped(record: AdmissionRecordSpec) -> Document:
    return record.model_dump(by_alias=True, exclude_none=True, mode="json")


def record_manifest(admitted: Admitted, document: Mapping[str, Any]) -> Document:
    """Return the object with the record, which is deleted with its InferenceDeployment."""
    metadata, name = document["metadata"], admitted.record.inference_deployment
    return {
        "apiVersion": API_VERSION,
        "kind": RECORD_KIND,
        "metadata": {
            "name": admitted.name,
            "namespace": metadata["namespace"],
            "labels": selector(name),
            "ownerReferences": [owner_reference(name, metadata.get("uid", ""))],
        },
        "spec": dumped(admitted.record),
    }


def admission_status(admitted: Admitted) -> Document:
    record = admitted.record
    return AdmissionStatus(
        record=admitted.name,
        digest=admitted.digest,
        spec_digest=record.spec_digest,
        decision=record.decision,
        message=record.message,
        kvgate_version=record.kvgate_version,
    ).model_dump(by_alias=True, exclude_none=True)


def read_record(document: Mapping[str, Any], stored: Mapping[str, Any]) -> Admitted | None:
    """Read a record of this InferenceDeployment. Returns None where it is another's, or where kvgate cannot have written it.

    Its name holds its digest, so that the record cannot be another one below the same name.
    """
    metadata = document["metadata"]
    if not is_owned_by(stored, str(metadata.get("uid"))) and not was_ours(stored, metadata["name"]):
        return None
    try:
        record = AdmissionRecordSpec.from_document(stored.get("spec"))
        owner = None if record.admitted is None else parse_document({**document, "spec": record.admitted})
        prediction = admitted_prediction(record)
    except (ValidationError, InvalidDocument, ValueError):
        return None
    digest = _digest_of(stored["spec"])  # with the fields of a later release
    admitted = Admitted(record=record, owner=owner, prediction=prediction, digest=digest)
    is_its_own = record.inference_deployment == metadata["name"] and stored["metadata"]["name"] == admitted.name
    is_whole = owner is None or spec_digest(owner, record.skip_reason) == record.spec_digest
    return admitted if is_its_own and is_whole and is_plausible(admitted) else None


def is_plausible(admitted: Admitted) -> bool:
    """Return True where a verdict of kvgate could have these values."""
    record, owner = admitted.record, admitted.owner
    if _DEVICE.fullmatch(record.placement.resource) is None or not _may_be_pinned(admitted):
        return False
    return owner is None or _is_reachable(record.effective, owner.spec, is_adjusted=record.changes is not None)


def _may_be_pinned(admitted: Admitted) -> bool:
    """Return True where nothing is pinned, or what is pinned fits into the memory that the GPU has by the record's own ledger."""
    effective, owner = admitted.record.effective, admitted.owner
    sizes = (effective.kv_cache_memory_bytes, effective.num_gpu_blocks_override)
    if sizes == (None, None):
        return True
    total = admitted.prediction.figures["total_bytes"] if admitted.prediction else None
    allows = owner is None or owner.spec.admission.capacity is Capacity.PINNED
    return (
        allows
        and isinstance(total, int)
        and None in sizes
        and all(1 <= size <= total for size in sizes if size is not None)
    )


def _is_reachable(effective: Effective, spec: InferenceDeploymentSpec, *, is_adjusted: bool) -> bool:
    """Return True where no value is above the spec's, and none is below it except where the policy Adjust allows that."""
    vllm, adjust = spec.vllm, spec.admission.adjust
    may = frozenset(adjust.knobs) if is_adjusted and spec.admission.policy == "Adjust" else frozenset()
    length = vllm.max_model_len if isinstance(vllm.max_model_len, int) else None
    return (
        _is_within(effective.max_model_len, length, adjust.min_max_model_len, may=Knob.MAX_MODEL_LEN in may)
        and _is_within(effective.max_num_seqs, vllm.max_num_seqs, adjust.min_max_num_seqs, may=Knob.MAX_NUM_SEQS in may)
        and (effective.kv_cache_dtype == vllm.kv_cache_dtype or Knob.KV_CACHE_DTYPE in may)
        and (effective.gpu_memory_utilization is None or Knob.GPU_MEMORY_UTILIZATION in may)
    )


def _is_within(value: int | None, written: int | None, floor: int, *, may: bool) -> bool:
    if value is None or written is None:
        return value is None or value >= 1
    return value == written or (may and min(floor, written) <= value < written)


def sha256_of(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
