"""Labels, resources and platforms' names → accelerators of the catalogue."""

from typing import Any

import pytest

from kvgate import catalogue
from kvgate.documents.written import Written
from kvgate.manifests.pods.accelerator_hints import (
    _TABLE,
    accelerators_of,
    affinity_hints,
    gpus_of_instance,
    node_hints,
    unlisted_hint,
)
from kvgate.manifests.pods.engine_found import Hint
from support.tables import table


def found(*pairs: tuple[str, str]) -> list[str]:
    return [each.accelerator.name for each in accelerators_of([Hint(name=n, value=v, path="p") for n, v in pairs])]


@table(
    ("pairs", "expected"),
    [
        ([("nvidia.com/gpu.product", "NVIDIA-L4")], ["L4-24GB"]),
        ([("nvidia.com/gpu.product", "NVIDIA-L4-SHARED")], ["L4-24GB"]),
        ([("amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM")], ["MI300X-192GB"]),
        ([("cloud.google.com/gke-accelerator", "nvidia-tesla-a100")], ["A100-SXM-40GB"]),
        ([("eks.amazonaws.com/instance-gpu-name", "L40S")], ["L40S-48GB"]),
        ([("beta.kubernetes.io/instance-type", "g5.48xlarge")], ["A10G-24GB"]),
        ([("node.kubernetes.io/instance-type", "standard_nd96isr_h200_v5")], ["H200-SXM-141GB"]),
        ([("gpu.nvidia.com/class", "H100_NVLINK_80GB")], ["H100-SXM-80GB"]),
        ([("nvidia.com/gpu.memory", "23034")], ["L4-24GB"]),
        ([("nvidia.com/gpu.product", "NVIDIA-GeForce-RTX-3080")], ["RTX-3080-10GB", "RTX-3080-12GB"]),
        (
            [("nvidia.com/gpu.product", "NVIDIA-GeForce-RTX-3080"), ("nvidia.com/gpu.memory", "12288")],
            ["RTX-3080-12GB"],
        ),
        ([("nvidia.com/gpu.product", "AGX-Thor")], ["Jetson-AGX-Thor-128GB"]),
        ([("nvidia.com/gpu.product", "NVIDIA-RTX-PRO-4500-Blackwell")], ["RTX-PRO-4500-32GB"]),
        ([("nvidia.com/gpu.memory", "15360"), ("nvidia.com/gpu.family", "hopper")], ["T4-16GB"]),
        ([("nvidia.com/gpu.memory", "81559"), ("nvidia.com/gpu.product", "NVIDIA-H100-PCIe")], ["H100-PCIe-80GB"]),
        ([("nvidia.com/gpu.memory", "24576"), ("nvidia.com/gpu.family", "ampere")], ["A30-24GB", "RTX-3090-24GB"]),
        ([("resource", "nvidia.com/mig-3g.71gb")], ["H200-MIG-3g.71gb"]),
        ([("resource", "nvidia.com/mig-4g.96gb")], ["RTX-PRO-6000-Server-MIG-4g.96gb"]),
        ([("resource", "nvidia.com/mig-1g.24gb")], ["H100-NVL-MIG-1g.24gb", "RTX-PRO-6000-Server-MIG-1g.24gb"]),
        (
            [
                ("nvidia.com/gpu.product", "NVIDIA-RTX-PRO-6000-Blackwell-Server-Edition"),
                ("resource", "nvidia.com/mig-1g.24gb"),
            ],
            ["RTX-PRO-6000-Server-MIG-1g.24gb"],
        ),
        (
            [("nvidia.com/gpu.product", "NVIDIA-A100-SXM4-80GB"), ("resource", "nvidia.com/mig-1g.10gb")],
            ["A100-80GB-MIG-1g.10gb"],
        ),
        (
            [("nvidia.com/gpu.product", "NVIDIA-L4"), ("nvidia.com/gpu.product", "NVIDIA-A10G")],
            ["L4-24GB", "A10G-24GB"],
        ),
        ([("nvidia.com/gpu.product", "NVIDIA-L4"), ("cloud.google.com/gke-accelerator", "nvidia-l4")], ["L4-24GB"]),
        ([("ray accelerator_type", "A100")], ["A100-SXM-40GB", "A100-SXM-80GB"]),
        ([("amd.com/gpu.product-name", "AMD_Instinct_MI355X_OAM")], ["MI355X-288GB"]),
        ([("beta.amd.com/gpu.device-id", "74a1")], ["MI300X-192GB"]),
        ([("karpenter.azure.com/sku-gpu-name", "T4")], ["T4-16GB"]),
        ([("karpenter.azure.com/sku-name", "Standard_NC24ads_A100_v4")], ["A100-PCIe-80GB"]),
        ([("k8s.amazonaws.com/accelerator", "nvidia-tesla-t4")], ["T4-16GB"]),
        (
            [("karpenter.k8s.aws/instance-gpu-name", "a100"), ("karpenter.k8s.aws/instance-family", "p4de")],
            ["A100-SXM-80GB"],
        ),
        (
            [
                ("cloud.google.com/gke-accelerator", "nvidia-h100-80gb"),
                ("cloud.google.com/gke-gpu-partition-size", "4g.40gb"),
                ("resource", "nvidia.com/gpu"),
            ],
            ["H100-80GB-MIG-4g.40gb"],
        ),
        ([("node.kubernetes.io/instance-type", "g7e.12xlarge")], ["RTX-PRO-6000-Server-96GB"]),
        ([("node.kubernetes.io/instance-type", "gr6.4xlarge")], ["L4-24GB"]),
        ([("node.kubernetes.io/instance-type", "p6e-gb200.36xlarge")], ["GB200-192GB"]),
        ([("node.kubernetes.io/instance-type", "g6f.large")], []),
        ([("node.kubernetes.io/instance-type", "g4-standard-6")], []),
        ([("node.kubernetes.io/instance-type", "Standard_NV12ads_A10_v5")], []),
        ([("node.kubernetes.io/instance-type", "ecs.gn7i-c8g1.2xlarge")], ["A10-24GB"]),
        ([("node.kubernetes.io/instance-type", "gpu_8x_a100_80gb_sxm4")], ["A100-SXM-80GB"]),
        ([("node.coreweave.cloud/type", "gd-8xl40s-i128")], ["L40S-48GB"]),
        ([("karpenter.sh/instance-family", "g6e")], ["L40S-48GB"]),
        ([("cloud.google.com/compute-class", "gpu-l4-24gb-x2")], ["L4-24GB"]),
        ([("cloud.google.com/compute-class", "gpu-a100-40gb-x2")], ["A100-SXM-40GB", "A100-PCIe-40GB"]),
        ([("cloud.google.com/compute-class", "Performance")], []),
        ([("machine.cluster.vke.volcengine.com/gpu-name", "NVIDIA-H20-SXM5-96GB")], ["H20-SXM-96GB"]),
        ([("gpu-type", "l40s")], ["L40S-48GB"]),
        ([("app", "l40s")], []),
        ([("gpu.nvidia.com/model", "H100_NVLINK_80GB")], ["H100-SXM-80GB"]),
        (
            [("nvidia.com/gpu.memory", "24576"), ("nvidia.com/gpu.compute.major", "8")],
            ["A30-24GB", "RTX-3090-24GB"],
        ),
        ([("kubernetes.io/hostname", "gpu-1")], []),
        ([("nvidia.com/gpu.memory", "lots")], []),
    ],
)
def test_hints_name_accelerators(pairs: list[tuple[str, str]], expected: list[str]) -> None:
    assert found(*pairs) == expected


@table(
    ("label", "value", "expected"),
    [
        ("beta.kubernetes.io/instance-type", "g6.xlarge", "L4-24GB"),
        ("instanceType", "g6.xlarge", "L4-24GB"),
        ("eks.amazonaws.com/instance-gpu-name", "l4", "L4-24GB"),
        ("eks.amazonaws.com/instance-family", "p4de", "A100-SXM-80GB"),
        ("karpenter.azure.com/sku-name", "Standard_NC24ads_A100_v4", "A100-PCIe-80GB"),
        ("karpenter.k8s.gcp/instance-type", "g2-standard-4", "L4-24GB"),
        ("node.coreweave.cloud/type", "g6.xlarge", "L4-24GB"),
        ("instance-type", "g6.xlarge", "L4-24GB"),
        ("karpenter.sh/instance-family", "p4de", "A100-SXM-80GB"),
        ("karpenter.k8s.gcp/instance-family", "g2", "L4-24GB"),
        ("karpenter.k8s.gcp/instance-gpu-name", "nvidia-l4", "L4-24GB"),
        ("beta.amd.com/gpu.device-id", "74a1", "MI300X-192GB"),
        ("beta.amd.com/gpu.product-name", "AMD_Instinct_MI300X_OAM", "MI300X-192GB"),
        ("accelerator", "l4", "L4-24GB"),
        ("nvidia.com/gpu.memory", "23500", ""),
        ("nvidia.com/gpu.memory", "15279", ""),
        ("nvidia.com/gpu.memory", "15284", "T4-16GB"),
        ("nvidia.com/gpu.memory", "15436", "T4-16GB"),
        ("nvidia.com/gpu.memory", "15437", ""),
        ("nvidia.com/gpu.memory", "-15360", ""),
        ("nvidia.com/gpu.memory", "00023034", ""),
        ("nvidia.com/gpu.memory", "0023034", "L4-24GB"),
        ("nvidia.com/gpu.family", "TURING", "T4-16GB"),
        ("nvidia.com/gpu.family", "pascal", ""),
        ("resource", "nvidia.com/mig-3g.71gb.shared", "H200-MIG-3g.71gb"),
        ("resource", "mig-3g.71gb.me", "H200-MIG-3g.71gb"),
        ("nvidia.com/gpu.product", "NVIDIA-L4-OAM", "L4-24GB"),
        ("compute-class", "l4", "L4-24GB"),
        ("machine-type", "l4", "L4-24GB"),
        ("resource-profile", "nvidia-gpu-l4", "L4-24GB"),
        ("resource", "nvidia.com/l4", ""),
    ],
)  # fmt: skip
def test_labels_of_clouds_by_every_name_that_they_have(label: str, value: str, expected: str) -> None:
    assert found((label, value))[:1] == ([expected] if expected else [])


@pytest.mark.parametrize(
    ("slice_", "board", "expected"),
    [
        ("1g.10gb", "NVIDIA-H100-80GB-HBM3", ["H100-80GB-MIG-1g.10gb"]),
        ("1g.10gb", "NVIDIA-A100-SXM4-40GB", []),
        ("1g.10gb", "NVIDIA-L4", []),
    ],
)
def test_a_slice_is_one_of_its_board(slice_: str, board: str, expected: list[str]) -> None:
    assert found(("nvidia.com/gpu.product", board), ("resource", f"nvidia.com/mig-{slice_}")) == expected


def test_only_what_a_node_must_have_counts() -> None:
    terms = [{"matchExpressions": [
        {"key": "nvidia.com/gpu.product", "operator": "In", "values": ["NVIDIA-L4"]},
        {"key": "nvidia.com/gpu.product", "operator": "NotIn", "values": ["Tesla-T4"]},
    ]}]  # fmt: skip
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": terms[0]}]}
    pod = Written(value={"affinity": {"nodeAffinity": {**required, **preferred}}}, path="spec")
    (hint,) = node_hints(pod)
    assert (hint.value, hint.path.rpartition("[")[0][-6:]) == ("NVIDIA-L4", "values")


def test_terms_of_an_affinity_are_alternatives() -> None:
    def term(*labels: tuple[str, str]) -> dict[str, Any]:
        return {"matchExpressions": [{"key": key, "operator": "In", "values": [value]} for key, value in labels]}

    h100 = term(("nvidia.com/gpu.product", "NVIDIA-H100-80GB-HBM3"))
    family = ("karpenter.k8s.aws/instance-family", "p4de")
    terms = [h100, term(family, ("karpenter.k8s.aws/instance-gpu-name", "a100")), h100]
    hints = list(affinity_hints(Written(value=terms, path="terms")))
    assert [each.accelerator.name for each in accelerators_of(hints)] == ["H100-SXM-80GB", "A100-SXM-80GB"]


def test_expressions_of_one_term_and_the_node_selector_hold_together() -> None:
    def among(*values: str) -> dict[str, Any]:
        return {"key": "nvidia.com/gpu.product", "operator": "In", "values": list(values)}

    l4, a100, h100 = "NVIDIA-L4", "NVIDIA-A100-SXM4-80GB", "NVIDIA-H100-80GB-HBM3"

    def accelerators(expressions: list[dict[str, Any]], **selector: Any) -> list[str]:
        terms = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
        affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        pod = Written(value={"affinity": affinity, **selector}, path="spec")
        return [each.accelerator.name for each in accelerators_of(list(node_hints(pod)))]

    assert accelerators([among(l4, a100), among(a100, h100)]) == ["A100-SXM-80GB"]
    assert accelerators([among(l4, a100)], nodeSelector={"nvidia.com/gpu.product": l4}) == ["L4-24GB"]
    assert accelerators([among(l4, a100)]) == ["L4-24GB", "A100-SXM-80GB"]


@table(
    ("name", "value", "expected"),
    [
        ("nvidia.com/gpu.product", "NVIDIA-A17", "NVIDIA-A17"),
        ("resource", "google.com/tpu", "google.com/tpu"),
        ("resource", "nvidia.com/gpu", None),
        ("resource", "nvidia.com/mig-1g.6gb", "nvidia.com/mig-1g.6gb"),
        ("resource", "nvidia.com/mig-1g.10gb", None),
        ("cloud.google.com/gke-accelerator", "nvidia-tesla-p4", "nvidia-tesla-p4"),
        ("k8s.amazonaws.com/accelerator", "vgpu", None),
        ("accelerator", "nvidia", None),
        ("accelerator", "cuda", None),
        ("accelerator", "nvidia-a17", "nvidia-a17"),
        ("kubernetes.io/hostname", "x", None),
        ("kubernetes.io/hostname", "x1", None),
        ("amd.com/gpu.product-name", "AMD_Instinct_MI8", "AMD_Instinct_MI8"),
        ("beta.amd.com/gpu.product-name", "AMD_Instinct_MI8", "AMD_Instinct_MI8"),
        ("karpenter.k8s.aws/instance-gpu-name", "m60", "m60"),
        ("eks.amazonaws.com/instance-gpu-name", "m60", "m60"),
        ("karpenter.azure.com/sku-gpu-name", "K80", "K80"),
        ("karpenter.azure.com/sku-gpu-name", "A100", None),
        ("resource", "amd.com/gpu", None),
        ("resource", "habana.ai/gaudi", None),
        ("resource", "gpu.intel.com/xe", None),
        ("resource", "volcano.sh/vgpu-number", None),
        ("resource", "aliyun.com/gpu-count", None),
        ("resource", "huawei.com/Ascend", "huawei.com/Ascend"),
    ],
)
def test_a_gpu_that_nobody_knows_is_named(name: str, value: str, expected: str | None) -> None:
    hint = unlisted_hint([Hint(name=name, value=value, path="p")])
    assert (hint.value if hint else None) == expected


@pytest.mark.parametrize(
    ("instance", "gpus"),
    [
        ("Standard_NC48ads_A100_v4", 2),
        ("p4d.24xlarge", 8),
        ("g5.12xlarge", 4),
        ("g5.99xlarge", None),
        ("m5.large", None),
    ],
)
def test_an_instance_type_has_a_number_of_gpus_where_it_is_one(instance: str, gpus: int | None) -> None:
    assert gpus_of_instance([Hint(name="instanceType", value=instance, path="p")]) == gpus


def test_every_row_of_the_table_names_an_accelerator() -> None:
    lines = _TABLE.read_text(encoding="utf-8").splitlines()
    rows = [line.split(",") for line in lines if not line.startswith(("#", "label,"))]
    assert all(len(row) == 4 and (not row[3] or row[3].isdecimal()) for row in rows)
    assert {row[2] for row in rows if catalogue.find_accelerator(row[2]) is None} == set()
    assert len({(row[0], row[1].lower(), row[2]) for row in rows}) == len(rows)
