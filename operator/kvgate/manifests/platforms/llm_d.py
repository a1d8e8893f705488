"""llm-d: values of the modelservice chart; its kustomize guides are plain Deployments.

What the chart adds: github.com/llm-d-incubation/llm-d-modelservice, `_helpers.tpl`.
"""

from collections.abc import Iterator, Mapping

from msgspec.structs import replace

from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.pods.accelerator_hints import node_hints
from kvgate.manifests.pods.engine_found import FoundEngine, Hint, ReaderInput, Store
from kvgate.manifests.pods.pod_engines import engines_of_container
from kvgate.manifests.pods.which_engine import is_simulator
from kvgate.vllm.arguments import Argument, is_open

_RESOURCES = {
    "nvidia": "nvidia.com/gpu",
    "amd": "amd.com/gpu",
    "intel-i915": "gpu.intel.com/i915",
    "intel-xe": "gpu.intel.com/xe",
    "intel-gaudi": "habana.ai/gaudi",
    "google": "google.com/tpu",
}
"""`accelerator.type` → the resource that the chart requests."""
_SIZE_OPTIONS = {
    "tensor": "--tensor-parallel-size",
    "data": "--data-parallel-size",
    "dataLocal": "--data-parallel-size-local",
}
"""Field of `parallelism` → the option that the chart passes it in."""
_SIZE_VARIABLES = {"DP_SIZE": "data", "TP_SIZE": "tensor", "DP_SIZE_LOCAL": "dataLocal"}


def is_values(root: Written) -> bool:
    return root.get("modelArtifacts").is_set and (root.get("decode").is_set or root.get("prefill").is_set)


def read_values(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of decode and of prefill, each of which runs apart."""
    for side in ("decode", "prefill"):
        section = given.values.get(side)
        containers = [c for c in section.get("containers").items() if not is_simulator(c.get("image").text)]
        if not containers or section.get("create").value is False or section.get("replicas").value == 0:
            continue
        yield from _engines_of_side(given, section, containers[0], side)


def _engines_of_side(given: ReaderInput, section: Written, container: Written, side: str) -> Iterator[FoundEngine]:
    """Yield the engines of one side. `modelCommand` says who writes the command line; `custom` gets the sizes as variables."""
    artifacts, parallelism = given.values.get("modelArtifacts"), section.get("parallelism")
    # `data` = `dataLocal` × `workers`, of which any two may be written
    data, local, workers, tensor = (parallelism.get(name).count for name in ("data", "dataLocal", "workers", "tensor"))
    workers = workers or (max(1, data // local) if data and local else 1)
    data = data or (local or 1) * workers
    sizes = {"data": data, "dataLocal": local or max(1, data // workers), "tensor": tensor or 1}
    is_custom = container.get("modelCommand").text not in ("vllmServe", "imageDefault")
    added: tuple[Argument, ...] = ()
    model, seen = NOTHING, container
    if is_custom:
        seen = _with_sizes(container, sizes)
    else:  # the chart passes sizes above 1; its own default of the uri is a template around the name
        added = tuple(
            Argument(text=f"{flag}={sizes[field]}", path=parallelism.get(field).path)
            for field, flag in _SIZE_OPTIONS.items()
            if sizes[field] > 1
        )
        uri = artifacts.get("uri")
        model = artifacts.get("name") if is_open(uri.text) or not uri.text else uri
    pod = section.get("extraConfig") if section.get("extraConfig").is_set else section
    mounts = (mount.get("mountPath").text for mount in container.get("volumeMounts").items())
    has_shared_memory = section.get("hostIPC").value is True or "/dev/shm" in mounts  # noqa: S108 - the path in the container
    for engine in engines_of_container(given, seen, pod=pod, platform="llm-d", own_program=not is_custom):
        gpus, assumed = _gpus(given, engine, sizes)
        yield replace(
            engine,
            name=f"{artifacts.get('name').text or given.values.get('routing', 'modelName').text} ({side})",
            path=section.path,
            arguments=(*added, *engine.arguments),
            model=model,
            model_name=artifacts.get("name"),
            num_gpus=gpus,
            num_pods=workers,
            hints=tuple(_hints(given, section, engine)),
            assumed=assumed,
            stores=_stores(artifacts, container),
            has_shared_memory=has_shared_memory,
        )


def _with_sizes(container: Written, sizes: Mapping[str, int]) -> Written:
    """Add the variables that the chart sets in every container, behind the user's own."""
    added = [{"name": name, "value": str(sizes[field])} for name, field in _SIZE_VARIABLES.items()]
    env = container.get("env").value
    value = container.value if isinstance(container.value, Mapping) else {}
    return replace(container, value={**value, "env": [*(env if isinstance(env, list) else []), *added]})


def _gpus(given: ReaderInput, engine: FoundEngine, sizes: Mapping[str, int]) -> tuple[Written, tuple[str, ...]]:
    """Return the GPUs of a pod; where nothing is requested the chart requests one per rank, unless claims do."""
    kind = given.values.get("accelerator", "type").text
    if engine.num_gpus.is_set or kind == "cpu" or given.values.get("accelerator", "dra").value is True:
        return engine.num_gpus, ()
    count = sizes["tensor"] * sizes["dataLocal"]
    words = f"{count} GPU{'' if count == 1 else 's'}, as the chart requests"
    return Written(value=count, path=engine.num_gpus.path), (words,)


def _hints(given: ReaderInput, section: Written, engine: FoundEngine) -> Iterator[Hint]:
    yield from engine.hints
    yield from node_hints(section)
    for types in (section.get("acceleratorTypes"), given.values.get("acceleratorTypes")):
        key, values = types.get("labelKey").text, types.get("labelValues")
        for value in values.items():
            yield Hint(name=key, value=value.text, path=value.path, one_of=values.path)
    kind = given.values.get("accelerator", "type")
    if kind.text in _RESOURCES:
        yield Hint(name="resource", value=_RESOURCES[kind.text], path=kind.path)


def _stores(artifacts: Written, container: Written) -> tuple[Store, ...]:
    """Return the volume of the model; for one on the hub `size` limits the emptyDir that it is downloaded to."""
    size = artifacts.get("size")
    is_downloaded = artifacts.get("uri").text.startswith("hf://") and container.get("mountModelVolume").value is True
    is_limited = is_downloaded and size.text not in ("", "0")
    return (Store(name="the emptyDir of modelArtifacts.size", size=size),) if is_limited else ()
