"""Kthena, AIBrix and NVIDIA Dynamo: roles that are groups of pods or workers, and the objects that name a model and vLLM's options.

Fields: github.com/volcano-sh/kthena, `pkg/apis/workload/v1alpha1`, and github.com/vllm-project/aibrix, `api/`.
What Kthena adds: `pkg/model-booster-controller/convert/model_serving.go` there.
"""

from collections.abc import Iterator

from msgspec.structs import replace

from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.fields import as_option
from kvgate.manifests.pods.accelerator_hints import node_hints
from kvgate.manifests.pods.engine_found import FoundEngine, ReaderInput
from kvgate.manifests.pods.pod_engines import engines_of_container, engines_of_group, engines_of_pod
from kvgate.shell.environment import variables_of
from kvgate.vllm.arguments import Argument

_WORKERS = {"vLLM": ("server",), "vLLMDisaggregated": ("prefill", "decode")}
"""Type of a backend of Kthena → the types of its workers that run vLLM."""


def read_model_serving(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engine of every role: its entry pod starts vLLM, over the pods of its workers too."""
    for role in given.root.get("spec", "template", "roles").items():
        workers = role.get("workerReplicas")
        size = Written(value=1 + (workers.count or 0), path=workers.path)
        unknown = replace(size, value=None) if workers.is_set and workers.count is None else size
        pods = (role.get("entryTemplate", "spec"), role.get("workerTemplate", "spec"))
        names = ("GROUP_SIZE", "WORKER_INDEX")
        for engine in engines_of_group(given, *pods, unknown, platform="kthena", variables=names):
            yield _named(engine, given, role.get("name").text)


def read_model_booster(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engine of every worker that runs vLLM; its `config` holds vLLM's options by their names."""
    backend = given.root.get("spec", "backend")
    for worker in backend.get("workers").items():
        role = worker.get("type").text or "server"
        if role not in _WORKERS.get(backend.get("type").text, ()) or not isinstance(worker.value, dict):
            continue
        container = replace(
            worker, value={**worker.value, "command": None, "args": [], "env": backend.get("env").value}
        )
        for engine in engines_of_container(given, container, pod=worker, platform="kthena", own_program=True):
            yield replace(
                engine,
                name=given.name if role == "server" else f"{given.name} ({role})",
                arguments=tuple(_options(worker.get("config"))),
                model=backend.get("modelURI"),
                num_pods=worker.get("pods").count or 1,
                has_shared_memory=role == "server" or None,
            )


def _options(config: Written) -> Iterator[Argument]:
    """Yield each field as an option; a switch has an empty value."""
    for name, field in config.fields():
        flag = f"--{name.removeprefix('--').replace('_', '-')}"
        if field.value in ("", None):
            yield Argument(text=flag, path=field.path, is_field=True)
        else:
            yield from as_option(field, flag)


def read_storm_service(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engine of every role of a StormService or a RoleSet, or of a PodSet; the first pod of a group starts it over all."""
    spec = given.root.get("spec")
    inner = spec.get("template", "spec")
    listed = (inner if inner.get("roles").is_set else spec).get("roles").items()
    for role in [spec] if given.document.kind == "PodSet" else listed:
        pod, written = role.get("template", "spec"), role.get("podGroupSize")
        size = written if written.is_set else Written(value=1, path=role.path)
        names = ("POD_GROUP_SIZE", "POD_GROUP_INDEX")
        for engine in engines_of_group(given, pod, NOTHING, size, platform="aibrix", variables=names):
            yield _named(engine, given, role.get("name").text)


def read_model_claim(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engine of a ModelClaim, which starts on a pod of a pool that stands elsewhere."""
    spec = given.root.get("spec")
    if spec.get("engine").text in ("", "vllm"):
        yield FoundEngine(
            platform="aibrix",
            document=given.document,
            root=given.root,
            name=given.name,
            path=spec.path,
            arguments=tuple(_options(spec.get("engineConfig", "args"))),
            model=spec.get("artifactURL"),
            model_name=spec.get("modelName"),
        )


def _named(engine: FoundEngine, given: ReaderInput, name: str) -> FoundEngine:
    return replace(engine, name=f"{given.name} ({name})" if name else given.name)


def read_graph(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of every service (v1alpha1) or component (v1beta1) of a graph with a worker that runs `dynamo.vllm`."""
    for name, service in given.root.get("spec", "services").fields():
        yield from _engines_of_service(given, name, service)
    for component in given.root.get("spec", "components").items():
        added = _variables_around(given, component)
        for engine in engines_of_pod(given, component.get("podTemplate", "spec"), platform="dynamo", added=added):
            yield _of_service(engine, given, component.get("name").text, component)


def read_component(given: ReaderInput) -> Iterator[FoundEngine]:
    yield from _engines_of_service(given, given.root.get("spec", "serviceName").text, given.root.get("spec"))


def _engines_of_service(given: ReaderInput, name: str, service: Written) -> Iterator[FoundEngine]:
    pod = service.get("extraPodSpec")
    sides = (service.get("resources", side, "gpu") for side in ("limits", "requests"))
    gpus = next((field for field in sides if field.is_set), None)
    added = _variables_around(given, service)
    for engine in engines_of_container(given, pod.get("mainContainer"), pod=pod, platform="dynamo", added=added):
        found = replace(engine, num_gpus=gpus or engine.num_gpus, hints=(*engine.hints, *node_hints(pod)))
        yield _of_service(found, given, name, service)


def _variables_around(given: ReaderInput, service: Written) -> dict[str, Written]:
    """Return the variables of the graph, which those of the service win over; those of the container win over both."""
    found: dict[str, Written] = {}
    for field in (
        given.root.get("spec", "envs"),
        given.root.get("spec", "env"),
        service.get("envs"),
        service.get("env"),
    ):
        container = Written(value={"env": field.value})
        own = variables_of(container, given.config_data, shared=given.shared) if field.items() else {}
        found |= {name: replace(value, path=field.path) for name, value in own.items()}
    return found


def _of_service(engine: FoundEngine, given: ReaderInput, name: str, service: Written) -> FoundEngine:
    """Name the engine after its service; Dynamo mounts shared memory unless it is switched off."""
    short = service.get("sharedMemorySize")
    size = short if short.is_set else service.get("sharedMemory", "size")
    return replace(
        _named(engine, given, name),
        path=service.path,
        stated=given.root.get("spec", "backendFramework"),
        num_pods=service.get("multinode", "nodeCount").count or 1,
        has_shared_memory=service.get("sharedMemory", "disabled").value is not True,
        shared_memory_path=service.get("sharedMemory").path,
        host=replace(engine.host, shm=size) if size.is_set else engine.host,
    )
