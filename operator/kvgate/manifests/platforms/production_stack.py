"""vLLM production-stack: the Helm chart's values, and the operator's VLLMRuntime.

Fields and their options: github.com/vllm-project/production-stack, `deployment-vllm-multi.yaml` and
`vllmruntime_controller.go`.
"""

from collections.abc import Iterator

from kvgate.documents.written import NOTHING, Written
from kvgate.findings.finding import Place, located
from kvgate.manifests.fields import as_options, ignored_fields, option_paths, words_of
from kvgate.manifests.pods.accelerator_hints import affinity_hints, node_hints
from kvgate.manifests.pods.engine_found import FoundEngine, Hint, ReaderInput, Store
from kvgate.manifests.pods.gpu_requests import gpu_part_of, gpus_of, memory_part
from kvgate.manifests.pods.host_memory import HostRoom
from kvgate.rules.manifests import FIELD_IGNORED
from kvgate.vllm.arguments import Argument
from kvgate.vllm.values import exact_decimal

_CONFIG = {
    "enableChunkedPrefill": "--enable-chunked-prefill",
    "enablePrefixCaching": "--enable-prefix-caching",
    "maxModelLen": "--max-model-len",
    "dtype": "--dtype",
    "tensorParallelSize": "--tensor-parallel-size",
    "maxNumSeqs": "--max-num-seqs",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "maxLoras": "--max-loras",
    "runner": "--runner",
    "convert": "--convert",
}
"""Field of `vllmConfig` → the option that the chart's template writes, in its order."""
_RAY_CONFIG = {**_CONFIG, "pipelineParallelSize": "--pipeline-parallel-size"}
_CONFIG_FIELDS = frozenset({*_RAY_CONFIG, "extraArgs", "v0", "v1", "prometheusMultiprocDir"})
_SPEC_FIELDS = frozenset({
    "name", "enabled", "annotations", "podAnnotations", "labels", "serviceAccountName", "priorityClassName", "runtimeClassName",
    "repository", "tag", "imagePullSecret", "modelURL", "chatTemplate", "chatTemplateConfigMap", "replicaCount", "resources",
    "requestCPU", "requestMemory", "requestGPU", "requestGPUType", "requestGPUMem", "requestGPUMemPercentage", "requestGPUCores",
    "limitCPU", "limitMemory", "limitGPUMem", "limitGPUMemPercentage", "limitGPUCores", "pvcStorage", "pvcAccessMode", "storageClass",
    "pvcMatchLabels", "pvcLabels", "pvcAnnotations", "extraVolumes", "extraVolumeMounts", "initContainer", "vllmConfig",
    "lmcacheConfig", "hf_token", "envFromSecret", "env", "affinity", "nodeSelectorTerms", "nodeName", "tolerations",
    "tolerationsPolicy", "shmSize", "enableLoRA", "enableTool", "toolCallParser", "keda", "raySpec", "extraPorts", "serviceName",
})  # fmt: skip
"""Fields that the chart reads in an entry of modelSpec."""
_POD_FIELDS = ("nodeSelector", "startupProbe", "livenessProbe", "image", "model", "args", "command")
"""Fields that other charts read, or this one elsewhere."""
_CHART = "the chart of production-stack"


def is_values(root: Written) -> bool:
    return root.get("servingEngineSpec", "modelSpec").is_set


def read_values(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield one engine per entry of modelSpec that is not switched off."""
    serving = given.values.get("servingEngineSpec")
    if serving.get("enableEngine").value is False:
        return
    for spec in serving.get("modelSpec").items():
        if spec.get("enabled").value is not False:
            yield _engine(given, serving, spec)


def _engine(given: ReaderInput, serving: Written, spec: Written) -> FoundEngine:
    config, resources, is_ray = spec.get("vllmConfig"), spec.get("resources"), spec.get("raySpec").is_set
    gpus, resource = gpus_of(resources) if resources.is_set else _simple_gpus(spec)
    # `affinity` wins over `nodeSelectorTerms`.
    nodes = node_hints(spec) if spec.get("affinity").is_set else affinity_hints(spec.get("nodeSelectorTerms"))
    own = (memory_part("nvidia.com/gpumem", spec.get(name)) for name in ("limitGPUMem", "requestGPUMem"))
    # The tag alone where the repository is the chart's.
    repository, tag = spec.get("repository").text, spec.get("tag")
    image = Written(value=f"{repository}:{tag.text}", path=tag.path) if repository and tag.text else tag
    probes = (serving.get(name) for name in ("startupProbe", "livenessProbe"))
    ignored = (
        *ignored_fields(spec, _SPEC_FIELDS, {*_CONFIG_FIELDS, *_POD_FIELDS}, _CHART),
        *ignored_fields(config, _CONFIG_FIELDS, _SPEC_FIELDS, _CHART),
    )
    return FoundEngine(
        platform="production-stack",
        document=given.document,
        root=given.root,
        name=spec.get("name").text,
        path=spec.path,
        arguments=(
            *as_options(spec, {"enableLoRA": "--enable-lora"}),
            *as_options(config, _RAY_CONFIG if is_ray else _CONFIG),
            *words_of(config.get("extraArgs")),
            *_lmcache(spec.get("lmcacheConfig")),
        ),
        model=spec.get("modelURL"),
        version=image,
        image=image if repository else NOTHING,
        num_gpus=NOTHING if is_ray else gpus,
        gpu_part=next(filter(None, own), None) or gpu_part_of(resources),
        hints=(*((resource,) if resource else ()), *nodes),
        findings=ignored,
        probes=tuple(probe for probe in probes if probe.is_set),
        has_shared_memory=config.get("tensorParallelSize").is_set,
        shared_memory_path=config.path,
        host=_room(spec, config),
        stores=_stores(spec),
        option_paths=option_paths(config, _RAY_CONFIG if is_ray else _CONFIG),
    )


def _simple_gpus(spec: Written) -> tuple[Written, Hint | None]:
    """Return the GPUs by the simple fields, which `resources` replaces."""
    gpus, named = spec.get("requestGPU"), spec.get("requestGPUType")
    return gpus, Hint(name="resource", value=named.text, path=named.path) if named.text else None


def _lmcache(config: Written) -> Iterator[Argument]:
    """Yield the option for LMCache, which chart and operator add where it is enabled."""
    if config.get("enabled").value is True:
        connector = '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}'
        yield Argument(text=f"--kv-transfer-config={connector}", path=config.path)


def _room(spec: Written, config: Written) -> HostRoom:
    """Return the memory of the container; `resources` replaces the simple fields, and LMCache's buffer has a field of its own."""
    resources, shared = spec.get("resources"), spec.get("shmSize")
    if not config.get("tensorParallelSize").is_set:
        shared = NOTHING
    elif not shared.is_set:
        # the chart mounts so much for several ranks
        shared = Written(value="20Gi", path=shared.path)
    return HostRoom(
        limit=resources.get("limits", "memory") if resources.is_set else spec.get("limitMemory"),
        shm=shared,
        values=_buffer(spec.get("lmcacheConfig")),
    )


def _buffer(config: Written) -> dict[str, str]:
    """Return LMCache's buffer of each rank, in GB as its variable has them; a size that is none is left to LMCache."""
    size = config.get("cpuOffloadingBufferSize").text
    is_on = config.get("enabled").value is True and exact_decimal(size) is not None
    return {"lmcache_max_local_cpu_size": size} if is_on else {}


def _stores(spec: Written) -> tuple[Store, ...]:
    """Return the volume at /data, where the chart keeps Hugging Face's cache."""
    size = spec.get("pvcStorage")
    limit = size.get("emptyDir", "sizeLimit")
    if size.text:
        return (Store(name="pvcStorage", size=size),)
    return (Store(name="the emptyDir of pvcStorage", size=limit),) if limit.is_set else ()


_RUNTIME_MODEL = {
    "enableLoRA": "--enable-lora",
    "maxModelLen": "--max-model-len",
    "dtype": "--dtype",
    "maxNumSeqs": "--max-num-seqs",
}
_RUNTIME_CONFIG = {
    "enableChunkedPrefill": "--enable-chunked-prefill",
    "enablePrefixCaching": "--enable-prefix-caching",
    "tensorParallelSize": "--tensor-parallel-size",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "maxLoras": "--max-loras",
}


def read_runtime(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engine of a `VLLMRuntime`. Its operator selects no nodes and mounts no /dev/shm."""
    spec = given.root.get("spec")
    config, deployment = spec.get("vllmConfig"), spec.get("deploymentConfig")
    # The operator switches both features off where they are not written.
    switches = ("enableChunkedPrefill", "enablePrefixCaching")
    off = [
        Argument(text=f"--no-{_RUNTIME_CONFIG[name][2:]}", path=config.path)
        for name in switches
        if not isinstance(config.get(name).value, bool)
    ]
    arguments = (
        *as_options(spec.get("model"), _RUNTIME_MODEL),
        *off,
        *as_options(config, _RUNTIME_CONFIG),
        *words_of(config.get("extraArgs")),
        *_lmcache(spec.get("lmCacheConfig")),
    )
    gpu_type = deployment.get("resources", "gpuType")
    message = f"the operator of production-stack requests nvidia.com/gpu, and not {gpu_type.text}"
    # the operator requests nothing else, whatever gpuType says
    is_ignored = gpu_type.text not in ("", "nvidia.com/gpu")
    at = Place(name="gpuType", path=gpu_type.path)
    ignored = (located(FIELD_IGNORED, at, message),) if is_ignored else ()
    yield FoundEngine(
        platform="production-stack",
        document=given.document,
        root=given.root,
        name=given.name,
        path=spec.path,
        arguments=arguments,
        model=spec.get("model", "modelURL"),
        version=deployment.get("image", "name"),
        num_gpus=deployment.get("resources", "gpu"),
        findings=ignored,
        has_shared_memory=False,
        shared_memory_path=config.path,
        host=HostRoom(values=_buffer(spec.get("lmCacheConfig"))),
        stores=tuple(_runtime_store(spec)),
        option_paths=option_paths(config, _RUNTIME_CONFIG),
    )


def _runtime_store(spec: Written) -> Iterator[Store]:
    """Yield the claim of storageConfig, where Hugging Face's cache is on it."""
    storage = spec.get("storageConfig")
    if storage.get("enabled").value is not True:
        return
    mount = storage.get("mountPath").text or "/data"
    caches = [
        e.get("value").text
        for e in spec.get("vllmConfig", "env").items()
        if e.get("name").text in ("HF_HOME", "HF_HUB_CACHE")
    ]
    if any(cache == mount or cache.startswith(f"{mount}/") for cache in caches):
        size = storage.get("size")
        yield Store(name="storageConfig", size=size if size.text else Written(value="10Gi", path=storage.path))
