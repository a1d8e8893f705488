"""KV cache in memory of the host: the connectors that keep blocks there, V0's swap space, and buffers for transfers."""

from collections.abc import Iterator

from kvgate.budget.ground.interval import Interval, Term
from kvgate.budget.ground.units import GIB
from kvgate.budget.host.processes import HostQuestion, ModelOnHost, Processes
from kvgate.budget.host.settings import HostSettings, KVConnector
from kvgate.budget.releases.host import HostAccounting

_NONE = Interval.exactly(0)
_LARGEST_CHUNK_BYTES = GIB
"""Blocks are offloaded in chunks, and a buffer holds whole ones; no chunk of a known model is as large as this."""
_LMCACHE_DEFAULT_BYTES = 5 * GIB
"""LMCache's default of `max_local_cpu_size`."""
_SIMPLE_DEFAULT_BYTES = 8 * GIB
"""vLLM's default of SimpleCPUOffloadConnector (`DEFAULT_CPU_CAPACITY_BYTES`)."""
_SWAP_DEFAULT_BYTES = 4 * GIB


def kv_offload_term(question: HostQuestion, accounting: HostAccounting, found: Processes) -> tuple[Term, bool]:
    """Return the blocks of the KV cache in host memory, and whether they lie in /dev/shm."""
    settings = question.settings
    amounts = [_of_connector(connector, question, accounting, found) for connector in _connectors(settings, accounting)]
    region = any(is_shared for _, is_shared in amounts)
    term = Term(
        name="kv_offload",
        amount=sum((amount for amount, _ in amounts), _NONE),
        formula="bytes of an engine × engines of the pod, or bytes of a rank × ranks, in whole chunks of blocks",
        source="vLLM 0.33, CPUOffloadingSpec, SharedOffloadRegion, SimpleCPUOffloadWorker; LMCache, LocalCPUBackend",
        inputs=(
            ("connector", ", ".join(connector.name for connector in _connectors(settings, accounting)) or "none"),
            ("engines", found.engines),
            ("ranks", found.ranks),
            ("is_by_size", "yes" if settings.kv_offloading_bytes else "no"),
        ),
    )
    return term, region


def _connectors(settings: HostSettings, accounting: HostAccounting) -> Iterator[KVConnector]:
    """Yield the connectors; `--kv-offloading-size` puts its own in the place of the given one (`_post_init_kv_transfer_config`)."""
    size = settings.kv_offloading_bytes
    if not size:
        yield from settings.kv_connectors
    elif settings.kv_offloading_backend == "lmcache":
        if accounting.lmcache_in_process:
            yield KVConnector(name="LMCacheConnectorV1", cpu_bytes=size)
    else:
        name = "SimpleCPUOffloadConnector" if settings.simple_kv_offload else "OffloadingConnector"
        yield KVConnector(name=name, cpu_bytes=size)


def _of_connector(
    connector: KVConnector, question: HostQuestion, accounting: HostAccounting, found: Processes
) -> tuple[Interval, bool]:
    """(bytes of one connector in this pod, whether they lie in /dev/shm)."""
    if connector.name == "OffloadingConnector":
        if connector.cpu_blocks:  # of each rank
            whole = found.part_of_all(connector.cpu_blocks * (question.model or ModelOnHost()).block_bytes)
            return Interval(low=0, expected=whole, high=2 * whole), False
        whole = found.part_of_engine(connector.cpu_bytes or 0)
        if accounting.offloads_cache_to_shared_memory and question.vendor in ("nvidia", ""):
            # where the GPU is not known, the memory is as certain, and its place is not
            low = found.part_of_engine(max(0, (connector.cpu_bytes or 0) - _LARGEST_CHUNK_BYTES))
            return Interval(low=low, expected=whole, high=whole), bool(question.vendor)
        expected = whole if accounting.sizes_cache_offload else 0
        return Interval(low=0, expected=expected, high=2 * whole), False
    if connector.name == "SimpleCPUOffloadConnector":
        each = connector.cpu_bytes_per_rank
        whole = each * found.ranks if each else found.part_of_engine(connector.cpu_bytes or _SIMPLE_DEFAULT_BYTES)
        low = max(0, whole - found.ranks * _LARGEST_CHUNK_BYTES)
        return Interval(low=low, expected=whole, high=whole), False
    if connector.name.startswith("LMCacheConnector"):
        return _of_lmcache(connector, question, found), False
    return _NONE, False


def _of_lmcache(connector: KVConnector, question: HostQuestion, found: Processes) -> Interval:
    """LMCache keeps a buffer in every rank, which it takes at the start; models with latent attention may keep one in the first only."""
    each = connector.cpu_bytes_per_rank or question.settings.lmcache_bytes
    if each is None:
        each = _LMCACHE_DEFAULT_BYTES if connector.cpu_bytes is None else connector.cpu_bytes // found.ranks_of_engine
    whole = each * found.ranks
    return Interval(low=0, expected=whole, high=2 * whole)


def swap_space_term(question: HostQuestion, accounting: HostAccounting, found: Processes) -> Term:
    """Return what V0 may swap out. It pins as many blocks as the swap space holds; V1 ignores it, and 0.8 to 0.10 may still run V0."""
    settings = question.settings
    each = settings.swap_space_bytes if settings.swap_space_bytes is not None else _SWAP_DEFAULT_BYTES
    each = (each if accounting.has_swap_space else 0) // question.parallelism.pipeline
    whole = each * found.ranks
    return Term(
        name="swap_space",
        amount=Interval(
            low=0,
            expected=whole if question.runs_v0 else 0,
            high=2 * whole if question.runs_v0 or accounting.may_run_v0 else 0,
        ),
        formula="ranks × swap_space / pipeline_parallel_size, each tensor in the next power of two",
        source="vLLM 0.8.5, V0's Worker.determine_num_available_blocks and CacheEngine._allocate_kv_cache",
        inputs=(("ranks", found.ranks), ("swap_space_bytes", each)),
    )


def transfer_buffers_term(question: HostQuestion, found: Processes) -> Term:
    """Return NIXL's copies of the whole KV cache where it passes through the host; pages are taken when they are first written."""
    through_host = any(connector.buffer_on_host for connector in question.settings.kv_connectors)
    whole = found.part_of_all(question.model.cache_bytes) if through_host and question.model else 0
    return Term(
        name="transfer_buffers",
        amount=Interval(low=0, expected=whole, high=whole),
        formula="KV cache of all ranks of the pod, once",
        source="vLLM 0.33, NixlConnector, initialize_host_xfer_buffer (kv_buffer_device cpu)",
        inputs=(("kv_buffer_device", "cpu" if through_host else "cuda"),),
    )
