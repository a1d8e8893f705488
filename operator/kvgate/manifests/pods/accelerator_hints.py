"""Accelerators that hints name: labels of vendors and clouds, classes of nodes, resource names, fields of platforms, words in names."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path

from msgspec import Struct

from kvgate import catalogue
from kvgate.budget import Accelerator
from kvgate.documents.written import Written
from kvgate.manifests.pods.engine_found import FindObject, Hint
from kvgate.text.patterns import pattern

_TABLE = Path(__file__).parent / "data" / "node_labels.csv"
_PRODUCT_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "beta.amd.com/gpu.product-name")
"""Labels whose values the accelerator catalogue lists, but for those that boards of different memory share."""
_MODEL_LABELS = (
    "cloud.google.com/gke-accelerator",
    "karpenter.k8s.aws/instance-gpu-name",
    "karpenter.azure.com/sku-gpu-name",
)
"""Labels of clouds that name nothing but GPUs."""
_KNOWN_VENDORS = ("nvidia.com", "volcano.sh", "aliyun.com", "amd.com", "gpu.intel.com", "habana.ai")
_NAME = "accelerator"
"""A hint of a platform that names one of the catalogue."""
_COMPUTE_LABEL = "nvidia.com/gpu.compute.major"
_MEMORY_LABEL, _FAMILY_LABEL = "nvidia.com/gpu.memory", "nvidia.com/gpu.family"
_CERTAINTY = {
    **dict.fromkeys(_PRODUCT_LABELS, 0), _NAME: 1, _MEMORY_LABEL: 4, _FAMILY_LABEL: 5, _COMPUTE_LABEL: 5, "resource": 6,
}  # fmt: skip
"""Rank of the hints that name accelerators, the surest first; any other has 3."""
_ALIASES = {
    "beta.kubernetes.io/instance-type": "node.kubernetes.io/instance-type",
    "instanceType": "node.kubernetes.io/instance-type",
    "eks.amazonaws.com/instance-gpu-name": "karpenter.k8s.aws/instance-gpu-name",
    "eks.amazonaws.com/instance-family": "karpenter.k8s.aws/instance-family",
    "karpenter.azure.com/sku-name": "node.kubernetes.io/instance-type",
    "karpenter.k8s.gcp/instance-type": "node.kubernetes.io/instance-type",
    "node.coreweave.cloud/type": "node.kubernetes.io/instance-type",
    "instance-type": "node.kubernetes.io/instance-type",
    "karpenter.sh/instance-family": "karpenter.k8s.aws/instance-family",
    "karpenter.k8s.gcp/instance-family": "cloud.google.com/machine-family",
    "karpenter.k8s.gcp/instance-gpu-name": "cloud.google.com/gke-accelerator",
    "beta.amd.com/gpu.device-id": "amd.com/gpu.device-id",
}
_ABOUT_GPUS = pattern(
    r"gpu|accelerator|compute-class|instance-type|machine-type|resource-profile|coreweave\.cloud/type"
)
"""Words in names of labels whose values may mention a GPU: those of clouds, and of people's own."""
_FAMILIES = {
    (7, 0): "volta",
    (7, 5): "turing",
    (8, 9): "ada-lovelace",
    8: "ampere",
    9: "hopper",
    10: "blackwell",
    12: "blackwell",
}
"""Compute capability, or its major number → the family that the driver's node label names."""
_MIG = pattern(r"(?:nvidia\.com/)?mig-(\d+g\.\d+gb)(?:\.me)?(?:\.shared)?")
COMPUTE_CLASS, NODE_POOL = "ComputeClass", "NodePool"
_CLASS_KINDS: Mapping[str, str] = {
    "cloud.google.com/compute-class": COMPUTE_CLASS,
    "karpenter.sh/nodepool": NODE_POOL,
}
"""Label by which a pod selects nodes → the kind of the object that describes them."""
_CLASS_FIELDS: Sequence[tuple[tuple[str, ...], str]] = (
    (("gpu", "type"), "cloud.google.com/gke-accelerator"),
    (("machineType",), "node.kubernetes.io/instance-type"),
    (("machineFamily",), "cloud.google.com/machine-family"),
)
"""Field of a priority of a ComputeClass → the label that says the same of a node, the surest first."""
_MODELS = (
    "gb300", "gb200", "gh200", "b300", "b200", "h800", "h200", "h100", "h20", "a100", "a800", "a40", "a30", "a10g", "a10", "l40s", "l40",
    "l20", "l4", "t4", "v100", "mi355x", "mi350x", "mi325x", "mi300x", "mi250x", "mi210", "rtx-?pro-?6000", "rtx-?5090", "rtx-?4090",
    "rtx-?3090", "rtx-?6000-?ada", "rtx-?a6000", "rtx-?a5000",
)  # fmt: skip
"""Words that mean one model, or several that differ in form and memory."""
_MODEL = pattern(
    rf"(?:^|[^a-z0-9]|\d|\dx|nvidia|tesla|gpu)({'|'.join(_MODELS)})(?:ib)?(?:x\d+|(?<=x)\d)?(?:$|[^a-z0-9])"
)
"""A model between words; a number of GPUs may stand before or after it: `8xh100ib`, `h100x8`."""
_MEMORY = pattern(r"(?:^|[^a-z0-9])b?(\d{2,3})g[bi]?(?:$|[^a-z0-9])")
_FORMS: Mapping[str, str] = {"sxm": "-SXM-", "nvlink": "-SXM-", "pcie": "-PCIe-", "nvl": "-NVL-", "server": "-Server-"}
_NOT_WHOLE = pattern(r"vgpu|(?:^|[^a-z0-9])mig|\dg\.\d+gb|standard_nv(?:6|12|18)|-3e(?:$|[^a-z0-9])|[gr]6f\.")
"""Parts of a GPU, and boards whose names begin like another board's."""
_MAX_NAME_CHARACTERS = 200
_OTHER_HARDWARE = tuple(
    (pattern(rf"(?:^|[^a-z0-9])(?:{expression})(?:$|[^a-z])"), words)
    for expression, words in (
        (r"tpu|ct[4-7][a-z]*", "a TPU"),
        (r"neuron\w*|inferentia\d?|trainium\d?|(?:trn|inf)[12]n?", "AWS Neuron hardware"),
        (r"gaudi\d?|hpu|dl[12]q?\.\d", "an Intel Gaudi"),
        (r"intel[-_.]?(?:gpu|xpu|i915)|xpu|gpu\.intel\.com|i915|ipex|llm-scaler|intel/vllm", "a GPU of Intel"),
        (r"ascend\w*|npu", "a Huawei Ascend NPU"),
        (r"rbln|rebellions\.ai", "a Rebellions NPU"),
        (
            r"(?:cambricon|metax-tech|enflame|hygon|mthreads|kunlunxin|qualcomm)\.com|iluvatar\.ai",
            "an accelerator of another vendor",
        ),
    )
)
"""Words in names of resources, labels and images → the words for people."""


class AcceleratorFound(Struct, frozen=True, kw_only=True):
    accelerator: Accelerator
    hint: Hint


def node_hints(pod: Written) -> Iterator[Hint]:
    """Yield the labels that the pod's node must have: node selector, then required affinity."""
    for name, value in pod.get("nodeSelector").fields():
        yield Hint(name=name, value=value.text, path=value.path)
    terms = pod.get("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    yield from affinity_hints(terms)


def affinity_hints(terms: Written) -> Iterator[Hint]:
    """Yield the labels of node selector terms, one of which must hold; only the operator `In` names labels that a node has."""
    for index, term in enumerate(terms.items()):
        for expression in term.get("matchExpressions").items():
            if expression.get("operator").text == "In":
                key, values = expression.get("key").text, expression.get("values")
                for value in values.items():
                    yield Hint(name=key, value=value.text, path=value.path, term=index, one_of=values.path)


def accelerators_of(hints: Sequence[Hint]) -> tuple[AcceleratorFound, ...]:
    """Return the accelerators that the hints leave possible; every term of an affinity is an alternative."""
    found: dict[str, AcceleratorFound] = {}
    for alternative in _alternatives(hints):
        for each in _accelerators_of_one(alternative):
            found.setdefault(each.accelerator.name, each)
    return tuple(found.values())


def may_be_unnamed(hints: Sequence[Hint]) -> bool:
    return not all(map(_accelerators_of_one, _alternatives(hints)))


def _alternatives(hints: Sequence[Hint]) -> list[list[Hint]]:
    terms: dict[int | None, list[Hint]] = {}
    for hint in hints:
        terms.setdefault(hint.term, []).append(hint)
    common = terms.pop(None, [])
    return [[*common, *term] for term in terms.values()] or [common]


def _accelerators_of_one(hints: Sequence[Hint]) -> tuple[AcceleratorFound, ...]:
    """Return the accelerators of one alternative: values of one list are alternatives; lists and labels, the surest first, narrow them."""
    found: dict[str, AcceleratorFound] = {}
    in_order = sorted(hints, key=lambda hint: (_CERTAINTY.get(hint.name, 3), hint.name, hint.one_of))
    for _, group in groupby(in_order, key=lambda hint: (hint.name, hint.one_of)):
        named = {each.name: AcceleratorFound(accelerator=each, hint=hint) for hint in group for each in _of_hint(hint)}
        both = {name: each for name, each in found.items() if name in named}
        found = both or found or named
    profiles = [(hint, profile) for hint in hints if (profile := _profile_of(hint))]
    if not profiles:
        return tuple(found.values())
    # a profile of MIG makes slices of whole boards; alone it stands for every board that has such slices
    hint, profile = profiles[0]
    boards, sliced = set[str](), list[AcceleratorFound]()
    for each in found.values():  # names of slices of an H100-SXM-80GB begin with H100, H100-80GB or H100-SXM
        board, *_, memory = each.accelerator.name.split("-")
        boards |= {board, f"{board}-{memory}", each.accelerator.name.removesuffix(f"-{memory}")}
    for slice_ in catalogue.accelerators():
        board, is_slice, its_profile = slice_.name.partition("-MIG-")
        if is_slice and its_profile == profile and (not boards or board in boards):
            sliced.append(AcceleratorFound(accelerator=slice_, hint=hint))
    return tuple(sliced)


def unlisted_hint(hints: Sequence[Hint]) -> Hint | None:
    """Return a hint that names an accelerator which the catalogue does not have."""
    slice_ = next((hint for hint in hints if _profile_of(hint)), None)
    if slice_:
        return None if accelerators_of(hints) else slice_
    for hint in hints:
        is_label_of_gpus = _ALIASES.get(hint.name, hint.name) in (*_PRODUCT_LABELS, *_MODEL_LABELS, _NAME)
        is_other_vendors = hint.name == "resource" and not hint.value.startswith(_KNOWN_VENDORS)
        names_a_product = any(map(str.isdigit, hint.value))  # `nvidia` and `cuda` name none
        if (is_other_vendors or (is_label_of_gpus and names_a_product)) and not _of_hint(hint):
            return hint
    return None


def gpus_of_instance(hints: Sequence[Hint]) -> int | None:
    """Return the GPUs of the instance type that the hints name; None where it comes with several numbers of them."""
    counts = {row[3] for hint in hints for row in _matching(hint) if row[3]}
    return int(counts.pop()) if len(counts) == 1 else None


def accelerators_named(value: str) -> tuple[Accelerator, ...]:
    """Return the accelerators of a word of the table, whatever has it: an instance type, a family, a node's label, Ray."""
    names = dict.fromkeys(row[2] for row in _rows() if _is_value(row[1], value.lower()))
    return tuple(filter(None, map(catalogue.find_accelerator, names)))


def _of_hint(hint: Hint) -> tuple[Accelerator, ...]:
    listed = tuple(found for row in _matching(hint) if (found := catalogue.find_accelerator(row[2])))
    if listed:
        return listed
    if hint.name in (*_PRODUCT_LABELS, _NAME):
        # AMD's labeller writes the product's name without blanks, and its form factor after it.
        names = (hint.value.removesuffix("-SHARED"), hint.value.replace("_", " ").removesuffix(" OAM"))
        return tuple(filter(None, map(catalogue.find_accelerator, names)))[:1] or gpus_in(hint.value)
    if hint.name == _MEMORY_LABEL:
        # the driver's figure in MiB, from which drivers differ by up to half a percent
        if not hint.value.isdecimal() or len(hint.value) > 7:
            return ()
        memory, figures = int(hint.value), catalogue.driver_memory_mib()
        near = {name for name, mib in figures.items() if abs(mib - memory) * 200 <= mib}
        exact = {name for name in near if figures[name] == memory}
        return tuple(a for a in catalogue.accelerators() if a.name in (exact or near) and not a.is_slice)
    boards = [each for each in catalogue.accelerators() if not each.is_slice]
    if hint.name == _COMPUTE_LABEL:
        return tuple(each for each in boards if str(each.capability_major) == hint.value)
    if hint.name == _FAMILY_LABEL:
        capabilities = ((board, board.compute_capability) for board in boards)
        family = hint.value.lower()
        return tuple(board for board, of in capabilities if of and _FAMILIES.get(of, _FAMILIES.get(of[0])) == family)
    return gpus_in(hint.value) if hint.name != "resource" and mentions_gpus(hint.name) else ()


def mentions_gpus(label: str) -> bool:
    """Return whether the values of a label, or of a platform's field, are names of hardware."""
    return label in ("resource", _NAME) or bool(_ABOUT_GPUS.search(_ALIASES.get(label, label).lower()))


def _matching(hint: Hint) -> Iterator[tuple[str, str, str, str]]:
    """Yield the rows of the table for a label and its value, which a row may write as `PREFIX*`."""
    name, value = _ALIASES.get(hint.name, hint.name), hint.value.lower()
    for row in _rows():
        if row[0] == name and _is_value(row[1], value):
            yield row


def _is_value(written: str, value: str) -> bool:
    return value.startswith(written[:-1]) if written.endswith("*") else value == written


@lru_cache(maxsize=1)
def _rows() -> tuple[tuple[str, str, str, str], ...]:
    """Return the rows of the table: label, value in small letters, accelerator, GPUs of an instance type."""
    lines = _TABLE.read_text(encoding="utf-8").splitlines()
    cells = [line.split(",") for line in lines if not line.startswith(("#", "label,"))]
    return tuple((label, value.lower(), accelerator, gpus) for label, value, accelerator, gpus in cells)


def _profile_of(hint: Hint) -> str:
    """Return the profile of MIG that a hint names, such as `3g.40gb`; empty where it names none."""
    match = _MIG.fullmatch(hint.value) if hint.name == "resource" else None
    # a profile of MIG, where the resource is that of whole GPUs
    return hint.value if hint.name == "cloud.google.com/gke-gpu-partition-size" else match[1] if match else ""


def class_hints(hints: Iterable[Hint], find: FindObject) -> Iterator[Hint]:
    """Yield the labels of the nodes that the selected classes and pools have; each stands at the selector that names the class."""
    for hint in hints:
        kind = _CLASS_KINDS.get(hint.name)
        found = find(kind, hint.value) if kind and hint.value else find(NODE_POOL, f"{hint.name}={hint.value}")
        if found:
            for name, value in _of_compute_class(found) if kind == COMPUTE_CLASS else _of_node_pool(found):
                yield Hint(name=name, value=value, path=hint.path, term=hint.term, one_of=f"{hint.path} {name}")


def _of_compute_class(found: Written) -> Iterator[tuple[str, str]]:
    """Yield one field of the priorities, which are alternatives; nothing where they are not all described by the same field."""
    priorities = found.get("spec", "priorities").items()
    for field, label in _CLASS_FIELDS:
        values = [each.get(*field).text for each in priorities]
        if values and all(values):
            yield from ((label, value) for value in dict.fromkeys(values))
            return


def _of_node_pool(found: Written) -> Iterator[tuple[str, str]]:
    """Yield the requirements of the pool's nodes; only the operator `In` names labels that they have."""
    for requirement in found.get("spec", "template", "spec", "requirements").items():
        if requirement.get("operator").text == "In":
            yield from ((requirement.get("key").text, value.text) for value in requirement.get("values").items())
    yield from ((name, value.text) for name, value in found.get("spec", "template", "metadata", "labels").fields())


def node_labels(pool: Written) -> Iterator[str]:
    """Yield the labels that a pool gives its nodes, as `key=value`."""
    for name, value in pool.get("spec", "template", "metadata", "labels").fields():
        yield f"{name}={value.text}"


def gpus_in(name: str) -> tuple[Accelerator, ...]:
    """Return the GPUs that a name may mean; nothing where it mentions none, several models, or a part of a GPU."""
    return _gpus_in(name[:_MAX_NAME_CHARACTERS].lower())


@lru_cache(maxsize=1024)
def _gpus_in(name: str) -> tuple[Accelerator, ...]:
    text = name.replace("_", "-")
    models = set(_MODEL.findall(text))
    if len(models) != 1 or _NOT_WHOLE.search(name):
        return ()
    model, sizes = models.pop().replace("-", " "), {f"-{size}GB" for size in _MEMORY.findall(text)}
    if not sizes and (alias := catalogue.find_accelerator(model)):
        return (alias,)
    meant = map(catalogue.find_accelerator, catalogue.accelerators_meant(model))
    found = [each for each in meant if each is not None and "Laptop" not in each.product and "D-" not in each.name]
    found = [each for each in found if each.name.endswith(tuple(sizes))] or found if sizes else found
    forms = [form for word, form in _FORMS.items() if word in text]
    return tuple([each for each in found if any(form in each.name for form in forms)] or found)


def other_hardware_in(name: str) -> str:
    """Return the kind of hardware that a name mentions, where it is none that kvgate judges; else nothing."""
    text = name[:_MAX_NAME_CHARACTERS].lower()
    return next((words for expression, words in _OTHER_HARDWARE if expression.search(text)), "")
