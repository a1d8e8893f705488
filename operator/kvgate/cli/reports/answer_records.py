"""The JSON of `kvgate size` and `kvgate sweep` as records."""

from typing import Annotated, Any

from msgspec import Struct

from kvgate.budget import Interval
from kvgate.budget.answers.decoding import DecodeBound
from kvgate.budget.answers.figures import described
from kvgate.cli.reports.engine_records import (
    AnswersRecord,
    AssumedRecord,
    Guarantee,
    PlainFinding,
    ProvenanceRecord,
    Verdict,
    WorkloadRecord,
)
from kvgate.planning.sweep import Edge


class QuestionRecord(Struct, frozen=True, kw_only=True):
    """The question of `kvgate size`."""

    model: str
    vllm_version: str
    guarantee: Guarantee
    workload: WorkloadRecord | None
    """The whole load; null where another guarantee is judged."""
    concurrency: int | None
    """Requests at the same time; null where the question is how many there may be."""
    max_gpus: int | None
    kv_cache_dtypes: tuple[str, ...]
    capacity: str


class PricesRecord(Struct, frozen=True, kw_only=True):
    """The prices that the order follows."""

    currency: str
    remark: str


class LeftOut(Struct, frozen=True, kw_only=True):
    """Numbers of candidates that are not shown without --all."""

    slices: int
    candidates_of_many_engines: int


class CandidateRecord(AnswersRecord, frozen=True, kw_only=True):
    """Equal replicas of one engine on one kind of GPU."""

    accelerator: str
    headroom_ratio: Annotated[float | None, described("headroom_ratio")]
    reason: str
    """Why it does not fit, or may not; empty where it fits."""
    num_gpus: int
    replicas: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    kv_cache_dtype: str
    max_model_len: int
    max_num_seqs: int
    price_per_gpu_hour: float | None
    cost_per_hour: float | None
    engines_per_gpu: int | None
    gpu_memory_utilization_of_each: float | None
    requests_per_replica: int
    requests_that_surely_fit_a_replica: int
    requests_that_one_engine_holds: int
    engines_within_max_gpus: int
    full_requests_per_replica: Annotated[float, described("full_length_requests")]
    max_model_len_that_surely_fits: int
    auto_max_model_len: Annotated[Interval | None, described("auto_max_model_len")]
    demand_bytes: Annotated[int | None, described("demand_bytes")]
    available_kv_cache_bytes: Annotated[Interval | None, described("available_kv_cache_bytes")]
    headroom_bytes: Annotated[Interval | None, described("headroom_bytes")]
    memory_bandwidth_bytes_per_second: int | None
    decode_tokens_per_second_at_most: int | None
    decode_bounds: tuple[DecodeBound, ...]
    first_token_seconds_at_least: float | None
    """Lower bound of the time to the first token of a prompt that is not in the cache; null where the GPU's peak FLOPS are not known."""
    reload_bytes_per_second_break_even: int | None
    """Bandwidth of a tier from which on reading tokens back is surely faster than computing them again; null as above."""
    pinned_blocks: Annotated[int | None, described("pinned_blocks")]
    kv_cache_memory_bytes_needed: int | None
    """Value of `--kv-cache-memory-bytes` that holds the promise and no more; null where it does not fit, or a size is given."""
    gpu_memory_left_bytes: Interval | None
    """Memory of each GPU that this leaves for others."""
    ledger: dict[str, Interval]
    """Terms of the ledger of one GPU by their names, without `_bytes`; empty where there is none."""


class SizeRecord(Struct, frozen=True, kw_only=True):
    """The answer of `kvgate size -o json`."""

    schemaVersion: str  # noqa: N815 - the name that Kubernetes' own formats give it
    question: QuestionRecord
    prices: PricesRecord
    counts: str
    left_out: LeftOut
    candidates: tuple[CandidateRecord, ...]
    hints: tuple[str, ...]
    findings: tuple[PlainFinding, ...]
    assumed: list[AssumedRecord]
    provenance: list[ProvenanceRecord]


class AxisRecord(Struct, frozen=True, kw_only=True):
    """One of the two settings of a sweep."""

    name: str
    values: tuple[Any, ...]


class CellRecord(AnswersRecord, frozen=True, kw_only=True):
    """One pair of values."""

    headroom_ratio: Annotated[float | None, described("headroom_ratio")]
    refusal: str | None
    """Reason why vLLM refuses the setting with any memory."""
    demand_bytes: Annotated[int | None, described("demand_bytes")]
    available_kv_cache_bytes: Interval | None
    """Bytes that requests can hold: whole blocks without the null block, as the verdict counts."""


class PointRecord(Struct, frozen=True, kw_only=True):
    """The chosen point, by column and row."""

    x: int
    y: int
    verdict: Verdict


class SweepRecord(Struct, frozen=True, kw_only=True):
    """The answer of `kvgate sweep -o json`; model, GPU and release are those of the first cell."""

    schemaVersion: str  # noqa: N815 - as above
    model: str
    gpu: str
    vllm_version: str
    guarantee: Guarantee
    workload: WorkloadRecord | None
    x: AxisRecord
    y: AxisRecord
    cells: tuple[tuple[CellRecord, ...], ...]
    """Rows by y, each with a cell for every x."""
    edges: tuple[Edge, ...] | None
    """The largest y that fits, and that may fit, by column; null where it is not searched."""
    at: PointRecord | None
    findings: tuple[PlainFinding, ...]
    assumed: list[AssumedRecord]
    provenance: list[ProvenanceRecord]
