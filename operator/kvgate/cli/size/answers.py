"""The answer of `kvgate size`: a table for people, JSON and CSV for programs."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import Any

from kvgate.budget.interval import Interval
from kvgate.catalogue.prices import Prices
from kvgate.cli.assessment_json import Json, finding_json
from kvgate.cli.size.text import text_report
from kvgate.planning.candidate import Candidate, why_not
from kvgate.planning.hints import hints
from kvgate.planning.size import Question
from kvgate.text.inert import inert_json, inert_values

_INTERVALS = ("available_kv_cache_bytes", "headroom_bytes")
_ENDS = ("low", "expected", "high")


def json_report(question: Question, candidates: Sequence[Candidate], costs: Prices, *, every: bool) -> str:  # noqa: ARG001
    """Everything that the table is made from; what is not known is null."""
    request = question.request
    answer = {
        "question": {
            "model": request.shape.name,
            "vllm_version": request.vllm_version,
            "guarantee": request.guarantee.value,
            "concurrency": question.concurrency,
            "max_gpus": question.max_gpus,
            "kv_cache_dtypes": list(question.kv_cache_dtypes),
        },
        "prices": {"currency": costs.currency, "remark": costs.remark},
        "candidates": [_candidate(candidate) for candidate in candidates],
        "hints": list(hints(question, candidates)),
        "findings": [finding_json(finding) for finding in question.findings],
    }
    return inert_json(answer, indent=2)


def _candidate(candidate: Candidate) -> Json:
    budget, parallelism = candidate.budget, candidate.parallelism
    return {
        "accelerator": candidate.accelerator.name,
        "verdict": candidate.verdict.value,
        "reason": why_not(candidate),
        "num_gpus": candidate.num_gpus,
        "replicas": candidate.replicas,
        "tensor_parallel_size": parallelism.tensor,
        "pipeline_parallel_size": parallelism.pipeline,
        "kv_cache_dtype": candidate.kv_cache_dtype,
        "max_model_len": budget.resolved.max_model_len,
        "max_num_seqs": budget.resolved.max_num_seqs,
        "price_per_gpu_hour": _number(candidate.price),
        "cost_per_hour": _number(candidate.cost),
        "requests_per_replica": candidate.share,
        "requests_that_surely_fit_a_replica": candidate.surely,
        "full_requests_per_replica": round(float(candidate.full_requests), 2),
        "max_model_len_that_surely_fits": candidate.longest,
        "demand_bytes": budget.demand_bytes,
        "available_kv_cache_bytes": _interval(budget.tightest.available if budget.tightest else None),
        "headroom_bytes": _interval(budget.headroom),
    }


def _number(value: Fraction | None) -> float | None:
    return None if value is None else round(float(value), 4)


def _interval(interval: Interval | None) -> Json | None:
    return {"low": interval.low, "expected": interval.expected, "high": interval.high} if interval else None


def csv_report(question: Question, candidates: Sequence[Candidate], costs: Prices, *, every: bool) -> str:  # noqa: ARG001
    """One row per candidate; intervals are three columns."""
    rows = [_flat(_candidate(candidate)) for candidate in candidates]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(inert_values, rows))
    return text.getvalue().rstrip("\n")


def _flat(row: Mapping[str, Any]) -> Json:
    """The same columns for every row: what has no budget leaves them empty."""
    flat: Json = {}
    for key, value in row.items():
        flat |= {f"{key}_{end}": value and value[end] for end in _ENDS} if key in _INTERVALS else {key: value}
    return flat


Report = Callable[..., str]
REPORTS: dict[str, Report] = {"text": text_report, "json": json_report, "csv": csv_report}
"""Reports by the name of the output."""
