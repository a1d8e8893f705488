"""A hundred nodes of five products, MIG mixed and a driver's devices on a real control plane: what the controller makes of them."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest

from controlplane.plane import ControlPlane
from controlplane.programs import ControlPlaneError, wait_until
from fleet.fake_gpus import fake_gpu_node
from support.doors import Door, running
from support.inference import H100, Objects, inference_deployment
from support.nodes import a_slice
from support.shared_plane import SharedPlane

pytestmark = pytest.mark.cluster

OPTIONS = ("--metrics-host=127.0.0.1", "--observe-seconds=60", "--resync-seconds=20", "--watch-nodes")
SMALL = {"maxModelLen": 8192, "maxNumSeqs": 2}
POOLS = (
    ("h100", 40, H100, 81559, {}),
    ("a100", 20, "NVIDIA-A100-SXM4-80GB", 81920, {}),
    ("l4", 19, "NVIDIA-L4", 23034, {}),
    ("t4", 10, "Tesla-T4-SHARED", 15360, {"nvidia.com/gpu.replicas": "4"}),
    ("mixed", 5, H100, 81559, {"nvidia.com/mig.strategy": "mixed", "nvidia.com/mig-3g.40gb.memory": "40320"}),
    ("claims", 5, H100, 81559, {}),
    ("half", 1, H100, 40960, {}),
)
"""Name, nodes, product and memory of the pools."""
PRODUCT = "NVIDIA H100 80GB HBM3"
NAMED = {"type": "H100-SXM-80GB"}


def pool_nodes() -> Iterator[dict[str, Any]]:
    for pool, number, product, memory_mib, labels in POOLS:
        for index in range(number):
            node = fake_gpu_node(f"{pool}-{index}", product=product, memory_mib=memory_mib)
            node["metadata"]["labels"] |= {**labels, "pool": pool}
            resources = node["status"]["allocatable"]
            if pool == "t4":
                resources["nvidia.com/gpu"] = "32"
            if pool == "mixed":
                resources |= {"nvidia.com/gpu": "0", "nvidia.com/mig-3g.40gb": "16"}
            if pool == "claims":
                del resources["nvidia.com/gpu"]
            yield node


def in_pool(name: str, pool: str, accelerator: dict[str, Any], **spec: Any) -> dict[str, Any]:
    template = {"nodeSelector": {"pool": pool}}
    return inference_deployment(name, accelerator=accelerator, template=template, **({"vllm": SMALL} | spec))


@pytest.fixture(scope="module")
def plane(shared_plane: SharedPlane) -> ControlPlane:
    plane = shared_plane.as_at_the_start()
    plane.apply(*pool_nodes())
    selector = "device.driver == 'gpu.nvidia.com' && device.attributes['gpu.nvidia.com'].type == 'gpu'"
    device_class = {
        "apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu.nvidia.com"},
        "spec": {"selectors": [{"cel": {"expression": selector}}]},
    }  # fmt: skip
    full = {"product": PRODUCT, "type": "gpu", "memory": "81559Mi"}
    slices = [a_slice(f"claims-{index}", *[full] * 8, node=f"claims-{index}") for index in range(5)]
    plane.apply(device_class, *slices)
    return plane


@pytest.fixture(scope="module")
def door(plane: ControlPlane) -> Iterator[Door]:
    with running("controller", *OPTIONS, kubeconfig=plane.kubeconfig) as door:
        yield door


def test_nodes_as_promised_say_nothing_and_half_of_the_memory_is_told_with_both_figures(
    plane: ControlPlane, objects: Objects
) -> None:
    plane.apply(in_pool("whole", "h100", NAMED), in_pool("halved", "half", NAMED), in_pool("nowhere", "l4", NAMED))
    objects.wait_for("whole", "Ready", "True")
    assert objects.condition("whole", "NodesDiffer")[0] == "-"
    message = objects.wait_for("halved", "NodesDiffer", "True", "NodesContradict")
    assert "node half-0: nvidia.com/gpu.memory is 40,960 MiB, and H100-SXM-80GB has 81,559 MiB" in message
    assert "40,960 MiB" in objects.wait_for("halved", "Accepted", "True")
    assert objects.get("infd", "halved")["status"]["budget"]["ledger"]["totalBytes"] < 41 << 30
    assert "L4-24GB" in objects.wait_for("nowhere", "NodesDiffer", "True", "NoNodeWithGpu")
    objects.wait_for_event("nowhere", ("Warning", "NoNodeWithGpu"))
    first = {condition["type"] for condition in objects.get("infd", "nowhere")["status"]["conditions"]}
    assert {"Accepted", "NodesDiffer"} <= first


def test_a_node_that_gets_better_labels_is_seen_within_seconds(plane: ControlPlane, objects: Objects) -> None:
    label = json.dumps({"metadata": {"labels": {"nvidia.com/gpu.memory": "81559"}}})
    plane.kubectl("patch", "node", "half-0", "-p", label)
    began = time.monotonic()
    objects.wait_for("halved", "NodesDiffer", "False", "NodesAgree")
    assert time.monotonic() - began < 30


def test_a_slice_of_the_mixed_strategy_runs_where_the_nodes_have_it(plane: ControlPlane, objects: Objects) -> None:
    plane.apply(in_pool("sliced", "mixed", {**NAMED, "resourceName": "nvidia.com/mig-3g.40gb"}))
    objects.wait_for("sliced", "Ready", "True")
    (pod,) = objects.pods("sliced")
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/mig-3g.40gb": "1"}
    assert pod["spec"]["nodeName"].startswith("mixed-")
    assert objects.get("infd", "sliced")["status"]["budget"]["ledger"]["totalBytes"] < 41 << 30
    plane.apply(inference_deployment("any-slice", accelerator={"resourceName": "nvidia.com/mig-3g.40gb"}, vllm=SMALL))
    message = objects.wait_for("any-slice", "NodesDiffer", "False", "NodesDecide")
    assert "H100-80GB-MIG-3g.40gb" in message
    objects.wait_for("any-slice", "Ready", "True")


def test_the_nodes_decide_the_gpu_and_an_admitted_one_stays(plane: ControlPlane, objects: Objects) -> None:
    plane.apply(in_pool("decided", "a100", {}))
    assert "A100-SXM-80GB" in objects.wait_for("decided", "NodesDiffer", "False", "NodesDecide")
    objects.wait_for("decided", "Ready", "True")
    assert objects.record("decided")["placement"]["accelerator"] == "A100-SXM-80GB"
    before = objects.get("deployment", "decided")["metadata"]["generation"]
    other = fake_gpu_node("a100-small", product="NVIDIA-L4", memory_mib=23034)
    other["metadata"]["labels"]["pool"] = "a100"
    plane.apply(other)
    time.sleep(1)  # objects and nodes have watches of their own
    plane.apply(in_pool("later", "a100", {}))
    assert "L4-24GB" in objects.wait_for("later", "NodesDiffer", "False", "NodesDecide")
    assert objects.get("deployment", "decided")["metadata"]["generation"] == before
    plane.delete("/api/v1/nodes/a100-small")


def test_the_api_server_wants_a_type_or_something_that_decides_it(plane: ControlPlane) -> None:
    with pytest.raises(ControlPlaneError, match=r"accelerator\.type is required"):
        plane.apply(inference_deployment("untyped", accelerator={}, vllm=SMALL))
    claim = {"resourceName": "nvidia.com/gpu", "resourceClaim": {"deviceClassName": "gpu.nvidia.com"}}
    with pytest.raises(ControlPlaneError, match="not both"):
        plane.apply(inference_deployment("both", accelerator={**NAMED, **claim}, vllm=SMALL))


def test_a_claim_is_allocated_from_the_drivers_devices(plane: ControlPlane, objects: Objects) -> None:
    claim = {"resourceClaim": {"deviceClassName": "gpu.nvidia.com"}}
    plane.apply(in_pool("claiming", "claims", claim, vllm={**SMALL, "tensorParallelSize": 2}))
    assert "H100-SXM-80GB" in objects.wait_for("claiming", "NodesDiffer", "False", "NodesDecide")
    objects.wait_for("claiming", "Ready", "True")
    (pod,) = objects.pods("claiming")
    assert pod["spec"]["nodeName"].startswith("claims-")
    claims = plane.request("GET", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims")["items"]
    (allocated,) = (each["status"]["allocation"]["devices"]["results"] for each in claims)
    assert len(allocated) == 2
    objects.settle()
    written = [event.resource for event in objects.writes() if event.name.startswith("claiming-")]
    assert written.count("resourceclaimtemplates") == 1
    templates = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaimtemplates"
    (template,) = plane.request("GET", templates)["items"]
    plane.delete(f"{templates}/{template['metadata']['name']}")
    wait_until(lambda: plane.request("GET", templates)["items"], "the template of the claim is made again")


def test_too_few_free_gpus_are_told_with_what_the_nodes_have(plane: ControlPlane, objects: Objects) -> None:
    plane.kubectl("cordon", "l4-0")
    eight = {**SMALL, "tensorParallelSize": 8}
    plane.apply(in_pool("many", "l4", {"type": "L4-24GB"}, vllm=eight, replicas=19))
    message = objects.wait_for("many", "Ready", "False", "NotEnoughGpus")

    def says() -> bool:
        return "18 nodes have at most 0 free, 1 of 8 is cordoned" in objects.condition("many", "Ready")[2]

    assert "needs 8 L4-24GB on one node" in message
    plane.kubectl("label", "infd", "many", "look=again")
    wait_until(says, "the message names the nodes")


def test_heartbeats_cause_no_reconcile_and_no_request(plane: ControlPlane, objects: Objects, door: Door) -> None:
    objects.settle()
    before, requests = door.count("kvgate_reconciles_total"), door.count("kvgate_api_requests_total")
    now = "2026-11-28T12:00:00Z"
    beat = {"status": {"conditions": [{"type": "Ready", "status": "True", "reason": "beat", "lastHeartbeatTime": now}]}}
    for index in range(40):
        plane.kubectl("patch", "node", f"h100-{index}", "--subresource=status", "-p", json.dumps(beat))
    time.sleep(2)
    assert door.count("kvgate_reconciles_total") == before
    assert door.count("kvgate_api_requests_total") - requests < 20, "the Lease alone"


def test_hostile_nodes_and_slices_stop_nothing(plane: ControlPlane, objects: Objects) -> None:
    lying = fake_gpu_node("lying-0", product="x" * 63, memory_mib=0)
    lying["metadata"]["labels"] |= {"nvidia.com/gpu.memory": "many", "nvidia.com/gpu.count": "nine", "pool": "lying"}
    bare = fake_gpu_node("bare-0", product="", memory_mib=0)
    bare["metadata"]["labels"] = {"pool": "lying"}
    odd = a_slice("odd", {"product": "?", "type": "gpu", "memory": "0"}, {"type": "gpu"}, node="lying-0")
    plane.apply(lying, bare, odd)
    plane.apply(in_pool("lied-to", "lying", NAMED))
    objects.wait_for("lied-to", "NodesDiffer", "True", "NoNodeWithGpu")
    assert objects.wait_for("lied-to", "Accepted", "True")
