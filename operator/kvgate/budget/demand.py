"""What must fit, in whole blocks of the pool."""

from dataclasses import dataclass

from kvgate.budget.capacity import KVCache
from kvgate.budget.request import Guarantee, Workload


@dataclass(frozen=True, kw_only=True, slots=True)
class Demand:
    """Blocks that the guarantee asks for; never below one full-length request, or vLLM does not start."""

    guarantee: Guarantee
    requests: int
    """Requests that are held at the same time."""
    blocks: int
    startup_blocks: int
    """Of one request of max_model_len."""


def demand_of(
    kv_cache: KVCache, guarantee: Guarantee, *, max_num_seqs: int, workload: Workload | None, shares_prefixes: bool
) -> Demand:
    """The demand of a guarantee; Workload without a workload is Startup."""
    startup = kv_cache.request_blocks
    requests, blocks = 1, startup
    if guarantee is Guarantee.FULL_CONTEXT:
        requests, blocks = max_num_seqs, max_num_seqs * startup
    elif guarantee is Guarantee.WORKLOAD and workload is not None:
        requests = workload.peak_concurrency
        blocks = max(startup, _workload_blocks(kv_cache, workload, shares_prefixes=shares_prefixes))
    return Demand(guarantee=guarantee, requests=requests, blocks=blocks, startup_blocks=startup)


def _workload_blocks(kv_cache: KVCache, workload: Workload, *, shares_prefixes: bool) -> int:
    """Concurrency × blocks of a request; whole blocks of a shared prefix are held once."""
    each = kv_cache.blocks_of(workload.request_tokens)
    shared = 0
    if shares_prefixes:
        block = max(group.spec.block_size for group in kv_cache.groups) * kv_cache.reach.decode_context
        prefix = min(workload.shared_prefix_tokens, workload.prompt_tokens) // block * block
        shared = kv_cache.blocks_of(prefix) if prefix else 0
    return workload.peak_concurrency * (each - shared) + shared
