"""Pods that run vLLM: of plain Kubernetes objects, and of every platform's that has a pod template."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from kvgate.manifests.accelerator_hints import gpu_memory_of, gpus_of, node_hints
from kvgate.manifests.containers import Start, starts_of
from kvgate.manifests.documents import Document
from kvgate.manifests.engine_found import FoundEngine, Store
from kvgate.manifests.environment import ConfigData, takes_any_length, variables_of
from kvgate.manifests.mounted_files import files_of
from kvgate.manifests.volumes import has_shared_memory, stores_of
from kvgate.manifests.written import NOTHING, Written
from kvgate.record import record

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
_GROUPS = {
    "Pod": ("v1",),
    "Rollout": ("argoproj.io",),
    "Job": ("batch",),
    "CronJob": ("batch",),
    "LeaderWorkerSet": ("leaderworkerset.x-k8s.io",),
}
"""Kind → its API group, where it is not apps; other groups' kinds of these names are not meant."""


def is_workload(kind: str, api_version: str) -> bool:
    """Kubernetes' own kinds with pods, Argo's Rollout and LeaderWorkerSet."""
    group = api_version.partition("/")[0]
    return (kind in _POD_SPECS or kind == "LeaderWorkerSet") and group in _GROUPS.get(kind, ("apps", ""))


@record
class Input:
    """One document, and what else is in the same input."""

    document: Document
    root: Written
    values: Written
    """Of a chart, where the document holds them; else all of it."""
    config_data: ConfigData
    find: Callable[[str, str], Written | None]
    """(kind, name) → another document of the same input."""
    claim_size: Callable[[str], str | None]
    """Name of a PersistentVolumeClaim → the storage that it asks for."""
    profiles: Sequence[Written]
    """Values of KubeAI's own chart in the input, which its models refer to."""

    @property
    def name(self) -> str:
        return self.root.get("metadata", "name").text


def read_workload(given: Input) -> Iterator[FoundEngine]:
    """Every container of the pod that runs vLLM; of a LeaderWorkerSet the leader's, over all its pods."""
    kind = given.document.kind
    if kind == "LeaderWorkerSet":
        yield from _leader_worker_set(given)
        return
    templates = given.root.get("spec", "volumeClaimTemplates")
    yield from engines_of_pod(given, given.root.get(*_POD_SPECS[kind]), platform=kind.lower(), templates=templates)


def read_pod_templates(given: Input) -> Iterator[FoundEngine]:
    """Any other object or values: whatever in them is a list of containers and not switched off."""
    for pod in _pods_in(given.values):
        yield from engines_of_pod(given, pod, platform=given.document.kind.lower() or "values")


def _pods_in(field: Written, depth: int = 0) -> Iterator[Written]:
    if depth > 20 or field.get("enabled").value is False:
        return
    if isinstance(field.value, dict) and isinstance(field.value.get("containers"), list):
        yield field
        return
    children = field.items() if isinstance(field.value, list) else [child for _, child in field.fields()]
    for child in children:
        yield from _pods_in(child, depth + 1)


def engines_of_pod(given: Input, pod: Written, *, platform: str, templates: Written = NOTHING) -> Iterator[FoundEngine]:
    """The containers that run vLLM; an init container that is always restarted runs beside the others."""
    sidecars = (each for each in pod.get("initContainers").items() if each.get("restartPolicy").text == "Always")
    for container in (*pod.get("containers").items(), *sidecars):
        yield from engines_of_container(given, container, pod=pod, platform=platform, templates=templates)


def engines_of_container(
    given: Input,
    container: Written,
    *,
    pod: Written,
    platform: str,
    templates: Written = NOTHING,
    own_program: bool = False,
) -> Iterator[FoundEngine]:
    """One engine for every start of vLLM; several share the container's GPUs, so none of them is held to all."""
    variables = variables_of(container, given.config_data)
    image = container.get("image").text
    starts = starts_of(
        container.get("command"),
        container.get("args"),
        variables,
        image,
        own_program=own_program,
        file_text=files_of(pod, container, given.config_data),
    )
    for start in starts:
        engine = engine_of_start(given, container, start, pod=pod, platform=platform)
        stores = stores_of(pod, container, variables, start.arguments, templates)
        engine = replace(
            engine,
            stores=tuple(_sized(given, store) for store in stores),
            takes_any_length=takes_any_length(variables),
        )
        yield engine if len(starts) == 1 else replace(engine, num_gpus=NOTHING)


def engine_of_start(given: Input, container: Written, start: Start, *, pod: Written, platform: str) -> FoundEngine:
    """Command line, image, GPUs and probes of one container."""
    gpus, resource = gpus_of(container.get("resources"))
    probes = (container.get(name) for name in ("startupProbe", "livenessProbe"))
    return FoundEngine(
        platform=platform,
        document=given.document,
        root=given.root,
        name=given.name or container.get("name").text,
        path=container.path,
        arguments=start.arguments,
        image=container.get("image"),
        num_gpus=gpus,
        gpu_memory=gpu_memory_of(container.get("resources")),
        hints=(*((resource,) if resource else ()), *node_hints(pod)),
        remarks=start.remarks,
        is_wrapped=start.is_wrapped,
        is_on_ray=start.is_on_ray,
        probes=tuple(probe for probe in probes if probe.is_set),
        has_shared_memory=has_shared_memory(pod, container),
        shared_memory_path=container.path,
    )


def _sized(given: Input, store: Store) -> Store:
    """With the size that its claim asks for, where the claim is in the input."""
    size = given.claim_size(store.claim) if store.claim else None
    return replace(store, size=Written(value=size, path=store.path)) if size else store


def _leader_worker_set(given: Input) -> Iterator[FoundEngine]:
    template = given.root.get("spec", "leaderWorkerTemplate")
    leader = template.get("leaderTemplate", "spec")
    pod = leader if leader.is_set else template.get("workerTemplate", "spec")
    for engine in engines_of_pod(given, pod, platform="leaderworkerset"):
        yield replace(engine, num_pods=template.get("size").count or 1)
