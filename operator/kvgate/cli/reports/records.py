"""The JSON of `kvgate check`, `kvgate diff` and `kvgate explain` as records: their schemas in docs/reference are generated from these.

Within a major version of the schema, keys are only added. Every key is always there; null stands for what is not known.
"""

from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from kvgate.cli.reports.engine_records import (
    AlternativeRecord,
    AssumedRecord,
    CacheRecord,
    EngineRecord,
    FindingRecord,
    Guarantee,
    HostRecord,
    LedgerRecord,
    MaximumRecord,
    NotJudged,
    ProvenanceRecord,
    Verdict,
    WorkloadRecord,
)
from kvgate.judgement.assessment import Answer, Confidence, Decision


class IgnoredRecord(FindingRecord, frozen=True, kw_only=True):
    """A finding that does not count, with the reason that somebody gave."""

    by: Literal["comment", "configuration", "baseline"]
    reason: str
    place: str
    """File and line of the comment or of the entry; the file of a baseline."""


class SkippedRecord(Struct, frozen=True, kw_only=True):
    """A path that is not read because of a file of the checkout."""

    path: str
    reason: str
    by: str
    """File and line of the rule; empty for a folder of installed packages."""


class SkipRecord(Struct, frozen=True, kw_only=True):
    """The break-glass annotation that admits an InferenceDeployment which does not fit."""

    reason: str
    until: str | None
    """Its end as RFC 3339 writes it; null where it has none."""


class AdmissionRecord(Struct, frozen=True, kw_only=True):
    """The decision of the admission policy about an InferenceDeployment."""

    decision: Literal["Admit", "AdmitWithWarning", "AdmitAdjusted", "Skipped", "WouldRefuse", "Refuse"]
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
    workload: WorkloadRecord | None
    """The declared load of one engine; null where another guarantee was judged."""
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
    decision: Decision | None
    """What follows from the verdict, as the exit code does: of an InferenceDeployment, the decision of its policy; of another engine,
    Refuse, AdmitWithWarning or Admit. Null where there is no verdict."""
    alternatives: list[AlternativeRecord]
    """Changes that would fit, the cheapest first: for an InferenceDeployment, and by `kvgate explain` for flags."""
    provenance: list[ProvenanceRecord]
    """Sources of the facts behind the verdict."""
    admission: AdmissionRecord | None
    """Null for an engine of another platform."""


class ExplainRecord(DocumentRecord, frozen=True, kw_only=True):
    """An engine in `kvgate explain -o json`: for flags, file, line and names are empty, and the platform is `command line`."""

    id: str | None
    host_memory: HostRecord | UnsetType = UNSET
    """The same as `host`, where the flags are about the host's memory."""
    error: str | None
    why: dict[str, Any] | UnsetType | None = UNSET
    """The figure of --why; absent without it."""
    maximized: MaximumRecord | UnsetType = UNSET
    """The answer to --maximize; absent without it."""
    paging: dict[str, Any] | UnsetType | None = UNSET
    """The comparison of --paging; absent without it."""


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


class StartsOnRecord(Struct, frozen=True, kw_only=True):
    """GPUs of the catalogue, or of the configuration's pools, on which an engine starts or may start."""

    before: tuple[str, ...]
    after: tuple[str, ...]


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
    compared_on: str | None
    """The GPU whose figures both sides have, where one of them names none; null where each has those of its own."""
    starts_on: StartsOnRecord | None
    """Null where a side names its GPU, or where both start on the same GPUs."""


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
