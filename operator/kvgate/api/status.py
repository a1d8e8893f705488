"""Status that kvgate writes: conditions, effective values, the budget, and alternatives that would fit."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field, WithJsonSchema

from kvgate.api.base import ApiModel, Document


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
    """When the status last changed."""
    observed_generation: int | None = None
    """Generation of the spec that it speaks of."""


class Effective(ApiModel):
    """The values that the pods are rendered from."""

    max_model_len: int | None = None
    """Longest request; absent where vLLM decides."""
    max_num_seqs: int | None = None
    """Requests that run at the same time; absent where vLLM decides."""
    kv_cache_dtype: str
    """Format of the KV cache."""


class Bytes(ApiModel):
    """A prediction in bytes."""

    low: int
    """The least value."""
    expected: int
    """The expected value."""
    high: int
    """The largest value."""


class LedgerStatus(ApiModel):
    """Bytes of the tightest GPU, as expected."""

    total_bytes: int
    """Memory of the GPU."""
    requested_bytes: int
    """Bytes that gpuMemoryUtilization allows."""
    weights_bytes: int
    """Weights as loaded."""
    peak_activation_bytes: int
    """Peak of the profile run."""
    non_torch_bytes: int
    """Driver and NCCL."""
    cuda_graph_bytes: int
    """Reserve for CUDA graphs."""


class BudgetStatus(ApiModel):
    """Memory and demand per GPU of the tightest rank."""

    verdict: Literal["Fits", "MayNotFit", "DoesNotFit", "Unknown"]
    """Verdict on the effective values, or on the spec as written where it is refused."""
    guarantee: str
    """The guarantee that must fit."""
    demand_bytes: int
    """Bytes that the guarantee needs."""
    available_kv_cache_bytes: Bytes
    """Bytes that the KV cache gets."""
    headroom_bytes: Bytes
    """Bytes that are left beyond the demand; negative where it does not fit."""
    headroom_percent: int
    """Expected headroom as a share of the expected KV cache."""
    capacity_tokens: int
    """Expected KV cache size in tokens, as vLLM prints it."""
    max_concurrency: str
    """Expected full-length requests at once, a decimal string."""
    observed_starts: int | None = None
    """Starts of this setting that were observed before and that availableKvCacheBytes follows; absent where there were none."""
    ledger: LedgerStatus | None = None
    """The GPU's memory term by term; kvCacheMemoryBytes bypasses it."""


class AlternativeStatus(ApiModel):
    """One single change that would fit."""

    field: str
    """Setting, by its path in the spec."""
    value: str
    """Its largest or next value that fits."""


class ObservedStatus(ApiModel):
    """Report of running vLLM about its KV cache; of several pods the smallest counts."""

    kv_cache_capacity_tokens: int | None = None
    """Size in tokens, as vLLM prints it; absent where an old release tells blocks alone of a model that kvgate does not know."""
    num_gpu_blocks: int
    """Blocks of one engine."""
    block_size: int
    """Tokens of a block."""
    pods: int
    """Ready pods that have told."""
    prediction_error_percent: str | None = None
    """Observed / expected - 1 in percent, a decimal string; of the pods of the current spec."""
    observed_time: Annotated[str, Field(max_length=32, json_schema_extra={"format": "date-time"})]
    """When the size last changed."""


class Placement(ApiModel):
    """Rules by which the pods find their GPU."""

    vendor: Annotated[str, Field(max_length=63)]
    """Maker of the GPU."""
    resource: Annotated[str, Field(max_length=253)]
    """Extended resource that the container asks for."""
    gpu_labels: Annotated[tuple[Annotated[str, Field(max_length=63)], ...], Field(max_length=64)] = ()
    """Values of the vendor's node label that mean this GPU."""


class Standing(ApiModel):
    """The spec that was admitted last: the pods are rendered from it until another spec is admitted."""

    model_config = ConfigDict(extra="ignore")  # a later release may have written more

    generation: Annotated[int, Field(ge=1)]
    """The newest generation that it was admitted as."""
    decision: Literal["Admit", "AdmitWithWarning", "AdmitAdjusted"]
    """Decision of the policy."""
    accepted: Literal["True", "Unknown"]
    """Status of the condition Accepted."""
    reason: Annotated[str, Field(min_length=1, max_length=128)]
    """Its reason."""
    message: Annotated[str, Field(max_length=4096)]
    """Its message."""
    changes: Annotated[str, Field(max_length=4096)] | None = None
    """Changes by policy Adjust."""
    skip_reason: Annotated[str, Field(max_length=256)] | None = None
    """The reason in the annotation kvgate.io/skip-budget."""
    config_digest: Annotated[str, Field(max_length=64)] | None = None
    """SHA-256 of the text behind configFrom; absent where there was none."""
    calibration_revision: Annotated[int, Field(ge=0)] | None = None
    """The newest observed start that was known; absent where there was none."""
    effective: Effective
    """The values that the pods are rendered from."""
    placement: Placement
    """Rules by which the pods find their GPU, as the catalogue had them."""
    load_seconds: Annotated[int, Field(ge=1, le=86_400)]
    """Seconds that a start may take."""
    predicted_tokens: Annotated[int, Field(ge=0)] | None = None
    """Expected size of the KV cache in tokens."""
    budget: BudgetStatus | None = None
    """Its budget, while status.budget is that of a later generation, which is refused."""
    spec: Annotated[Document, WithJsonSchema({
        "type": "object", "x-kubernetes-preserve-unknown-fields": True, "x-kubernetes-map-type": "atomic",
    })] | None = None  # fmt: skip
    """The spec; absent where it is larger than 512 KiB, or where the object has no room for it a second time."""
    digest: Annotated[str, Field(max_length=64)]
    """SHA-256 of all this and the object's uid: what somebody else wrote here is judged anew."""


class InferenceDeploymentStatus(ApiModel):
    """Findings, decision and observations of kvgate."""

    model_config = ConfigDict(extra="ignore")  # later releases may write more

    observed_generation: int | None = None
    """Generation of the spec that the status speaks of."""
    conditions: Annotated[tuple[Condition, ...], Field(max_length=16, json_schema_extra={
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
    })] | None = None  # fmt: skip
    """Accepted, Predicted, Adjusted, Ready, Reconciling, Stalled, Observed, PredictionDrift."""
    effective: Effective | None = None
    """The values that the pods are rendered from."""
    budget: BudgetStatus | None = None
    """The ledger and the demand."""
    calibration_revision: int | None = None
    """The newest observed start that was known when this generation was judged; absent where there was none."""
    alternatives: Annotated[tuple[AlternativeStatus, ...], Field(max_length=16)] | None = None
    """Single changes that would fit, where it does not."""
    observed: ObservedStatus | None = None
    """Report of running pods; absent while there is none."""
    replicas: int | None = None
    """Pods that exist."""
    ready_replicas: int | None = None
    """Pods that are ready."""
    selector: str | None = None
    """Label selector of the pods, for the scale subresource."""
    standing: Standing | None = None
    """The spec that was admitted last, from which the pods are rendered whatever became of the spec since."""
