"""Labels and resources of nodes → their GPUs, each fact with its label; labels that lie, and none at all."""

from typing import Any

import pytest
from msgspec import convert

from kvgate.manifests.pods.accelerator_hints import accelerators_of
from kvgate.manifests.pods.engine_found import Hint
from kvgate.nodes.node import NodeObject, label_rows, node_of
from support.nodes import H100, a_node

A100_SLICE = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "nvidia.com/gpu.memory": "4864",
    "nvidia.com/gpu.count": "56", "nvidia.com/mig.strategy": "single",
}  # fmt: skip
MIXED = {
    **H100, "nvidia.com/mig.strategy": "mixed", "nvidia.com/mig-3g.40gb.memory": "40320",
    "nvidia.com/mig-3g.40gb.product": "NVIDIA-H100-80GB-HBM3-MIG-3g.40gb",
}  # fmt: skip
SHARED = {
    "nvidia.com/gpu.product": "Tesla-T4-SHARED", "nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.count": "1",
    "nvidia.com/gpu.replicas": "4", "nvidia.com/gpu.sharing-strategy": "mps",
}  # fmt: skip


@pytest.mark.parametrize(
    ("labels", "amounts", "resource", "count", "accelerators", "mib", "replicas"),
    [
        (H100, {"nvidia.com/gpu": "8"}, "nvidia.com/gpu", 8, ("H100-SXM-80GB",), 81559, 1),
        (A100_SLICE, {"nvidia.com/gpu": "56"}, "nvidia.com/gpu", 56, ("A100-40GB-MIG-1g.5gb",), 4864, 1),
        (MIXED, {"nvidia.com/mig-3g.40gb": "2"}, "nvidia.com/mig-3g.40gb", 2, ("H100-80GB-MIG-3g.40gb",), 40320, 1),
        (H100, {"nvidia.com/mig-1g.10gb": "7"}, "nvidia.com/mig-1g.10gb", 7, ("H100-80GB-MIG-1g.10gb",), None, 1),
        (SHARED, {"nvidia.com/gpu": "4"}, "nvidia.com/gpu", 4, ("T4-16GB",), 15360, 4),
        (SHARED, {"nvidia.com/gpu.shared": "4"}, "nvidia.com/gpu.shared", 4, ("T4-16GB",), 15360, 4),
        (
            {"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM", "amd.com/gpu.vram": "192G"},
            {"amd.com/gpu": "8"}, "amd.com/gpu", 8, ("MI300X-192GB",), 196608, 1,
        ),
        (
            {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb", "cloud.google.com/gke-gpu-partition-size": "3g.40gb"},
            {"nvidia.com/gpu": "16"}, "nvidia.com/gpu", 16, ("H100-80GB-MIG-3g.40gb",), None, 1,
        ),
        (
            {"karpenter.k8s.aws/instance-gpu-name": "l4", "karpenter.k8s.aws/instance-gpu-memory": "24576"},
            {"nvidia.com/gpu": "1"}, "nvidia.com/gpu", 1, ("L4-24GB",), 24576, 1,
        ),
        (
            {"kubernetes.azure.com/accelerator": "nvidia", "node.kubernetes.io/instance-type": "Standard_NC24rs_v3"},
            {"nvidia.com/gpu": "4"}, "nvidia.com/gpu", 4, ("V100-PCIe-16GB",), None, 1,
        ),
        (
            {"node.kubernetes.io/instance-type": "BM.GPU.H100.8"},
            {"nvidia.com/gpu": "8"}, "nvidia.com/gpu", 8, ("H100-SXM-80GB",), None, 1,
        ),
        ({}, {"nvidia.com/gpu": "8"}, "nvidia.com/gpu", 8, (), None, 1),
    ],
)  # fmt: skip
def test_the_gpus_of_a_node_follow_from_its_labels_and_resources(
    labels: dict[str, str], amounts: dict[str, str], resource: str, count: int, accelerators: tuple[str, ...],
    mib: int | None, replicas: int,
) -> None:  # fmt: skip
    (gpus,) = a_node("n", labels, amounts).gpus
    assert (gpus.resource, gpus.count, gpus.accelerators, gpus.replicas) == (resource, count, accelerators, replicas)
    assert (gpus.memory.mib if gpus.memory else None) == mib
    assert not gpus.contradictions


def test_a_label_that_several_boards_share_is_narrowed_by_another_one() -> None:
    name = {"karpenter.k8s.aws/instance-gpu-name": "a100"}
    (several,) = a_node("n", name).gpus
    (one,) = a_node("n", {**name, "node.kubernetes.io/instance-type": "p4de.24xlarge"}).gpus
    assert several.accelerators == ("A100-SXM-40GB", "A100-SXM-80GB")
    assert one.accelerators == ("A100-SXM-80GB",)


@pytest.mark.parametrize(
    ("labels", "both"),
    [
        ({**H100, "node.kubernetes.io/instance-type": "g4dn.xlarge"}, ("H100-SXM-80GB", "T4-16GB")),
        ({**H100, "nvidia.com/gpu.count": "4"}, ("nvidia.com/gpu is 8", "nvidia.com/gpu.count is 4")),
        ({**H100, "karpenter.k8s.aws/instance-gpu-memory": "40960"}, ("81,559 MiB", "40,960 MiB")),
        ({**H100, "nvidia.com/gpu.memory": "lots"}, ("nvidia.com/gpu.memory", "'lots'")),
        ({**H100, "nvidia.com/gpu.memory": "-1"}, ("'-1'", "no size")),
        ({**H100, "nvidia.com/gpu.memory": "9" * 60}, ("9" * 40, "no size")),
    ],
)
def test_labels_that_cannot_both_be_right_are_told_with_both_figures(
    labels: dict[str, str], both: tuple[str, str]
) -> None:
    (gpus,) = a_node("n", labels).gpus
    assert gpus.accelerators == ("H100-SXM-80GB",)
    assert all(each in " ".join(gpus.contradictions) for each in both)


def test_hostile_nodes_are_read_without_an_error() -> None:
    hostile: list[dict[str, Any]] = [
        {"metadata": {"name": "n"}},
        {"metadata": {"name": "n", "labels": {"nvidia.com/gpu.product": "\x00" * 4000}}, "status": {"allocatable": None}},
        {"metadata": {"name": "n"}, "status": {"allocatable": {"nvidia.com/gpu": "-8", "amd.com/gpu": "1e999", "nvidia.com/mig-": 3}}},
        {"metadata": {"name": "n"}, "spec": {"taints": None}, "status": {"allocatable": {"nvidia.com/gpu": [1]}}},
    ]  # fmt: skip
    nodes = [node_of(convert(each, NodeObject)) for each in hostile]
    assert [len(node.gpus) for node in nodes] == [0, 0, 2, 0]
    many = a_node("n", {f"label-{number}": "x" for number in range(5000)})
    assert len(many.labels) == 512


def test_each_row_of_the_table_is_a_label_that_the_code_asks_for() -> None:
    facts = {fact for _, _, fact in label_rows()}
    labels = [label for label, _, _ in label_rows()]
    assert len(labels) == len(set(labels))
    assert {"product", "memory in MiB", "count", "replicas", "MIG profile", "NVLink across nodes"} <= facts
    assert accelerators_of([Hint(name="eks.amazonaws.com/instance-gpu-name", value="l40s", path="")])
