"""The ledger of the host: what the processes of one pod take of its memory, and what of that lies in /dev/shm.

A pod that takes more than its limit is killed, whatever the GPU has. The low end of a term is what certainly counts against the limit
of the container: pages that a process writes, and pages of /dev/shm. Memory that the GPU's driver pins for torch is expected to count,
and not certain: the driver allocates it by itself, and some do so outside the memory cgroup (open-gpu-kernel-modules, `NV_GFP_KERNEL`).
"""

from collections.abc import Iterator
from functools import cached_property, lru_cache

from msgspec import Struct

from kvgate.budget.ground.interval import Interval, Term
from kvgate.budget.ground.units import GIB, MIB
from kvgate.budget.host.processes import HostQuestion, ModelOnHost, Processes, processes_of, processes_term
from kvgate.budget.host.settings import HostSettings, KVConnector
from kvgate.budget.releases.versions import HostAccounting, host_accounting

_NONE = Interval.exactly(0)
_SHARD_BYTES = 5 * GIB
"""Usual size of one file of a checkpoint (transformers, `max_shard_size`)."""
_COPY_BYTES = 512 * MIB
"""Buffers of loaders that copy a file piece by piece, by rule."""
_STREAM_BYTES = 40 * 10**9
"""Most that the Run:ai streamer buffers unless RUNAI_STREAMER_MEMORY_LIMIT says otherwise."""
_MEDIA_DEFAULT_BYTES = 4 * GIB
"""Default of `--mm-processor-cache-gb`, and of VLLM_MM_INPUT_CACHE_GIB before."""


class HostLedger(Struct, frozen=True, kw_only=True, dict=True):
    processes: Processes
    lines: tuple[Term, ...]
    """Terms that fill the memory of the container, with the pages of /dev/shm."""
    shared: tuple[Term, ...]
    """Those of the lines that lie in /dev/shm."""
    segment: Term
    """The size of /dev/shm below which vLLM does not start: that of the largest segment which it makes or fills at once."""
    wanted: tuple[Term, ...] = ()
    """Terms that make the start faster; the kernel takes their pages back under pressure."""

    @cached_property
    def needs(self) -> Interval:
        """Bytes of all lines together; both ends are sums, because one load may fill all of them."""
        return sum((line.amount for line in self.lines), _NONE)

    @cached_property
    def shared_needs(self) -> Interval:
        """Room that /dev/shm should have: what is written into it, and no less than the largest segment."""
        written = sum((line.amount for line in self.shared), _NONE)
        low = max(written.low, self.segment.amount.low)
        expected = max(low, written.expected, self.segment.amount.expected)
        return Interval(low=low, expected=expected, high=max(expected, written.high, self.segment.amount.high))

    @property
    def largest(self) -> tuple[Term, ...]:
        """The lines that take something, the largest first."""
        taken = [line for line in self.lines if line.amount.expected]
        return tuple(sorted(taken, key=lambda line: (-line.amount.low, -line.amount.expected)))


@lru_cache(maxsize=2048)
def host_ledger(question: HostQuestion) -> HostLedger:
    """Return the ledger of one pod of the engine; the same question returns the same object."""
    accounting = host_accounting(question.release)
    processes = processes_of(question, accounting)
    offload, region = kv_offload_term(question, accounting, processes)
    media, media_in_shm = _media_cache(question, accounting, processes)
    messages = messages_term(accounting, processes)
    lines = (
        processes_term(processes),
        _token_ids(question, processes),
        _kept_weights(question, processes),
        offload,
        swap_space_term(question, accounting, processes),
        transfer_buffers_term(question, processes),
        _staging(question, processes),
        media,
        _sleep(question, processes),
        messages,
    )
    shared = [messages] if messages.amount.high else []
    shared += [offload] if region else []
    shared += [media] if media_in_shm else []
    taken = tuple(line for line in lines if line.amount.high)
    segment = segment_term(question, accounting, processes, offload if region else None)
    files = question.model.checkpoint_bytes if question.model and question.settings.load_format != "dummy" else 0
    page_cache = Term(
        name="page_cache",
        amount=Interval(low=0, expected=files, high=files),
        formula="bytes of the checkpoint, once for all ranks",
        source="the kernel keeps files that were read, and gives their pages back under pressure",
        inputs=(("checkpoint_bytes", files),),
    )
    wanted = (page_cache,) if files else ()
    return HostLedger(processes=processes, lines=taken, shared=tuple(shared), segment=segment, wanted=wanted)


def _token_ids(question: HostQuestion, found: Processes) -> Term:
    each = (question.model or ModelOnHost()).token_ids_bytes
    return _pinned(
        "token_ids",
        each * found.ranks,
        high=(1 << (each - 1).bit_length()) * found.ranks if each else 0,
        formula="ranks × max_num_seqs × max_model_len × 4",
        source="vLLM 0.33, RequestState.all_token_ids in pinned memory (V2 runner)",
        inputs=(("ranks", found.ranks), ("token_ids_bytes", each)),
    )


def _kept_weights(question: HostQuestion, found: Processes) -> Term:
    """Weights and adapters by the ledger of the GPU; `--cpu-offload-gb` alone where the model is not known."""
    if question.model is None:
        whole = question.offloaded_weights_bytes * found.ranks
        amount = Interval(low=0, expected=whole, high=2 * whole)
    else:
        kept = question.model.kept_bytes
        amount = Interval(low=0, expected=found.part_of_all(kept.expected), high=found.part_of_all(kept.high))
    return Term(
        name="offloaded_weights",
        amount=amount,
        formula="Σ pinned tensors of the rank × ranks of the pod, each in the next power of two",
        source="vLLM 0.32, UVAOffloader and PrefetchOffloader; torch, CachingHostAllocator",
        inputs=(("ranks", found.ranks), ("cpu_offload_bytes", question.offloaded_weights_bytes)),
    )


def _staging(question: HostQuestion, found: Processes) -> Term:
    """Files that are read into memory of a process before they go to the GPU; mapped files are page cache."""
    settings = question.settings
    known = question.model.checkpoint_bytes if question.model else 0
    file_bytes = min(known or _SHARD_BYTES, _SHARD_BYTES)
    expected, high, way = 0, 0, "files are mapped"
    if settings.load_format in ("pt", "npcache") or settings.safetensors_load_strategy in ("eager", "torchao"):
        way = "each rank reads file after file"
        expected, high = file_bytes, max(2 * file_bytes, known)
    elif settings.load_format.startswith("runai_streamer"):
        way = "each rank streams through a buffer"
        expected, high = file_bytes, min(known or _STREAM_BYTES, _STREAM_BYTES)
    elif settings.load_format in ("fastsafetensors", "tensorizer", "bitsandbytes", "gguf"):
        way = "each rank copies through small buffers"
        expected, high = min(file_bytes, _COPY_BYTES), file_bytes
    return Term(
        name="loading",
        amount=Interval(low=0, expected=expected, high=max(expected, high)).times(found.ranks),
        formula="ranks × what is read and not yet on the GPU; gone after the start",
        source="vLLM 0.33, safetensors_weights_iterator and the loaders of other formats; sizes of files by rule",
        inputs=(("ranks", found.ranks), ("load_format", settings.load_format), ("way", way)),
    )


def _media_cache(question: HostQuestion, accounting: HostAccounting, found: Processes) -> tuple[Term, bool]:
    """(prepared images that are kept, whether they lie in /dev/shm); the caches fill as requests come (`_get_cache_type`)."""
    settings = question.settings
    takes_media = question.model is not None and question.model.takes_media
    each = settings.mm_processor_cache_bytes if settings.mm_processor_cache_bytes is not None else _MEDIA_DEFAULT_BYTES
    is_one = found.servers == 1 and question.parallelism.data == 1
    in_shm = takes_media and is_one and settings.mm_processor_cache_type == "shm"
    if in_shm:
        caches = 1
    elif accounting.media_caches_of_server:
        caches = found.servers * accounting.media_caches_of_server + found.engines
    else:
        caches = 1 if is_one else found.servers
    whole = each * caches if takes_media else 0
    return Term(
        name="mm_cache",
        amount=Interval(low=0, expected=whole, high=whole),
        formula="mm_processor_cache_gb × processes that keep what they prepared",
        source="vLLM 0.33, processor_cache_from_config; 0.8 to 0.10.0, VLLM_MM_INPUT_CACHE_GIB",
        inputs=(("mm_processor_cache_bytes", each), ("caches", caches), ("type", settings.mm_processor_cache_type)),
    ), in_shm and whole > 0


def _sleep(question: HostQuestion, found: Processes) -> Term:
    """Weights that wait in pinned memory at level 1 of sleep, and nothing before somebody asks for it."""
    whole = found.part_of_all(question.model.weights_bytes) if question.settings.sleep_mode and question.model else 0
    return _pinned(
        "sleep",
        whole,
        high=2 * whole,
        formula="weights of all ranks of the pod, each allocation in the next power of two",
        source="vLLM 0.33, CuMemAllocator.sleep (level 1)",
        inputs=(("ranks", found.ranks), ("weights_bytes", whole)),
    )


def _pinned(
    name: str, expected: int, *, high: int, formula: str, source: str, inputs: tuple[tuple[str, int | str], ...]
) -> Term:
    """Return a term that the GPU's driver allocates, which need not count against the limit of the container."""
    amount = Interval(low=0, expected=expected, high=max(expected, high))
    return Term(name=name, amount=amount, formula=formula, source=source, inputs=inputs)


_QUEUE_LENGTH = 10
"""Messages of a queue (`MessageQueue`, max_chunks)."""
_ARENA_BYTES = 8 * 256 * MIB
"""Segment of `--enable-shm-tensor-arena` (0.32, `ShmTensorArena`)."""
_LINKED_RANK_BYTES = Interval(low=0, expected=64 * MIB, high=512 * MIB)
"""Pages of queues and of NCCL's segments that a rank writes in /dev/shm: NCCL makes segments of 7 to 10 MB (nccl#1518), by rule."""


def messages_term(accounting: HostAccounting, found: Processes) -> Term:
    """Return what ranks write of their queues and of NCCL's segments; a queue takes its pages when it is first written."""
    queues = found.engines * _queue_bytes(accounting.message_bytes, found.ranks // found.engines)
    replies = found.ranks * _queue_bytes(accounting.reply_bytes, 1)
    amount = Interval.exactly(0)
    if found.ranks > found.engines:
        most = _LINKED_RANK_BYTES.times(found.ranks)
        amount = Interval(
            low=0, expected=most.expected, high=most.high + (queues + replies if found.uses_queues else 0)
        )
    return Term(
        name="messages",
        amount=amount,
        formula="ranks × pages that are written of the queues and of NCCL's segments",
        source="vLLM 0.33, ShmRingBuffer; NCCL's by rule",
        inputs=(("ranks", found.ranks), ("queues_bytes", queues), ("replies_bytes", replies)),
    )


def segment_term(question: HostQuestion, accounting: HostAccounting, found: Processes, region: Term | None) -> Term:
    """Return the size of the largest segment: of those whose size is compared with the free space, and of those that are filled at once."""
    reply = _queue_bytes(accounting.reply_bytes, 1) if found.uses_queues else 0
    message = _queue_bytes(accounting.message_bytes, found.ranks // found.engines) if found.uses_queues else 0
    arena = _ARENA_BYTES if question.settings.shm_tensor_arena and found.uses_queues else 0
    checked = max(reply, message, arena) if accounting.checks_shared_memory else 0
    # the size of messages is a variable, and ranks of several pods reply through smaller queues
    certain = max(reply, arena) if accounting.checks_shared_memory and found.is_certain else 0
    filled = region.amount if region else Interval.exactly(0)
    high = max(checked, filled.high)
    what = "replies" if reply and checked == reply else "messages"
    what = "tensor arena" if arena and checked == arena else what
    if filled.expected > checked:
        what = "KV offload"
    return Term(
        name="segment",
        amount=Interval(low=max(certain, filled.low), expected=max(checked, filled.expected), high=high),
        formula="max(queues of 10 messages + flags, tensor arena, offloaded blocks)",
        source="vLLM 0.33, ShmRingBuffer, check_shm_free_space, SharedOffloadRegion",
        inputs=(("segment", what if high else "none"), ("replies_bytes", reply), ("messages_bytes", message)),
    )


def _queue_bytes(message_bytes: int, readers: int) -> int:
    """Return the bytes of a queue: ten messages, each with a flag and one for every reader (`ShmRingBuffer.__init__`)."""
    return _QUEUE_LENGTH * (message_bytes + 1 + readers)


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
        if accounting.offloads_cache_to_shared_memory and (question.vendor in ("nvidia", "") or connector.has_tiers):
            # where the GPU is not known, the memory is as certain, and its place is not
            low = found.part_of_engine(max(0, (connector.cpu_bytes or 0) - _LARGEST_CHUNK_BYTES))
            return Interval(low=low, expected=whole, high=whole), bool(question.vendor) or connector.has_tiers
        expected = whole if accounting.sizes_cache_offload else 0
        return Interval(low=0, expected=expected, high=2 * whole), False
    if connector.name == "SimpleCPUOffloadConnector":
        each = connector.cpu_bytes_per_rank
        whole = each * found.ranks if each else found.part_of_engine(connector.cpu_bytes or _SIMPLE_DEFAULT_BYTES)
        low = max(0, whole - found.ranks * _LARGEST_CHUNK_BYTES)
        return Interval(low=low, expected=whole, high=whole), False
    if connector.name.startswith("LMCacheConnector"):
        # a buffer in every rank, taken at the start; models with latent attention may keep one in the first only
        each = connector.cpu_bytes_per_rank or question.settings.lmcache_bytes
        if each is None:
            given = connector.cpu_bytes
            each = _LMCACHE_DEFAULT_BYTES if given is None else given // found.ranks_of_engine
        whole = each * found.ranks
        return Interval(low=0, expected=whole, high=2 * whole), False
    return _NONE, False


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
