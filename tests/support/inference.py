"""InferenceDeployments on a real control plane: build, apply, read, wait, and count what the controller wrote."""

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from controlplane.audit import AuditEvent
from controlplane.plane import ControlPlane
from controlplane.programs import wait_until
from fleet.fake_gpus import fake_gpu_node

CRDS = sorted((Path(__file__).resolve().parents[2] / "crds").glob("*.yaml"))
CRD = CRDS[0].with_name("kvgate.io_inferencedeployments.yaml")
H100 = "NVIDIA-H100-80GB-HBM3"
KINDS = {
    "infd": "/apis/kvgate.io/v1alpha1 inferencedeployments",
    "admissionrecord": "/apis/kvgate.io/v1alpha1 admissionrecords",
    "deployment": "/apis/apps/v1 deployments",
    "lease": "/apis/coordination.k8s.io/v1 leases",
    **{kind: f"/api/v1 {kind}s" for kind in ("configmap", "event", "pod", "service")},
}
"""Group with version, and name in paths."""
USER_AGENT = "kvgate-controller"


def inference_deployment(
    name: str, *, namespace: str = "default", annotations: Mapping[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    """Qwen3-8B with four full-length requests on an H100: it fits; `vllm` and other parts of the spec override."""
    defaults = {"model": {"name": "Qwen/Qwen3-8B"}, "accelerator": {"type": "H100-SXM-80GB"}, "vllm": {"maxNumSeqs": 4}}
    return {
        "apiVersion": "kvgate.io/v1alpha1",
        "kind": "InferenceDeployment",
        "metadata": {"name": name, "namespace": namespace, "annotations": dict(annotations or {})},
        "spec": defaults | spec,
    }


def place(kind: str, namespace: str = "default") -> str:
    """Where the API server has the objects of a kind."""
    root, plural = KINDS[kind].split()
    return f"{root}/namespaces/{namespace}/{plural}"


def crds() -> list[dict[str, Any]]:
    """Those of this release."""
    return [yaml.load(path.read_text(encoding="utf-8"), Loader=yaml.CSafeLoader) for path in CRDS]


def install(plane: ControlPlane, *, gpus: int = 64) -> None:
    """The CRDs, served, and one node of GPUs."""
    plane.apply(
        *crds(),
        fake_gpu_node("gpu-0", product=H100, memory_mib=81559, gpus=gpus),
    )
    for kind in ("infd", "admissionrecord"):
        wait_until(lambda kind=kind: plane.find(place(kind)) is not None, f"{kind} are served")  # type: ignore[misc]


def crash(plane: ControlPlane, pod: Mapping[str, Any], terminated: Mapping[str, Any], *, restarts: int = 1) -> str:
    """As the kubelet tells that a container ended and waits to be started again; the pod's name."""
    container = pod["status"]["containerStatuses"][0] | {
        "ready": False, "restartCount": restarts, "state": {"waiting": {"reason": "CrashLoopBackOff"}},
        "lastState": {"terminated": terminated},
    }  # fmt: skip
    conditions = [{"type": kind, "status": "False"} for kind in ("Ready", "ContainersReady")]
    status = json.dumps({"status": {"conditions": conditions, "containerStatuses": [container]}})
    name = str(pod["metadata"]["name"])
    plane.kubectl("patch", "pod", name, "-n", pod["metadata"]["namespace"], "--subresource=status", "-p", status)
    return name


def without_times(status: Mapping[str, Any]) -> Any:
    """A status, to be compared with a later one that says the same."""
    return json.loads(re.sub(r'"lastTransitionTime": "[^"]*"', '"lastTransitionTime": ""', json.dumps(status)))


@dataclass(frozen=True, kw_only=True)
class Objects:
    """What a test asks of the cluster."""

    plane: ControlPlane

    def find(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any] | None:
        """By the name that kubectl has for the kind."""
        return self.plane.find(f"{place(kind, namespace)}/{name}")

    def get(self, kind: str, name: str, namespace: str = "default") -> dict[str, Any]:
        found = self.find(kind, name, namespace)
        assert found is not None, f"{kind}/{name} does not exist"
        return found

    def record(self, name: str, namespace: str = "default") -> dict[str, Any]:
        """What the AdmissionRecord says that the status names; while another takes its place, one of both."""
        listed = self._labelled("admissionrecord", name, namespace)
        records = {each["metadata"]["name"]: each["spec"] for each in listed}
        named = self.get("infd", name, namespace).get("status", {}).get("admission", {}).get("record")
        found: dict[str, Any] = records.get(named) or next(iter(records.values()))
        return found

    def condition(self, name: str, kind: str, namespace: str = "default") -> tuple[str, str, str]:
        """(status, reason, message); dashes where it is not there yet."""
        document = self.find("infd", name, namespace) or {}
        for condition in document.get("status", {}).get("conditions", ()):
            if condition["type"] == kind:
                return condition["status"], condition["reason"], condition["message"]
        return "-", "-", "-"

    def wait_for(
        self, name: str, kind: str, status: str, reason: str | None = None, *, namespace: str = "default"
    ) -> str:
        """The condition's message, of the present generation, once it is so."""

        def holds() -> bool:
            document = self.find("infd", name, namespace) or {}
            generation = document.get("metadata", {}).get("generation")
            return any(
                c["type"] == kind and c["status"] == status and c["observedGeneration"] == generation
                and reason in (None, c["reason"])
                for c in document.get("status", {}).get("conditions", ())
            )  # fmt: skip

        wait_until(holds, f"{name} has {kind}={status} {reason or ''}")
        return self.condition(name, kind, namespace)[2]

    def pods(self, name: str, namespace: str = "default") -> list[dict[str, Any]]:
        """With the label of an InferenceDeployment."""
        return self._labelled("pod", name, namespace)

    def _labelled(self, kind: str, name: str, namespace: str) -> list[dict[str, Any]]:
        selector = f"?labelSelector=kvgate.io/inferencedeployment={name}"
        items: list[dict[str, Any]] = self.plane.request("GET", place(kind, namespace) + selector)["items"]
        return items

    def patch(self, name: str, change: Mapping[str, Any]) -> None:
        self.plane.kubectl("patch", "infd", name, "--type=merge", "-p", json.dumps(change))

    def events(self, name: str) -> list[tuple[str, str]]:
        """(type, reason) of the events about an InferenceDeployment; others' events may name no object at all."""
        about = f"?fieldSelector=involvedObject.kind=InferenceDeployment,involvedObject.name={name}"
        found = self.plane.request("GET", place("event") + about)["items"]
        return [(item["type"], item["reason"]) for item in found if "kvgate" in str(item)]

    def wait_for_event(self, name: str, event: tuple[str, str]) -> None:
        """Wait until there is such an event: kvgate writes events after the status that they are about."""
        wait_until(lambda: event in self.events(name), f"event {event} of {name}")

    def writes(self, name: str | None = None) -> list[AuditEvent]:
        """What the controller's process wrote; its Lease aside."""
        return [
            event
            for event in self.plane.audit()
            if event.is_write
            and event.resource != "leases"
            and event.user_agent.startswith(USER_AGENT)
            and name in (None, event.name)
        ]

    def resync(self, times: int) -> None:
        """Wait until the controller has looked at every object again so many times: the next time has begun."""

        def lists() -> int:
            asked = (event for event in self.plane.audit() if event.user_agent.startswith("kvgate-controller"))
            return sum((event.verb, event.resource) == ("list", "inferencedeployments") for event in asked)

        wanted = lists() + times + 1
        wait_until(lambda: lists() >= wanted, f"{times} resyncs more")

    def settle(self, quiet_seconds: float = 2.0) -> int:
        """Wait until the controller has written nothing for so long; how many writes that makes."""
        count, since = len(self.writes()), time.monotonic()

        def quiet() -> bool:
            nonlocal count, since
            now = len(self.writes())
            if now != count:
                count, since = now, time.monotonic()
            return time.monotonic() - since > quiet_seconds

        wait_until(quiet, "the controller has nothing left to write")
        return count
