"""Pods of engines that share a GPU: the resource that they claim, the nodes that they select, and their share."""

from typing import Any

import pytest

from kvgate.controller.decision import assess_owner
from kvgate.rendering.workload import NotRendered, Rendered, render
from support.manifests import an_owner

TWO = {"type": "H100-SXM-80GB", "sharedBy": 2}
SMALL = {"maxModelLen": 8192, "maxNumSeqs": 4}


def rendered(accelerator: dict[str, Any], vllm: dict[str, Any], **spec: Any) -> Rendered | NotRendered:
    owner = an_owner(accelerator=accelerator, vllm={**SMALL, **vllm}, **spec)
    judged = assess_owner(owner, "")
    return render(owner, judged.assessment, judged.accelerator)


def pod(accelerator: dict[str, Any], vllm: dict[str, Any], **spec: Any) -> dict[str, Any]:
    found = rendered(accelerator, vllm, **spec)
    assert isinstance(found, Rendered)
    template: dict[str, Any] = found.deployment["spec"]["template"]["spec"]
    return template


def limits(pod: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = pod["containers"][0]["resources"]["limits"]
    return found


def products(pod: dict[str, Any]) -> list[str]:
    (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    found: list[str] = term["matchExpressions"][0]["values"]
    return found


@pytest.mark.parametrize(
    ("accelerator", "vllm", "claimed", "suffix"),
    [
        ({"type": "H100-SXM-80GB"}, {}, {"nvidia.com/gpu": "1"}, ""),
        (TWO, {"gpuMemoryUtilization": "0.45"}, {"nvidia.com/gpu": "1"}, "-SHARED"),
        ({**TWO, "claim": "GpuShared"}, {"gpuMemoryUtilization": "0.45"}, {"nvidia.com/gpu.shared": "1"}, ""),
        ({**TWO, "claim": "GpuMemory"}, {}, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "40545"}, ""),
    ],
)
def test_a_pod_claims_its_part_of_a_gpu(
    accelerator: dict[str, Any], vllm: dict[str, Any], claimed: dict[str, str], suffix: str
) -> None:
    template = pod(accelerator, vllm)
    assert limits(template) == claimed
    assert all(product.endswith("-SHARED") == bool(suffix) for product in products(template))
    assert template["tolerations"][0]["key"] == "nvidia.com/gpu"


def test_a_slice_that_the_plugin_hands_out_as_a_gpu_is_shared_like_one() -> None:
    slice_ = {"type": "H100-80GB-MIG-3g.40gb", "sharedBy": 2, "claim": "GpuShared"}
    template = pod(
        slice_,
        {"gpuMemoryUtilization": "0.45", "maxModelLen": 2048, "maxNumSeqs": 1},
        model={"name": "Qwen/Qwen3-0.6B"},
    )
    assert limits(template) == {"nvidia.com/gpu.shared": "1"}


def test_the_share_is_lowered_where_the_user_allows_it_and_the_pod_gets_it() -> None:
    adjust = {"policy": "Adjust", "adjust": {"knobs": ["GpuMemoryUtilization"]}}
    arguments = pod(TWO, {}, admission=adjust)["containers"][0]["args"]
    assert "--gpu-memory-utilization=0.48" in arguments
    stays = pod(TWO, {"gpuMemoryUtilization": "0.3"}, admission=adjust)["containers"][0]["args"]
    assert "--gpu-memory-utilization=0.3" in stays


@pytest.mark.parametrize("knobs", [["MaxNumSeqs"], ["MaxNumSeqs", "MaxModelLen", "KvCacheDtype"]])
def test_no_other_knob_makes_room_for_the_neighbours(knobs: list[str]) -> None:
    found = rendered(TWO, {}, admission={"policy": "Adjust", "adjust": {"knobs": knobs}})
    assert isinstance(found, NotRendered)
    assert "sharedBy" in found.message


def test_the_other_knobs_are_turned_within_the_lowered_share() -> None:
    adjust = {"policy": "Adjust", "adjust": {"knobs": ["GpuMemoryUtilization", "MaxNumSeqs"]}}
    arguments = pod(TWO, {"maxModelLen": 40960, "maxNumSeqs": 64}, admission=adjust)["containers"][0]["args"]
    assert "--gpu-memory-utilization=0.48" in arguments
    (sequences,) = (each for each in arguments if each.startswith("--max-num-seqs="))
    assert 1 <= int(sequences.partition("=")[2]) < 8
