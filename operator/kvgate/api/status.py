"""The objects that kvgate writes: the status of an InferenceDeployment, and the AdmissionRecord.

The status has conditions, effective values, the budget, and changes that would fit. The record is what kvgate decided about one spec, with
the spec itself and all figures, and never changes. It is an object of its own, and not a ControllerRevision: both never change, and this
one is read by its own columns, needs no right over revisions of StatefulSets and DaemonSets, and is nothing that those or their selectors
touch (docs/concepts/admission-records.md).

The text below a field is its description in the CRD, which `kubectl explain` prints. That of a figure is in the table of figures.
"""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, PlainValidator, WithJsonSchema

from kvgate.api.base import ApiModel, CelRule, Document, GpuShare

MAX_LENGTHS = 64
"""Pods whose longest request is in the status; the metric has more of them."""


class Condition(ApiModel):
    """One condition, as metav1.Condition."""

    type: Annotated[str, Field(min_length=1, max_length=63)]
    """Subject of the condition."""
    status: Literal["True", "False", "Unknown"]
    """True where the condition holds."""
    reason: Annotated[str, Field(min_length=1, max_length=128)]
    """One word for programs."""
    message: Annotated[str, Field(max_length=4096)]
    """A sentence for people."""
    last_transition_time: Annotated[str, Field(max_length=32, json_schema_extra={"format": "date-time"})]
    """Time of the last change of the status."""
    observed_generation: int | None = None
    """Generation of the spec that the condition is about."""


class Recorded(ApiModel):
    """A part of the record of an admission, which a later release may have written with more fields."""

    model_config = ConfigDict(extra="ignore")


class Effective(Recorded):
    """The values that the pods are rendered from."""

    max_model_len: int | None = None
    """Longest request in tokens, prompt and output together; absent where vLLM decides. With auto, the length at the low end of the
    prediction."""
    max_num_seqs: int | None = None
    """Requests that run at the same time; absent where vLLM decides."""
    kv_cache_dtype: str
    """Format of the KV cache."""
    gpu_memory_utilization: GpuShare | None = None
    """Share of each GPU's memory, where kvgate lowered it to the equal part of a GPU that several engines share."""
    kv_cache_memory_bytes: int | None = None
    """Bytes of the KV cache of each GPU that are pinned; absent where vLLM measures, and in releases without that option."""
    num_gpu_blocks_override: int | None = None
    """Blocks that are pinned, in releases that take no bytes."""


class EffectiveStatus(Effective):
    """The same, with what kvgate chose."""

    chosen: Annotated[tuple[str, ...], Field(max_length=8)] | None = None
    """Names of the values that the spec leaves out and that kvgate chose, such as maxNumSeqs; absent where there are none."""


class WorkloadShare(Recorded):
    """Share of one engine in the workload."""

    engines: int
    """Number of engines that share the workload: data-parallel ranks of all replicas."""
    requests: int
    """Requests that run on each of them at the same time, rounded up."""


class Predicted(Recorded):
    """A prediction as an interval."""

    low: int
    """Low end of the interval."""
    expected: int
    """Expected value."""
    high: int
    """High end of the interval."""


class Bytes(Predicted):
    """A prediction in bytes, as an interval."""


class LedgerStatus(Recorded):
    """Memory of the tightest GPU in bytes, expected values."""

    total_bytes: int
    requested_bytes: int
    weights_bytes: int
    peak_activation_bytes: int
    non_torch_bytes: int
    cuda_graph_bytes: int
    lora_bytes: int | None = None


class PinnedStatus(Recorded):
    """Size of the KV cache that admission.capacity Pinned gives to every start of every replica."""

    num_blocks: int
    kv_cache_bytes: int
    capacity_tokens: int
    profiled_kv_cache_bytes: Bytes
    forgone_bytes: int
    forgone_tokens: int


class HostMemoryStatus(Recorded):
    """Memory of the host that one pod takes."""

    needs_bytes: Bytes
    shared_memory_bytes: int


class BudgetStatus(Recorded):
    """Memory and demand of one GPU, that of the tightest rank."""

    verdict: Literal["Fits", "MayNotFit", "DoesNotFit", "Unknown"]
    """Verdict on the effective values, or on the spec as it is written where that is refused."""
    guarantee: str
    """Guarantee that must fit."""
    demand_bytes: int
    available_kv_cache_bytes: Bytes
    headroom_bytes: Bytes
    headroom_percent: int | None = None
    capacity_tokens: int
    auto_max_model_len: Predicted | None = None
    max_concurrency: str
    observed_starts: int | None = None
    pinned: PinnedStatus | None = None
    """The pinned size and its cost; absent where vLLM measures the size itself. With it the intervals above have no width."""
    ledger: LedgerStatus | None = None
    """Memory of the GPU, term by term. kvCacheMemoryBytes bypasses it."""
    host_memory: HostMemoryStatus | None = None
    """Memory of the host that a pod takes beside the GPU."""


class AlternativeStatus(ApiModel):
    """One change with which the deployment would fit, or several that fit only together."""

    field: str
    """Path of the setting in the spec, or the option that extraArgs takes; `together` for several changes."""
    value: str
    """Value of the setting that fits, near the one in the spec; for `together`, all changes: `kvCacheDtype fp8, maxNumSeqs 32`."""


class ObservedLength(ApiModel):
    """Longest request that one pod serves."""

    pod: Annotated[str, Field(max_length=253)]
    """Name of the pod."""
    max_model_len: int
    """Tokens of the longest request, prompt and output together."""


class ObservedStatus(ApiModel):
    """KV cache that running pods report. Of several pods, the smallest one counts."""

    kv_cache_capacity_tokens: int | None = None
    """Size in tokens, as vLLM prints it; absent where an old release reports only blocks, of a model that kvgate does not know."""
    num_gpu_blocks: int
    """Number of KV cache blocks of one engine."""
    block_size: int
    """Tokens of one block."""
    pods: int
    """Number of ready pods that reported."""
    prediction_error_percent: str | None = None
    """Observed size / expected size - 1 in percent, a decimal string. Only pods of the current spec count."""
    lengths: Annotated[tuple[ObservedLength, ...], Field(max_length=MAX_LENGTHS, json_schema_extra={
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["pod"],
    })] | None = None  # fmt: skip
    """Longest requests of the pods of the current spec where vllm.maxModelLen is auto, the shortest ones first; those of vLLM before 0.20
    are computed from the KV cache that the pod reports."""
    observed_time: Annotated[str, Field(max_length=32, json_schema_extra={"format": "date-time"})]
    """Time at which the size last changed."""


class Placement(Recorded):
    """Rules by which the pods find their GPU."""

    vendor: Annotated[str, Field(max_length=63)]
    """Maker of the GPU."""
    resource: Annotated[str, Field(max_length=253)]
    """Extended resource that the container requests."""
    gpu_labels: Annotated[tuple[Annotated[str, Field(max_length=63)], ...], Field(max_length=64)] = ()
    """Values of the vendor's node label that mean this GPU."""
    gpu_memory_mib: Annotated[int, Field(ge=1, le=1 << 24)] | None = None
    """MiB of the GPU that the container requests as `nvidia.com/gpumem`; absent where it requests whole GPUs or replicas of them."""
    device_selector: Annotated[str, Field(max_length=1024)] | None = None
    """Expression of CEL by which a claim gets the GPU that was judged; absent without a claim, and where nothing tells it."""
    accelerator: Annotated[str, Field(max_length=253)] | None = None
    """Name of the GPU in the catalogue, where the spec leaves it to the nodes."""


class RecalibratedStatus(ApiModel):
    """Prediction of today for the spec, beside the one that was admitted."""

    verdict: Literal["Fits", "MayNotFit", "DoesNotFit", "Unknown"]
    """Verdict that the spec would get today."""
    accepted: Literal["True", "False", "Unknown"]
    """Status that the condition Accepted would get today. What runs keeps running, whatever it is."""
    capacity_tokens: int
    """Expected size of the KV cache in tokens, as it would be predicted today."""
    difference_percent: str | None = None
    """Size of today / admitted size - 1 in percent, a decimal string; absent where none was admitted."""
    available_kv_cache_bytes: Bytes
    """Bytes that would be left for the KV cache."""
    headroom_percent: int | None = None
    """Expected headroom in percent of the expected KV cache; absent where no KV cache is expected."""
    effective: Effective | None = None
    """The values that would be rendered today; absent where they are those of status.effective, or where nothing would be rendered."""
    message: Annotated[str, Field(max_length=2048)]
    """Reason why it differs."""
    kvgate_version: Annotated[str, Field(max_length=64)]
    """Release of kvgate that predicts this."""


class AdmissionStatus(ApiModel):
    """The admission that the pods are rendered from, until another spec is admitted."""

    record: Annotated[str, Field(max_length=253)]
    """Name of its AdmissionRecord, which has the spec and all figures."""
    digest: Annotated[str, Field(max_length=64)]
    """SHA-256 of the decision and its figures."""
    spec_digest: Annotated[str, Field(max_length=64)]
    """SHA-256 of all parts of the spec that the verdict depends on. The webhook lets an edit back to this spec pass."""
    decision: Literal["Admit", "AdmitWithWarning", "AdmitAdjusted", "Skipped"]
    """Decision of the admission policy."""
    message: Annotated[str, Field(max_length=4096)]
    """Message of the condition Accepted at that time."""
    kvgate_version: Annotated[str, Field(max_length=64)] | None = None
    """Release of kvgate that admitted the spec."""


Earlier = Annotated[dict[str, object], WithJsonSchema({"type": "object", "x-kubernetes-preserve-unknown-fields": True})]
"""A field that the API server must not drop before it was read."""


class InferenceDeploymentStatus(Recorded):
    """Verdict, decision and observations of kvgate."""

    observed_generation: int | None = None
    """Generation of the spec that the status is about."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=24, json_schema_extra={
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
    })] | None = None  # fmt: skip
    """Conditions: Accepted, Predicted, Adjusted, Scheduled, Loading, Ready, Degraded, Reconciling, Stalled, Drifted, Observed,
    PredictionDrift, PredictionOutdated, ModelResolved, ScaledBelowWorkload, NodesDiffer, LengthBelowFloor,
    ReplacementPending."""
    effective: EffectiveStatus | None = None
    """The values that the pods are rendered from."""
    workload_share: WorkloadShare | None = None
    """Part of spec.workload that each engine was judged with; absent where another guarantee was judged."""
    budget: BudgetStatus | None = None
    """Memory of the GPU and the demand."""
    calibration_revision: int | None = None
    """Number of the newest observed start that was known when this generation was judged; absent where there was none."""
    alternatives: Annotated[tuple[AlternativeStatus, ...], Field(max_length=16)] | None = None
    """Changes with which the deployment would fit, where it does not fit, the one that costs least first."""
    recalibrated: RecalibratedStatus | None = None
    """Prediction of today, where it differs from status.budget by more than 1 % and a block, or has another verdict. The next edit of the
    spec is judged by it, and with admission.recalibrate it is used at once."""
    observed: ObservedStatus | None = None
    """KV cache that running pods report; absent while no pod reports."""
    replicas: int | None = None
    """Number of pods that exist."""
    ready_replicas: int | None = None
    """Number of pods that are ready."""
    selector: str | None = None
    """Label selector of the pods, for the scale subresource."""
    admission: AdmissionStatus | None = None
    """The spec that was admitted last. The pods are rendered from it, even where a later spec is refused."""
    standing: Earlier | None = None
    """Record of an earlier release of kvgate, which is turned into an AdmissionRecord and removed."""
    provenance: Earlier | None = None
    """More of that record."""


RECORD_KIND = "AdmissionRecord"
RECORD_PLURAL = "admissionrecords"


def _number(value: Any) -> Any:
    """Read a number as it is stored."""
    if type(value) is not int:
        float(value)
    return value


Number = Annotated[
    int | str, PlainValidator(_number), WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 32})
]
"""A whole number, or a decimal number as text: the API has no floats."""


class RecordedFigure(Recorded):
    """One figure of the table of figures."""

    expected: Number
    """Expected value of a prediction, or the value itself."""
    low: Number | None = None
    """Low end of a prediction; absent where nothing is predicted."""
    high: Number | None = None
    """High end of a prediction."""


class AdmissionRecordSpec(Recorded):
    """One admission: the spec, the decision, and the figures that it was made with."""

    cel_rules: ClassVar[tuple[CelRule, ...]] = (
        CelRule(
            rule="self == oldSelf", message="a record never changes: kvgate makes another one", holds=lambda _: True
        ),
    )
    inference_deployment: Annotated[str, Field(min_length=1, max_length=253)]
    """Name of the InferenceDeployment that was admitted."""
    generation: Annotated[int, Field(ge=1)]
    """Generation of the InferenceDeployment at its admission."""
    spec_digest: Annotated[str, Field(max_length=64)]
    """SHA-256 of all parts of the spec that a verdict depends on, and of the break-glass annotation."""
    decision: Literal["Admit", "AdmitWithWarning", "AdmitAdjusted", "Skipped"]
    """Decision of the admission policy."""
    accepted: Literal["True", "Unknown"]
    """Status of the condition Accepted."""
    reason: Annotated[str, Field(min_length=1, max_length=128)]
    """Reason of the condition Accepted."""
    message: Annotated[str, Field(max_length=4096)]
    """Message of the condition Accepted."""
    changes: Annotated[str, Field(max_length=4096)] | None = None
    """Changes that the policy Adjust made."""
    skip_reason: Annotated[str, Field(max_length=256)] | None = None
    """Reason in the annotation kvgate.io/skip-budget."""
    config_digest: Annotated[str, Field(max_length=64)] | None = None
    """SHA-256 of the text behind configFrom; absent where there was none."""
    model_source: Annotated[str, Field(max_length=1024)] | None = None
    """Names, commits and hub of the models whose facts were fetched; absent where none was."""
    model_assumed: bool | None = None
    """True where the spec was admitted with facts that are assumed from another model; it is judged anew once its own are known."""
    calibration_revision: Annotated[int, Field(ge=0)] | None = None
    """Number of the newest observed start that was known; absent where there was none."""
    effective: Effective
    """The values that the pods are rendered from."""
    placement: Placement
    """Rules by which the pods find their GPU, as the catalogue had them at that time."""
    load_seconds: Annotated[int, Field(ge=1, le=86_400)]
    """Seconds that the start of a pod may take."""
    verdict: Literal["Fits", "MayNotFit", "DoesNotFit", "Unknown"] | None = None
    """Verdict on the effective values, or on the spec as it is written where the break glass admits it; absent without figures."""
    guarantee: str | None = None
    """Guarantee that the verdict is about."""
    figures: Annotated[dict[str, RecordedFigure], Field(default_factory=dict)]
    """Figures of the verdict by their names in the table of figures; none where a part of them could not be computed."""
    kvgate_version: Annotated[str, Field(max_length=64)] | None = None
    """Release of kvgate that admitted the spec."""
    recalibrations: Annotated[int, Field(ge=0)] | None = None
    """Number of times that admission.recalibrate has changed the pods of this spec; absent where it has not."""
    admitted: Annotated[Document, WithJsonSchema({
        "type": "object", "x-kubernetes-preserve-unknown-fields": True, "x-kubernetes-map-type": "atomic",
    })] | None = None  # fmt: skip
    """The spec as it was admitted; absent where the record would be larger than the API server stores."""
