"""The GPUs of an engine: the accelerator that it is judged on, and their number against those that it uses."""

from collections.abc import Iterator, Sequence
from math import prod

from msgspec import Struct

from kvgate import catalogue
from kvgate.budget import Accelerator
from kvgate.budget.sharing import equal_share
from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.pods.accelerator_hints import AcceleratorFound, accelerators_of, may_be_unnamed, unlisted_hint
from kvgate.manifests.pods.engine_found import FoundEngine, Hint
from kvgate.manifests.pods.gpu_requests import VISIBLE_DEVICES
from kvgate.rules.finding import Change, Rule, Scope, Severity, any_one, at_most, change, do
from kvgate.rules.sharing import REPLICAS_LABEL, SHARING_LABELS, label_says_shared
from kvgate.text.patterns import pattern
from kvgate.vllm.arguments import Located, Place, located
from kvgate.vllm.parser import CommandLine

_CPU_IMAGE = pattern(r"(?:^|[-_/:.])cpu(?:$|[-_/:.@])")
_SHARED_RESOURCE = ".shared"
"""Ending of the resource where NVIDIA's device plugin shares GPUs under another name."""
_MAX_NAMES = 4
"""Accelerators that one sentence names."""
_RANKS = ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")
"""Sizes whose product is the ranks of one engine; decode_context_parallel_size uses tensor ranks again."""
_SIZES = (*_RANKS, "data_parallel_size", "data_parallel_size_local")
RANKS_ELSEWHERE = (
    "data_parallel_rank",
    "data_parallel_hybrid_lb",
    "data_parallel_external_lb",
    "data_parallel_start_rank",
)
"""Options by which other pods run other data parallel ranks."""
_CHIPS = ("google.com/tpu", "aws.amazon.com/neuron")
"""Resources that count chips, of whose cores each may be a rank."""


SEVERAL_ACCELERATORS = Rule(
    id="SeveralAccelerators",
    severities=(Severity.INFO,),
    scope=Scope.MANIFESTS,
    title="The pod may run on several kinds of GPU; the one with the least memory is judged.",
)
SHARED_GPU = Rule(
    id="SharedGpu",
    severities=(Severity.WARNING,),
    scope=Scope.COMMAND_LINE,
    title="The node shares the GPU between containers, in turns or at once.",
    explanation="The memory that the others take is not counted.",
)
RUNS_ON_CPU = Rule(
    id="RunsOnCpu",
    severities=(Severity.INFO,),
    scope=Scope.COMMAND_LINE,
    title="The image runs vLLM on CPUs, whose KV cache is main memory.",
)
TOO_FEW_GPUS = Rule(
    id="TooFewGpus",
    severities=(Severity.ERROR,),
    scope=Scope.MANIFESTS,
    title="The pod has fewer GPUs than the parallel sizes need.",
)
IDLE_GPUS = Rule(
    id="IdleGpus",
    severities=(Severity.WARNING,),
    scope=Scope.MANIFESTS,
    title="The pod has more GPUs than the parallel sizes use.",
)


class Chosen(Struct, frozen=True, kw_only=True):
    """The accelerator that is judged, and the remarks about the choice."""

    name: str | None
    """None where neither the manifest nor the configuration names it."""
    path: str = ""
    """Path of the field that named it."""
    others: tuple[str | None, ...] = ()
    """The one with the most memory where several are possible; None for one that nothing names."""
    findings: tuple[Located, ...] = ()
    assumed: tuple[str, ...] = ()


def choose(engine: FoundEngine, configured: str | None) -> Chosen:
    """Choose the configured accelerator if the hints allow it, else the possible one with the least memory."""
    found = accelerators_of(engine.hints)
    if found:
        named = catalogue.find_accelerator(configured) if configured and len(found) > 1 else None
        meant = next((each for each in found if named and each.accelerator.name == named.name), None)
        if meant:
            name = meant.accelerator.name
            return Chosen(name=name, path=meant.hint.path, assumed=(f"accelerator {name}, as configured",))
        by_memory = sorted(found, key=lambda each: each.accelerator.memory_bytes)
        least, most = by_memory[0], by_memory[-1]
        others = (
            *([most.accelerator.name] if len(found) > 1 else []),
            *([None] if may_be_unnamed(engine.hints) else []),
        )
        beside = [hint for hint in engine.hints if hint.term in (None, least.hint.term)]
        shared = next((hint for hint in beside if _says_shared(hint)), None)
        findings = (
            *([_several(found, is_open=None in others)] if others else []),
            *([_shared(shared, beside, least.accelerator)] if shared else []),
        )
        return Chosen(name=least.accelerator.name, path=least.hint.path, others=others, findings=findings)
    if unlisted := unlisted_hint(engine.hints):
        return Chosen(name=unlisted.value, path=unlisted.path)
    if image := cpu_image(engine):
        at, remedy = (
            Place(name="accelerator", path=image.path),
            "see VLLM_CPU_KVCACHE_SPACE, which is the size of the KV cache",
        )
        message = "this image runs on CPUs, whose KV cache is main memory: not judged"
        return Chosen(name=None, path=image.path, findings=(located(RUNS_ON_CPU, at, message, remedy),))
    if configured:
        return Chosen(name=configured, assumed=(f"accelerator {configured}, as configured",))
    return Chosen(name=None)


def _several(found: tuple[AcceleratorFound, ...], *, is_open: bool) -> Located:
    names = [each.accelerator.name for each in found]
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    more += ", or on a node whose labels name none" if is_open else ""
    message = f"it may run on any of {', '.join(names[:_MAX_NAMES])}{more}; the one with the least memory is judged"
    at = Place(name="accelerator", path=found[0].hint.path)
    return located(SEVERAL_ACCELERATORS, at, message, any_one("select one", "size for the least"))


def _says_shared(hint: Hint) -> bool:
    """Containers share the GPU, in turns or at once (MPS)."""
    return label_says_shared(hint.name, hint.value) or (
        hint.name == "resource" and hint.value.endswith(_SHARED_RESOURCE)
    )


def _shared(hint: Hint, beside: Sequence[Hint], accelerator: Accelerator) -> Located:
    """Report neighbours that nobody knows; where the node's label states how many there may be, with the equal part."""
    label = f"{hint.name}: {hint.value}" if hint.name in (*SHARING_LABELS, REPLICAS_LABEL) else hint.value
    replicas = next(
        (each.value for each in beside if each.name == REPLICAS_LABEL and label_says_shared(each.name, each.value)), ""
    )
    others = f"up to {int(replicas) - 1} other containers" if replicas and len(replicas) < 4 else "other containers"
    message = f"{label} is a GPU that is shared with {others}, whose memory is not counted here"
    part = equal_share(accelerator, int(replicas)) if replicas and len(replicas) < 4 else None
    remedy = do("give each container its part of the memory by {gpu_memory_utilization}")
    if part:
        remedy = at_most("gpu_memory_utilization", f"{float(part):g}")
    return located(SHARED_GPU, Place(name="accelerator", path=hint.path), message, remedy)


def cpu_image(engine: FoundEngine) -> Written | None:
    """Return its image, where that is made for CPUs."""
    return next((image for image in (engine.version, engine.image) if _CPU_IMAGE.search(image.text)), None)


def gpu_count_problems(engine: FoundEngine, line: CommandLine) -> Iterator[Located]:
    """Too few, or some that idle; silent where either is not known. What nobody sees of a line may use more."""
    needed = gpus_needed(line)
    counts_chips = any(hint.name == "resource" and hint.value.startswith(_CHIPS) for hint in engine.hints)
    if needed is None or counts_chips or cpu_image(engine) or any(name in line.unknown for name in _SIZES):
        return
    times = _pods_and_nodes(engine, line)
    known = [each for each in (engine.num_gpus, engine.visible_gpus) if each.count is not None]
    usable = min(known, key=lambda each: each.count or 0, default=NOTHING)
    there = known[0] if known else NOTHING
    # options that nobody sees may use the rest, or ranks that are added later
    elastic = line.given.get("enable_elastic_ep")
    may_use_more = bool(line.open_words) or engine.is_partial or bool(elastic and elastic.value)
    if usable.count is not None and usable.count * times < needed and not _has_others_gpus(engine, line):
        has = f"{_owner(engine, usable)} {_gpus(usable.count * times)}"
        message = f"the product of the parallel sizes is {needed} and {has}: vLLM does not start"
        more = f"let {VISIBLE_DEVICES} show" if usable is engine.visible_gpus else "request"
        at = Place(name="tensor_parallel_size", path=usable.path)
        yield located(TOO_FEW_GPUS, at, message, f"{more} {_gpus(needed)}")
    elif there.count is not None and there.count * times > needed and not may_use_more:
        count, tensor = there.count * times, _size(line, "tensor_parallel_size")
        message = f"{_owner(engine, there)} {_gpus(count)} and vLLM uses {needed}: {count - needed} idle"
        after = "" if count % needed else tensor * count // needed  # with the other sizes as they are
        use = change(Change.RAISE, "tensor_parallel_size", after, before=tensor)
        at = Place(name="tensor_parallel_size", path=there.path)
        yield located(IDLE_GPUS, at, message, any_one(use, f"request {_gpus(needed)}"))


def _owner(engine: FoundEngine, count: Written) -> str:
    """The subject of a sentence about a count of GPUs, with its verb."""
    if count is engine.visible_gpus:
        return f"{VISIBLE_DEVICES} shows"
    if engine.num_pods > 1:
        return f"{engine.num_pods} pods have"
    return "the pod has" if engine.is_in_a_pod else "the container has"


def _pods_and_nodes(engine: FoundEngine, line: CommandLine) -> int:
    """Pods of the engine; one where the others run ranks of their own."""
    pods = engine.num_pods if _local(line) is None else 1
    nodes = line.given.get("nnodes")
    return max(pods, nodes.value if nodes and isinstance(nodes.value, int) and pods == 1 else 1)


def gpus_needed(line: CommandLine) -> int | None:
    """Return the product of the parallel sizes; of data parallel ranks those that run here count."""
    local = _local(line)
    data = local if local is not None else _size(line, "data_parallel_size")
    if local is None and any(name in line.given for name in RANKS_ELSEWHERE):
        return None
    return prod(_size(line, name) for name in _RANKS) * data


def _local(line: CommandLine) -> int | None:
    setting = line.given.get("data_parallel_size_local")
    return setting.value if setting and isinstance(setting.value, int) and setting.value > 0 else None


def _size(line: CommandLine, name: str) -> int:
    setting = line.given.get(name)
    return setting.value if setting and isinstance(setting.value, int) and setting.value > 0 else 1


def _has_others_gpus(engine: FoundEngine, line: CommandLine) -> bool:
    """True where the engine uses a Ray cluster's GPUs; a cluster that a group of pods starts is that group."""
    backends = (line.given.get(name) for name in ("distributed_executor_backend", "data_parallel_backend"))
    runs_on_ray = any(backend is not None and backend.value == "ray" for backend in backends)
    return runs_on_ray or (engine.is_on_ray and engine.num_pods == 1)


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
