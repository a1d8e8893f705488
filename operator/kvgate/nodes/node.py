"""Node → the facts about its GPUs, each with the label that states it, and what contradicts what."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from sys import intern
from typing import Any

from msgspec import Struct, field

from kvgate.api.quantity import parse_quantity
from kvgate.budget import Accelerator
from kvgate.budget.ground.units import MIB
from kvgate.catalogue.lookup import mig_profile, nvml_mib, slice_of, slices
from kvgate.manifests.pods.accelerator_hints import accelerators_of
from kvgate.manifests.pods.engine_found import Hint
from kvgate.text.patterns import pattern

TABLE = Path(__file__).parent / "data" / "labels.csv"
RESOURCE = pattern(
    r"(?:nvidia|amd)\.com/(?:gpu|mig-|[a-z]{3}_nps).*|gpu\.intel\.com/(?:xe|i915)|(?:[a-z]+\.)?habana\.ai/.*"
)
"""Extended resources of which a pod gets GPUs, parts of them or slices."""
_PROFILE_OF_PRODUCT = pattern(r"MIG-(\d+g\.\d+gb)")
MOST_MIB = 1 << 24
_MOST_LABELS, _MOST_NAMED = 512, 4
"""Labels of a node that are kept, and names of GPUs that a sentence has, at most."""
FAR_PERCENT = 10
"""Difference of two figures of one memory that no driver, setting or unit explains."""
_EXACT = "nvidia.com/"
"""Beginning of the labels whose memory is what NVML reports; clouds and AMD's labeller state nominal sizes."""


class Taint(Struct, frozen=True):
    key: str = ""
    value: str = ""
    effect: str = ""


class _Metadata(Struct):
    name: str = ""
    labels: dict[str, str] = {}


class _Spec(Struct):
    taints: list[Taint] | None = None
    unschedulable: bool = False


class _Status(Struct):
    allocatable: dict[str, Any] | None = None


class NodeObject(Struct):
    """A Node as the API server sends it: the fields that are read, and no other is decoded."""

    metadata: _Metadata
    spec: _Spec = field(default_factory=_Spec)
    status: _Status = field(default_factory=_Status)


class Memory(Struct, frozen=True):
    """Memory of one GPU as a label states it."""

    label: str
    mib: int
    is_exact: bool
    """True for what the driver reports, False for a nominal size."""


class NodeGpus(Struct, frozen=True, kw_only=True):
    """GPUs of a node that pods get under one resource."""

    resource: str
    count: int
    """Number in status.allocatable."""
    accelerators: tuple[str, ...] = ()
    """Names in the catalogue that the labels leave possible; none where they name no GPU that it has."""
    product: str = ""
    """The label that names it, `nvidia.com/gpu.product: Tesla-T4`; empty where none does."""
    memory: Memory | None = None
    replicas: int = 1
    """Pods that share one GPU."""
    contradictions: tuple[str, ...] = ()
    """Sentences about labels that cannot both be right, with both figures."""


class Node(Struct, frozen=True, kw_only=True):
    """The fields of a node that are kept; one without GPUs may have devices of a driver."""

    name: str
    labels: Mapping[str, str]
    taints: tuple[Taint, ...] = ()
    is_cordoned: bool = False
    gpus: tuple[NodeGpus, ...] = ()

    @property
    def nvlink(self) -> str:
        """The label that says that NVLink joins the GPUs beyond this node; empty where none does."""
        return next((label for label in labels_about("NVLink across nodes") if self.labels.get(label)), "")

    def of(self, resource: str) -> NodeGpus | None:
        return next((each for each in self.gpus if each.resource == resource), None)


@lru_cache(maxsize=1)
def label_rows() -> tuple[tuple[str, str, str], ...]:
    """Return the rows of the table: label, who sets it, the fact."""
    import csv

    lines = TABLE.read_text(encoding="utf-8").splitlines()
    rows = csv.reader(line for line in lines if not line.startswith("#"))
    return tuple((label, by, fact) for label, by, fact in rows if label != "label")


@lru_cache(maxsize=32)
def labels_about(fact: str) -> tuple[str, ...]:
    return tuple(label for label, _, its_fact in label_rows() if its_fact == fact)


def node_of(found: NodeObject) -> Node:
    labels, amounts = found.metadata.labels, found.status.allocatable or {}
    resources = sorted(name for name in amounts if RESOURCE.fullmatch(name))
    kept = {intern(name): intern(str(value)) for name, value in list(labels.items())[:_MOST_LABELS]}
    gpus = [_gpus(resource, int(parse_quantity(amounts[resource]) or 0), kept) for resource in resources]
    return Node(
        name=found.metadata.name,
        labels=kept,
        taints=tuple(found.spec.taints or ()),
        is_cordoned=found.spec.unschedulable,
        gpus=tuple(each for each in gpus if each.count),
    )


def _gpus(resource: str, count: int, labels: Mapping[str, str]) -> NodeGpus:
    profile = mig_profile(resource)
    stem = resource.removesuffix(".shared").rpartition("/")[2] if profile else ""
    own = [label.replace("*", stem) for label in labels_about("slice product")] if stem else []
    products = [(label, labels[label]) for label in (*own, *labels_about("product")) if labels.get(label)]
    for _, value in products:
        profile = profile or next(iter(_PROFILE_OF_PRODUCT.findall(value)), "")
    profile = profile or next((labels[each] for each in labels_about("MIG profile") if labels.get(each)), "")
    accelerators, product, contradictions = _named(products, profile)
    if not accelerators and profile and not product:
        accelerators = tuple(each.name for each in slices(profile))
    memory, about_memory = _memory(labels, stem)
    replicas = max([1, *(_number(labels.get(label, "")) or 1 for label in labels_about("replicas"))])
    counted = next((each for each in labels_about("count") if _number(labels.get(each, ""))), "")
    about_count: tuple[str, ...] = ()  # fewer than the label says may be broken, or have another resource
    if resource.endswith("/gpu") and counted and count > (_number(labels[counted]) or 0) * replicas:
        about_count = (f"{resource} is {count} in status.allocatable, and {counted} is {labels[counted]}",)
    return NodeGpus(
        resource=resource, count=count, accelerators=accelerators, product=product, memory=memory, replicas=replicas,
        contradictions=(*contradictions, *about_memory, *about_count),
    )  # fmt: skip


def _named(products: Sequence[tuple[str, str]], profile: str) -> tuple[tuple[str, ...], str, tuple[str, ...]]:
    """Return the accelerators that all labels leave possible, the label that names them first, and a contradiction between two labels."""
    names, product = tuple[str, ...](), ""
    for label, value in products:
        found = accelerators_of_label(label, value, profile)
        if not found and not product and "instance-type" not in label:
            product = f"{label}: {value}"  # it names a GPU that the catalogue lacks
        if found and not names:
            names, product = found, f"{label}: {value}"
        elif found and not (both := tuple(name for name in names if name in found)):
            ends = (f"{' or '.join(each[:_MOST_NAMED])}" for each in (names, found))
            return names, product, (f"{product} is {next(ends)}, and {label}: {value} is {next(ends)}",)
        elif found:
            names = both
    return names, product, ()


@lru_cache(maxsize=1024)
def accelerators_of_label(label: str, value: str, profile: str) -> tuple[str, ...]:
    """Return the accelerators that one label means; a profile of MIG makes slices of boards."""
    name = labels_about("product")[0] if label.endswith(".product") else label
    found = [each.accelerator for each in accelerators_of([Hint(name=name, value=value, path="")])]
    if profile:
        found = [slice_ for each in found if (slice_ := each if each.is_slice else slice_of(each, profile))]
    return tuple(dict.fromkeys(each.name for each in found))


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) <= 8 else None


def _memory(labels: Mapping[str, str], stem: str) -> tuple[Memory | None, tuple[str, ...]]:
    """Return the memory of one GPU, and what contradicts it: another label, or no number at all."""
    stated, problems = list[Memory](), list[str]()
    wanted = (
        labels_about("slice memory in MiB")
        if stem
        else labels_about("memory in MiB") + labels_about("memory with unit")
    )
    for label in (each.replace("*", stem) for each in wanted):
        if (text := labels.get(label)) is None:
            continue
        mib = _number(text)
        if label.endswith("vram"):  # `192G`, as AMD's labeller writes sizes
            mib = int(parse_quantity(f"{text}i" if text[-1:] in "MGT" else text) or 0) // MIB
        if mib and mib <= MOST_MIB:
            stated.append(Memory(label, mib, is_exact=label.startswith(_EXACT)))
        else:
            problems.append(f"{label} is {text[:40]!r}, which is no size of a memory")
    if not stated:
        return None, tuple(problems)
    first = stated[0]
    others = [each for each in stated[1:] if is_far(each.mib, first.mib)]
    problems += [f"{first.label} is {first.mib:,} MiB, and {each.label} is {each.mib:,} MiB" for each in others[:1]]
    return first, tuple(problems)


def is_far(mib: int, other_mib: int) -> bool:
    return abs(mib - other_mib) * 100 > FAR_PERCENT * max(mib, other_mib)


def promised_mib(accelerator: Accelerator) -> int:
    """Return the memory by NVML that the catalogue promises."""
    return nvml_mib().get(accelerator.name) or accelerator.memory_high_bytes // MIB
