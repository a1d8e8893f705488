"""The load that one engine of a candidate takes: requests by its memory, and the roof of its decode speed by batch size."""

from kvgate.budget import Guarantee
from kvgate.budget.answers.decoding import DecodeBound, decode_bound
from kvgate.planning.candidate import Candidate
from kvgate.planning.size import MOST_REQUESTS, most_requests

BATCHES = (1, 8, 32)
"""Sequences for which a bound is given, beside the most that the engine holds."""


def requests_held(candidate: Candidate) -> int:
    """Return the most requests of the question that one engine holds for sure, whatever number is asked for.

    For Startup these are requests of max_model_len, and the engine keeps its own max_num_seqs; otherwise it has room for so many.
    """
    budget = candidate.budget
    if candidate.engine.guarantee is not Guarantee.STARTUP:
        return candidate.surely if candidate.fills else most_requests(candidate.engine, MOST_REQUESTS)
    usable, kv_cache = budget.usable_blocks, budget.kv_cache
    if usable is None or kv_cache is None or not kv_cache.request_blocks:
        return 0
    return min(max(0, usable.low) // kv_cache.request_blocks, budget.resolved.max_num_seqs)


def sequence_tokens(candidate: Candidate) -> int:
    """Return the mean number of tokens that a decoding sequence has in the cache: the prompt and half of the output, else max_model_len."""
    workload = candidate.budget.request.workload
    if candidate.engine.guarantee is Guarantee.WORKLOAD and workload is not None:
        return workload.prompt_tokens + workload.output_tokens // 2
    return candidate.budget.resolved.max_model_len


def decode_bounds(candidate: Candidate, held: int) -> tuple[DecodeBound, ...]:
    """Return the bounds of one engine for small batches and for all that it holds; none where a figure is not known."""
    workload, tokens = candidate.budget.request.workload, sequence_tokens(candidate)
    shared = workload.shared_prefix_tokens if workload is not None else 0
    batches = sorted({batch for batch in BATCHES if batch <= max(1, held)} | {held} - {0})
    bounds = (decode_bound(candidate.budget, batch=b, sequence_tokens=tokens, shared_tokens=shared) for b in batches)
    return tuple(bound for bound in bounds if bound is not None)
