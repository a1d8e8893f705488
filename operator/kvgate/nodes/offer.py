"""The GPU on the nodes that can take a pod: the product where the spec leaves it to them, the least memory, contradictions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.api.conditions import ConditionType, Reason
from kvgate.api.v1alpha1 import InferenceDeploymentSpec
from kvgate.budget import Accelerator
from kvgate.budget.ground.units import MIB
from kvgate.catalogue.lookup import seen_mib
from kvgate.findings.finding import Finding
from kvgate.nodes.matching import Requirement, can_take, requirement_of
from kvgate.nodes.node import Node, NodeGpus, is_far, promised_mib
from kvgate.rendering.observation import Statement
from kvgate.rendering.workload import PRODUCT_LABELS, placement_of, tolerated
from kvgate.rules.facts import NODES_CONTRADICT
from kvgate.statement.deployment import gpu_name

_SAME_PERMILLE = 5
"""Difference of drivers in what they report of one board."""
_SAME_OF_SLICE_PERMILLE = 30
_DOUBT_MIB = 205
"""Difference of boards from the rule by which a process sees less than NVML reports."""
_MOST_NAMED = 6


class Question(Struct, frozen=True, kw_only=True):
    """The wishes of a spec about nodes. Objects that wish the same share one answer."""

    requirement: Requirement
    gpu: str
    """Name of the accelerator; empty where the nodes decide it, and have not yet."""
    is_decided: bool = False
    """True where the nodes have decided the accelerator, and the spec names none."""
    resource: str
    """Extended resource; empty: any of whole GPUs."""
    product_label: str = ""
    products: tuple[str, ...] = ()
    """Values of the label by which the pods select their nodes; none where they do not."""
    device_class: str = ""
    """DeviceClass of the claim, in the place of a resource."""
    device_selectors: tuple[str, ...] = ()


class Offer(Struct, frozen=True, kw_only=True):
    """The answer of the nodes. It stays the same while nothing changes that a verdict or a condition depends on."""

    gpu: str = ""
    """Name of the accelerator that is judged; empty where the spec leaves it to the nodes, and they do not say it."""
    memory_mib: int | None = None
    """Memory by NVML of the least GPU, where it is less than the catalogue promises."""
    contradiction: str = ""
    """Two figures or products that cannot both be right: nothing is refused because of them."""
    nvlink: str = ""
    """The label by which all nodes say that NVLink joins their GPUs."""
    differs: bool | None = False
    """Status of the condition NodesDiffer."""
    reason: Reason = Reason.NODES_AGREE
    message: str = "the nodes that the pods may use have the GPU that was judged"

    @property
    def basis(self) -> object:
        """The part that a verdict depends on."""
        return self.gpu, self.memory_mib, self.contradiction, self.nvlink

    @property
    def statement(self) -> Statement:
        return ConditionType.NODES_DIFFER, self.differs, self.reason, self.message


class Candidate(Struct, frozen=True):
    """GPUs that a pod could get if they were free."""

    node: Node
    gpus: NodeGpus


def question_of(spec: InferenceDeploymentSpec, decided: str = "") -> Question:
    """Return what a spec wants; `decided` is the accelerator that was admitted, where the spec leaves it to the nodes."""
    named, wanted, claim = gpu_name(spec.accelerator), spec.accelerator, spec.accelerator.resource_claim
    name = named or decided
    accelerator = catalogue.find_accelerator(name) if name else None
    placement = placement_of(spec, accelerator) if accelerator else None
    resource = placement.resource if placement else wanted.resource_name or ""
    template = spec.template.model_dump(by_alias=True, exclude_none=True)
    keys = tolerated(resource) if resource else PRODUCT_RESOURCES
    return Question(
        requirement=requirement_of(template, tolerates=keys),
        gpu=accelerator.name if accelerator else "",
        is_decided=accelerator is not None and not named,
        resource="" if claim else resource,
        product_label=PRODUCT_LABELS.get(placement.vendor, "") if placement else "",
        products=() if claim or placement is None else placement.gpu_labels,
        device_class=claim.device_class_name if claim else "",
        device_selectors=claim.selectors if claim else (),
    )


PRODUCT_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu")
"""Resources of whole GPUs, of which a pod without a type gets the one that its nodes have."""


def candidates(question: Question, nodes: Iterable[Node]) -> list[Candidate]:
    """Return the GPUs of the resource on all nodes that can take the pod, in the order of the nodes' names."""
    wanted = (question.resource,) if question.resource else PRODUCT_RESOURCES
    found = (
        Candidate(node, gpus)
        for node in nodes
        if node.gpus and can_take(node, question.requirement)
        for gpus in node.gpus
        if gpus.resource in wanted
    )
    return sorted(found, key=lambda each: each.node.name)


def offer_of(question: Question, found: Sequence[Candidate]) -> Offer:
    """Return what the candidates have. Where there are none, the catalogue alone counts: a node pool may be scaled to zero."""
    if not question.gpu:
        return _decided(found)
    accelerator = catalogue.find_accelerator(question.gpu)
    usable = selected(question, found)
    if accelerator is None or not found:
        text = "no node that the pods may use has such a resource now"
        offer = Offer(differs=None, reason=Reason.NODES_UNKNOWN, message=text)
    elif not usable:
        offer = _elsewhere(question, found)
    else:
        offer = _of(accelerator, usable)
        if question.is_decided and not offer.differs:
            offer = _told_of(offer, accelerator, _known(found))
    return replace(offer, gpu=question.gpu)


def _elsewhere(question: Question, found: Sequence[Candidate]) -> Offer:
    """Say which GPUs there are instead, or that the nodes lack the label by which the pods select them."""
    alike = next((each for each in found if question.gpu in each.gpus.accelerators), None)
    if alike is not None and question.products:
        text = (
            f"node {alike.node.name} has {question.gpu} by {alike.gpus.product}, and the pods select {question.product_label} "
            f"{' or '.join(question.products[:_MOST_NAMED])}: run the vendor's node labeller"
        )
        return Offer(differs=True, reason=Reason.NO_NODE_WITH_GPU, message=text)
    # by the catalogue's names, else by their labels
    names = sorted(
        {" or ".join(each.gpus.accelerators) or each.gpus.product or "GPUs without a label" for each in found}
    )
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    text = f"no node that the pods may use has {question.gpu}: they have {', '.join(names[:_MOST_NAMED])}{more}"
    return Offer(differs=True, reason=Reason.NO_NODE_WITH_GPU, message=text)


def _decided(found: Sequence[Candidate]) -> Offer:
    """Choose the accelerator with the least memory of those that the nodes may have; the pods select it then."""
    known = _known(found)
    if not known:
        text = (
            "the nodes that the pods may use do not say which GPU they have: run GPU feature discovery, or name spec.accelerator.type"
            if found
            else "no node that the pods may use has a GPU now: name spec.accelerator.type"
        )
        return Offer(differs=None, reason=Reason.NODES_UNKNOWN, message=text)
    least = min(known, key=_by_memory)
    offer = replace(_of(least, [each for each in found if least.name in each.gpus.accelerators]), gpu=least.name)
    return offer if offer.differs else _told_of(offer, least, known)


def _known(found: Iterable[Candidate]) -> list[Accelerator]:
    names = (name for each in found for name in each.gpus.accelerators)
    return [one for name in names if (one := catalogue.find_accelerator(name))]


def _by_memory(accelerator: Accelerator) -> tuple[int, str]:
    return accelerator.memory_bytes, accelerator.name


def _told_of(offer: Offer, chosen: Accelerator, known: Sequence[Accelerator]) -> Offer:
    """Say which GPU the nodes decided, in the same words before and after its admission. It stays when lesser ones come."""
    others = sorted({each.name for each in known} - {chosen.name})
    is_least = all(_by_memory(chosen) <= _by_memory(each) for each in known)
    which = ", the one with the least memory" if is_least else ", which was admitted"
    beside = f"{which}; others are {', '.join(others[:_MOST_NAMED])}" if others else ""
    text = f"the nodes decide the GPU: {chosen.name}{beside}"
    return replace(offer, differs=False, reason=Reason.NODES_DECIDE, message=text)


def _of(accelerator: Accelerator, selected: Sequence[Candidate]) -> Offer:
    """Return the least memory of these nodes, and the first contradiction between their labels, or with the catalogue."""
    promised, permille = promised_mib(accelerator), _SAME_OF_SLICE_PERMILLE if accelerator.is_slice else _SAME_PERMILLE
    stated = [(memory.mib, each) for each in selected if (memory := each.gpus.memory) and memory.is_exact]
    memory_mib = min((mib for mib, _ in stated), default=promised)
    is_less = memory_mib * 1000 < promised * (1000 - permille)
    contradictions = list[str]()
    for each in selected:
        said = list(each.gpus.contradictions)
        memory = each.gpus.memory
        if memory is not None and is_far(memory.mib, promised):
            said.append(f"{memory.label} is {memory.mib:,} MiB, and {accelerator.name} has {promised:,} MiB")
        contradictions += [f"node {each.node.name}: {text}" for text in said]
    links = {each.node.nvlink for each in selected}
    offer = Offer(memory_mib=memory_mib if is_less else None, nvlink=links.pop() if len(links) == 1 else "")
    if contradictions:
        more = f" (and {len(contradictions) - 1} more)" if len(contradictions) > 1 else ""
        text = contradictions[0] + more
        return replace(offer, contradiction=text, differs=True, reason=Reason.NODES_CONTRADICT, message=text)
    if not is_less:
        return offer
    least = min(stated, key=lambda pair: pair[0])[1]
    label = least.gpus.memory.label if least.gpus.memory else ""
    text = f"node {least.node.name} has {memory_mib:,} MiB by {label}, and {accelerator.name} has {promised:,} MiB: the lesser counts"
    return replace(offer, differs=True, reason=Reason.LESS_MEMORY, message=text)


def offered(accelerator: Accelerator, offer: Offer) -> Accelerator:
    """Return the accelerator with the memory of the least node, as a process there sees it, and with its links."""
    if offer.nvlink and not accelerator.is_slice:
        accelerator = replace(accelerator, nvlink=True, nvlink_is_told=True)
    mib = offer.memory_mib
    if mib is None:
        return accelerator
    seen = mib if accelerator.is_slice or accelerator.vendor != "nvidia" else seen_mib(mib)
    low = max(1, min(seen, seen - _DOUBT_MIB))
    return replace(
        accelerator, memory_bytes=max(1, seen) * MIB, memory_low_bytes=low * MIB, memory_high_bytes=mib * MIB
    )


def with_decided(spec: InferenceDeploymentSpec, offer: Offer | None) -> InferenceDeploymentSpec:
    """Return the spec with the GPU that the nodes decide, where it names none."""
    if offer is None or not offer.gpu or spec.accelerator.type is not None:
        return spec
    accelerator = spec.accelerator.model_copy(update={"type": offer.gpu})
    return spec.model_copy(update={"accelerator": accelerator})


def findings_of(offer: Offer) -> Iterator[Finding]:
    """Report figures that contradict each other: the verdict follows from the lesser one, and refuses nothing."""
    if offer.contradiction:
        remedy = "correct the label, or select other nodes; until then nothing is refused because of it"
        yield NODES_CONTRADICT.finding("accelerator", offer.contradiction, remedy)


def selected(question: Question, found: Iterable[Candidate]) -> list[Candidate]:
    if question.products:
        return [each for each in found if each.node.labels.get(question.product_label, "") in question.products]
    return [each for each in found if not each.gpus.accelerators or question.gpu in each.gpus.accelerators]


def room_text(question: Question, found: Sequence[Candidate], num_gpus: int, used: Mapping[str, int]) -> str:
    """Say how many GPUs the nodes may have free; `used` is what kvgate's own pods hold by node, and pods of others are not known.

    Empty where nothing is known of such nodes.
    """
    usable = selected(question, found)
    if not usable:
        return ""
    resource, free = usable[0].gpus.resource, dict[int, int]()
    cordoned = [each for each in usable if each.node.is_cordoned]
    for each in usable:
        if not each.node.is_cordoned:
            left = max(0, each.gpus.count - used.get(each.node.name, 0))
            free[left] = free.get(left, 0) + 1
    most = sorted(free.items(), reverse=True)[:3]
    parts = [f"{_nodes(number)} at most {left} free" for left, number in most]
    if len(free) > len(most):
        parts.append(f"the other {_nodes(sum(free.values()) - sum(number for _, number in most))} less")
    if cordoned:
        sizes = sorted({each.gpus.count for each in cordoned})
        parts.append(
            f"{len(cordoned)} of {' or '.join(map(str, sizes))} {'is' if len(cordoned) == 1 else 'are'} cordoned"
        )
    gpu = question.gpu or resource
    return f"needs {num_gpus} {gpu} on one node; {', '.join(parts)}"


def _nodes(number: int) -> str:
    return f"{number} {'node has' if number == 1 else 'nodes have'}"
