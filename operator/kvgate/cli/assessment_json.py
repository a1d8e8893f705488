"""An Assessment as JSON: the response object of the machine contract. What is not known is null."""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec.structs import asdict

from kvgate.budget import PINNED_SAFETY_BYTES, Budget, CacheFigures, Interval, Verdict
from kvgate.budget.host_memory import HostLedger
from kvgate.budget.host_settings import NO_HOST_SETTINGS, UNKNOWN_POD
from kvgate.budget.pod_ledger import pod_ledger
from kvgate.findings.finding import Finding
from kvgate.judge.assess import Answer, Assessment
from kvgate.judge.pinning import pinned_option
from kvgate.judge.worlds import Confidence
from kvgate.rules.facts import VERSION_ASSUMED

Json = dict[str, Any]


_REQUEST_KEYS = {"accelerator": "gpu", "config": "model_config"}
"""Name of a field in the engine → its key in a request, where they differ."""


def to_json(identifier: object, assessment: Assessment, *, with_host: bool = False) -> Json:
    """Return the response with all of its keys, whatever is known.

    `host_memory` is there where the request is about it, or `with_host`: most of a million what-ifs are not.
    """
    budget = assessment.budget
    if budget is not None:
        with_host |= budget.request.pod != UNKNOWN_POD or budget.request.settings.host != NO_HOST_SETTINGS
    return {
        "id": identifier,
        **answers_json(assessment),
        "findings": [finding_json(finding) for finding in assessment.findings],
        "ledger": ledger_json(budget) if budget else None,
        "kv_cache": _kv_cache(budget) if budget else None,
        **({"host_memory": host_memory_json(pod_ledger(budget))} if budget and with_host else {}),
        "error": None,
    }


class Judged(Protocol):
    """The two answers to a question, as an assessment and a point of a sweep have them."""

    @property
    def verdict(self) -> Verdict: ...
    @property
    def decides(self) -> str: ...
    @property
    def starts(self) -> Answer: ...
    @property
    def holds(self) -> Answer: ...
    @property
    def confidence(self) -> Confidence: ...


def answers_json(judged: Judged) -> Json:
    """Return both answers, which of them decides, and its verdict, under the same names at every door."""
    return {
        "verdict": judged.verdict.value,
        "decides": judged.decides,
        "starts": asdict(judged.starts),
        "holds": asdict(judged.holds),
        "confidence": judged.confidence.value,
    }


def failed(identifier: object, error: str) -> Json:
    """Return the response to a line that could not be read as a request."""
    return {"id": identifier, "verdict": "Unknown", "findings": [], "ledger": None, "kv_cache": None, "error": error}


def finding_json(finding: Finding) -> Json:
    """Return the five parts of a finding."""
    return {
        "rule": finding.rule.id,
        "severity": finding.severity.value,
        "field": _REQUEST_KEYS.get(finding.field, finding.field),
        "message": finding.message,
        "remediation": finding.remediation,
    }


def ledger_json(budget: Budget) -> Json | None:
    """Return the ledger of the tightest stage."""
    stage = budget.tightest
    ledger = stage.ledger if stage else None
    if stage is None or ledger is None:
        return None
    observed = ledger.correction  # None where no observed start corrects the prediction
    return {
        "total_bytes": ledger.total_bytes,
        "requested_bytes": ledger.requested_bytes,
        "parameter_bytes": ledger.parameter_bytes,
        **{f"{name}_bytes": term.expected for name, term in ledger.terms},
        **({"host_bytes": ledger.host_bytes.expected} if ledger.host_bytes.high else {}),
        "available_kv_cache_bytes": _ends(stage.available),
        "circumstances": {
            fact.name: (fact.value,) if fact.is_known else (fact.value, fact.other)
            for line in ledger.lines
            for fact in line.facts
        },
        **({"calibration": {"starts": observed.starts, "same_setting": observed.is_same_setting}} if observed else {}),
    }


def terms_json(budget: Budget) -> Json:
    """Return low, expected and high of every term of the ledger of the tightest stage, by its name without `_bytes`."""
    ledger = budget.tightest.ledger if budget.tightest else None
    if ledger is None:
        return {}
    host = {"host": _ends(ledger.host_bytes)} if ledger.host_bytes.high else {}
    return {**{name: _ends(term) for name, term in ledger.terms}, **host}


def engine_json(budget: Budget) -> Json:
    """Return the settings as they are judged, under the keys of an engine in `kvgate check -o json`."""
    request, parallel = budget.request, budget.request.settings.parallelism
    return {
        "model": request.shape.name,
        "accelerator": request.accelerator.name,
        "accelerators": [],
        "judged_on": request.accelerator.name,
        "needed": None,
        "vllm_version": request.vllm_version,
        "tensor_parallel_size": parallel.tensor,
        "pipeline_parallel_size": parallel.pipeline,
        "data_parallel_size": parallel.data,
        "max_model_len": budget.resolved.max_model_len,
        "max_num_seqs": budget.resolved.max_num_seqs,
        "kv_cache_dtype": request.settings.kv_cache_dtype,
    }


def figures_json(figures: CacheFigures) -> Json:
    """Return the figures of the KV cache under the keys of `kv_cache` in `kvgate check -o json`."""
    return {
        "tokens": figures.num_tokens,
        "bytes": figures.kv_cache_bytes,
        "requests": figures.max_concurrency,
        "headroom_ratio": figures.headroom_ratio,
        "headroom_bytes": figures.headroom_bytes,
        "blocks": figures.num_blocks,
    }


def sources_json(budget: Budget) -> list[Json]:
    """Return the sources of the facts about the model and its draft, as `provenance` in `kvgate check -o json` lists them."""
    draft = budget.request.draft
    shapes = {"model": budget.request.shape, **({"draft": draft.shape} if draft else {})}
    return [
        {
            "fact": fact,
            "source": origin.kind,
            "place": origin.place,
            "is_file": origin.kind in ("lock file", "given"),
            "detail": ", ".join(each.difference for each in origin.differences),
        }
        for fact, shape in shapes.items()
        if (origin := shape.origin) is not None
    ]


def assumed_json(budget: Budget, findings: Sequence[Finding]) -> list[Json]:
    """Return the facts that nobody stated, as `assumed` in `kvgate check -o json` lists them."""
    shape, request = budget.request.shape, budget.request
    released = [each.message for each in findings if each.rule == VERSION_ASSUMED]
    of_model = [f"assumed from {shape.assumed.words}"] if shape.assumed else []
    return [
        *({"fact": "model", "value": shape.name, "why": why} for why in of_model),
        *({"fact": "vllm_version", "value": request.vllm_version, "why": why} for why in released),
    ]


def document_json(assessment: Assessment) -> Json:
    """Return the response with the keys of a document in `kvgate check -o json`, and every term of the ledger as an interval.

    The answer to a line of --requests leaves them out, because a million of them would be large and slow.
    """
    answered, budget = to_json(None, assessment), assessment.budget
    ledger, kv_cache = answered["ledger"], answered["kv_cache"]
    if budget is not None and ledger is not None:
        ledger = {**ledger, "terms": terms_json(budget)}
    return {
        **answered,
        "engine": engine_json(budget) if budget else None,
        "guarantee": assessment.guarantee.value,
        "ledger": ledger,
        "kv_cache": {**(kv_cache or {}), **figures_json(assessment.figures)},
        "host": host_memory_json(pod_ledger(budget)) if budget and budget.stages else None,
        "assumed": assumed_json(budget, assessment.findings) if budget else [],
        "provenance": sources_json(budget) if budget else [],
    }


def host_memory_json(ledger: HostLedger) -> Json:
    """Return the ledger of one pod. The page cache is wanted and no need."""
    return {
        "needs_bytes": _ends(ledger.needs),
        "shared_memory_bytes": _ends(ledger.shared_needs),
        "terms": {line.name: _ends(line.amount) for line in ledger.lines},
        "page_cache_bytes": sum(line.amount.expected for line in ledger.wanted),
    }


def _ends(interval: Interval) -> Json:
    return {"low": interval.low, "expected": interval.expected, "high": interval.high}


def _kv_cache(budget: Budget) -> Json | None:
    kv_cache, pool = budget.kv_cache, budget.num_blocks
    if kv_cache is None:
        return None
    blocks = pool.expected if pool else None
    longest = budget.resolved.max_model_len
    # A state that is kept once has a block as long as the whole request, unless the user set mamba_block_size.
    whole = budget.request.settings.mamba_block_size or longest
    groups = [
        {
            "kind": group.spec.kind,
            "num_layers": group.num_layers,
            "block_size": group.spec.block_size or whole,
            "page_size_bytes": group.page_size_bytes,
        }
        for group in kv_cache.groups
    ]
    return {
        "groups": groups,
        "bytes_per_block": kv_cache.bytes_per_block,
        "num_blocks": blocks,
        "num_tokens": budget.num_tokens.expected if budget.num_tokens else None,
        "max_concurrency": float(kv_cache.max_concurrency(blocks)) if blocks is not None and kv_cache.groups else None,
        "headroom_ratio": budget.figures.headroom_ratio,
        "request_blocks": kv_cache.request_blocks,
        "request_bytes": kv_cache.request_bytes,
        "max_model_len_that_fits": kv_cache.max_model_len_that_fits(blocks, at_most=longest)
        if blocks is not None
        else None,
        **({"pinned": pinned} if (pinned := pinned_json(budget)) else {}),
    }


def pinned_json(budget: Budget) -> Json | None:
    """Return the size that is pinned and what it costs; None where vLLM measures."""
    pinned = budget.pinned
    if pinned is None:
        return None
    return {
        "option": next(iter(pinned_option(budget).items()), None),
        "num_blocks": pinned.num_blocks,
        "num_tokens": pinned.num_tokens,
        "kv_cache_bytes": pinned.kv_cache_bytes,
        "safety_bytes": PINNED_SAFETY_BYTES,
        "profiled_kv_cache_bytes": _ends(pinned.profiled_bytes),
        "forgone_bytes": pinned.forgone_bytes,
        "forgone_tokens": pinned.forgone_tokens,
    }
