"""llm-d: values of the modelservice chart; its kustomize guides are plain Deployments."""

from collections.abc import Iterator
from dataclasses import replace

from kvgate.manifests.engine_found import FoundEngine, Hint
from kvgate.manifests.fields_as_options import as_options
from kvgate.manifests.pods import Input, engine_of_container
from kvgate.manifests.written import Written

_PARALLELISM = {"tensor": "--tensor-parallel-size", "data": "--data-parallel-size"}


def is_values(root: Written) -> bool:
    return root.get("modelArtifacts").is_set and (root.get("decode").is_set or root.get("prefill").is_set)


def read_values(given: Input) -> Iterator[FoundEngine]:
    """Decode and prefill are engines of their own."""
    for side in ("decode", "prefill"):
        section = given.root.get(side)
        containers = section.get("containers").items()
        if not containers or section.get("create").value is False or section.get("replicas").value == 0:
            continue
        yield _engine(given, section, containers[0], side)


def _engine(given: Input, section: Written, container: Written, side: str) -> FoundEngine:
    found = engine_of_container(given, container, platform="llm-d")
    artifacts = given.root.get("modelArtifacts")
    return replace(
        found,
        name=f"{artifacts.get('name').text or given.name} ({side})",
        path=section.path,
        arguments=(*as_options(section.get("parallelism"), _PARALLELISM), *found.arguments),
        model=artifacts.get("uri") if artifacts.get("uri").is_set else artifacts.get("name"),
        hints=(*found.hints, *_labels(section.get("acceleratorTypes")), *_labels(given.root.get("acceleratorTypes"))),
        num_pods=section.get("parallelism", "workers").count or 1,
    )


def _labels(types: Written) -> Iterator[Hint]:
    key = types.get("labelKey").text
    for value in types.get("labelValues").items():
        yield Hint(name=key, value=value.text, path=value.path)
