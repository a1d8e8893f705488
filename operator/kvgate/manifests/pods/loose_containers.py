"""Containers that stand outside of a pod's list: Argo's templates, Tekton's steps, images with a command in any other object."""

from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.pods.engine_found import FoundEngine, ReaderInput
from kvgate.manifests.pods.pod_engines import engines_of_container, read_pod_templates
from kvgate.text.patterns import pattern

_MAX_DEPTH = 20
_NO_PODS = frozenset({"containers", "initContainers", "metadata", "annotations", "labels", "status"})
"""Fields below which no container stands by itself."""
_RESOURCES = ("resources", "computeResources", "resourcesPerNode", "containerResources")
_SCRIPTS = ("script", "source")
_OF_THE_POD = ("nodeSelector", "affinity", "volumes")
_SHELL = pattern(r"(?:#!\S*[/ ](?:ba|da|z|a)?sh\b.*\n)?(?!#!)")
"""Beginning of a script that a shell runs."""


def read_object(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of an object that no other reader knows; files of values hold none of those that stand by themselves."""
    yield from read_pod_templates(given)
    if given.document.kind:
        for container, pod in _containers(given.root, NOTHING):
            script = next((each for each in map(container.get, _SCRIPTS) if each.text), NOTHING)
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


def _is_of_a_pod(field: Written) -> bool:
    return any(field.get(name).is_set for name in _OF_THE_POD)


def _container(field: Written) -> dict[str, Any] | None:
    """Return an object with an image and something that it runs as a container; None for any other object."""
    image, script = (
        field.get("image"),
        next((each for each in (field.get("script"), field.get("source")) if each.text), NOTHING),
    )
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
