"""The ledger of the host: what the processes of one pod take of its memory, and what of that lies in /dev/shm.

A pod that takes more than its limit is killed, whatever the GPU has. The low end of a term is what certainly counts against the limit
of the container: pages that a process writes, and pages of /dev/shm. Memory that the GPU's driver pins for torch is expected to count,
and not certain: the driver allocates it by itself, and some do so outside the memory cgroup (open-gpu-kernel-modules, `NV_GFP_KERNEL`).
"""

from collections.abc import Iterator
from functools import cached_property, lru_cache

from msgspec import Struct

from kvgate.budget.hardware import Parallelism
from kvgate.budget.host_releases import HostAccounting, host_accounting
from kvgate.budget.host_settings import HostSettings, KVConnector, PodMemory
from kvgate.budget.interval import Interval, Term
from kvgate.budget.units import GIB, MIB, cdiv
from kvgate.budget.versions import Release

_NONE = Interval.exactly(0)
_QUEUE_LENGTH = 10
"""Messages of a queue (`MessageQueue`, max_chunks)."""
_ARENA_BYTES = 8 * 256 * MIB
"""Segment of `--enable-shm-tensor-arena` (0.32, `ShmTensorArena`)."""
_PROCESS_LOW_BYTES = 256 * MIB
"""Least private memory of a process that has imported torch and vLLM: 0.40 GiB measured with 0.32.0 without a GPU; old releases have
less to import."""
_SERVER_BYTES = Interval(low=_PROCESS_LOW_BYTES, expected=GIB, high=3 * GIB)
"""Private memory of an API server: 0.53 GiB measured after the imports (0.32.0), then tokenizers, templates and requests, by rule."""
_SCHEDULER_BYTES = Interval(low=_PROCESS_LOW_BYTES, expected=GIB, high=2 * GIB)
"""Private memory of an engine whose ranks are other processes: 0.54 GiB measured after the imports (0.32.0), the rest by rule."""
_RANK_BYTES = Interval(low=_PROCESS_LOW_BYTES, expected=2 * GIB, high=6 * GIB)
"""Private memory of a process with a GPU: the same imports, the CUDA context, compiled graphs and small pinned buffers, by rule: no
start is known that logged it."""
_LINKED_RANK_BYTES = Interval(low=0, expected=64 * MIB, high=512 * MIB)
"""Pages of queues and of NCCL's segments that a rank writes in /dev/shm: NCCL makes segments of 7 to 10 MB (nccl#1518), by rule."""
_LARGEST_CHUNK_BYTES = GIB
"""Blocks are offloaded in chunks, and a buffer holds whole ones; no chunk of a known model is as large as this."""
_SHARD_BYTES = 5 * GIB
"""Usual size of one file of a checkpoint (transformers, `max_shard_size`)."""
_COPY_BYTES = 512 * MIB
"""Buffers of loaders that copy a file piece by piece, by rule."""
_STREAM_BYTES = 40 * 10**9
"""Most that the Run:ai streamer buffers unless RUNAI_STREAMER_MEMORY_LIMIT says otherwise."""
_LMCACHE_DEFAULT_BYTES = 5 * GIB
"""LMCache's default of `max_local_cpu_size`."""
_SIMPLE_DEFAULT_BYTES = 8 * GIB
"""vLLM's default of SimpleCPUOffloadConnector (`DEFAULT_CPU_CAPACITY_BYTES`)."""
_SWAP_DEFAULT_BYTES = 4 * GIB
_MEDIA_DEFAULT_BYTES = 4 * GIB
"""Default of `--mm-processor-cache-gb`, and of VLLM_MM_INPUT_CACHE_GIB before."""


class ModelOnHost(Struct, frozen=True, kw_only=True):
    """What the ledger of the GPU knows about all ranks of one engine together."""

    kept_bytes: Interval = _NONE
    """Weights and adapters that the ranks keep in host memory."""
    weights_bytes: int = 0
    """Weights on the GPUs."""
    checkpoint_bytes: int = 0
    """Files that are read."""
    cache_bytes: int = 0
    """KV cache on the GPUs."""
    block_bytes: int = 0
    """One block of it."""
    token_ids_bytes: int = 0
    """Tokens of all requests, which each rank of the V2 runner keeps pinned (`RequestState.all_token_ids`)."""
    takes_media: bool = False
    """True where prompts may hold images, sounds or videos."""


class HostQuestion(Struct, frozen=True, kw_only=True):
    """What the ledger of the host is computed from."""

    settings: HostSettings
    parallelism: Parallelism
    release: Release
    offloaded_weights_bytes: int = 0
    """`--cpu-offload-gb` of a rank."""
    pod: PodMemory
    vendor: str = "nvidia"
    """Empty where the GPU is not known."""
    runs_v0: bool | None = None
    """True where V0 runs this model on this GPU; None: as the release does by default."""
    model: ModelOnHost | None = None
    """None where the model or the GPU is not known; terms that depend on it are then zero at their low end."""


class Processes(Struct, frozen=True, kw_only=True):
    """Processes of one pod."""

    servers: int
    engines: int
    """Data parallel ranks that begin in this pod."""
    ranks: int
    """Processes with a GPU."""
    all_ranks: int
    """Those of every pod of the engine, with all data parallel ranks."""
    ranks_of_engine: int
    """Those of one data parallel rank."""
    uses_queues: bool
    """True where ranks are processes of their own, to which messages go through /dev/shm."""
    is_certain: bool
    """True where every rank of an engine is in this pod, and vLLM starts them."""


class HostLedger(Struct, frozen=True, kw_only=True, dict=True):
    """Bytes of one pod."""

    processes: Processes
    lines: tuple[Term, ...]
    """What the memory of the container holds, with the pages of /dev/shm."""
    shared: tuple[Term, ...]
    """Those of the lines that lie in /dev/shm."""
    segment: Term
    """The size of /dev/shm below which vLLM does not start: that of the largest segment which it makes or fills at once."""
    wanted: tuple[Term, ...] = ()
    """What makes the start faster and is given back under pressure."""

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
    offload, region = _kv_offload(question, accounting, processes)
    media, media_in_shm = _media_cache(question, accounting, processes)
    messages = _messages(accounting, processes)
    lines = (
        _processes_term(processes),
        _token_ids(question, processes),
        _kept_weights(question, processes),
        offload,
        _swap_space(question, accounting, processes),
        _transfer_buffers(question, processes),
        _staging(question, processes),
        media,
        _sleep(question, processes),
        messages,
    )
    shared = [messages] if messages.amount.high else []
    shared += [offload] if region else []
    shared += [media] if media_in_shm else []
    taken = tuple(line for line in lines if line.amount.high)
    segment = _segment(question, accounting, processes, offload if region else None)
    return HostLedger(
        processes=processes, lines=taken, shared=tuple(shared), segment=segment, wanted=tuple(_page_cache(question))
    )


def processes_of(question: HostQuestion, accounting: HostAccounting) -> Processes:
    """Count the processes of one pod (0.33, `ServeSubcommand.cmd`, `MultiprocExecutor`, `UniProcExecutor`)."""
    settings, cut, pod = question.settings, question.parallelism, question.pod
    of_a_copy, local = cut.num_gpus // cut.data, settings.data_parallel_size_local
    copies = max(
        1, cut.data // pod.num_pods if local is None else local
    )  # a pod without any begins the engines of others
    spans = cut.data == 1 and pod.num_pods > 1
    ranks = cdiv(cut.num_gpus, pod.num_pods) if spans else copies * of_a_copy
    ranks = max(1, min(ranks, pod.num_gpus or ranks))
    servers = settings.api_server_count
    if servers is None:
        servers = copies if accounting.api_servers_follow_copies and local is None else 1
    backend = settings.distributed_executor_backend
    return Processes(
        servers=servers,
        engines=copies,
        ranks=ranks,
        all_ranks=cut.num_gpus,
        ranks_of_engine=of_a_copy,
        uses_queues=of_a_copy > 1 and ranks > copies and backend in (None, "mp"),
        is_certain=pod.num_pods == 1 and local != 0 and ranks == copies * of_a_copy,
    )


def _processes_term(found: Processes) -> Term:
    """V1 has the scheduler in a process of its own where the ranks are others, and V0 in that of its first rank."""
    schedulers = found.engines if found.ranks > found.engines else 0
    amount = _SERVER_BYTES.times(found.servers) + _SCHEDULER_BYTES.times(schedulers) + _RANK_BYTES.times(found.ranks)
    return Term(
        name="processes",
        amount=amount,
        formula="API servers × their memory + engines × theirs + ranks × theirs",
        source="private memory after the imports measured with vLLM 0.32.0 and torch 2.13 without a GPU; the rest by rule",
        inputs=(("api_servers", found.servers), ("engines", found.engines), ("ranks", found.ranks)),
    )


def _token_ids(question: HostQuestion, found: Processes) -> Term:
    model = question.model or ModelOnHost()
    each = model.token_ids_bytes
    return _pinned(
        "token_ids",
        each * found.ranks,
        high=_power_of_two(each) * found.ranks,
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
        amount = Interval(low=0, expected=_share(kept.expected, found), high=_share(kept.high, found))
    return Term(
        name="offloaded_weights",
        amount=amount,
        formula="Σ pinned tensors of the rank × ranks of the pod, each in the next power of two",
        source="vLLM 0.32, UVAOffloader and PrefetchOffloader; torch, CachingHostAllocator",
        inputs=(("ranks", found.ranks), ("cpu_offload_bytes", question.offloaded_weights_bytes)),
    )


def _kv_offload(question: HostQuestion, accounting: HostAccounting, found: Processes) -> tuple[Term, bool]:
    """(blocks of the KV cache in host memory, whether they lie in /dev/shm)."""
    settings = question.settings
    amounts = [_of_connector(connector, question, accounting, found) for connector in _connectors(settings, accounting)]
    region = any(is_shared for _, is_shared in amounts)
    total = sum((amount for amount, _ in amounts), _NONE)
    names = ", ".join(connector.name for connector in _connectors(settings, accounting))
    term = Term(
        name="kv_offload",
        amount=total,
        formula="bytes of an engine × engines of the pod, or bytes of a rank × ranks, in whole chunks of blocks",
        source="vLLM 0.33, CPUOffloadingSpec, SharedOffloadRegion, SimpleCPUOffloadWorker; LMCache, LocalCPUBackend",
        inputs=(
            ("connector", names or "none"),
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
    model = question.model or ModelOnHost()
    if connector.name == "OffloadingConnector":
        if connector.cpu_blocks:  # of each rank
            whole = _share(connector.cpu_blocks * model.block_bytes, found)
            return Interval(low=0, expected=whole, high=2 * whole), False
        whole = _of_pod(connector.cpu_bytes or 0, found)
        if accounting.offloads_cache_to_shared_memory and question.vendor in ("nvidia", ""):
            # where the GPU is not known, the memory is as certain, and its place is not
            low = _of_pod(max(0, (connector.cpu_bytes or 0) - _LARGEST_CHUNK_BYTES), found)
            return Interval(low=low, expected=whole, high=whole), bool(question.vendor)
        expected = whole if accounting.sizes_cache_offload else 0
        return Interval(low=0, expected=expected, high=2 * whole), False
    if connector.name == "SimpleCPUOffloadConnector":
        each = connector.cpu_bytes_per_rank
        of_engine = connector.cpu_bytes or _SIMPLE_DEFAULT_BYTES
        whole = each * found.ranks if each else _of_pod(of_engine, found)
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


def _swap_space(question: HostQuestion, accounting: HostAccounting, found: Processes) -> Term:
    """V0 pins as many blocks as the swap space holds; V1 ignores it, and 0.8 to 0.10 may still run V0."""
    settings = question.settings
    each = settings.swap_space_bytes if settings.swap_space_bytes is not None else _SWAP_DEFAULT_BYTES
    each = (each if accounting.has_swap_space else 0) // question.parallelism.pipeline
    whole = each * found.ranks
    is_v0 = not accounting.v1_engine if question.runs_v0 is None else question.runs_v0
    return Term(
        name="swap_space",
        amount=Interval(
            low=0, expected=whole if is_v0 else 0, high=2 * whole if is_v0 or question.release < (0, 11) else 0
        ),
        formula="ranks × swap_space / pipeline_parallel_size, each tensor in the next power of two",
        source="vLLM 0.8.5, V0's Worker.determine_num_available_blocks and CacheEngine._allocate_kv_cache",
        inputs=(("ranks", found.ranks), ("swap_space_bytes", each)),
    )


def _transfer_buffers(question: HostQuestion, found: Processes) -> Term:
    """NIXL's copies of the whole KV cache where it passes through the host; pages are taken when they are first written."""
    through_host = any(connector.buffer_on_host for connector in question.settings.kv_connectors)
    whole = _share(question.model.cache_bytes, found) if through_host and question.model else 0
    return Term(
        name="transfer_buffers",
        amount=Interval(low=0, expected=whole, high=whole),
        formula="KV cache of all ranks of the pod, once",
        source="vLLM 0.33, NixlConnector, initialize_host_xfer_buffer (kv_buffer_device cpu)",
        inputs=(("kv_buffer_device", "cpu" if through_host else "cuda"),),
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
    whole = _share(question.model.weights_bytes, found) if question.settings.sleep_mode and question.model else 0
    return _pinned(
        "sleep",
        whole,
        high=2 * whole,
        formula="weights of all ranks of the pod, each allocation in the next power of two",
        source="vLLM 0.33, CuMemAllocator.sleep (level 1)",
        inputs=(("ranks", found.ranks), ("weights_bytes", whole)),
    )


def _messages(accounting: HostAccounting, found: Processes) -> Term:
    queues = found.engines * _queue_bytes(accounting.message_bytes, found.ranks // found.engines)
    replies = found.ranks * _queue_bytes(accounting.reply_bytes, 1)
    amount = _NONE
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


def _segment(question: HostQuestion, accounting: HostAccounting, found: Processes, region: Term | None) -> Term:
    """Return the size of the largest segment: of those whose size is compared with the free space, and of those that are filled at once."""
    reply = _queue_bytes(accounting.reply_bytes, 1) if found.uses_queues else 0
    message = _queue_bytes(accounting.message_bytes, found.ranks // found.engines) if found.uses_queues else 0
    arena = _ARENA_BYTES if question.settings.shm_tensor_arena and found.uses_queues else 0
    checked = max(reply, message, arena) if accounting.checks_shared_memory else 0
    # the size of messages is a variable, and ranks of several pods reply through smaller queues
    certain = max(reply, arena) if accounting.checks_shared_memory and found.is_certain else 0
    filled = region.amount if region else _NONE
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


def _page_cache(question: HostQuestion) -> Iterator[Term]:
    """Yield the files of the checkpoint, which the kernel keeps while there is room."""
    files = question.model.checkpoint_bytes if question.model else 0
    if files and question.settings.load_format != "dummy":
        yield Term(
            name="page_cache",
            amount=Interval(low=0, expected=files, high=files),
            formula="bytes of the checkpoint, once for all ranks",
            source="the kernel keeps files that were read, and gives their pages back under pressure",
            inputs=(("checkpoint_bytes", files),),
        )


def _pinned(
    name: str, expected: int, *, high: int, formula: str, source: str, inputs: tuple[tuple[str, int | str], ...]
) -> Term:
    """Return a term that the GPU's driver allocates, which need not count against the limit of the container."""
    amount = Interval(low=0, expected=expected, high=max(expected, high))
    return Term(name=name, amount=amount, formula=formula, source=source, inputs=inputs)


def _power_of_two(size_bytes: int) -> int:
    return 1 << (size_bytes - 1).bit_length() if size_bytes else 0


def _share(total_bytes: int, found: Processes) -> int:
    """Return the part of all ranks' bytes that the ranks of this pod have."""
    return total_bytes * found.ranks // found.all_ranks


def _of_pod(engine_bytes: int, found: Processes) -> int:
    """Return the bytes of this pod, from those of all ranks of one data parallel rank."""
    return engine_bytes * found.ranks // found.ranks_of_engine
