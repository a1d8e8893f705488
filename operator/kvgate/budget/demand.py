"""The demand of a guarantee, in whole blocks of the pool."""

from dataclasses import replace
from math import lcm

from kvgate.budget.capacity import KVCache
from kvgate.budget.kv_cache_spec import KVCacheSpec, Reach, SlidingWindowSpec, WindowMLASpec
from kvgate.budget.request import Guarantee, Workload
from kvgate.budget.settings import Resolved
from kvgate.budget.units import cdiv
from kvgate.record import record


@record
class Demand:
    """Blocks that the guarantee asks for; never below one full-length request, or vLLM does not start."""

    guarantee: Guarantee
    requests: int
    """Requests that are held at the same time."""
    blocks: int
    startup_blocks: int
    """Blocks of one request of max_model_len."""
    sequence_blocks: int = 0
    """Blocks that full CUDA graphs over recurrent states need: one for every sequence, the null block among them."""

    @property
    def is_for_sequences(self) -> bool:
        """True where the graphs ask for more than the guarantee."""
        return 0 < self.blocks == self.sequence_blocks


def demand_of(
    kv_cache: KVCache,
    guarantee: Guarantee,
    *,
    settings: Resolved,
    workload: Workload | None,
) -> Demand:
    """The demand of a guarantee; Workload without a workload is Startup."""
    startup = kv_cache.request_blocks
    requests, blocks = 1, startup
    if guarantee is Guarantee.FULL_CONTEXT:
        requests, blocks = settings.max_num_seqs, settings.max_num_seqs * startup
    elif guarantee is Guarantee.WORKLOAD and workload is not None:
        requests = workload.peak_concurrency
        shares = settings.enable_prefix_caching
        blocks = max(startup, _workload_blocks(kv_cache, workload, shares_prefixes=shares))
    sequences = settings.max_num_seqs - kv_cache.null_blocks if settings.graphs_hold_states else 0
    return Demand(
        guarantee=guarantee,
        requests=requests,
        blocks=max(blocks, sequences),
        startup_blocks=startup,
        sequence_blocks=sequences,
    )


def blocks_of_requests(kv_cache: KVCache, requests: int, num_tokens: int) -> int:
    """Blocks that equal requests hold at the same time, with no prefix in common."""
    reach = replace(kv_cache.reach, max_model_len=num_tokens)
    return sum(_blocks_at_peak(group.spec, requests, reach, 0) for group in kv_cache.groups)


def _workload_blocks(kv_cache: KVCache, workload: Workload, *, shares_prefixes: bool) -> int:
    """Each group for itself: whole blocks of a shared prefix are held once where the group can share them."""
    reach = replace(kv_cache.reach, max_model_len=workload.request_tokens)
    prefix = _shared_tokens(kv_cache, workload) if shares_prefixes else 0
    specs = [group.spec for group in kv_cache.groups]
    return sum(_blocks_at_peak(spec, workload.peak_concurrency, reach, prefix) for spec in specs)


def _shared_tokens(kv_cache: KVCache, workload: Workload) -> int:
    """A prefix is found again in whole blocks of every group at once (vLLM 0.32, `HybridKVCacheCoordinator`)."""
    step = lcm(*(group.spec.block_size or 1 for group in kv_cache.groups)) * kv_cache.reach.decode_context
    return min(workload.shared_prefix_tokens, workload.prompt_tokens) // step * step


def _blocks_at_peak(spec: KVCacheSpec, requests: int, reach: Reach, prefix: int) -> int:
    each = spec.blocks(reach)
    if isinstance(spec, SlidingWindowSpec | WindowMLASpec):
        return min(requests * each, _window_blocks(spec, requests - 1, reach) + each)
    shared = spec.blocks(replace(reach, max_model_len=prefix)) if prefix and spec.shares_prefixes else 0
    return requests * (each - shared) + shared


def _window_blocks(spec: SlidingWindowSpec | WindowMLASpec, requests: int, reach: Reach) -> int:
    """Windows of running requests: the tokens in flight are one batch's or two, however many requests share them.

    The request that comes next finds its whole reserve free, as vLLM asks before it admits one.
    """
    unaligned = spec.reach_back + spec.block_size - 1
    return cdiv(requests * unaligned + reach.in_flight_tokens, spec.block_size) + requests
