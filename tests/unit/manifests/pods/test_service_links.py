"""Variables that Services set in the pods of their namespace, by what stands where."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from kvgate.findings.finding import Severity
from kvgate.manifests import read_manifests
from kvgate.manifests.engines import find_engines
from kvgate.vllm.variables import PORTS

ERROR, WARNING = [Severity.ERROR], [Severity.WARNING]
SERVICE = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "vllm"}}


def deployment(container: dict[str, Any] | None = None, namespace: str = "", **pod: Any) -> dict[str, Any]:
    vllm = {"name": "vllm", "image": "vllm/vllm-openai:v0.32.0", "args": ["--model=Qwen/Qwen3-4B"], **(container or {})}
    template = {"metadata": {"labels": {"app": "vllm", "tier": "llm"}}, "spec": {"containers": [vllm], **pod}}
    metadata = {"name": "vllm", **({"namespace": namespace} if namespace else {})}
    spec = {"selector": {"matchLabels": {"app": "vllm"}}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}


def service(name: str = "vllm", namespace: str = "", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {**SERVICE, "metadata": metadata, "spec": {"ports": [{"port": 8000}], **spec}}


def severities(folder: Path, files: dict[str, list[dict[str, Any]]]) -> list[Severity]:
    """Return the severities of all findings about Services."""
    for name, documents in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(yaml.safe_dump_all(documents))
    engines = find_engines(read_manifests([str(folder)])).engines
    assert engines
    return [each.finding.severity for engine in engines for each in engine.findings]


@pytest.mark.parametrize(
    ("documents", "expected"),
    [
        ([deployment(), service()], ERROR),
        ([service(), deployment()], ERROR),
        ([deployment(), service(selector={"app": "router"})], ERROR),
        ([deployment(), service(type="LoadBalancer")], ERROR),
        ([deployment(namespace="llm"), service(namespace="llm")], ERROR),
        ([deployment({"envFrom": [{"secretRef": {"name": "token"}}]}), service()], WARNING),
        ([deployment({"envFrom": [{"configMapRef": {"name": "elsewhere"}}]}), service()], WARNING),
        ([deployment(), service("vllm-nixl-side-channel")], WARNING),
        ([deployment(), service("vllm-dp-master")], WARNING),
        ([deployment(namespace="llm"), service(namespace="other")], []),
        ([deployment(), service(clusterIP="None")], []),
        ([deployment(enableServiceLinks="{{ .Values.links }}"), service()], []),
        ([deployment({"env": [{"name": "VLLM_PORT", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]}), service()], []),
    ],
)
def test_a_service_in_the_same_file(tmp_path: Path, documents: list[dict[str, Any]], expected: list[Severity]) -> None:
    assert severities(tmp_path, {"all.yaml": documents}) == expected


@pytest.mark.parametrize(
    ("place", "written", "expected"),
    [
        ("service.yaml", service(selector={"app": "vllm"}), ERROR),
        ("service.yaml", service(selector={"app": "vllm", "tier": "web"}), WARNING),
        ("service.yaml", service(), WARNING),
        ("other/service.yaml", service(selector={"app": "vllm"}), []),
    ],
)
def test_a_service_in_another_file(
    tmp_path: Path, place: str, written: dict[str, Any], expected: list[Severity]
) -> None:
    assert severities(tmp_path, {"deployment.yaml": [deployment()], place: [written]}) == expected


def test_other_objects_with_pods_may_differ_from_what_is_written(tmp_path: Path) -> None:
    job = {"apiVersion": "example.org/v1", "kind": "Serving", "metadata": {"name": "x"}}
    written = {**job, "spec": deployment()["spec"]["template"]["spec"]}
    assert severities(tmp_path, {"all.yaml": [written, service()]}) == WARNING


def test_a_name_of_a_service_leads_to_each_variable() -> None:
    assert all(name.endswith("_PORT") and name.isupper() for name in PORTS)
