"""InferenceDeployments as the API server has them, and Deployments in every stage of a rollout."""

from typing import Any

from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.api.validation import parse_document

UID = "uid-1"
NOW = "2026-11-21T12:00:00Z"


def a_document(
    name: str = "qwen", *, generation: int = 1, annotations: dict[str, str] | None = None, **spec: Any
) -> dict[str, Any]:
    """Qwen3-8B with four full-length requests on an H100: it fits."""
    metadata = {"name": name, "namespace": "serving", "uid": UID, "generation": generation}
    defaults = {"model": {"name": "Qwen/Qwen3-8B"}, "accelerator": {"type": "H100-SXM-80GB"}, "vllm": {"maxNumSeqs": 4}}
    return {
        "apiVersion": "kvgate.io/v1alpha1",
        "kind": "InferenceDeployment",
        "metadata": metadata | ({"annotations": annotations} if annotations else {}),
        "spec": defaults | spec,
    }


def an_owner(name: str = "qwen", **options: Any) -> InferenceDeployment:
    """The same, parsed."""
    return parse_document(a_document(name, **options))


def a_deployment(
    *, wanted: int = 2, existing: int = 2, available: int = 2, updated: int = 2, observed: int = 1, owner: str = UID,
    stuck: str = "",
) -> dict[str, Any]:  # fmt: skip
    """A Deployment whose rollout is complete unless said otherwise."""
    condition = {"type": "Progressing", "reason": "ProgressDeadlineExceeded", "message": stuck}
    return {
        "metadata": {"name": "qwen", "namespace": "serving", "generation": 1, "ownerReferences": [{"uid": owner}]},
        "spec": {"replicas": wanted},
        "status": {
            "observedGeneration": observed, "replicas": existing, "readyReplicas": available,
            "availableReplicas": available, "updatedReplicas": updated, "conditions": [condition] if stuck else [],
        },
    }  # fmt: skip


def a_pod(
    name: str = "qwen-1-a", *, ip: str = "127.0.0.1", ready: bool = True, template: str = "hash", restarts: int = 0,
    replica_set: str | None = "qwen-1", ended: dict[str, Any] | None = None, going: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """A pod with our label, as the kubelet tells of it; its uid is `uid-` and its name."""
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": replica_set,
        "uid": f"uid-{replica_set}",
        "controller": True,
    }
    state = {"terminated": ended} if ended else {}
    return {
        "metadata": {
            "name": name, "namespace": "serving", "uid": f"uid-{name}",
            "labels": {"kvgate.io/inferencedeployment": "qwen"}, "annotations": {"kvgate.io/render-hash": template},
            "ownerReferences": [owner] if replica_set else [],
        } | ({"deletionTimestamp": NOW} if going else {}),
        "status": {
            "podIP": ip, "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [{"name": "vllm", "restartCount": restarts, "lastState": state}],
        },
    }  # fmt: skip
