"""Labels of nodes that a class or a pool of the same input describes."""

from pathlib import Path
from typing import Any

from kvgate.cli.check.given_facts import CheckOptions
from kvgate.cli.check.run import run
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


POD = """\
apiVersion: v1
kind: Pod
metadata: {name: llm}
spec:
  nodeSelector: {role: llm}
  containers:
  - {name: vllm, image: "vllm/vllm-openai:v0.11.0", args: [--model=Qwen/Qwen3-8B], resources: {limits: {nvidia.com/gpu: 1}}}
"""


def of_pools(folder: Path, *families: str) -> list[str | None]:
    """The GPU of a pod that selects nodes by a label which these pools give theirs."""
    pools = (
        f"""\
apiVersion: karpenter.sh/v1
kind: NodePool
metadata: {{name: {family}}}
spec:
  template:
    metadata: {{labels: {{role: llm}}}}
    spec:
      requirements: [{{key: karpenter.k8s.aws/instance-family, operator: In, values: [{family}]}}]
"""
        for family in families
    )
    (folder / "all.yaml").write_text("---\n".join([POD, *pools]), encoding="utf-8")
    return [item.accelerator for item in run((str(folder),), CheckOptions()).items]


def test_a_label_that_a_pool_gives_its_nodes_leads_to_the_pool(tmp_path: Path) -> None:
    assert of_pools(tmp_path, "g5") == ["A10G-24GB"]


def test_a_label_that_two_pools_give_leads_to_neither(tmp_path: Path) -> None:
    assert of_pools(tmp_path, "g5", "p5") == [None]
