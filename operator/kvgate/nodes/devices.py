"""ResourceSlices → the GPUs that drivers of dynamic resource allocation offer, and those that a claim can get."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct, field

from kvgate.api.quantity import parse_quantity
from kvgate.budget.ground.units import MIB
from kvgate.nodes.matching import can_take
from kvgate.nodes.node import MOST_MIB, Memory, Node, NodeGpus, accelerators_of_label, labels_about
from kvgate.nodes.offer import Candidate, Question
from kvgate.text.patterns import pattern

DRIVERS: Mapping[str, tuple[str, ...]] = {
    "gpu.nvidia.com": ("gpu.nvidia.com", "mig.nvidia.com"),
    "gpu.amd.com": ("gpu.amd.com",),
    "gpu.intel.com": ("gpu.intel.com",),
}
"""Driver → the DeviceClasses that its chart installs."""
_TYPES = {"gpu.nvidia.com": "gpu", "mig.nvidia.com": "mig"}
"""DeviceClass → the type of the devices that it takes; the others take all of their driver."""
_EQUAL = pattern(
    r"""^\s*device\.attributes\[(['"])[\w.]+\1\]\.(productName|profile|type)\s*==\s*(['"])([^'"]+)\3\s*$"""
)
_OF_DRIVER = pattern(r"""^\s*device\.driver\s*==\s*(['"])[\w.]+\1\s*$""")
"""The two kinds of expressions that are understood."""


class _Metadata(Struct):
    name: str = ""


class _Pool(Struct):
    name: str = ""
    generation: int = 0


class _Device(Struct):
    attributes: dict[str, dict[str, Any]] = {}
    capacity: dict[str, dict[str, Any]] = {}


class _Spec(Struct):
    driver: str = ""
    nodeName: str = ""  # noqa: N815 - Kubernetes' name
    pool: _Pool = field(default_factory=_Pool)
    devices: list[_Device] | None = None


class SliceObject(Struct):
    """A ResourceSlice of resource.k8s.io/v1: the fields that are read."""

    metadata: _Metadata
    spec: _Spec = field(default_factory=_Spec)


class Device(Struct, frozen=True):
    """A device of a driver; equal ones are counted."""

    product: str
    type: str
    profile: str
    memory_mib: int | None
    """None where the driver states none; AMD's states 0 for a memory that it cannot read."""
    problem: str = ""


class DeviceSlice(Struct, frozen=True, kw_only=True):
    """The devices of a driver on one node."""

    name: str
    driver: str
    node: str
    pool: tuple[str, int]
    """Name and generation; a slice of an earlier generation is out of date."""
    devices: tuple[tuple[Device, int], ...]


def slice_of_devices(found: SliceObject) -> DeviceSlice | None:
    """Read a slice; None where its driver has no GPUs."""
    spec = found.spec
    if spec.driver not in DRIVERS:
        return None
    counted = Counter(_device(each) for each in spec.devices or ())
    return DeviceSlice(
        name=found.metadata.name, driver=spec.driver, node=spec.nodeName, pool=(spec.pool.name, spec.pool.generation),
        devices=tuple(sorted(counted.items(), key=repr)),
    )  # fmt: skip


def _device(found: _Device) -> Device:
    def text(name: str) -> str:
        value = found.attributes.get(name, {}).get("string", "")
        return value[:128] if isinstance(value, str) else ""

    stated = found.capacity.get("memory", {}).get("value")
    amount = None if stated is None else parse_quantity(stated)
    mib = int(amount) // MIB if amount is not None else None
    is_size = mib is not None and 0 <= mib <= MOST_MIB
    problem = (
        "" if stated is None or is_size else f"capacity memory is {str(stated)[:40]!r}, which is no size of a memory"
    )
    return Device(text("productName"), text("type"), text("profile"), mib if is_size and mib else None, problem)


def claimable(question: Question, slices: Iterable[DeviceSlice], nodes: Mapping[str, Node]) -> list[Candidate]:
    """Return the devices that the claim can get, by node. An expression that is not understood leaves none: nothing is guessed."""
    listed = list(slices)
    newest = dict[tuple[str, str], int]()
    for each in listed:
        pool = (each.driver, each.pool[0])
        newest[pool] = max(newest.get(pool, 0), each.pool[1])
    wanted, is_understood = _wanted(question)
    found = list[Candidate]()
    for each in listed:
        is_newest = each.pool[1] == newest[each.driver, each.pool[0]]
        if not is_newest or question.device_class not in DRIVERS[each.driver]:
            continue
        node = nodes.get(each.node)
        if can_take(node, question.requirement) if node else not question.requirement.names_nodes:
            found += [
                Candidate(node or Node(name=each.node, labels={}), _gpus(each, device, count, question))
                for device, count in each.devices
                if all(getattr(device, name) == value for name, value in wanted.items())
            ]
    found.sort(key=lambda each: each.node.name)
    return found if is_understood or question.gpu else []


def _wanted(question: Question) -> tuple[dict[str, str], bool]:
    """Return what the class and the expressions want of a device, and whether all of them are understood."""
    wanted, is_understood = dict[str, str](), True
    if question.device_class in _TYPES:
        wanted["type"] = _TYPES[question.device_class]
    names = {"productName": "product", "profile": "profile", "type": "type"}
    for expression in question.device_selectors:
        if found := _EQUAL.match(expression):
            wanted[names[found[2]]] = found[4]
        elif not _OF_DRIVER.match(expression):
            is_understood = False
    return wanted, is_understood


def _gpus(each: DeviceSlice, device: Device, count: int, question: Question) -> NodeGpus:
    where = f"productName of ResourceSlice {each.name}"
    memory = (
        Memory(f"capacity memory of ResourceSlice {each.name}", device.memory_mib, is_exact=True)
        if device.memory_mib
        else None
    )
    accelerators = accelerators_of_label(labels_about("product")[0], device.product.replace(" ", "-"), device.profile)
    return NodeGpus(
        resource=question.device_class, count=count, accelerators=accelerators,
        product=f"{where}: {device.product}" if device.product else "", memory=memory,
        contradictions=(f"ResourceSlice {each.name}: {device.problem}",) if device.problem else (),
    )  # fmt: skip
