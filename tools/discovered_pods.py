"""Pods on the loopback as Prometheus would discover them in Kubernetes: files for `file_sd_configs`, read by the shipped relabelings.

Debian's Prometheus has no discovery in Kubernetes, and where there is one its kubelet runs nothing: the labels are the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kvgate.monitoring.scraping import OWNER_POD_LABEL

PODS_FILE = "pods.json"


@dataclass(frozen=True, kw_only=True, slots=True)
class Pod:
    """One port of one container; discovery makes a target of each."""

    namespace: str
    name: str
    ip: str
    port: int
    port_name: str = ""
    image: str = "vllm/vllm-openai:v0.33.0"
    phase: str = "Running"
    labels: Mapping[str, str] = field(default_factory=dict)

    def target(self) -> dict[str, object]:
        """An element of the file, with the labels of role pod."""
        meta = {
            "namespace": self.namespace,
            "pod_name": self.name,
            "pod_ip": self.ip,
            "pod_phase": self.phase,
            "pod_container_image": self.image,
            "pod_container_port_name": self.port_name,
            "pod_container_port_number": str(self.port),
        }
        for label, value in self.labels.items():
            sanitised = re.sub("[^a-zA-Z0-9_]", "_", label)
            meta |= {f"pod_label_{sanitised}": value, f"pod_labelpresent_{sanitised}": "true"}
        named = {f"__meta_kubernetes_{name}": value for name, value in meta.items()}
        return {"targets": [f"{self.ip}:{self.port}"], "labels": named}


def pods_json(pods: Iterable[Pod]) -> str:
    """The text of PODS_FILE."""
    return json.dumps([pod.target() for pod in pods])


def in_a_file(_job: str) -> Mapping[str, object]:
    """For `scrape_configuration`: each job sees every pod, as in Kubernetes."""
    return {"file_sd_configs": [{"files": [PODS_FILE], "refresh_interval": "1s"}]}


def engine_pod(deployment: str, namespace: str, ip: str, *, replica: int = 0, port: int = 8000) -> Pod:
    """As kvgate renders it."""
    return Pod(
        namespace=namespace, name=f"{deployment}-{replica}", ip=ip, port=port, port_name="http",
        labels={OWNER_POD_LABEL: deployment, "app.kubernetes.io/name": "vllm"},
    )  # fmt: skip


def kvgate_pod(process: str, ip: str, *, port: int = 8080, namespace: str = "kvgate-system") -> Pod:
    """As the chart renders it; `process` is controller or webhook."""
    return Pod(
        namespace=namespace, name=f"kvgate-{process}-0", ip=ip, port=port, port_name="metrics", image="kvgate:0.1.0",
        labels={"app.kubernetes.io/name": "kvgate", "app.kubernetes.io/component": process},
    )  # fmt: skip
