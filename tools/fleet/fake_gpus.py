"""Nodes with GPUs that exist on paper: kwok keeps them Ready and the scheduler places pods on them."""

from __future__ import annotations

from typing import Any


def fake_gpu_node(name: str, *, product: str, memory_mib: int, gpus: int = 8) -> dict[str, Any]:
    """A Node manifest with the labels of NVIDIA's GPU feature discovery; `memory_mib` is per GPU, as NVML counts it."""
    resources = {"cpu": "192", "memory": "2Ti", "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "nvidia.com/gpu.present": "true",
                "nvidia.com/gpu.product": product,
                "nvidia.com/gpu.memory": str(memory_mib),
                "nvidia.com/gpu.count": str(gpus),
            },
        },
        "status": {"capacity": resources, "allocatable": resources},
    }
