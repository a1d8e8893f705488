"""Pods on MIG slices of the mixed strategy, and pods that claim devices."""

from typing import Any

import pytest

from kvgate.controller.decision import assess_owner
from kvgate.rendering.workload import NotRendered, Rendered, render
from support.manifests import an_owner

SMALL = {"maxModelLen": 8192, "maxNumSeqs": 2}
PRODUCT = "device.attributes['gpu.nvidia.com'].productName == 'NVIDIA H100 80GB HBM3'"
PROFILE = "device.attributes['gpu.nvidia.com'].profile == '3g.40gb'"


def rendered(accelerator: dict[str, Any], **vllm: Any) -> tuple[Rendered, str]:
    """The rendering, and the name of the GPU that was judged."""
    owner = an_owner(accelerator=accelerator, vllm={**SMALL, **vllm})
    judged = assess_owner(owner, "")
    found = render(owner, judged.assessment, judged.accelerator)
    assert isinstance(found, Rendered)
    assert judged.accelerator is not None
    return found, judged.accelerator.name


def pod(found: Rendered) -> dict[str, Any]:
    template: dict[str, Any] = found.deployment["spec"]["template"]["spec"]
    return template


@pytest.mark.parametrize("type_", ["H100-SXM-80GB", "H100-80GB-MIG-3g.40gb"])
def test_a_resource_of_the_mixed_strategy_is_a_slice(type_: str) -> None:
    found, judged = rendered({"type": type_, "resourceName": "nvidia.com/mig-3g.40gb"})
    assert judged == "H100-80GB-MIG-3g.40gb"
    template = pod(found)
    assert template["containers"][0]["resources"]["limits"] == {"nvidia.com/mig-3g.40gb": "1"}
    (term,) = template["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert "NVIDIA-H100-80GB-HBM3" in term["matchExpressions"][0]["values"], "nodes have the label of the board"
    assert [each["key"] for each in template["tolerations"]] == ["nvidia.com/mig-3g.40gb", "nvidia.com/gpu"]


@pytest.mark.parametrize(
    ("accelerator", "judged", "expressions"),
    [
        ({"type": "H100-SXM-80GB", "resourceClaim": {"deviceClassName": "gpu.nvidia.com"}}, "H100-SXM-80GB", [PRODUCT]),
        (
            {"type": "H100-SXM-80GB", "resourceClaim": {"deviceClassName": "mig.nvidia.com", "selectors": [PROFILE]}},
            "H100-80GB-MIG-3g.40gb", [PROFILE],
        ),
        (
            {"type": "H100-80GB-MIG-3g.40gb", "resourceClaim": {"deviceClassName": "mig.nvidia.com"}},
            "H100-80GB-MIG-3g.40gb", [PROFILE],
        ),
        ({"type": "MI300X", "resourceClaim": {"deviceClassName": "gpu.amd.com"}}, "MI300X-192GB", []),
    ],
)  # fmt: skip
def test_a_claim_asks_for_the_gpu_that_was_judged(
    accelerator: dict[str, Any], judged: str, expressions: list[str]
) -> None:
    found, name = rendered(accelerator, tensorParallelSize=1)
    assert name == judged
    assert found.claim is not None
    (request,) = found.claim["spec"]["spec"]["devices"]["requests"]
    assert [each["cel"]["expression"] for each in request["exactly"].get("selectors", ())] == expressions
    template = pod(found)
    assert template["resourceClaims"][0]["resourceClaimTemplateName"] == found.claim["metadata"]["name"]
    assert template["containers"][0]["resources"]["claims"] == [{"name": "gpus"}]
    assert "limits" not in template["containers"][0]["resources"]


def test_another_number_of_devices_is_another_template_of_the_claim() -> None:
    accelerator = {"type": "H100-SXM-80GB", "resourceClaim": {"deviceClassName": "gpu.nvidia.com"}}
    one, two = (rendered(accelerator, tensorParallelSize=size)[0].claim for size in (1, 2))
    assert one is not None
    assert two is not None
    assert one["metadata"]["name"] != two["metadata"]["name"]


@pytest.mark.parametrize(
    "accelerator",
    [
        {"type": "MI300X", "resourceName": "amd.com/cpx_nps4"},
        {"type": "H100-SXM-80GB", "resourceName": "nvidia.com/mig-9g.90gb"},
        {"type": "H100-SXM-80GB", "resourceClaim": {"deviceClassName": "mig.nvidia.com"}},
        {"resourceName": "nvidia.com/gpu"},
    ],
)
def test_a_part_whose_memory_nobody_knows_is_not_judged_as_a_whole_gpu(accelerator: dict[str, Any]) -> None:
    owner = an_owner(accelerator=accelerator, vllm=SMALL)
    judged = assess_owner(owner, "")
    assert isinstance(render(owner, judged.assessment, judged.accelerator), NotRendered)
