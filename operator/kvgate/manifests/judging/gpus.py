"""The GPUs of an engine: those that it is judged on, the verdicts on each, and their number against those that it uses."""

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from types import MappingProxyType

from kvgate import catalogue
from kvgate.budget import Accelerator, Verdict
from kvgate.budget.answers.sharing import equal_share
from kvgate.documents.written import NOTHING, Written
from kvgate.findings.finding import Change, Located, Place, any_one, at_most, change, do, located, words
from kvgate.judgement.assessment import OnGpus
from kvgate.judgement.gpus_in_words import folded, names_text, needed_text
from kvgate.manifests.pods.accelerator_hints import (
    accelerators_of,
    may_be_unnamed,
    mentions_gpus,
    other_hardware_in,
    unlisted_hint,
)
from kvgate.manifests.pods.engine_found import FoundEngine, Hint
from kvgate.manifests.pods.gpu_requests import VISIBLE_DEVICES
from kvgate.rules.command_line import RUNS_ON_CPU, SHARED_GPU
from kvgate.rules.manifests import ACCELERATOR_DECIDES, IDLE_GPUS, OTHER_HARDWARE, SEVERAL_ACCELERATORS, TOO_FEW_GPUS
from kvgate.rules.sharing import REPLICAS_LABEL, SHARING_LABELS, label_says_shared
from kvgate.statement.engine import Gpus
from kvgate.text.patterns import pattern
from kvgate.vllm.arguments import shown
from kvgate.vllm.parser import CommandLine

_CPU_IMAGE = pattern(r"(?:^|[-_/:.])cpu(?:$|[-_/:.@])")
POOL_LABELS = frozenset({
    "cloud.google.com/gke-nodepool", "eks.amazonaws.com/nodegroup", "alpha.eksctl.io/nodegroup-name", "karpenter.sh/nodepool",
    "karpenter.sh/provisioner-name", "kubernetes.azure.com/agentpool", "agentpool",
    "node.kubernetes.io/pool",
    "node.kubernetes.io/nodepool", "oci.oraclecloud.com/nodepool", "alibabacloud.com/nodepool-id", "node-pool", "nodepool", "node_pool",
    "pool",
})  # fmt: skip
"""Labels of nodes whose values are names of node pools."""
_ROCM_IMAGE = pattern(r"(?:^|[-_/:.])rocm")
_VENDORS: Mapping[str, str] = {
    "nvidia.com/": "nvidia",
    "volcano.sh/": "nvidia",
    "aliyun.com/": "nvidia",
    "amd.com/": "amd",
}
"""Beginning of the name of a resource → the vendor of the GPUs."""
_RANKS = ("tensor_parallel_size", "pipeline_parallel_size", "prefill_context_parallel_size")
"""Sizes whose product is the ranks of one engine; decode_context_parallel_size uses tensor ranks again."""
RANKS_ELSEWHERE = (
    "data_parallel_rank",
    "data_parallel_hybrid_lb",
    "data_parallel_external_lb",
    "data_parallel_start_rank",
)
"""Options by which other pods run other data parallel ranks."""
_WHOLE_GPUS = pattern(r"(?:nvidia\.com|amd\.com|volcano\.sh|aliyun\.com)/.*")
"""Resources that count what a rank takes. Others count chips or cards, of whose cores or dies each may be a rank."""


class Chosen(Gpus, frozen=True, kw_only=True):
    """The accelerators that are judged, and the remarks about the choice."""

    path: str = ""
    """Path of the field that named it."""
    findings: tuple[Located, ...] = ()
    assumed: tuple[str, ...] = ()


Pools = Mapping[str, Sequence[str]]
"""Name of a node pool → names of the GPUs that its nodes have."""


def choose(
    engine: FoundEngine, configured: str | None, pools: Pools = MappingProxyType({}), *, may_be_any: bool = False
) -> Chosen:
    """Choose the configured accelerators if the hints allow them, else those that the hints name, else all of the catalogue.

    `configured` is one name, or several with commas between them, on each of which an engine must start unless it `may_be_any`.
    """
    pooled = pools_named(engine, pools)
    stated = [gpu for each in pooled for gpu in pools[each.value]] or [
        text.strip() for text in (configured or "").split(",")
    ]
    if found := accelerators_of(engine.hints):
        known = {each.name for each in map(catalogue.find_accelerator, stated) if each}
        meant = [each for each in found if each.accelerator.name in known] if len(found) > 1 else []
        by_memory = sorted(meant or found, key=lambda each: each.accelerator.memory_bytes)
        least, others = by_memory[0], tuple(each.accelerator.name for each in by_memory[1:])
        beside = [hint for hint in engine.hints if hint.term in (None, least.hint.term)]
        shared = next((hint for hint in beside if _says_shared(hint)), None)
        either = " or ".join(each.accelerator.name for each in by_memory)
        return Chosen(
            name=least.accelerator.name,
            path=least.hint.path,
            others=others,
            must_start_on_all=bool(meant) and not may_be_any,
            may_be_unnamed=not meant and may_be_unnamed(engine.hints),
            findings=(_shared(shared, beside, least.accelerator),) if shared and not meant else (),
            assumed=(f"accelerator {either}, as configured",) if meant else (),
        )
    own_hardware = {each.vendor for each in map(catalogue.find_accelerator, stated) if each} - {"nvidia", "amd"}
    if not own_hardware and (unjudged := _other_hardware(engine)):
        return Chosen(name=None, path=unjudged.path, findings=(unjudged,))
    if unlisted := unlisted_hint(engine.hints):
        return Chosen(name=unlisted.value, path=unlisted.path)
    if sign := sign_of_cpus(engine):
        at = Place(name="accelerator", path=sign.path)
        message = "this engine runs on CPUs, whose KV cache is main memory: not judged"
        remedy = "see VLLM_CPU_KVCACHE_SPACE, which is the size of the KV cache"
        return Chosen(name=None, path=sign.path, findings=(located(RUNS_ON_CPU, at, message, remedy),))
    if any(stated):
        path, pool = next(((hint.path, f"as pool {hint.value} has it") for hint in pooled), ("", "as configured"))
        known_bytes = {name: gpu.memory_bytes for name in stated if (gpu := catalogue.find_accelerator(name))}
        names = sorted(dict.fromkeys(stated), key=lambda name: known_bytes.get(name, 0))
        word = f"accelerator {' or '.join(names)}, {pool}"
        return Chosen(
            name=names[0], path=path, others=tuple(names[1:]), must_start_on_all=not may_be_any, assumed=(word,)
        )
    return Chosen(name=None, is_open=True)


def pools_named(engine: FoundEngine, pools: Pools) -> list[Hint]:
    """Return the hints that name a pool; what the pools have wins over a configured accelerator."""
    return [each for each in engine.hints if each.name in POOL_LABELS and each.value in pools]


def _other_hardware(engine: FoundEngine) -> Located | None:
    """Return the finding about hardware that kvgate does not judge, by resources, labels and the image; None where nothing names such."""
    named = [hint for hint in engine.hints if mentions_gpus(hint.name)]
    written = [(hint.value, hint.path) for hint in named]
    if not any(hint.name == "resource" for hint in named):
        written += [(image.text, image.path) for image in (engine.version, engine.image)]
    for text, path in written:
        if kind := other_hardware_in(text):
            message = words(
                "{text} is for {hardware}, which is not a GPU that kvgate judges", text=shown(text), hardware=kind
            )
            return located(OTHER_HARDWARE, Place(name="accelerator", path=path), message)
    if hint := next((hint for hint in named if hint.value.lower() == "cpu"), None):
        message = words("{text} is for CPUs, whose KV cache is main memory: not judged", text=hint.value)
        return located(RUNS_ON_CPU, Place(name="accelerator", path=hint.path), message)
    return None


def _says_shared(hint: Hint) -> bool:
    return label_says_shared(hint.name, hint.value) or (hint.name == "resource" and hint.value.endswith(".shared"))


def _shared(hint: Hint, beside: Sequence[Hint], accelerator: Accelerator) -> Located:
    """Report neighbours that nobody knows; where the node's label states how many there may be, with the equal part."""
    label = f"{hint.name}: {hint.value}" if hint.name in (*SHARING_LABELS, REPLICAS_LABEL) else hint.value
    stated = (each.value for each in beside if each.name == REPLICAS_LABEL and label_says_shared(each.name, each.value))
    replicas = next(stated, "")
    num = int(replicas) if replicas and len(replicas) < 4 else 0
    others = f"up to {num - 1} other containers" if num else "other containers"
    message = f"{label} is a GPU that is shared with {others}, whose memory is not counted here"
    remedy = do("give each container its part of the memory by {gpu_memory_utilization}")
    if num and (part := equal_share(accelerator, num)):
        remedy = at_most("gpu_memory_utilization", f"{float(part):g}")
    return located(SHARED_GPU, Place(name="accelerator", path=hint.path), message, remedy)


def sign_of_cpus(engine: FoundEngine) -> Written | None:
    """Return what says that vLLM runs on CPUs: its image, `--device cpu`, or without GPUs a variable that only such an engine reads."""
    if image := next((image for image in (engine.version, engine.image) if _CPU_IMAGE.search(image.text)), None):
        return image
    words = [word.text for word in engine.arguments]
    for i, word in enumerate(engine.arguments):
        if word.text == "--device=cpu" or (word.text == "--device" and words[i + 1 : i + 2] == ["cpu"]):
            return Written(value=word.text, path=word.path)
    return engine.cpu_variable if engine.cpu_variable.is_set and not engine.num_gpus.is_set else None


def gpu_count_problems(engine: FoundEngine, line: CommandLine) -> Iterator[Located]:
    """Too few, or some that idle; silent where either is not known. What nobody sees of a line may use more."""
    needed = gpus_needed(line)
    counts_chips = any(hint.name == "resource" and not _WHOLE_GPUS.fullmatch(hint.value) for hint in engine.hints)
    is_open = (
        counts_chips
        or sign_of_cpus(engine)
        or any(name in line.unknown for name in (*_RANKS, "data_parallel_size", "data_parallel_size_local"))
    )
    # the stages of a pipeline may stand in pods of a group that nobody sees
    if engine.is_partial and engine.num_pods == 1:
        is_open = is_open or _size(line, "pipeline_parallel_size") > 1
    # the stages of vllm-omni are on the GPUs that its own configuration gives them
    if needed is None or is_open or any(word.text == "--omni" for word in engine.arguments):
        return
    # one pod where the others run ranks of their own
    pods = engine.num_pods if _given_size(line, "data_parallel_size_local") is None else 1
    nodes = line.given.get("nnodes")
    times = max(pods, nodes.value if nodes and isinstance(nodes.value, int) and pods == 1 else 1)
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
        too_few = located(TOO_FEW_GPUS, at, message, f"{more} {_gpus(needed)}")
        yield too_few.softened() if line.open_words or engine.is_partial else too_few
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


def gpus_needed(line: CommandLine) -> int | None:
    """Return the product of the parallel sizes; of data parallel ranks those that run here count."""
    local = _given_size(line, "data_parallel_size_local")
    data = local if local is not None else _size(line, "data_parallel_size")
    if local is None and any(name in line.given for name in RANKS_ELSEWHERE):
        return None
    return prod(_size(line, name) for name in _RANKS) * data


def _given_size(line: CommandLine, name: str) -> int | None:
    setting = line.given.get(name)
    return setting.value if setting and isinstance(setting.value, int) and setting.value > 0 else None


def _size(line: CommandLine, name: str) -> int:
    return _given_size(line, name) or 1


def _has_others_gpus(engine: FoundEngine, line: CommandLine) -> bool:
    """True where the engine uses a Ray cluster's GPUs; a cluster that a group of pods starts is that group."""
    backends = (line.given.get(name) for name in ("distributed_executor_backend", "data_parallel_backend"))
    runs_on_ray = any(backend is not None and backend.value == "ray" for backend in backends)
    return runs_on_ray or (engine.is_on_ray and engine.num_pods == 1)


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"


def vendor_of(engine: FoundEngine) -> tuple[str, bool]:
    """Return (vendor of the GPUs, whether the manifest says so): by the resource, else by the image, else NVIDIA."""
    for hint in engine.hints:
        for beginning, vendor in _VENDORS.items():
            if hint.name == "resource" and hint.value.startswith(beginning):
                return vendor, True
    if any(_ROCM_IMAGE.search(image.text) for image in (engine.version, engine.image)):
        return "amd", True
    return "nvidia", engine.num_gpus.is_set


def which_start(engine: FoundEngine, found: OnGpus) -> Iterator[Located]:
    verdicts = {each.verdict for each in found.verdicts}
    if len(verdicts) < 2 or not verdicts & {Verdict.FITS, Verdict.MAY_NOT_FIT}:
        return
    needs = f"; {needed_text(found.needed)}" if found.needed else ""
    message = f"no GPU is named where kvgate looks: it {folded(found.verdicts)}{needs}"
    select = ("select nodes by nvidia.com/gpu.product",) if engine.is_in_a_pod else ()
    remedy = any_one(*select, "give --gpu", "state the GPUs of its node pool in .kvgate.yaml")
    yield located(ACCELERATOR_DECIDES, Place(name="accelerator", path=engine.path), message, remedy)


def which_of_several(engine: FoundEngine, chosen: Chosen, found: OnGpus) -> Iterator[Located]:
    """Say on which of several named GPUs it starts, unless the verdict is the same on all for a reason that is not the GPU."""
    verdicts = found.verdicts
    kinds = {(each.verdict, each.reason) for each in verdicts}
    is_about_gpus = len(kinds) > 1 or any(each.lacking_bytes for each in verdicts)
    if not is_about_gpus and not chosen.may_be_unnamed:
        return
    names = names_text([each.name for each in verdicts])
    more = ", or on a node whose labels name none" if chosen.may_be_unnamed else ""
    verb = "is to" if chosen.must_start_on_all else "may"
    message = f"it {verb} run on any of {names}{more}: it {folded(verdicts, is_whole=False)}"
    at = Place(name="accelerator", path=chosen.path or engine.path)
    yield located(SEVERAL_ACCELERATORS, at, message, any_one("select one", "size for the least"))
