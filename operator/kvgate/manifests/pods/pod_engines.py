"""Engines in pods: of Kubernetes' own kinds, of platforms with a pod template, of any object with containers, in a list or by themselves
(Argo's templates, Tekton's steps, images with a command)."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.pods.accelerator_hints import class_hints, node_hints
from kvgate.manifests.pods.containers import Start, downloaded, installed_release, other_server, starts_of
from kvgate.manifests.pods.engine_found import FoundEngine, ReaderInput, SeenGpus, mounted_texts, place_of_text
from kvgate.manifests.pods.gpu_requests import (
    NVIDIA_DEVICES,
    claim_of,
    claimed_gpus,
    devices_in,
    gpu_part_of,
    gpus_of,
    seen_by_start,
    visible_gpus,
)
from kvgate.manifests.pods.host_memory import SHARED_MEMORY, room_of, shared_mount
from kvgate.manifests.pods.service_links import service_links
from kvgate.manifests.pods.volumes import (
    file_sources,
    files_of,
    folder_of_weights,
    stated_compile_cache,
    stores_of,
    volume_fields,
)
from kvgate.shell.environment import circumstances_of, cpu_variable, takes_any_length, variables_of
from kvgate.text.patterns import pattern
from kvgate.vllm.variables import loading

_TEMPLATE = ("spec", "template", "spec")
WORKLOADS: Mapping[str, Sequence[str]] = {
    "Deployment.apps": _TEMPLATE,
    "StatefulSet.apps": _TEMPLATE,
    "DaemonSet.apps": _TEMPLATE,
    "ReplicaSet.apps": _TEMPLATE,
    "Job.batch": _TEMPLATE,
    "CronJob.batch": ("spec", "jobTemplate", *_TEMPLATE),
    "Pod": ("spec",),
    "Rollout.argoproj.io": _TEMPLATE,
    "LeaderWorkerSet.leaderworkerset.x-k8s.io": ("spec", "leaderWorkerTemplate"),
}
"""Kind and group of objects with pods → the place of the pod, or of the group of pods."""
_PODS = {kind.partition(".")[0]: place for kind, place in WORKLOADS.items()}
_CERTAIN = frozenset(kind.partition(".")[0].lower() for kind in WORKLOADS)
"""Kinds whose pods are as they are written."""
_ENDING = ("job", "cronjob")
"""Kinds whose scripts end, so that one that nobody sees serves nobody."""
CRIO_SHM_SIZE = "io.kubernetes.cri-o.ShmSize"
"""Annotation by which CRI-O gives a pod another /dev/shm."""
_GROUP = "leaderWorkerTemplate"
"""Template of LeaderWorkerSet, and of objects that make several of them."""
_MAX_DEPTH = 20
_NO_PODS = frozenset({"containers", "initContainers", "metadata", "annotations", "labels", "status"})
"""Fields below which no container stands by itself."""
_RESOURCES = ("resources", "computeResources", "resourcesPerNode", "containerResources")
_SHELL = pattern(r"(?:#!\S*[/ ](?:ba|da|z|a)?sh\b.*\n)?(?!#!)")
"""Beginning of a script that a shell runs."""


def read_workload(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of the pod's containers; for a LeaderWorkerSet those of the leader, over all its pods."""
    kind = given.document.kind
    place = given.root.get(*_PODS[kind])
    if kind == "LeaderWorkerSet":
        yield from _leaders(given, place, platform=kind.lower())
        return
    templates = given.root.get("spec", "volumeClaimTemplates")
    yield from engines_of_pod(given, place, platform=kind.lower(), templates=templates)


def read_pod_templates(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of any object or values with lists of containers or groups of pods, except those that are switched off."""
    platform = given.document.kind.lower() or "values"
    for field in _pods_in(given.values):
        if field.get(_GROUP).is_set:
            yield from _leaders(given, field.get(_GROUP), platform=platform)
        else:
            yield from engines_of_pod(given, field, platform=platform)


def _pods_in(field: Written, depth: int = 0) -> Iterator[Written]:
    """Yield the objects that have a list of containers or a group of pods, outside of each other."""
    if depth > _MAX_DEPTH or field.get("enabled").value is False:
        return
    if isinstance(field.value, dict) and (isinstance(field.value.get("containers"), list) or _GROUP in field.value):
        yield field
        return
    listed = isinstance(field.value, list)
    children = (each for each in field.items() if each.is_set) if listed else [child for _, child in field.fields()]
    for child in children:
        yield from _pods_in(child, depth + 1)


def engines_of_pod(
    given: ReaderInput,
    pod: Written,
    *,
    platform: str,
    templates: Written = NOTHING,
    added: Mapping[str, Written] | None = None,
) -> Iterator[FoundEngine]:
    """Yield the engines of the containers; an init container that is always restarted runs beside the others."""
    sidecars = (each for each in pod.get("initContainers").items() if each.get("restartPolicy").text == "Always")
    for container in (*pod.get("containers").items(), *sidecars):
        yield from engines_of_container(given, container, pod=pod, platform=platform, templates=templates, added=added)


def other_servers(given: ReaderInput, engines: Sequence[FoundEngine]) -> Iterator[FoundEngine]:
    """Yield the containers with GPUs, beside the engines of a workload, that start a model server which is not vLLM."""
    if given.document.group_kind not in WORKLOADS:
        return
    for field in _pods_in(given.root):
        group = field.get(_GROUP)
        sides = [group.get(side, "spec") for side in ("leaderTemplate", "workerTemplate")]
        pod = next((each for each in sides if each.is_set), NOTHING) if group.is_set else field
        for container in pod.get("containers").items():
            if any(each.path.startswith(container.path) for each in engines):
                continue
            gpus, claimed = gpus_of(container.get("resources"))[0], claimed_gpus(pod, container, given.find_claim)[0]
            sources = file_sources(pod, container)
            sign = other_server(
                container,
                variables_of(container, given.config_data, None, given.shared),
                files_of(sources, given.config_data),
                given.shared,
            )
            if sign.is_set and (gpus.count != 0 if gpus.is_set else claimed.is_set):
                start = Start(arguments=())
                found = engine_of_start(given, container, start, pod=pod, platform=given.document.kind.lower())
                yield replace(found, stated=sign)


def is_patch(given: ReaderInput) -> bool:
    """Return True for a part of an object, as patches of kustomize are: Kubernetes takes none of these kinds without a selector."""
    return (
        given.document.kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")
        and not given.root.get("spec", "selector").is_set
    )


def engines_of_container(
    given: ReaderInput,
    container: Written,
    *,
    pod: Written,
    platform: str,
    templates: Written = NOTHING,
    own_program: bool = False,
    added: Mapping[str, Written] | None = None,
) -> Iterator[FoundEngine]:
    """Yield one engine for every start of vLLM; several share the container's GPUs, so that the number for each is not known."""
    variables = variables_of(container, given.config_data, added, given.shared)
    sources, script = file_sources(pod, container), (container.get("command"), container.get("args"))
    file_text, is_certain = files_of(sources, given.config_data), platform in _CERTAIN and not is_patch(given)
    starts = starts_of(
        *script,
        variables,
        container.get("image").text,
        own_program=own_program,
        file_text=file_text,
        shared=given.shared,
        place_of=lambda file: place_of_text(*sources(file) or ("", "")),
        is_whole=is_certain,
        has_gpus=platform not in _ENDING and has_gpus(given, pod, container, variables),
    )
    labels = _metadata(given).get("labels") if is_certain else None
    seen = _seen_gpus(given, pod, container, variables) or (_own_gpus(given, container) if len(starts) > 1 else None)
    for start in starts:
        engine = engine_of_start(given, container, start, pod=pod, platform=platform)
        folder = folder_of_weights(variables, start.arguments)
        source, assumed = _downloaded_model(given, pod, folder, start)
        engine = replace(
            engine,
            model=source,
            version=installed_release(*script),
            assumed=assumed,
            seen_gpus=seen_by_start(seen, start, variables, *script, is_alone=len(starts) == 1),
            stores=tuple(stores_of(pod, container, folder, given.find_claim, templates)),
            takes_any_length=takes_any_length(variables, *script),
            circumstances=stated_compile_cache(pod, container, variables) | circumstances_of(variables, *script),
            cpu_variable=cpu_variable(variables),
            loading={
                name: each for name, each in variables.items() if each.value is not None and loading(name, each.text)
            },
            visible_gpus=visible_gpus(start, variables, *script),
            host=room_of(pod, container, variables, file_text),
            files=mounted_texts(given, start.arguments),
            findings=(*service_links(given, pod, container, variables, labels), *volume_fields(pod)),
        )
        yield engine if len(starts) == 1 else replace(engine, num_gpus=NOTHING)


def _downloaded_model(given: ReaderInput, pod: Written, folder: str, start: Start) -> tuple[Written, tuple[str, ...]]:
    """Return the model that an init container puts into the folder which a command line names, and what is assumed with it."""
    is_named = any(word.text in (folder, f"--model={folder}") for word in start.arguments)
    source = downloaded(given, pod, folder) if is_named else NOTHING
    return source, (f"{folder} holds {source.text}, which an init container downloads",) if source.is_set else ()


def _own_gpus(given: ReaderInput, container: Written) -> SeenGpus:
    """Return the GPUs of a container, which several starts in it see."""
    pool = f"{given.document.file}:{given.document.position.line} {container.path}"
    return SeenGpus(pool=pool, names=None, place="the container", label=container.get("name").text)


def has_gpus(given: ReaderInput, pod: Written, container: Written, variables: Mapping[str, Written]) -> bool:
    """Return whether a container gets GPUs: by its resources, by a claim, or from the node where the runtime shows them."""
    gpus = gpus_of(container.get("resources"))[0]
    return gpus.count != 0 if gpus.is_set else _seen_gpus(given, pod, container, variables) is not None


def _seen_gpus(
    given: ReaderInput, pod: Written, container: Written, variables: Mapping[str, Written]
) -> SeenGpus | None:
    """Return the GPUs that other containers may see too: those of a claim of devices, or of the node where the runtime shows them.

    GPUs that a device plugin hands out are each container's own, or replicas of which nobody knows which GPU they are.
    """
    claim, shown = claim_of(pod, container), variables.get(NVIDIA_DEVICES)
    is_shown = shown is not None and (shown.text == "all" or bool(devices_in(shown.text)))
    if gpus_of(container.get("resources"))[0].is_set or not (claim or is_shown):
        return None
    before = frozenset(
        each.get("name").text
        for each in pod.get("initContainers").items()
        if each.get("startupProbe").is_set and each.get("name").text != container.get("name").text
    )
    in_pod = SeenGpus(
        pool=f"{given.document.file}:{given.document.position.line} {pod.path}",
        names=None,
        place="the pod",
        label=container.get("name").text,
        starts_after=before if container.path.startswith(pod.get("containers").path) else frozenset(),
    )
    if claim:
        shared, own = claim
        if not shared:
            return replace(in_pod, pool=f"{in_pod.pool} {own}")
        # these start several pods, which all use a claim that their template names
        replicas = (
            given.root.get("spec", "replicas").count
            if given.document.kind in ("Deployment", "StatefulSet", "ReplicaSet", "Rollout")
            else 1
        )
        label = f"{given.name}/{in_pod.label}"
        copies = 1 if replicas is None else replicas
        return replace(
            in_pod,
            pool=f"{given.root.get('metadata', 'namespace').text or 'default'} {shared}",
            place=shared,
            label=label,
            copies=copies,
            starts_after=None,
        )
    if shown is None or shown.text == "all":
        return in_pod
    return replace(in_pod, names=devices_in(shown.text))


def _metadata(given: ReaderInput) -> Written:
    """Return the metadata of the pod of Kubernetes' own kinds."""
    place = _PODS.get(given.document.kind, ())
    return given.root.get(*place[:-1], "metadata") if place else NOTHING


def engine_of_start(
    given: ReaderInput, container: Written, start: Start, *, pod: Written, platform: str
) -> FoundEngine:
    """Make an engine of one container: its command line, image, GPUs and probes."""
    gpus, resource = gpus_of(container.get("resources"))
    claimed, products = claimed_gpus(pod, container, given.find_claim)
    selected = tuple(node_hints(pod))
    probes = (container.get(name) for name in ("startupProbe", "livenessProbe"))
    annotations = _metadata(given).get("annotations")
    group = given.root.get("spec", _GROUP)
    of_group = (group.get(side, "metadata", "annotations") for side in ("leaderTemplate", "workerTemplate"))
    return FoundEngine(
        platform=platform,
        document=given.document,
        root=given.root,
        name=given.name or container.get("name").text,
        path=container.path,
        arguments=start.arguments,
        image=container.get("image"),
        num_gpus=gpus if gpus.is_set else claimed,
        gpu_part=gpu_part_of(container.get("resources"), annotations),
        hints=(*((resource,) if resource else ()), *products, *selected, *class_hints(selected, given.find_claim)),
        remarks=start.remarks,
        is_overridden=is_patch(given) and not container.get("image").is_set,
        program=start.program,
        is_wrapped=start.is_wrapped,
        is_on_ray=start.is_on_ray,
        probes=tuple(probe for probe in probes if probe.is_set),
        has_shared_memory=pod.get("hostIPC").value is True or shared_mount(container).is_set,
        shared_memory_path=container.path,
        is_shared_memory_certain=platform in _CERTAIN
        and not any(each.get(CRIO_SHM_SIZE).is_set for each in (annotations, *of_group))
        and SHARED_MEMORY
        not in str([container.get(field).value for field in ("command", "args")]),  # a script may mount it
    )


def engines_of_group(
    given: ReaderInput,
    leader: Written,
    worker: Written,
    size: Written,
    *,
    platform: str,
    variables: tuple[str, str] = ("LWS_GROUP_SIZE", "LWS_WORKER_INDEX"),
) -> Iterator[FoundEngine]:
    """Yield the engines of a group's first pod, over all its pods; where the group's size is unknown, so are the GPUs.

    `leader`: its pod, the workers' where it has none of its own; `variables`: names of the size and of the pod's index in its environment.
    """
    added = {
        variables[0]: Written(value=str(size.count) if size.count else None, path=size.path),
        variables[1]: Written(value="0", path=size.path),
    }
    pod = leader if leader.is_set else worker
    for engine in engines_of_pod(given, pod, platform=platform, added=added):
        gpus = engine.num_gpus if size.count else NOTHING
        yield replace(engine, num_pods=size.count or 1, num_gpus=gpus)


def _leaders(given: ReaderInput, group: Written, *, platform: str) -> Iterator[FoundEngine]:
    size = group.get("size") if group.get("size").is_set else Written(value=1, path=group.path)
    leader, worker = group.get("leaderTemplate", "spec"), group.get("workerTemplate", "spec")
    yield from engines_of_group(given, leader, worker, size, platform=platform)


def read_object(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of an object that no other reader knows; files of values hold none of those that stand by themselves."""
    yield from read_pod_templates(given)
    if given.document.kind:
        for container, pod in _containers(given.root, NOTHING):
            script = _script_in(container)
            for engine in engines_of_container(given, container, pod=pod, platform=given.document.kind.lower()):
                found = engine.with_words_of(f"{container.path}.command[2]", script.path) if script.is_set else engine
                yield replace(found, has_shared_memory=engine.has_shared_memory or None)


def _containers(field: Written, around: Written, depth: int = 0) -> Iterator[tuple[Written, Written]]:
    """Yield (a container as Kubernetes has it, the object that says where its pod runs)."""
    if depth > _MAX_DEPTH or field.get("enabled").value is False:
        return
    container = _container(field)
    if container is not None:
        yield replace(field, value=container), next((each for each in (field, around) if _is_of_a_pod(each)), field)
        return
    pod = field if _is_of_a_pod(field) else around
    children = (child for name, child in field.fields() if name not in _NO_PODS)
    for child in field.items() if isinstance(field.value, list) else children:
        yield from _containers(child, pod, depth + 1)


def _script_in(field: Written) -> Written:
    return next((each for each in map(field.get, ("script", "source")) if each.text), NOTHING)


def _is_of_a_pod(field: Written) -> bool:
    return any(field.get(name).is_set for name in ("nodeSelector", "affinity", "volumes"))


def _container(field: Written) -> dict[str, Any] | None:
    """Return an object with an image and something that it runs as a container; None for any other object."""
    image, script = field.get("image"), _script_in(field)
    name = image.text or ":".join(part for part in (image.get("repository").text, image.get("tag").text) if part)
    runs = [field.get("command"), field.get("args")]
    is_written = any(each.is_set and isinstance(each.value, str | list) for each in runs)
    if not name or not (is_written or script.is_set) or not isinstance(field.value, dict):
        return None
    resources = next((each.value for each in map(field.get, _RESOURCES) if each.is_set), None)
    changed = {"image": name, "resources": resources}
    if script.is_set:
        program = runs[0].items()[0].text if runs[0].items() else "sh"
        words = [program, "-c", script.text] if _SHELL.match(script.text) else [program]
        changed |= {"command": words, "args": []}
    return {**field.value, **changed}
