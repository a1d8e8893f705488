"""Strategy, PodDisruptionBudget and suspension on a real control plane."""

from typing import Any

import pytest

from controlplane.plane import ControlPlane
from controlplane.programs import wait_until
from support.inference import Objects, inference_deployment

pytestmark = pytest.mark.cluster
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
WORKLOAD = {
    "vllm": {"maxModelLen": 40960, "maxNumSeqs": 64},
    "workload": {"peakConcurrency": 38, "promptTokens": 20000, "outputTokens": 500},
}
"""Two H100 hold it, one does not."""


def unavailable(plane: ControlPlane, name: str) -> Any:
    budget = plane.find(f"{BUDGETS}/{name}")
    return budget and budget["spec"]["maxUnavailable"]


def test_a_budget_follows_the_replicas_and_the_promise(plane: ControlPlane, objects: Objects) -> None:
    plane.apply(inference_deployment("served", replicas=3, **WORKLOAD))
    wait_until(lambda: unavailable(plane, "served") == 1, "one of three may be evicted")
    objects.patch("served", {"spec": {"replicas": 2}})
    wait_until(lambda: unavailable(plane, "served") == 0, "the workload needs both")
    plane.delete(f"{BUDGETS}/served")
    wait_until(lambda: unavailable(plane, "served") == 0, "a deleted one is made again")
    objects.patch("served", {"spec": {"podDisruptionBudget": {"maxUnavailable": "50%"}}})
    wait_until(lambda: unavailable(plane, "served") == "50%", "the author's own limit counts")
    objects.patch("served", {"spec": {"podDisruptionBudget": {"enabled": False}}})
    wait_until(lambda: plane.find(f"{BUDGETS}/served") is None, "none is wanted")
    objects.patch("served", {"spec": {"podDisruptionBudget": None, "replicas": 1}})
    objects.wait_for("served", "Ready", "True")
    assert plane.find(f"{BUDGETS}/served") is None


def test_a_budget_of_somebody_else_is_left_alone(plane: ControlPlane, objects: Objects) -> None:
    theirs = {
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "theirs", "namespace": "default"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"kvgate.io/inferencedeployment": "guarded"}}},
    }  # fmt: skip
    plane.apply(theirs, inference_deployment("guarded", replicas=2))
    objects.wait_for("guarded", "Ready", "True")
    objects.wait_for_event("guarded", ("Normal", "OtherDisruptionBudget"))
    assert plane.find(f"{BUDGETS}/guarded") is None

    def writes() -> int:
        return sum(each.subresource != "status" for each in objects.writes("guarded"))

    before = writes()
    plane.kubectl("annotate", "infd", "guarded", "look=again")
    plane.apply(inference_deployment("later", replicas=1))
    objects.wait_for("later", "Ready", "True")
    assert writes() == before, "and nothing is tried again and again"


def test_a_suspended_object_runs_no_pod_and_keeps_its_verdict(plane: ControlPlane, objects: Objects) -> None:
    plane.apply(inference_deployment("paused", replicas=2))
    objects.wait_for("paused", "Ready", "True", "ReplicasReady")
    record, template = objects.get("infd", "paused")["status"]["admission"], _template(objects, "paused")
    objects.patch("paused", {"spec": {"suspend": True}})
    objects.wait_for("paused", "Ready", "True", "Suspended")
    assert objects.pods("paused") == [] or all(
        "deletionTimestamp" in each["metadata"] for each in objects.pods("paused")
    )
    assert plane.find(f"{BUDGETS}/paused") is None
    objects.patch("paused", {"spec": {"suspend": None}})
    objects.wait_for("paused", "Ready", "True", "ReplicasReady")
    assert (objects.get("infd", "paused")["status"]["admission"], _template(objects, "paused")) == (record, template)


def _template(objects: Objects, name: str) -> Any:
    return objects.get("deployment", name)["spec"]["template"]


def test_a_strategy_changes_the_deployment_and_no_pod(plane: ControlPlane, objects: Objects) -> None:
    plane.apply(inference_deployment("paced", replicas=2))
    objects.wait_for("paced", "Ready", "True")
    template = _template(objects, "paced")

    def strategy() -> Any:
        return objects.get("deployment", "paced")["spec"]["strategy"]

    assert strategy() == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}
    objects.patch("paced", {"spec": {"strategy": {"type": "Recreate"}}})
    wait_until(lambda: strategy() == {"type": "Recreate"}, "all pods end first")
    objects.patch("paced", {"spec": {"strategy": {"type": None, "rollingUpdate": {"maxSurge": "50%"}}}})
    wait_until(
        lambda: strategy().get("rollingUpdate") == {"maxSurge": "50%", "maxUnavailable": 0}, "new pods come first"
    )
    assert _template(objects, "paced") == template
