"""GPUs that an engine's pods ask for, against those that it uses."""

from collections.abc import Iterator
from math import prod

from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.judging.chosen_accelerator import cpu_image
from kvgate.manifests.pods.engine_found import FoundEngine
from kvgate.manifests.pods.gpu_requests import VISIBLE_DEVICES
from kvgate.rules.finding import Severity
from kvgate.vllm.arguments import Located, Place, located
from kvgate.vllm.parser import CommandLine

_RANKS = ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")
"""They multiply to the ranks of one engine; decode_context_parallel_size uses tensor ranks again."""
_SIZES = (*_RANKS, "data_parallel_size", "data_parallel_size_local")
_ELSEWHERE = ("data_parallel_rank", "data_parallel_hybrid_lb", "data_parallel_external_lb", "data_parallel_start_rank")
"""Options by which other pods run other data parallel ranks."""
_CHIPS = ("google.com/tpu", "aws.amazon.com/neuron")
"""Resources that count chips, of whose cores each may be a rank."""


def gpu_count_problems(engine: FoundEngine, line: CommandLine) -> Iterator[Located]:
    """Too few, or some that idle; silent where either is not known. What nobody sees of a line may use more."""
    needed = gpus_needed(line)
    if needed is None or cpu_image(engine) or _counts_chips(engine) or any(name in line.unknown for name in _SIZES):
        return
    times, usable, there = _times(engine, line), _usable(engine), _there(engine)
    if usable.count is not None and usable.count * times < needed and not _has_others_gpus(engine, line):
        yield _too_few(engine, usable, usable.count * times, needed)
    elif there.count is not None and there.count * times > needed and not (line.open_words or engine.is_partial):
        yield _idle(engine, there, there.count * times, needed)


def _usable(engine: FoundEngine) -> Written:
    """Return the GPUs of one pod: the smaller of those that it requests and those that CUDA shows."""
    known = [each for each in (engine.num_gpus, engine.visible_gpus) if each.count is not None]
    return min(known, key=lambda each: each.count or 0, default=NOTHING)


def _there(engine: FoundEngine) -> Written:
    return engine.num_gpus if engine.num_gpus.count is not None else engine.visible_gpus


def _too_few(engine: FoundEngine, usable: Written, count: int, needed: int) -> Located:
    at = Place(name="tensor_parallel_size", path=usable.path)
    message = (
        f"the product of the parallel sizes is {needed} and {_says(engine, usable)} {_gpus(count)}: vLLM does not start"
    )
    remedy = (
        f"let {VISIBLE_DEVICES} show {_gpus(needed)}" if usable is engine.visible_gpus else f"ask for {_gpus(needed)}"
    )
    return located(rule="TooFewGpus", severity=Severity.ERROR, at=at, message=message, remediation=remedy)


def _idle(engine: FoundEngine, there: Written, count: int, needed: int) -> Located:
    at = Place(name="tensor_parallel_size", path=there.path)
    message = f"{_says(engine, there)} {_gpus(count)} and vLLM uses {needed}: {count - needed} idle"
    remedy = f"set --tensor-parallel-size so that all {count} are used, or ask for {needed}"
    return located(rule="IdleGpus", severity=Severity.WARNING, at=at, message=message, remediation=remedy)


def _says(engine: FoundEngine, count: Written) -> str:
    if count is engine.visible_gpus:
        return f"{VISIBLE_DEVICES} shows"
    if engine.num_pods > 1:
        return f"{engine.num_pods} pods have"
    return "the pod has" if engine.is_in_a_pod else "the container has"


def _counts_chips(engine: FoundEngine) -> bool:
    return any(hint.name == "resource" and hint.value.startswith(_CHIPS) for hint in engine.hints)


def _times(engine: FoundEngine, line: CommandLine) -> int:
    """Pods of the engine; one where the others run ranks of their own."""
    pods = engine.num_pods if _local(line) is None else 1
    nodes = line.given.get("nnodes")
    return max(pods, nodes.value if nodes and isinstance(nodes.value, int) and pods == 1 else 1)


def gpus_needed(line: CommandLine) -> int | None:
    """Return the product of the parallel sizes; of data parallel ranks those that run here count."""
    local = _local(line)
    data = local if local is not None else _size(line, "data_parallel_size")
    if local is None and any(name in line.given for name in _ELSEWHERE):
        return None
    return ranks_of_a_copy(line) * data


def ranks_of_a_copy(line: CommandLine) -> int:
    """Return the ranks of one engine, without its data parallel copies."""
    return prod(_size(line, name) for name in _RANKS)


def _local(line: CommandLine) -> int | None:
    setting = line.given.get("data_parallel_size_local")
    return setting.value if setting and isinstance(setting.value, int) and setting.value > 0 else None


def _size(line: CommandLine, name: str) -> int:
    setting = line.given.get(name)
    return setting.value if setting and isinstance(setting.value, int) and setting.value > 0 else 1


def _has_others_gpus(engine: FoundEngine, line: CommandLine) -> bool:
    """True where the engine uses a Ray cluster's GPUs; a cluster that a group of pods starts is that group."""
    return _runs_on_ray(line) or (engine.is_on_ray and engine.num_pods == 1)


def _runs_on_ray(line: CommandLine) -> bool:
    """A Ray cluster brings GPUs of other pods, for the ranks of an engine or for its data parallel copies."""
    backends = (line.given.get(f"{what}_backend") for what in ("distributed_executor", "data_parallel"))
    return any(backend is not None and backend.value == "ray" for backend in backends)


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
