"""The least memory, the product and the contradictions of the nodes that can take a pod, and what may be free on them."""

from collections.abc import Iterable
from typing import Any

import pytest

from kvgate import catalogue
from kvgate.api.conditions import Reason
from kvgate.api.v1alpha1 import InferenceDeploymentSpec
from kvgate.api.validation import parse_document
from kvgate.budget import Verdict
from kvgate.budget.ground.units import MIB
from kvgate.controller.decision import NO_CONFIG, assess_owner
from kvgate.judgement.assessment import Confidence, Decision
from kvgate.judgement.summary import accepted
from kvgate.nodes.devices import claimable
from kvgate.nodes.node import Node
from kvgate.nodes.offer import Offer, candidates, offer_of, offered, question_of, room_text
from support.manifests import a_document
from support.nodes import H100, a_node, a_slice, read_slice

A100 = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    "nvidia.com/gpu.memory": "81920",
    "nvidia.com/gpu.count": "8",
}
T4 = {"nvidia.com/gpu.product": "Tesla-T4", "nvidia.com/gpu.memory": "15360", "nvidia.com/gpu.count": "4"}


def spec_of(accelerator: dict[str, Any], **more: Any) -> InferenceDeploymentSpec:
    return InferenceDeploymentSpec.from_document({
        "model": {"name": "Qwen/Qwen3-8B"}, "accelerator": accelerator, **more,
    })  # fmt: skip


def offer(accelerator: dict[str, Any], nodes: Iterable[Node], **more: Any) -> Offer:
    question = question_of(spec_of(accelerator, **more))
    return offer_of(question, candidates(question, nodes))


NAMED = {"type": "H100-SXM-80GB"}
POOL = {"template": {"nodeSelector": {"pool": "a"}}}


def test_a_node_as_the_catalogue_promises_says_nothing() -> None:
    found = offer(NAMED, [a_node("gpu-0", H100), a_node("gpu-1", {**H100, "nvidia.com/gpu.memory": "81400"})])
    assert (found.differs, found.memory_mib, found.contradiction) == (False, None, "")


def test_the_least_memory_counts_and_is_told_beside_the_promise() -> None:
    found = offer(NAMED, [a_node("gpu-0", H100), a_node("gpu-1", {**H100, "nvidia.com/gpu.memory": "76000"})])
    assert (found.reason, found.memory_mib, found.contradiction) == (Reason.LESS_MEMORY, 76000, "")
    assert "node gpu-1 has 76,000 MiB by nvidia.com/gpu.memory, and H100-SXM-80GB has 81,559 MiB" in found.message
    accelerator = catalogue.find_accelerator("H100-SXM-80GB")
    assert accelerator is not None
    seen = offered(accelerator, found)
    assert seen.memory_low_bytes < seen.memory_bytes < seen.memory_high_bytes == 76000 * MIB


def test_half_of_the_memory_is_a_contradiction_with_both_figures_and_counts() -> None:
    found = offer(NAMED, [a_node("gpu-0", H100), a_node("gpu-1", {**H100, "nvidia.com/gpu.memory": "40960"})])
    assert (found.differs, found.reason, found.memory_mib) == (True, Reason.NODES_CONTRADICT, 40960)
    assert "40,960 MiB" in found.message
    assert "81,559 MiB" in found.message


def test_more_memory_than_there_can_be_is_told_and_not_believed() -> None:
    found = offer(NAMED, [a_node("gpu-0", {**H100, "nvidia.com/gpu.memory": "163840"})])
    assert (found.reason, found.memory_mib) == (Reason.NODES_CONTRADICT, None)


@pytest.mark.parametrize(
    ("nodes", "differs", "has"),
    [
        ([], None, "no node"),
        ([a_node("cpu", {}, {})], None, "no node"),
        ([a_node("gpu-0", A100), a_node("gpu-1", T4, 4)], True, "they have A100-SXM-80GB, T4-16GB"),
        ([a_node("gpu-0", {})], True, "GPUs without a label"),
        ([a_node("gpu-0", {"cloud.google.com/gke-accelerator": "nvidia-h100-80gb"})], True, "run the vendor's node labeller"),
        ([a_node("gpu-0", {**H100, "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED"})], True, "the pods select"),
    ],
)  # fmt: skip
def test_nodes_without_the_gpu_are_told_with_what_they_have(
    nodes: list[Node], *, differs: bool | None, has: str
) -> None:
    found = offer(NAMED, nodes)
    assert found.differs is differs
    assert has in found.message


def test_only_nodes_that_can_take_the_pod_count() -> None:
    half = {**H100, "nvidia.com/gpu.memory": "40960"}
    nodes = [
        a_node("gpu-0", {**H100, "pool": "a"}),
        a_node("gpu-1", {**half, "pool": "b"}),
        a_node("gpu-2", {**half, "pool": "a"}, taints=[{"key": "team", "value": "x", "effect": "NoSchedule"}]),
    ]
    assert offer(NAMED, nodes, **POOL).differs is False
    tolerant = {"template": {**POOL["template"], "tolerations": [{"key": "team", "operator": "Exists"}]}}
    assert offer(NAMED, nodes, **tolerant).memory_mib == 40960


def test_a_slice_of_the_mixed_strategy_is_judged_by_its_own_memory() -> None:
    labels = {**H100, "nvidia.com/mig-3g.40gb.memory": "38000"}
    wanted = {"type": "H100-SXM-80GB", "resourceName": "nvidia.com/mig-3g.40gb"}
    assert question_of(spec_of(wanted)).gpu == "H100-80GB-MIG-3g.40gb"
    found = offer(wanted, [a_node("gpu-0", labels, {"nvidia.com/gpu": "0", "nvidia.com/mig-3g.40gb": "4"})])
    assert (found.gpu, found.memory_mib, found.reason) == ("H100-80GB-MIG-3g.40gb", 38000, Reason.LESS_MEMORY)


def test_the_nodes_decide_the_gpu_where_the_spec_leaves_it_to_them() -> None:
    nodes = [a_node("gpu-0", {**A100, "pool": "a"}), a_node("gpu-1", {**T4, "pool": "a"}, 4), a_node("gpu-2", H100)]
    found = offer({}, nodes, **POOL)
    assert (found.gpu, found.reason) == ("T4-16GB", Reason.NODES_DECIDE)
    assert "others are A100-SXM-80GB" in found.message
    assert offer({}, nodes[:1], **POOL).gpu == "A100-SXM-80GB"
    unlabelled = offer({}, [a_node("gpu-0", {"pool": "a"})], **POOL)
    assert (unlabelled.gpu, unlabelled.differs) == ("", None)
    assert "name spec.accelerator.type" in unlabelled.message
    sliced = offer({"resourceName": "nvidia.com/mig-1g.10gb"}, [a_node("n", H100, {"nvidia.com/mig-1g.10gb": "7"})])
    assert sliced.gpu == "H100-80GB-MIG-1g.10gb"


def test_a_gpu_that_was_decided_stays_when_the_nodes_go() -> None:
    question = question_of(spec_of({}, **POOL), "A100-SXM-80GB")
    assert offer_of(question, []).gpu == "A100-SXM-80GB"
    large = a_node("gpu-0", {**A100, "pool": "a"})
    alone, before = offer_of(question, candidates(question, [large])), offer({}, [large], **POOL)
    assert (alone.reason, alone.message) == (Reason.NODES_DECIDE, before.message), "the admission is no news"
    beside = offer_of(question, candidates(question, [large, a_node("gpu-1", {**T4, "pool": "a"}, 4)]))
    assert (beside.gpu, beside.reason) == ("A100-SXM-80GB", Reason.NODES_DECIDE)
    assert beside.message.endswith("A100-SXM-80GB, which was admitted; others are T4-16GB")
    other = offer_of(question, candidates(question, [a_node("gpu-1", {**T4, "pool": "a"}, 4)]))
    assert (other.gpu, other.reason) == ("A100-SXM-80GB", Reason.NO_NODE_WITH_GPU)


def test_a_contradiction_is_judged_with_the_lesser_figure_and_refuses_nothing() -> None:
    document = a_document(
        accelerator=NAMED, model={"name": "Qwen/Qwen3-32B"}, vllm={"maxNumSeqs": 2, "maxModelLen": 8192}
    )
    owner = parse_document(document)
    half = offer_of(question_of(owner.spec), [])
    assert assess_owner(owner, NO_CONFIG, offer=half).assessment.verdict is Verdict.FITS
    contradicted = offer(NAMED, [a_node("gpu-1", {**H100, "nvidia.com/gpu.memory": "40960"})])
    judged = assess_owner(owner, NO_CONFIG, offer=contradicted).assessment
    assert (judged.verdict, judged.confidence) == (Verdict.DOES_NOT_FIT, Confidence.CONTRADICTORY)
    assert judged.decision is Decision.ADMIT_WITH_WARNING
    status, reason, message = accepted(judged)
    assert (status, reason) == (True, Reason.SOURCES_CONTRADICT)
    assert "40,960 MiB" in message
    lesser = offer(NAMED, [a_node("gpu-1", {**H100, "nvidia.com/gpu.memory": "76000"})])
    big = parse_document(
        a_document(accelerator=NAMED, model={"name": "Qwen/Qwen3-32B"}, vllm={"maxNumSeqs": 2, "maxModelLen": 40960})
    )
    sizes = [assess_owner(big, NO_CONFIG, offer=each).assessment.budget for each in (None, lesser)]
    assert sizes[0] is not None
    assert sizes[1] is not None
    assert sizes[1].num_blocks.expected < sizes[0].num_blocks.expected


def test_links_count_where_all_nodes_state_them() -> None:
    linked = {**H100, "nvidia.com/gpu.clique": "7b968a6d.1"}
    assert offer(NAMED, [a_node("gpu-0", linked)]).nvlink == "nvidia.com/gpu.clique"
    assert offer(NAMED, [a_node("gpu-0", linked), a_node("gpu-1", H100)]).nvlink == ""


def test_room_names_what_may_be_free_and_what_is_cordoned() -> None:
    question = question_of(spec_of(NAMED))
    nodes = [a_node("gpu-0", H100), a_node("gpu-1", H100), a_node("gpu-2", H100, unschedulable=True)]
    text = room_text(question, candidates(question, nodes), 8, {"gpu-0": 4, "gpu-1": 4})
    assert text == "needs 8 H100-SXM-80GB on one node; 2 nodes have at most 4 free, 1 of 8 is cordoned"
    assert room_text(question, [], 8, {}) == ""
    many = [a_node(f"gpu-{number}", H100) for number in range(6)]
    used = {f"gpu-{number}": number for number in range(6)}
    assert room_text(question, candidates(question, many), 8, used).endswith("the other 3 nodes have less")


def claimed(claim: dict[str, Any], *slices: dict[str, Any], type: str | None = None) -> Offer:  # noqa: A002 - the field
    accelerator = {"resourceClaim": claim, **({"type": type} if type else {})}
    question = question_of(spec_of(accelerator))
    return offer_of(question, claimable(question, [read_slice(each) for each in slices], {}))


FULL = {"product": "NVIDIA H100 80GB HBM3", "type": "gpu", "memory": "81559Mi"}
SLICE = {"product": "NVIDIA H100 80GB HBM3", "type": "mig", "profile": "3g.40gb", "memory": "40320Mi"}
CLASS = {"deviceClassName": "gpu.nvidia.com"}


def test_devices_of_a_driver_are_what_a_claim_gets() -> None:
    assert claimed(CLASS, a_slice("s", FULL, SLICE)).gpu == "H100-SXM-80GB"
    assert claimed({"deviceClassName": "mig.nvidia.com"}, a_slice("s", FULL, SLICE)).gpu == "H100-80GB-MIG-3g.40gb"
    lesser = claimed(CLASS, a_slice("s", FULL, {**FULL, "memory": "76000Mi"}), type="H100-SXM-80GB")
    assert (lesser.memory_mib, lesser.reason) == (76000, Reason.LESS_MEMORY)
    a100 = {**FULL, "product": "NVIDIA A100-SXM4-80GB", "memory": "80Gi"}
    only = {**CLASS, "selectors": ["device.attributes['gpu.nvidia.com'].productName == 'NVIDIA A100-SXM4-80GB'"]}
    assert claimed(only, a_slice("s", FULL, a100)).gpu == "A100-SXM-80GB"
    amd = {"product": "AMD_Instinct_MI300X_OAM", "type": "amdgpu", "memory": "196592Mi"}
    assert claimed({"deviceClassName": "gpu.amd.com"}, a_slice("s", amd, driver="gpu.amd.com")).gpu == "MI300X-192GB"


@pytest.mark.parametrize(
    ("device", "differs", "has"),
    [
        ({**FULL, "memory": "40Gi"}, True, "40,960 MiB, and H100-SXM-80GB has 81,559 MiB"),
        ({**FULL, "memory": "0"}, False, ""),
        ({"product": "NVIDIA H100 80GB HBM3", "type": "gpu"}, False, ""),
        ({**FULL, "memory": "-5"}, True, "no size of a memory"),
        ({**FULL, "memory": "99Ei"}, True, "no size of a memory"),
        ({**FULL, "product": "Tesla T4"}, True, "they have T4-16GB"),
    ],
)
def test_slices_that_lie_or_say_nothing_refuse_nothing(device: dict[str, str], *, differs: bool, has: str) -> None:
    found = claimed(CLASS, a_slice("s", device), type="H100-SXM-80GB")
    assert found.differs is differs
    assert has in found.message


def test_what_is_not_understood_or_out_of_date_is_not_guessed() -> None:
    odd = {**CLASS, "selectors": ["device.capacity['gpu.nvidia.com'].memory.compareTo(quantity('40Gi')) >= 0"]}
    assert claimed(odd, a_slice("s", FULL)).gpu == ""
    assert claimed(odd, a_slice("s", FULL), type="H100-SXM-80GB").differs is False
    assert claimed({"deviceClassName": "team-gpus"}, a_slice("s", FULL)).gpu == ""
    old, new = a_slice("old", {**FULL, "memory": "40Gi"}), a_slice("new", FULL, generation=2)
    assert claimed(CLASS, old, new).memory_mib is None
