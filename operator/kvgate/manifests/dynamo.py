"""NVIDIA Dynamo: graph deployments whose workers run `dynamo.vllm`."""

from collections.abc import Iterator
from dataclasses import replace

from kvgate.manifests.accelerator_hints import node_hints
from kvgate.manifests.engine_found import FoundEngine
from kvgate.manifests.pods import Input, engine_of_container
from kvgate.manifests.written import Written


def read_graph(given: Input) -> Iterator[FoundEngine]:
    """Every service with a worker that starts vLLM; options of Dynamo's own wrapper are not vLLM's."""
    for name, service in given.root.get("spec", "services").fields():
        container = service.get("extraPodSpec", "mainContainer")
        words = [word.text for word in (*container.get("command").items(), *container.get("args").items())]
        if any("dynamo.vllm" in word for word in words):
            yield _engine(given, name, service, container)


def _engine(given: Input, name: str, service: Written, container: Written) -> FoundEngine:
    found = engine_of_container(given, container, platform="dynamo")
    gpus = service.get("resources", "limits", "gpu")
    return replace(
        found,
        name=f"{given.name} ({name})",
        path=service.path,
        num_gpus=gpus if gpus.is_set else found.num_gpus,
        num_pods=service.get("multinode", "nodeCount").count or 1,
        hints=(*found.hints, *node_hints(service.get("extraPodSpec"))),
        is_wrapped=True,
    )
