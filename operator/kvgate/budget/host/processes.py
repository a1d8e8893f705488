"""Processes of one pod, with the memory that each has of its own, and the question that the ledger of the host answers."""

from msgspec import Struct

from kvgate.budget.ground.hardware import Parallelism
from kvgate.budget.ground.interval import Interval, Term
from kvgate.budget.ground.units import GIB, MIB, cdiv
from kvgate.budget.host.settings import HostSettings, PodMemory
from kvgate.budget.releases.versions import HostAccounting, Release

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


class ModelOnHost(Struct, frozen=True, kw_only=True):
    """Facts about all ranks of one engine together, from the ledger of the GPU."""

    kept_bytes: Interval = Interval.exactly(0)
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
    """Everything from which the ledger of the host is computed."""

    settings: HostSettings
    parallelism: Parallelism
    release: Release
    offloaded_weights_bytes: int = 0
    """`--cpu-offload-gb` of a rank."""
    pod: PodMemory
    vendor: str = "nvidia"
    """Empty where the GPU is not known."""
    runs_v0: bool = False
    """True where V0 runs this model on this GPU."""
    model: ModelOnHost | None = None
    """None where the model or the GPU is not known; terms that depend on it are then zero at their low end."""


class Processes(Struct, frozen=True, kw_only=True):
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

    def part_of_all(self, total_bytes: int) -> int:
        """Return the part of all ranks' bytes that the ranks of this pod have."""
        return total_bytes * self.ranks // self.all_ranks

    def part_of_engine(self, engine_bytes: int) -> int:
        """Return the bytes of this pod, from those of all ranks of one data parallel rank."""
        return engine_bytes * self.ranks // self.ranks_of_engine


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
    return Processes(
        servers=servers,
        engines=copies,
        ranks=ranks,
        all_ranks=cut.num_gpus,
        ranks_of_engine=of_a_copy,
        uses_queues=of_a_copy > 1 and ranks > copies and settings.distributed_executor_backend in (None, "mp"),
        is_certain=pod.num_pods == 1 and local != 0 and ranks == copies * of_a_copy,
    )


def processes_term(found: Processes) -> Term:
    """Return the memory of their own. V1 has a process for the scheduler where the ranks are others; V0 has it in its first rank."""
    schedulers = found.engines if found.ranks > found.engines else 0
    return Term(
        name="processes",
        amount=_SERVER_BYTES.times(found.servers) + _SCHEDULER_BYTES.times(schedulers) + _RANK_BYTES.times(found.ranks),
        formula="API servers × their memory + engines × theirs + ranks × theirs",
        source="private memory after the imports measured with vLLM 0.32.0 and torch 2.13 without a GPU; the rest by rule",
        inputs=(("api_servers", found.servers), ("engines", found.engines), ("ranks", found.ranks)),
    )
