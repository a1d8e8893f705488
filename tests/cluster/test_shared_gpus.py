"""InferenceDeployments that share GPUs, on a real control plane: schema, refusal, equal parts, claims that a scheduler places."""

from typing import Any

import pytest

from controlplane.plane import ControlPlane
from controlplane.programs import ControlPlaneError
from fleet.fake_gpus import fake_gpu_node
from support.inference import H100, Objects, inference_deployment

pytestmark = pytest.mark.cluster

SMALL = {"maxModelLen": 8192, "maxNumSeqs": 4}
TWO = {"type": "H100-SXM-80GB", "sharedBy": 2}
ADJUST = {"policy": "Adjust", "adjust": {"knobs": ["GpuMemoryUtilization"]}}


def limits(pod: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = pod["spec"]["containers"][0]["resources"]["limits"]
    return found


@pytest.mark.parametrize(
    ("accelerator", "field"),
    [
        ({**TWO, "sharedBy": 0}, "sharedBy"),
        ({**TWO, "sharedBy": 65}, "sharedBy"),
        ({**TWO, "sharedBy": "2"}, "sharedBy"),
        ({**TWO, "claim": "Half"}, "claim"),
        ({"type": "H100-SXM-80GB", "claim": "GpuShared"}, "need sharedBy of at least 2"),
        ({**TWO, "sharedBy": 1, "claim": "GpuMemory"}, "need sharedBy of at least 2"),
    ],
)
def test_the_api_server_refuses_what_cannot_be_shared(
    plane: ControlPlane, accelerator: dict[str, Any], field: str
) -> None:
    with pytest.raises(ControlPlaneError, match=field):
        plane.apply(inference_deployment("invalid", accelerator=accelerator, vllm=SMALL))


def test_default_shares_of_a_shared_gpu_are_refused_with_the_equal_part(plane: ControlPlane, objects: Objects) -> None:
    plane.apply(inference_deployment("overbooked", accelerator=TWO, vllm=SMALL))
    message = objects.wait_for("overbooked", "Accepted", "False", "BudgetExceeded")
    assert "sharedBy is 2" in message
    assert "gpuMemoryUtilization 0.48" in message
    assert objects.find("deployment", "overbooked") is None
    objects.patch("overbooked", {"spec": {"vllm": {"gpuMemoryUtilization": "0.48"}}})
    objects.wait_for("overbooked", "Accepted", "True", "Fits")


def test_the_equal_part_is_rendered_where_the_user_allows_it_and_two_pods_run_on_one_gpu(
    plane: ControlPlane, objects: Objects
) -> None:
    plane.apply(fake_gpu_node("gpu-shared", product=f"{H100}-SHARED", memory_mib=81559, gpus=8))
    plane.apply(inference_deployment("adjusted", accelerator=TWO, vllm=SMALL, admission=ADJUST, replicas=2))
    assert objects.wait_for("adjusted", "Adjusted", "True") == "gpuMemoryUtilization 0.92 → 0.48"
    objects.wait_for("adjusted", "Ready", "True", "ReplicasReady")
    status = objects.get("infd", "adjusted")["status"]
    assert status["effective"]["gpuMemoryUtilization"] == "0.48"
    pods = objects.pods("adjusted")
    assert [pod["spec"]["nodeName"] for pod in pods] == ["gpu-shared", "gpu-shared"]
    assert [limits(pod) for pod in pods] == [{"nvidia.com/gpu": "1"}] * 2
    assert all("--gpu-memory-utilization=0.48" in pod["spec"]["containers"][0]["args"] for pod in pods)
    assert "gpuMemoryUtilization" not in objects.get("infd", "adjusted")["spec"]["vllm"]


@pytest.mark.parametrize(
    ("claim", "share", "expected"),
    [
        ("GpuShared", "0.45", {"nvidia.com/gpu.shared": "1"}),
        ("GpuMemory", None, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "40545"}),
    ],
)
def test_a_claim_is_what_the_scheduler_of_that_cluster_wants(
    plane: ControlPlane, objects: Objects, claim: str, share: str | None, expected: dict[str, str]
) -> None:
    name = claim.lower()
    vllm = SMALL if share is None else {**SMALL, "gpuMemoryUtilization": share}
    plane.apply(inference_deployment(name, accelerator={**TWO, "claim": claim}, vllm=vllm))
    objects.wait_for(name, "Accepted", "True", "Fits")
    deployment = objects.get("deployment", name)
    template = deployment["spec"]["template"]
    assert limits(template) == expected
    # another generation is refused, and the pods of the admitted one stay as they are
    objects.patch(name, {"spec": {"vllm": {"maxModelLen": 40960, "maxNumSeqs": 64}}})
    objects.wait_for(name, "Accepted", "False")
    assert objects.get("deployment", name)["spec"]["template"] == template
