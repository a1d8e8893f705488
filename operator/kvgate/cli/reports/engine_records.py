"""The parts of a judgement in JSON, the same in every report: their schemas in docs/reference are generated from these.

Within a major version of the schema, keys are only added. A key with the default UNSET may be absent; null stands for what is not known.
"""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Struct, UnsetType

from kvgate.budget import Interval
from kvgate.budget.answers.figures import described
from kvgate.cli.provenance import SourceKind
from kvgate.judgement.assessment import Answer, Confidence, Decision, MemoryNeeded

SCHEMA_VERSION = "1.3"
"""Version of all reports: check, diff, explain, size and sweep."""
Severity = Literal["error", "warning", "info"]
Verdict = Literal["Fits", "MayNotFit", "DoesNotFit", "Unknown"]
NotJudged = Literal["NotJudged"]
Guarantee = Literal["Startup", "Workload", "FullContext"]


class PlainFinding(Struct, frozen=True, kw_only=True):
    """A finding of a rule."""

    rule: str
    """Name of the rule; docs/reference/rules.md describes it."""
    severity: Severity
    field: str
    """The setting in the words of its door, such as `--max-model-len`; empty where the finding is about no single one."""
    message: str
    remediation: str
    """Ways to mend it; empty where there is none."""


class FindingRecord(PlainFinding, frozen=True, kw_only=True):
    """A finding with its place; a finding about a command line has none: no file, and line 1."""

    file: str
    line: int
    """Line in the file, from 1."""
    column: int
    """Column in the line, from 1."""
    path: str
    """Path of the field in the document, such as `spec.template.spec.containers[0].args[1]`; empty for the whole document."""


class AnswersRecord(Struct, frozen=True, kw_only=True):
    """Both answers to one question: does it start, and does it hold the promise."""

    verdict: Verdict
    """Verdict of the answer that decides."""
    decides: Literal["starts", "holds"]
    starts: Answer
    holds: Answer
    confidence: Confidence
    """Assumed: the model's facts are those of another model. Contradictory: two sources of them disagree, which refuses nothing."""
    decision: Decision
    """What follows from the verdict, as the exit code does; of an InferenceDeployment, the decision of its policy."""


class WorkloadRecord(Struct, frozen=True, kw_only=True):
    """The load that one engine is judged with, in tokens."""

    peak_concurrency: int
    """Requests at the same time."""
    prompt_tokens: int
    output_tokens: int
    shared_prefix_tokens: int


class ProvenanceRecord(Struct, frozen=True, kw_only=True):
    """The source of one fact behind a verdict."""

    fact: str
    """`model`, `draft`, `calibration`, a fact of `.kvgate.yaml`, or `ignore` with the rule."""
    source: SourceKind
    place: str
    """File and line, or the commit of a hub; empty for the catalogue."""
    is_file: bool
    """True where the place is a file, most often of the checkout that is judged."""
    detail: str
    """The value, the reason, or what differs from the catalogue."""


class AcceleratorRecord(Struct, frozen=True, kw_only=True):
    """The verdict on one GPU of the catalogue, for an engine whose manifest names none or several."""

    name: str
    verdict: Verdict
    reason: str
    """Name of the rule that decides; empty where it fits."""
    lacking_bytes: int | None
    """Bytes of KV cache that one GPU lacks, as expected; null where the reason is another one."""
    message: str
    """The same in one sentence."""


class EngineRecord(Struct, frozen=True, kw_only=True):
    """The settings that decide, by vLLM's names, as they are judged: with vLLM's defaults where nothing sets them."""

    model: str | None
    accelerator: str | None
    """GPU by the name of the catalogue; null where the manifest names none."""
    accelerators: list[AcceleratorRecord]
    """Verdict on each GPU that the engine may run on; empty where one alone is named."""
    judged_on: str | None
    """GPU of the ledger; where none is named, the smallest on which the engine starts."""
    needed: MemoryNeeded | None
    """Null where a GPU is named."""
    vllm_version: str | None
    """Release; the newest one where the manifest allows several."""
    tensor_parallel_size: int | None
    pipeline_parallel_size: int | None
    data_parallel_size: int | None
    max_model_len: int | None
    """Tokens of the longest request."""
    max_num_seqs: int | None
    """Sequences that one batch may hold."""
    kv_cache_dtype: str | None


class GroupRecord(Struct, frozen=True, kw_only=True):
    """One group of layers that share a table of blocks."""

    kind: str
    num_layers: int
    block_size: int
    """Tokens of one block."""
    page_size_bytes: int


class PinnedRecord(Struct, frozen=True, kw_only=True):
    """The size that is pinned, and its cost."""

    option: tuple[str | int, ...] | None
    """Name of vLLM's option that pins it, and its value."""
    num_blocks: Annotated[int, described("pinned_blocks")]
    num_tokens: Annotated[int, described("pinned_tokens")]
    kv_cache_bytes: Annotated[int, described("pinned_bytes")]
    safety_bytes: int
    """Bytes that are left free below the low end of the prediction."""
    profiled_kv_cache_bytes: Annotated[Interval, described("profiled_kv_cache_bytes")]
    forgone_bytes: Annotated[int, described("forgone_bytes")]
    forgone_tokens: Annotated[int, described("forgone_tokens")]


class RequestCache(Struct, frozen=True, kw_only=True):
    """The KV cache in the answer to a line of --requests."""

    groups: tuple[GroupRecord, ...] = ()
    bytes_per_block: Annotated[int | None, described("bytes_per_block")] = None
    num_blocks: Annotated[int | None, described("num_blocks")] = None
    num_tokens: Annotated[int | None, described("capacity_tokens")] = None
    max_concurrency: Annotated[float | None, described("full_length_requests")] = None
    headroom_ratio: Annotated[float | None, described("headroom_ratio")] = None
    request_blocks: Annotated[int | None, described("request_blocks")] = None
    request_bytes: Annotated[int | None, described("request_bytes")] = None
    max_model_len_that_fits: Annotated[int | None, described("max_model_len_that_fits")] = None
    auto_max_model_len: Annotated[Interval | UnsetType, described("auto_max_model_len")] = UNSET
    pinned: PinnedRecord | UnsetType = UNSET
    """Absent where no size is pinned."""


class CacheRecord(RequestCache, frozen=True, kw_only=True):
    """The KV cache as it is expected."""

    tokens: Annotated[int | None, described("capacity_tokens")]
    bytes: Annotated[int | None, described("capacity_bytes")]
    requests: Annotated[float | None, described("full_length_requests")]
    headroom_bytes: Annotated[int | None, described("headroom_bytes")]
    blocks: Annotated[int | None, described("num_blocks")]
    demand_bytes: Annotated[int | None, described("demand_bytes")]
    demand_tokens: Annotated[int | None, described("demand_tokens")]


class CalibrationRecord(Struct, frozen=True, kw_only=True):
    """The observed starts that correct the prediction."""

    starts: Annotated[int, described("observed_starts")]
    same_setting: bool


class RequestLedger(Struct, frozen=True, kw_only=True):
    """The memory of one GPU, of the pipeline stage that holds the fewest blocks: expected bytes of each term."""

    total_bytes: Annotated[int, described("total_bytes")]
    requested_bytes: Annotated[int, described("requested_bytes")]
    parameter_bytes: Annotated[int | None, described("parameter_bytes")]
    weights_bytes: Annotated[int, described("weights_bytes")]
    peak_activation_bytes: Annotated[int, described("peak_activation_bytes")]
    non_torch_bytes: Annotated[int, described("non_torch_bytes")]
    cuda_graph_bytes: Annotated[int, described("cuda_graph_bytes")]
    lora_bytes: Annotated[int | UnsetType, described("lora_bytes")] = UNSET
    host_bytes: Annotated[int | UnsetType, described("host_bytes")] = UNSET
    available_kv_cache_bytes: Annotated[Interval, described("available_kv_cache_bytes")]
    circumstances: dict[str, tuple[str, ...]]
    """Circumstances of the start: one value where it is known, two where it may be either."""
    calibration: CalibrationRecord | UnsetType | None = UNSET
    """Null or absent where no observed start corrects the prediction."""


class LedgerRecord(RequestLedger, frozen=True, kw_only=True):
    """The same with every key, and low, expected and high of every term."""

    lora_bytes: Annotated[int, described("lora_bytes")]
    host_bytes: Annotated[int, described("host_bytes")]
    calibration: CalibrationRecord | None
    terms: dict[str, Interval]
    """Terms by their names without `_bytes`."""


class HostRecord(Struct, frozen=True, kw_only=True):
    """The host memory of one pod."""

    needs_bytes: Annotated[Interval, described("host_memory_bytes")]
    shared_memory_bytes: Annotated[Interval, described("shared_memory_bytes")]
    terms: dict[str, Interval]
    page_cache_bytes: Annotated[int, described("page_cache_bytes")]


class AssumedRecord(Struct, frozen=True, kw_only=True):
    """A fact that the manifest does not state."""

    fact: str
    """Name of the fact, such as `vllm_version`, `accelerator` or `model`."""
    value: str | None
    why: str


class SettingChangeRecord(Struct, frozen=True, kw_only=True):
    """One setting that changes."""

    field: str
    """vLLM's name of the setting."""
    path: str
    """The field of the InferenceDeployment, or the option that extraArgs takes."""
    before: Any
    value: Any
    loss: str
    """The thing that it takes from the user: nothing, speed, quality, context, users at once, images and sounds, or money."""


class AlternativeRecord(Struct, frozen=True, kw_only=True):
    """One change that would fit, or several that fit only together."""

    field: str
    """vLLM's name of the setting; `together` for several changes."""
    path: str
    """The field of the InferenceDeployment, or the option that extraArgs takes; empty for several changes."""
    value: Any
    """For several changes, all of them in words."""
    changes: list[SettingChangeRecord]
    """The changes; one alone, or all that are needed."""
    points: float
    """Cost to the user; less is better."""


class MaximumRecord(Struct, frozen=True, kw_only=True):
    """The most that settings make room for on the same GPUs."""

    what: str
    """`context` in tokens for the users that are stated, or `users`: requests at the same time, at the length that is."""
    value: int
    as_it_is: int
    """The same without any change."""
    changes: list[SettingChangeRecord]


class RequestAnswer(AnswersRecord, frozen=True, kw_only=True):
    """The answer to one line of `kvgate explain --requests`."""

    id: Any = UNSET
    """The id of the request, as it is there."""
    findings: tuple[PlainFinding, ...]
    ledger: RequestLedger | None
    kv_cache: RequestCache | None
    host_memory: HostRecord | UnsetType = UNSET
    """Absent where the request is not about the host's memory."""
    judged_on: str | UnsetType = UNSET
    """GPU of the ledger, where the request names none: the smallest on which the engine starts."""
    error: None = None


class FailedAnswer(Struct, frozen=True, kw_only=True):
    """The answer to a line that is no request."""

    id: Any = UNSET
    verdict: Verdict = "Unknown"
    findings: tuple[PlainFinding, ...] = ()
    ledger: None = None
    kv_cache: None = None
    error: str
