"""Values of bjw-s' app-template, also as its library `common`: controllers with containers, and volumes under `persistence`.

Fields: github.com/bjw-s-labs/helm-charts, `charts/library/common/values.yaml` (since app-template 2.0).
"""

import itertools
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from kvgate.documents.written import Written
from kvgate.manifests.pods.engine_found import FoundEngine, ReaderInput
from kvgate.manifests.pods.pod_engines import engines_of_container

_MAX_VOLUMES = 30
"""Volumes of one release; nobody has more."""
_FROM_THE_CLUSTER = ("valueFrom", "secretKeyRef", "configMapKeyRef", "fieldRef", "dependsOn")
"""Fields of a variable that is an object."""


def is_values(root: Written) -> bool:
    """Return True where a controller has a container with an image, under a name."""
    return any(True for _ in _containers(root))


def read_values(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of all containers; those that are switched off start nothing."""
    for name, controller, label, container in _containers(given.values):
        volumes = itertools.islice(given.values.get("persistence").fields(), _MAX_VOLUMES)
        items = [item for _, item in volumes if item.get("enabled").value is not False]
        pod, mounts = _pod(given.values, items, name, controller, label)
        variables, listed = _variables(container.get("env"))
        image = container.get("image")
        value = {
            **container.value,
            "image": ":".join(part for part in (image.get("repository").text, image.get("tag").text) if part),
            "env": listed,
            "volumeMounts": mounts,
        }
        for field in ("command", "args"):  # a text is one word
            if isinstance(container.get(field).value, str):
                value[field] = [container.get(field).value]
        engines = engines_of_container(
            given, replace(container, value=value), pod=pod, platform="app-template", added=variables
        )
        for engine in engines:
            yield replace(
                engine,
                name=given.name or name,
                image=Written(value=value["image"], path=image.path),
                stores=tuple(replace(each, size=_as_written(each.size, pod, items)) for each in engine.stores),
                host=replace(engine.host, shm=_as_written(engine.host.shm, pod, items)),
            )


def _containers(values: Written) -> Iterator[tuple[str, Written, str, Written]]:
    """Yield (name of the controller, the controller, name of the container, the container)."""
    for name, controller in values.get("controllers").fields():
        if controller.get("enabled").value is False:
            continue
        for label, container in controller.get("containers").fields():
            has_image = container.get("image", "repository").text != ""
            if has_image and container.get("enabled").value is not False:
                yield name, controller, label, container


def _variables(env: Written) -> tuple[dict[str, Written], Any]:
    """Return (variables that stand under their names, those that stand in a list as Kubernetes has it)."""
    if isinstance(env.value, list):
        return {}, env.value
    found = {}
    for name, field in env.fields():
        is_from = any(field.get(source).is_set for source in _FROM_THE_CLUSTER)
        value = field.get("value") if isinstance(field.value, dict) and not is_from else field
        found[name] = replace(value, value=value.text or None)
    return found, []


def _pod(
    values: Written, items: list[Written], name: str, controller: Written, container: str
) -> tuple[Written, list[dict[str, str]]]:
    """Return (the pod of a controller: its own fields, else the default ones, with the volumes; the mounts of a container)."""
    own, defaults, mounts = controller.get("pod"), values.get("defaultPodOptions"), list[dict[str, str]]()
    volumes = [{"name": item.path, **_source(item)} for item in items]
    for item in items:
        is_everywhere = not item.get("advancedMounts").is_set
        places = item.get("globalMounts").items() + item.get("advancedMounts", name, container).items()
        label = item.path.rpartition(".")[2]
        paths = [place.get("path").text for place in places] or ([f"/{label}"] if is_everywhere else [])
        mounts += [{"name": item.path, "mountPath": path} for path in paths]
    merged = {
        key: value for each in (defaults, own) if isinstance(each.value, dict) for key, value in each.value.items()
    }
    return Written(value={**merged, "volumes": volumes}, path=(own if own.is_set else defaults).path), mounts


def _as_written(size: Written, pod: Written, items: list[Written]) -> Written:
    """Return the size of a volume with its path under `persistence`."""
    index, bracket, field = size.path.removeprefix(f"{pod.path}.volumes[").partition("]")
    if not bracket or not index.isdecimal():
        return size
    return replace(size, path=items[int(index)].get("sizeLimit" if field.endswith("sizeLimit") else "size").path)


def _source(item: Written) -> dict[str, Any]:
    """Return the source of a volume as a pod has it; a claim that the chart makes has its size here."""
    kind, claim = item.get("type").text or "persistentVolumeClaim", item.get("existingClaim").text
    if kind == "emptyDir":
        return {"emptyDir": {name: item.get(name).value for name in ("medium", "sizeLimit") if item.get(name).is_set}}
    if kind != "persistentVolumeClaim":
        return {kind: {}}
    if claim:
        return {"persistentVolumeClaim": {"claimName": claim}}
    return {
        "ephemeral": {"volumeClaimTemplate": {"spec": {"resources": {"requests": {"storage": item.get("size").value}}}}}
    }
