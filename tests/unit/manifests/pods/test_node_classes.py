"""Labels of nodes that a class or a pool of the same input describes."""

from typing import Any

from kvgate.documents.written import Written
from kvgate.manifests.pods.accelerator_hints import accelerators_of, class_hints
from kvgate.manifests.pods.engine_found import Hint

COMPUTE_CLASS = "cloud.google.com/compute-class"


def gpus(label: str, kind: str, found: dict[str, Any]) -> list[str]:
    hint = Hint(name=label, value="mine", path="spec.nodeSelector")

    def find(asked: str, name: str) -> Written | None:
        return Written(value=found) if (asked, name) == (kind, "mine") else None

    hints = [hint, *class_hints([hint], find)]
    assert {each.path for each in hints} == {"spec.nodeSelector"}
    return [each.accelerator.name for each in accelerators_of(hints)]


def compute_class(*priorities: dict[str, Any]) -> dict[str, Any]:
    return {"spec": {"priorities": list(priorities)}}


def test_priorities_of_a_compute_class_are_alternatives() -> None:
    l4, a100 = ({"gpu": {"type": name, "count": 1}} for name in ("nvidia-l4", "nvidia-a100-80gb"))
    assert gpus(COMPUTE_CLASS, "ComputeClass", compute_class(l4, a100)) == ["L4-24GB", "A100-SXM-80GB"]
    by_machine = compute_class({"machineType": "g2-standard-12"}, {"machineType": "a3-highgpu-1g"})
    assert gpus(COMPUTE_CLASS, "ComputeClass", by_machine) == ["L4-24GB", "H100-SXM-80GB"]
    assert gpus(COMPUTE_CLASS, "ComputeClass", compute_class({"machineFamily": "g2"})) == ["L4-24GB"]


def test_priorities_that_do_not_all_name_a_gpu_name_none() -> None:
    assert (
        gpus(COMPUTE_CLASS, "ComputeClass", compute_class({"gpu": {"type": "nvidia-l4"}}, {"nodepools": ["x"]})) == []
    )
    assert gpus(COMPUTE_CLASS, "ComputeClass", compute_class()) == []


def test_requirements_of_a_node_pool_hold_together() -> None:
    def pool(*requirements: tuple[str, str, list[str]]) -> dict[str, Any]:
        written = [{"key": key, "operator": operator, "values": values} for key, operator, values in requirements]
        return {"spec": {"template": {"spec": {"requirements": written}}}}

    family = ("karpenter.k8s.aws/instance-family", "In", ["g6e", "p4d"])
    name = ("karpenter.k8s.aws/instance-gpu-name", "In", ["l40s"])
    assert gpus("karpenter.sh/nodepool", "NodePool", pool(family)) == ["L40S-48GB", "A100-SXM-40GB"]
    assert gpus("karpenter.sh/nodepool", "NodePool", pool(family, name)) == ["L40S-48GB"]
    assert (
        gpus("karpenter.sh/nodepool", "NodePool", pool(("karpenter.k8s.aws/instance-family", "NotIn", ["g6e"]))) == []
    )
