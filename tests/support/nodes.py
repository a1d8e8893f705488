"""Nodes and ResourceSlices as they are kept, made of the few fields that a test names."""

from collections.abc import Mapping
from typing import Any

from msgspec import convert

from kvgate.nodes.devices import DeviceSlice, SliceObject, slice_of_devices
from kvgate.nodes.node import Node, NodeObject, node_of

H100 = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.memory": "81559",
    "nvidia.com/gpu.count": "8",
}


def a_node(name: str, labels: Mapping[str, str], gpus: int | Mapping[str, Any] = 8, **spec: Any) -> Node:
    allocatable = {"nvidia.com/gpu": str(gpus)} if isinstance(gpus, int) else dict(gpus)
    document = {
        "metadata": {"name": name, "labels": dict(labels)}, "spec": spec, "status": {"allocatable": {"cpu": "8", **allocatable}},
    }  # fmt: skip
    return node_of(convert(document, NodeObject))


def a_slice(
    name: str, *devices: Mapping[str, Any], driver: str = "gpu.nvidia.com", node: str = "gpu-0", generation: int = 1
) -> dict[str, Any]:
    """A ResourceSlice; a device has `product`, `type`, `profile` and `memory`."""
    names = {"product": "productName", "type": "type", "profile": "profile"}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": name},
        "spec": {
            "driver": driver,
            "nodeName": node,
            "pool": {"name": node, "generation": generation, "resourceSliceCount": 1},
            "devices": [
                {
                    "name": f"gpu-{index}",
                    "attributes": {names[key]: {"string": value} for key, value in each.items() if key in names},
                    "capacity": {"memory": {"value": each["memory"]}} if "memory" in each else {},
                }
                for index, each in enumerate(devices)
            ],
        },
    }


def read_slice(document: Mapping[str, Any]) -> DeviceSlice:
    found = slice_of_devices(convert(document, SliceObject))
    assert found is not None
    return found
