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
from kvgate.budget.host.offload import kv_offload_term, swap_space_term, transfer_buffers_term
from kvgate.budget.host.processes import HostQuestion, ModelOnHost, Processes, processes_of, processes_term
from kvgate.budget.host.shared_memory import messages_term, segment_term
from kvgate.budget.releases.host import HostAccounting, host_accounting

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
    """Bytes of one pod."""

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
    return HostLedger(
        processes=processes, lines=taken, shared=tuple(shared), segment=segment, wanted=tuple(_page_cache(question))
    )


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
