"""Plain Kubernetes objects that run vLLM: whatever has a pod template, wherever it has it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from kvgate.manifests.accelerator_hints import gpus_of, node_hints
from kvgate.manifests.containers import ConfigValue, command_of, looks_like_vllm
from kvgate.manifests.documents import Document
from kvgate.manifests.engine_found import FoundEngine
from kvgate.manifests.written import Written

_POD_SPECS = {
    "Pod": ("spec",),
    "Deployment": ("spec", "template", "spec"),
    "StatefulSet": ("spec", "template", "spec"),
    "ReplicaSet": ("spec", "template", "spec"),
    "DaemonSet": ("spec", "template", "spec"),
    "Job": ("spec", "template", "spec"),
    "Rollout": ("spec", "template", "spec"),
    "CronJob": ("spec", "jobTemplate", "spec", "template", "spec"),
}
"""Kind → where its pod is."""


def is_workload(kind: str, api_version: str) -> bool:
    """Kinds whose pods are read; Argo's Rollout is one, other groups' kinds of these names are not."""
    return (
        kind in _POD_SPECS and (kind != "Rollout" or api_version.startswith("argoproj.io/"))
    ) or is_leader_worker_set(kind)


def is_leader_worker_set(kind: str) -> bool:
    return kind == "LeaderWorkerSet"


@dataclass(frozen=True, kw_only=True, slots=True)
class Input:
    """One document, and what else is in the same input."""

    document: Document
    root: Written
    config_value: ConfigValue
    find: Callable[[str, str], Written | None]
    """(kind, name) → another document of the same input."""

    @property
    def name(self) -> str:
        return self.root.get("metadata", "name").text


def read_workload(given: Input) -> Iterator[FoundEngine]:
    """Every container of the pod that runs vLLM; of a LeaderWorkerSet the leader's, over all its pods."""
    if is_leader_worker_set(given.document.kind):
        yield from _leader_worker_set(given)
    else:
        yield from engines_of_pod(
            given, given.root.get(*_POD_SPECS[given.document.kind]), platform=given.document.kind.lower()
        )


def engines_of_pod(given: Input, pod: Written, *, platform: str) -> Iterator[FoundEngine]:
    """The containers that run vLLM."""
    hints = tuple(node_hints(pod))
    for container in pod.get("containers").items():
        if looks_like_vllm(container):
            engine = engine_of_container(given, container, platform=platform)
            yield replace(engine, hints=(*engine.hints, *hints))


def engine_of_container(given: Input, container: Written, *, platform: str) -> FoundEngine:
    """Command line, image, GPUs and probes of one container."""
    found = command_of(container, given.config_value)
    gpus, resource = gpus_of(container.get("resources"))
    probes = tuple(
        probe for name in ("startupProbe", "readinessProbe", "livenessProbe") if (probe := container.get(name)).is_set
    )
    return FoundEngine(
        platform=platform,
        document=given.document,
        root=given.root,
        name=given.name or container.get("name").text,
        path=container.path,
        arguments=found.arguments,
        image=container.get("image"),
        num_gpus=gpus,
        hints=(resource,) if resource else (),
        remarks=found.remarks,
        probes=probes,
    )


def _leader_worker_set(given: Input) -> Iterator[FoundEngine]:
    template = given.root.get("spec", "leaderWorkerTemplate")
    leader = template.get("leaderTemplate", "spec")
    pod = leader if leader.is_set else template.get("workerTemplate", "spec")
    for engine in engines_of_pod(given, pod, platform="leaderworkerset"):
        yield replace(engine, num_pods=template.get("size").count or 1)
