"""Which GPU a pod runs on: node labels of NVIDIA, AMD, GKE, AWS and Azure, resource names of MIG slices, platforms' own fields."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from kvgate import catalogue
from kvgate.budget.accelerator import Accelerator
from kvgate.budget.units import MIB
from kvgate.manifests.engine_found import Hint
from kvgate.manifests.written import Written

_TABLE = Path(__file__).parent.parent / "data" / "node_labels.csv"
PRODUCT_LABELS = (
    "nvidia.com/gpu.product",
    "amd.com/gpu.product-name",
    "beta.amd.com/gpu.product-name",
    "gpu.nvidia.com/class",
)
"""Labels whose values the accelerator catalogue lists."""
_MEMORY_LABEL = "nvidia.com/gpu.memory"
_ALIASES = {
    "beta.kubernetes.io/instance-type": "node.kubernetes.io/instance-type",
    "instanceType": "node.kubernetes.io/instance-type",
}
_MIG = re.compile(r"nvidia\.com/mig-(\d+g\.\d+gb)")
_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/xe", "gpu.intel.com/i915", "habana.ai/gaudi")


@dataclass(frozen=True, kw_only=True, slots=True)
class AcceleratorFound:
    """The accelerator, and what told it."""

    accelerator: Accelerator
    hint: Hint


def gpus_of(resources: Written) -> tuple[Written, Hint | None]:
    """(GPUs that a container asks for, the name of the resource); limits win over requests."""
    for side in ("limits", "requests"):
        for name, amount in resources.get(side).fields():
            if name in _RESOURCES or _MIG.fullmatch(name):
                return amount, Hint(name="resource", value=name, path=amount.path)
    return Written(value=None, path=resources.path), None


def node_hints(pod: Written) -> Iterator[Hint]:
    """Labels that the pod's node must have: node selector, then required affinity."""
    for name, value in pod.get("nodeSelector").fields():
        yield Hint(name=name, value=value.text, path=value.path)
    terms = pod.get("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
    yield from affinity_hints(terms)


def affinity_hints(terms: Written) -> Iterator[Hint]:
    """Of node selector terms; only `In` names what a node has."""
    for term in terms.items():
        for expression in term.get("matchExpressions").items():
            if expression.get("operator").text == "In":
                for value in expression.get("values").items():
                    yield Hint(name=expression.get("key").text, value=value.text, path=value.path)


def accelerators_of(hints: Sequence[Hint]) -> tuple[AcceleratorFound, ...]:
    """Every accelerator that the hints name, the surest first, each once; a MIG resource makes slices of them."""
    slices = [match[1] for hint in hints if hint.name == "resource" and (match := _MIG.fullmatch(hint.value))]
    found: dict[str, AcceleratorFound] = {}
    for hint in sorted(hints, key=_certainty):
        whole = _of_hint(hint)
        accelerator = _slice_of(whole, slices[0]) if whole and slices else whole
        if accelerator:
            found.setdefault(accelerator.name, AcceleratorFound(accelerator=accelerator, hint=hint))
    return tuple(found.values())


def _certainty(hint: Hint) -> int:
    return 0 if hint.name in PRODUCT_LABELS else 2 if hint.name == _MEMORY_LABEL else 1


def _of_hint(hint: Hint) -> Accelerator | None:
    if hint.name in PRODUCT_LABELS or hint.name == "accelerator":
        return catalogue.find_accelerator(hint.value.removesuffix("-SHARED"))
    if hint.name == _MEMORY_LABEL:
        return _by_memory(hint.value)
    name = _ALIASES.get(hint.name, hint.name)
    value = hint.value.lower()
    match = next((row for row in _rows() if row[0] == name and _matches(row[1], value)), None)
    return catalogue.find_accelerator(match[2]) if match else None


def _matches(pattern: str, value: str) -> bool:
    return value.startswith(pattern[:-1]) if pattern.endswith("*") else value == pattern


@lru_cache(maxsize=1)
def _rows() -> tuple[tuple[str, str, str], ...]:
    lines = _TABLE.read_text(encoding="utf-8").splitlines()
    cells = [line.split(",") for line in lines if not line.startswith(("#", "label,"))]
    return tuple((label, value.lower(), accelerator) for label, value, accelerator in cells)


def _by_memory(text: str) -> Accelerator | None:
    """The driver's figure in MiB, which is a little more than a process sees; only where one board has it."""
    if not text.isdecimal() or len(text) > 7:
        return None
    memory = int(text) * MIB
    near = [
        a
        for a in catalogue.accelerators()
        if not a.is_slice and a.memory_bytes <= memory <= a.memory_bytes * 105 // 100
    ]
    return near[0] if len(near) == 1 else None


def _slice_of(whole: Accelerator, profile: str) -> Accelerator | None:
    """`H100-SXM-80GB` and `1g.10gb` → the slice that the catalogue lists."""
    board = whole.name.split("-")[0]
    memory = whole.name.rsplit("-", 1)[-1]
    names = (f"{board}-{memory}-MIG-{profile}", f"{board}-MIG-{profile}")
    return next((slice_ for name in names if (slice_ := catalogue.find_accelerator(name))), None)
