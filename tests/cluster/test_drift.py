"""Others who change the Deployment of an InferenceDeployment: who it was is told at once, and what kvgate makes of it."""

import json
from typing import Any

import pytest

from controlplane.plane import ControlPlane
from controlplane.programs import wait_until
from support.inference import Objects, inference_deployment

pytestmark = pytest.mark.cluster


NAMES = ("autoscaled", "keda", "emptied", "scaled", "edited", "labelled")


def autoscaler(name: str) -> dict[str, Any]:
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
    return {
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "metadata": {"name": name, "namespace": "default"},
        "spec": {"scaleTargetRef": target, "minReplicas": 2, "maxReplicas": 3},
    }  # fmt: skip


def test_each_is_named_by_program_and_time_and_taken_back(plane: ControlPlane, objects: Objects) -> None:
    plane.apply(*(inference_deployment(name) for name in NAMES))
    for name in NAMES:
        objects.wait_for(name, "Ready", "True")
    pods = {name: objects.get("deployment", name)["spec"]["template"] for name in ("scaled", "edited")}
    plane.apply(autoscaler("autoscaled"))
    plane.kubectl("scale", "deployment", "scaled", "--replicas=3")
    plane.kubectl("scale", "deployment", "emptied", "--replicas=0")
    scale = json.dumps({"spec": {"replicas": 2}})
    plane.kubectl(
        "patch", "deployment", "keda", "--subresource=scale", "--type=merge", "-p", scale, "--field-manager=keda"
    )
    words = {"spec": {"template": {"spec": {"containers": [{"name": "vllm", "args": ["--max-model-len=9"]}]}}}}
    plane.kubectl("patch", "deployment", "edited", "-p", json.dumps(words), "--field-manager=kubectl-edit")
    plane.kubectl(
        "patch",
        "deployment",
        "labelled",
        "-p",
        json.dumps({"spec": {"revisionHistoryLimit": 9}}),
        "--field-manager=argo",
    )
    told = {
        "autoscaled": ("ScaledByAutoscaler", "spec.replicas changed by kube-controller-manager (scale)"),
        "keda": ("ScaledByKeda", "spec.replicas changed by keda (scale)"),
        "emptied": (
            "ScaledByHand",
            "spec.replicas changed, and the API server does not note who scales to 0: KEDA does",
        ),
        "scaled": ("ScaledByHand", "spec.replicas changed by kubectl (scale)"),
        "edited": ("TemplateChanged", "spec.template.spec.containers[vllm].args changed by kubectl-edit at 20"),
        "labelled": ("ChildChanged", "spec.revisionHistoryLimit changed by argo at 20"),
    }
    for name, (reason, words_of_it) in told.items():
        message = objects.wait_for(name, "Drifted", "True", reason)
        assert f"Deployment {name}: {words_of_it}" in message
        assert "; kvgate takes that back: " in message
        objects.wait_for_event(name, ("Warning", reason))
    for name, template in pods.items():
        wait_until(
            lambda name=name: objects.get("deployment", name)["spec"]["replicas"] == 1, f"{name} has its replicas"
        )  # type: ignore[misc]
        assert objects.get("deployment", name)["spec"]["template"] == template
    plane.kubectl("delete", "hpa", "autoscaled")
    assert "kubectl" not in objects.condition("autoscaled", "Drifted")[2]
    settled = objects.settle()
    objects.resync(2)
    assert len(objects.writes()) == settled, "it is shown for an hour, and written once"
