"""The JSON of `kvgate check` and `kvgate diff` as records: their schemas in docs/reference are generated from these.

Within a major version of the schema, keys are only added. Every key is always there; null stands for what is not known.
"""

from typing import Any, Literal

from msgspec import Struct

from kvgate.cli.reports.report import SourceKind
from kvgate.judge.assess import Answer
from kvgate.judge.worlds import Confidence

CHECK_SCHEMA_VERSION = "1.2"
DIFF_SCHEMA_VERSION = "1.2"

Severity = Literal["error", "warning", "info"]
Verdict = Literal["Fits", "MayNotFit", "DoesNotFit", "Unknown"]
NotJudged = Literal["NotJudged"]
Guarantee = Literal["Startup", "Workload", "FullContext"]


class Range(Struct, frozen=True, kw_only=True):
    """Bytes that a prediction lies between."""

    low: int
    expected: int
    high: int


class FindingRecord(Struct, frozen=True, kw_only=True):
    """A finding of a rule, with its place."""

    rule: str
    """Name of the rule; docs/reference/rules.md describes it."""
    severity: Severity
    file: str
    line: int
    """Line in the file, from 1."""
    column: int
    """Column in the line, from 1."""
    path: str
    """Path of the field in the document, such as `spec.template.spec.containers[0].args[1]`; empty for the whole document."""
    field: str
    """The setting in the words of its door, such as `--max-model-len`; empty where the finding is about no single one."""
    message: str
    remediation: str
    """Ways to mend it; empty where there is none."""


class IgnoredRecord(FindingRecord, frozen=True, kw_only=True):
    """A finding that does not count, with the reason that somebody gave."""

    by: Literal["comment", "configuration", "baseline"]
    reason: str
    place: str
    """File and line of the comment or of the entry; the file of a baseline."""


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


class SkippedRecord(Struct, frozen=True, kw_only=True):
    """A path that is not read because of a file of the checkout."""

    path: str
    reason: str
    by: str
    """File and line of the rule; empty for a folder of installed packages."""


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


class NeededRecord(Struct, frozen=True, kw_only=True):
    """The memory that one GPU must have, at the safe end of the prediction."""

    weights_bytes: int
    request_bytes: int
    """KV cache of one request of max_model_len."""
    demand_bytes: int
    """KV cache of the guarantee that was judged."""
    memory_bytes: int | None
    """Least memory of a GPU; null where the size of the KV cache is given."""


class EngineRecord(Struct, frozen=True, kw_only=True):
    """The settings that decide, by vLLM's names, as they are judged: with vLLM's defaults where the manifest sets none."""

    model: str | None
    accelerator: str | None
    """GPU by the name of the catalogue; null where the manifest names none."""
    accelerators: list[AcceleratorRecord]
    """Verdict on each GPU that the engine may run on; empty where one alone is named."""
    judged_on: str | None
    """GPU of the ledger; where none is named, the smallest on which the engine starts."""
    needed: NeededRecord | None
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


class CacheRecord(Struct, frozen=True, kw_only=True):
    """The KV cache as it is expected."""

    tokens: int | None
    """Tokens that it holds, as vLLM logs it."""
    bytes: int | None
    """Bytes on one GPU, on the pipeline stage that holds the fewest blocks."""
    requests: float | None
    """Requests of max_model_len that run at the same time."""
    headroom_ratio: float | None
    """(capacity − demand of the answer that decides) / capacity, both as expected; null where no capacity is expected."""
    headroom_bytes: int | None
    """Bytes of one GPU beyond the demand of the guarantee; negative where it does not fit."""
    blocks: int | None


class CalibrationRecord(Struct, frozen=True, kw_only=True):
    """The observed starts that correct the prediction."""

    starts: int
    same_setting: bool


class LedgerRecord(Struct, frozen=True, kw_only=True):
    """The memory of one GPU, of the pipeline stage that holds the fewest blocks: expected bytes of each term."""

    total_bytes: int
    requested_bytes: int
    """total × gpu_memory_utilization."""
    parameter_bytes: int | None
    """Sum of the parameters of the rank."""
    weights_bytes: int
    """Bytes that vLLM logs as "Model loading took"."""
    peak_activation_bytes: int
    non_torch_bytes: int
    cuda_graph_bytes: int
    lora_bytes: int
    """Bytes of LoRA adapters; 0 without them."""
    host_bytes: int
    """Bytes of the rank's weights and adapters that are kept in host memory."""
    available_kv_cache_bytes: Range
    circumstances: dict[str, list[Any]]
    """Circumstances of the start: one value where it is known, two where it may be either."""
    calibration: CalibrationRecord | None
    """Null where no observed start corrects the prediction."""


class HostRecord(Struct, frozen=True, kw_only=True):
    """The host memory of one pod."""

    needs_bytes: Range
    shared_memory_bytes: Range
    """Bytes of /dev/shm."""
    terms: dict[str, Range]
    page_cache_bytes: int
    """Bytes that make the start faster, and that the kernel takes back under pressure."""


class AssumedRecord(Struct, frozen=True, kw_only=True):
    """A fact that the manifest does not state."""

    fact: str
    """Name of the fact, such as `vllm_version`, `accelerator` or `model`."""
    value: str | None
    why: str


class AlternativeRecord(Struct, frozen=True, kw_only=True):
    """One change that would fit."""

    field: str
    path: str
    """The field of the InferenceDeployment."""
    value: Any


class SkipRecord(Struct, frozen=True, kw_only=True):
    """The break-glass annotation that admits an InferenceDeployment which does not fit."""

    reason: str
    until: str | None
    """Its end as RFC 3339 writes it; null where it has none."""


class AdmissionRecord(Struct, frozen=True, kw_only=True):
    """The decision of the admission policy about an InferenceDeployment."""

    decision: Literal["Admit", "AdmitWithWarning", "AdmitAdjusted", "Skipped", "Refuse"]
    reason: str
    """Reason of the condition Accepted."""
    message: str
    """Message of the condition Accepted."""
    effective: dict[str, Any] | None
    """Values that are rendered; null where it is refused."""
    skip: SkipRecord | None
    """The annotation of decision Skipped; null with every other decision."""
    alternatives: list[AlternativeRecord]


class DocumentRecord(Struct, frozen=True, kw_only=True):
    """One engine; or a document that mentions vLLM and in which no engine is found: its `engine` and `verdict` are null."""

    file: str
    line: int
    path: str
    """Path of the engine in the document; empty for the whole document."""
    rendered_by: str | None
    """Kustomization, `Chart.yaml` or file of values by which the file was rendered; null where the file is as it is written."""
    rendered_line: int | None
    """Line of the engine in the output of `helm template`, whose template has no such line."""
    platform: str
    kind: str
    """Kind of the object; `values` for a document without a kind, `text` for one that is no object."""
    namespace: str
    name: str
    engine: EngineRecord | None
    guarantee: Guarantee | None
    """The guarantee that was judged."""
    verdict: Verdict | NotJudged | None
    """NotJudged for an engine that is not vLLM, or runs on no GPU of NVIDIA or AMD. Null also for an InferenceDeployment that its schema
    refuses."""
    kv_cache: CacheRecord
    ledger: LedgerRecord | None
    host: HostRecord | None
    assumed: list[AssumedRecord]
    findings: list[FindingRecord]
    """Findings that count."""
    ignored: list[IgnoredRecord]
    decides: Literal["starts", "holds"] | None
    """The answer whose verdict `verdict` is; null where nothing could be judged."""
    starts: Answer | None
    holds: Answer | None
    confidence: Confidence
    """Assumed: the model's facts are those of another model. Contradictory: two sources of them disagree, which refuses nothing."""
    provenance: list[ProvenanceRecord]
    """Sources of the facts behind the verdict."""
    admission: AdmissionRecord | None
    """Null for an engine of another platform."""


class SummaryRecord(Struct, frozen=True, kw_only=True):
    """Counts of the whole run."""

    exit_code: int
    engines: int
    verdicts: dict[str, int]
    """Engines by verdict; `None` where there is none."""
    decisions: dict[str, int]
    """InferenceDeployments by decision."""
    unreadable: int
    ignored: int
    other_kinds: int
    """Documents that have nothing to do with vLLM."""
    skipped: dict[str, int]
    """Files that were not read, by reason."""


class UnrenderedRecord(Struct, frozen=True, kw_only=True):
    """A chart or a kustomization that is not rendered, or not all of it."""

    file: str
    line: int
    """Line of a template that Helm names; else 1."""
    reason: str
    detail: str
    """The parts that are left out."""


class CheckRecord(Struct, frozen=True, kw_only=True):
    """The report of `kvgate check -o json`."""

    schemaVersion: str  # noqa: N815 - the name that Kubernetes' own formats give it
    """Version of this schema; within a major version, keys are only added."""
    documents: list[DocumentRecord]
    unreadable: list[FindingRecord]
    """Findings about documents, or parts of them, that could not be read."""
    unrendered: list[UnrenderedRecord]
    """Charts and kustomizations that are not rendered, or not all of them; their files are read as they are written."""
    skipped: list[SkippedRecord]
    """Paths that are not read because of `.gitignore`, `.kvgateignore` or installed packages: the first 1,000."""
    provenance: list[ProvenanceRecord]
    """Settings of a file that concern the whole report."""
    summary: SummaryRecord


class EffectRecord(Struct, frozen=True, kw_only=True):
    """A setting that changed, and what it alone does to the KV cache of the engine before the change."""

    setting: str
    """The setting by vLLM's name; `accelerator`, `model` and `vllm_version` are settings too."""
    before: Any
    after: Any
    tokens: int | None
    """Tokens of the KV cache before, with this change alone; null where it is not known."""
    change_tokens: int | None
    """The same less the tokens before."""


class DefaultRecord(Struct, frozen=True, kw_only=True):
    """An option that neither side sets, and whose default differs between the two releases."""

    option: str
    before: Any
    after: Any


class SideRecord(DocumentRecord, frozen=True, kw_only=True):
    """An engine before or after a change: the record of `kvgate check`, and whether it is refused."""

    refused: bool


class ChangedSourceRecord(Struct, frozen=True, kw_only=True):
    """A fact whose source, or the content of its source, differs between both sides; null on a side that has none."""

    fact: str
    before: ProvenanceRecord | None
    after: ProvenanceRecord | None


class ChangeRecord(Struct, frozen=True, kw_only=True):
    """One engine of either side."""

    file: str
    """Path below the root of its tree."""
    path: str
    platform: str
    kind: str
    namespace: str
    name: str
    change: Literal["new", "removed", "changed", "unchanged"]
    worse: bool
    """True if it does not start, or is refused, and was not before."""
    effects: list[EffectRecord]
    changed_defaults: list[DefaultRecord]
    changed_sources: list[ChangedSourceRecord]
    """Sources of facts that changed, for an engine whose verdict or figures changed."""
    before: SideRecord | None
    after: SideRecord | None


class DifferenceSummary(Struct, frozen=True, kw_only=True):
    """Counts of a comparison."""

    exit_code: int
    changed: int
    new: int
    removed: int
    unchanged: int
    worse: int


class DifferenceRecord(Struct, frozen=True, kw_only=True):
    """The report of `kvgate diff -o json`."""

    schemaVersion: str  # noqa: N815 - as above
    """Version of this schema; within a major version, keys are only added."""
    engines: list[ChangeRecord]
    unreadable: list[FindingRecord]
    summary: DifferenceSummary
