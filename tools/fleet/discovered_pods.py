"""Pods on the loopback with the labels that Prometheus would discover in Kubernetes, for the shipped relabelings.

Debian's Prometheus has no discovery in Kubernetes, and the control plane of the tests runs no pods.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from mixin.scraping import OTHER_PORT, OWNER_POD_LABEL

PODS_FILE = "pods.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pod:
    """One port of one container; discovery makes a target of each."""

    namespace: str
    name: str
    address: str
    """HOST:PORT of a server that answers."""
    container_port: int = OTHER_PORT
    port_name: str = ""
    image: str = "vllm/vllm-openai:v0.33.0"
    phase: str = "Running"
    labels: Mapping[str, str] = field(default_factory=dict)

    def target(self) -> dict[str, object]:
        """Return the target for `static_configs` or a file, with the labels of role pod."""
        meta = {
            "namespace": self.namespace,
            "pod_name": self.name,
            "pod_phase": self.phase,
            "pod_container_image": self.image,
            "pod_container_port_name": self.port_name,
            "pod_container_port_number": str(self.container_port),
        }
        for label, value in self.labels.items():
            sanitised = re.sub("[^a-zA-Z0-9_]", "_", label)
            meta |= {f"pod_label_{sanitised}": value, f"pod_labelpresent_{sanitised}": "true"}
        named = {f"__meta_kubernetes_{name}": value for name, value in meta.items()}
        return {"targets": [self.address], "labels": named}


def pods_json(pods: Iterable[Pod]) -> str:
    """The text of PODS_FILE."""
    return json.dumps([pod.target() for pod in pods])


def in_a_file(_job: str) -> Mapping[str, object]:
    """Return the discovery for `scrape_configuration`: each job sees every pod, as in Kubernetes."""
    return {"file_sd_configs": [{"files": [PODS_FILE], "refresh_interval": "1s"}]}


def engine_pod(deployment: str, namespace: str, address: str, *, replica: int = 0) -> Pod:
    """Return the pod of an engine with the labels that kvgate renders."""
    labels = {OWNER_POD_LABEL: deployment, "app.kubernetes.io/name": "vllm"}
    return Pod(namespace=namespace, name=f"{deployment}-{replica}", address=address, port_name="http", labels=labels)


def kvgate_pod(process: str, address: str) -> Pod:
    """Return the pod of a process of kvgate (controller or webhook) with the labels of the chart."""
    labels = {"app.kubernetes.io/name": "kvgate", "app.kubernetes.io/component": process}
    return Pod(
        namespace="kvgate-system", name=f"kvgate-{process}", address=address, container_port=8080, port_name="metrics",
        image="kvgate:0.1.0", labels=labels,
    )  # fmt: skip
