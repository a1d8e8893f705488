"""Pods that run vLLM: of plain Kubernetes objects, and of every platform's that has a pod template."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

from kvgate.documents.reading import Document
from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.pods.accelerator_hints import gpu_memory_of, gpus_of, node_hints
from kvgate.manifests.pods.containers import Start, starts_of
from kvgate.manifests.pods.device_claims import FindClaim, claimed_gpus
from kvgate.manifests.pods.engine_found import FoundEngine, Store
from kvgate.manifests.pods.mounted_files import files_of
from kvgate.manifests.pods.visible_gpus import visible_gpus
from kvgate.manifests.pods.volumes import has_shared_memory, stores_of
from kvgate.record import record
from kvgate.shell.environment import ConfigData, SharedRoom, takes_any_length, variables_of

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
_GROUP = "leaderWorkerTemplate"
"""Template of LeaderWorkerSet, and of objects that make several of them."""
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
    """Values of a chart where the document holds them; else the whole document."""
    config_data: ConfigData
    find: Callable[[str, str], Written | None]
    """(kind, name) → another document of the same input."""
    find_claim: FindClaim
    profiles: Sequence[Written]
    """Values of KubeAI's own chart in the input, which its models refer to."""
    shared: SharedRoom
    """Room that the containers of all documents share."""

    @property
    def name(self) -> str:
        return self.root.get("metadata", "name").text


def read_workload(given: Input) -> Iterator[FoundEngine]:
    """Every container of the pod that runs vLLM; of a LeaderWorkerSet the leader's, over all its pods."""
    kind = given.document.kind
    if kind == "LeaderWorkerSet":
        yield from _leaders(given, given.root.get("spec", _GROUP), platform=kind.lower())
        return
    templates = given.root.get("spec", "volumeClaimTemplates")
    yield from engines_of_pod(given, given.root.get(*_POD_SPECS[kind]), platform=kind.lower(), templates=templates)


def read_pod_templates(given: Input) -> Iterator[FoundEngine]:
    """Any other object or values: whatever in them is a list of containers, or a group of pods, and not switched off."""
    platform = given.document.kind.lower() or "values"
    for field in _pods_in(given.values):
        if field.get(_GROUP).is_set:
            yield from _leaders(given, field.get(_GROUP), platform=platform)
        else:
            yield from engines_of_pod(given, field, platform=platform)


def _pods_in(field: Written, depth: int = 0) -> Iterator[Written]:
    if depth > 20 or field.get("enabled").value is False:
        return
    if isinstance(field.value, dict) and (isinstance(field.value.get("containers"), list) or _GROUP in field.value):
        yield field
        return
    listed = isinstance(field.value, list)
    children = (each for each in field.items() if each.is_set) if listed else [child for _, child in field.fields()]
    for child in children:
        yield from _pods_in(child, depth + 1)


def engines_of_pod(
    given: Input,
    pod: Written,
    *,
    platform: str,
    templates: Written = NOTHING,
    added: Mapping[str, Written] | None = None,
) -> Iterator[FoundEngine]:
    """The containers that run vLLM; an init container that is always restarted runs beside the others."""
    sidecars = (each for each in pod.get("initContainers").items() if each.get("restartPolicy").text == "Always")
    for container in (*pod.get("containers").items(), *sidecars):
        yield from engines_of_container(given, container, pod=pod, platform=platform, templates=templates, added=added)


def engines_of_container(
    given: Input,
    container: Written,
    *,
    pod: Written,
    platform: str,
    templates: Written = NOTHING,
    own_program: bool = False,
    added: Mapping[str, Written] | None = None,
) -> Iterator[FoundEngine]:
    """One engine for every start of vLLM; several share the container's GPUs, so none of them is held to all."""
    variables = variables_of(container, given.config_data, added, given.shared)
    image = container.get("image").text
    starts = starts_of(
        container.get("command"),
        container.get("args"),
        variables,
        image,
        own_program=own_program,
        file_text=files_of(pod, container, given.config_data),
        shared=given.shared,
    )
    for start in starts:
        engine = engine_of_start(given, container, start, pod=pod, platform=platform)
        stores = stores_of(pod, container, variables, start.arguments, templates)
        engine = replace(
            engine,
            stores=tuple(_sized(given, store) for store in stores),
            takes_any_length=takes_any_length(variables),
            visible_gpus=visible_gpus(start, variables, container.get("command"), container.get("args")),
        )
        yield engine if len(starts) == 1 else replace(engine, num_gpus=NOTHING)


def engine_of_start(given: Input, container: Written, start: Start, *, pod: Written, platform: str) -> FoundEngine:
    """Command line, image, GPUs and probes of one container."""
    gpus, resource = gpus_of(container.get("resources"))
    claimed, products = claimed_gpus(pod, container, given.find_claim)
    probes = (container.get(name) for name in ("startupProbe", "livenessProbe"))
    return FoundEngine(
        platform=platform,
        document=given.document,
        root=given.root,
        name=given.name or container.get("name").text,
        path=container.path,
        arguments=start.arguments,
        image=container.get("image"),
        num_gpus=gpus if gpus.is_set else claimed,
        gpu_memory=gpu_memory_of(container.get("resources")),
        hints=(*((resource,) if resource else ()), *products, *node_hints(pod)),
        remarks=start.remarks,
        is_wrapped=start.is_wrapped,
        is_on_ray=start.is_on_ray,
        probes=tuple(probe for probe in probes if probe.is_set),
        has_shared_memory=has_shared_memory(pod, container),
        shared_memory_path=container.path,
    )


def _sized(given: Input, store: Store) -> Store:
    """Add the size that the claim requests, where the claim is in the input."""
    claim = given.find_claim("PersistentVolumeClaim", store.claim) if store.claim else None
    size = claim.get("spec", "resources", "requests", "storage").text if claim else ""
    return replace(store, size=Written(value=size, path=store.path)) if size else store


def _leaders(given: Input, group: Written, *, platform: str) -> Iterator[FoundEngine]:
    """Return the first pod of a group with the GPUs of all; their number is unknown where the group's size is."""
    leader = group.get("leaderTemplate", "spec")
    pod = leader if leader.is_set else group.get("workerTemplate", "spec")
    size = group.get("size") if group.get("size").is_set else Written(value=1, path=group.path)
    variables = {
        "LWS_GROUP_SIZE": Written(value=str(size.count) if size.count else None, path=size.path),
        "LWS_WORKER_INDEX": Written(value="0", path=group.path),
    }
    for engine in engines_of_pod(given, pod, platform=platform, added=variables):
        gpus = engine.num_gpus if size.count else NOTHING
        yield replace(engine, num_pods=size.count or 1, num_gpus=gpus)
