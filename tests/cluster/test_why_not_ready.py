"""Why an engine does not become ready: real scheduler, quota and Pod Security; the kubelet's words are written into the pod's status."""

import json
import time
from collections.abc import Mapping
from typing import Any

import pytest

from controlplane.plane import ControlPlane
from support.doors import running
from support.inference import Objects, inference_deployment
from support.shared_plane import SharedPlane

pytestmark = pytest.mark.cluster

OPTIONS = ("--metrics-host=127.0.0.1", "--observe-seconds=60")
"""A round of observation takes longer than the test waits: the watch alone tells it."""


@pytest.fixture
def plane(shared_plane: SharedPlane) -> ControlPlane:
    return shared_plane.as_at_the_start()


def tell(plane: ControlPlane, pod: Mapping[str, Any], status: Mapping[str, Any]) -> None:
    """Write what the kubelet would."""
    patch = json.dumps({"status": {"conditions": [{"type": "Ready", "status": "False"}], **status}})
    plane.kubectl("patch", "pod", pod["metadata"]["name"], "-n", "default", "--subresource=status", "-p", patch)


def in_container(pod: Mapping[str, Any], **state: Any) -> dict[str, Any]:
    """The engine's container in this state, not ready."""
    found = {name: value for name, value in pod["status"]["containerStatuses"][0].items() if name != "lastState"}
    return {"containerStatuses": [found | {"ready": False, "started": False} | state]}


def test_the_scheduler_and_the_api_server_say_why_and_so_does_the_object(plane: ControlPlane) -> None:
    objects = Objects(plane=plane)
    quota = {
        "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus", "namespace": "tight"},
        "spec": {"hard": {"requests.nvidia.com/gpu": "0"}},
    }  # fmt: skip
    plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tight"}}, quota)
    strict = {"pod-security.kubernetes.io/enforce": "restricted"}
    plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "strict", "labels": strict}})
    scenes: dict[str, tuple[dict[str, Any], str, str]] = {
        "elsewhere": ({"template": {"nodeSelector": {"zone": "nowhere"}}}, "default", "NoMatchingNode"),
        "many": ({"replicas": 100}, "default", "NotEnoughGpus"),
        "memory": ({"template": {"resources": {"requests": {"memory": "9Ti"}}}}, "default", "NotEnoughResources"),
        "quota": ({}, "tight", "QuotaExceeded"),
        "class": ({"template": {"priorityClassName": "nobody-made-it"}}, "default", "PriorityClassMissing"),
        "zero": ({"replicas": 0}, "default", "ScaledToZero"),
    }  # fmt: skip
    with running("controller", *OPTIONS, kubeconfig=plane.kubeconfig):
        for name, (spec, namespace, _) in scenes.items():
            plane.apply(inference_deployment(name, namespace=namespace, **spec))
        for name, (_, namespace, reason) in scenes.items():
            status = "True" if reason == "ScaledToZero" else "False"
            message = objects.wait_for(name, "Ready", status, reason, namespace=namespace)
            assert message
        assert "didn't match Pod's node affinity/selector" in objects.condition("elsewhere", "Ready")[2]
        assert objects.condition("many", "Stalled")[0] == "False", "a GPU may become free"
        assert objects.condition("elsewhere", "Stalled")[0] == "True"
        columns = plane.kubectl("get", "infd", "elsewhere").stdout
        assert "NoMatchingNode" in columns


def test_what_the_kubelet_says_of_a_pod_is_the_objects_reason_within_seconds(plane: ControlPlane) -> None:
    objects = Objects(plane=plane)
    with running("controller", *OPTIONS, kubeconfig=plane.kubeconfig):
        plane.apply(inference_deployment("chat"))
        objects.wait_for("chat", "Ready", "True")
        (pod,) = objects.pods("chat")
        image = {"reason": "ErrImagePull", "message": "docker.io/vllm/vllm-openai:v0.33.0: not found"}
        secret = {"reason": "CreateContainerConfigError", "message": 'secret "hf-token" not found'}
        killed = {"terminated": {"reason": "OOMKilled", "exitCode": 137}}
        since = {"running": {"startedAt": "2026-11-01T00:00:00Z"}}
        scenes: tuple[tuple[dict[str, Any], str], ...] = (
            (in_container(pod, state={"waiting": image}), "ImageNotFound"),
            (in_container(pod, state={"waiting": secret}), "SecretMissing"),
            (in_container(pod, state=since), "Loading"),
            (in_container(pod, state=since, started=True), "NotAnswering"),
            (in_container(pod, state=since, lastState=killed), "HostMemoryExceeded"),
        )
        for status, reason in scenes:
            tell(plane, pod, status)
            began = time.monotonic()
            message = objects.wait_for("chat", "Ready", "False", reason)
            assert time.monotonic() - began < 30
            assert f"pod {pod['metadata']['name']}: " in message
        assert "; kvgate expects a need of " in message, "the ledger of the host stands beside the limit"
