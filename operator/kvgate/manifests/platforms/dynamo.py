"""NVIDIA Dynamo: graph deployments whose workers run `dynamo.vllm`."""

from collections.abc import Iterator

from msgspec.structs import replace

from kvgate.documents.written import Written
from kvgate.manifests.pods.accelerator_hints import node_hints
from kvgate.manifests.pods.engine_found import FoundEngine, ReaderInput
from kvgate.manifests.pods.pod_engines import engines_of_container, engines_of_pod


def read_graph(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of every service (v1alpha1) or component (v1beta1) with a worker that starts vLLM."""
    for name, service in given.root.get("spec", "services").fields():
        yield from _service(given, name, service)
    for component in given.root.get("spec", "components").items():
        pod = component.get("podTemplate", "spec")
        for engine in engines_of_pod(given, pod, platform="dynamo"):
            yield _named(engine, given, component.get("name").text, component)


def read_component(given: ReaderInput) -> Iterator[FoundEngine]:
    yield from _service(given, given.root.get("spec", "serviceName").text, given.root.get("spec"))


def _service(given: ReaderInput, name: str, service: Written) -> Iterator[FoundEngine]:
    pod = service.get("extraPodSpec")
    gpus = next(
        (field for side in ("limits", "requests") if (field := service.get("resources", side, "gpu")).is_set), None
    )
    for engine in engines_of_container(given, pod.get("mainContainer"), pod=pod, platform="dynamo"):
        found = replace(engine, num_gpus=gpus) if gpus else engine
        yield _named(replace(found, hints=(*found.hints, *node_hints(pod))), given, name, service)


def _named(engine: FoundEngine, given: ReaderInput, name: str, service: Written) -> FoundEngine:
    """Name the engine after its service; Dynamo mounts shared memory unless it is switched off."""
    size = service.get("sharedMemory", "size")
    return replace(
        engine,
        name=f"{given.name} ({name})" if name else given.name,
        path=service.path,
        stated=given.root.get("spec", "backendFramework"),
        num_pods=service.get("multinode", "nodeCount").count or 1,
        has_shared_memory=service.get("sharedMemory", "disabled").value is not True,
        shared_memory_path=service.get("sharedMemory").path,
        host=replace(engine.host, shm=size) if size.is_set else engine.host,
    )
