"""vLLM production-stack: the Helm chart's values, and the operator's VLLMRuntime."""

from collections.abc import Iterator

from kvgate.manifests.accelerator_hints import affinity_hints, node_hints
from kvgate.manifests.engine_found import FoundEngine, Hint
from kvgate.manifests.fields_as_options import as_options, words_of
from kvgate.manifests.pods import Input
from kvgate.manifests.written import Written

_CONFIG = {
    "maxModelLen": "--max-model-len",
    "dtype": "--dtype",
    "tensorParallelSize": "--tensor-parallel-size",
    "pipelineParallelSize": "--pipeline-parallel-size",
    "maxNumSeqs": "--max-num-seqs",
    "gpuMemoryUtilization": "--gpu-memory-utilization",
    "enablePrefixCaching": "--enable-prefix-caching",
    "enableChunkedPrefill": "--enable-chunked-prefill",
    "maxLoras": "--max-loras",
}
"""`vllmConfig` → what the chart's template writes (a6c01db0, `deployment-vllm-multi.yaml`)."""


def is_values(root: Written) -> bool:
    return root.get("servingEngineSpec", "modelSpec").is_set


def read_values(given: Input) -> Iterator[FoundEngine]:
    """One engine per entry of modelSpec."""
    for spec in given.root.get("servingEngineSpec", "modelSpec").items():
        config = spec.get("vllmConfig")
        resource = spec.get("requestGPUType")
        yield FoundEngine(
            platform="production-stack",
            document=given.document,
            root=given.root,
            name=spec.get("name").text,
            path=spec.path,
            arguments=(*as_options(config, _CONFIG), *words_of(config.get("extraArgs"))),
            model=spec.get("modelURL"),
            version=spec.get("tag"),
            num_gpus=spec.get("requestGPU"),
            hints=(*_resource(resource), *affinity_hints(spec.get("nodeSelectorTerms")), *node_hints(spec)),
        )


def _resource(field: Written) -> tuple[Hint, ...]:
    return (Hint(name="resource", value=field.text, path=field.path),) if field.text else ()


def read_runtime(given: Input) -> Iterator[FoundEngine]:
    """`VLLMRuntime`: model, vllmConfig and deploymentConfig side by side."""
    spec = given.root.get("spec")
    config, resources = spec.get("vllmConfig"), spec.get("deploymentConfig", "resources")
    yield FoundEngine(
        platform="production-stack",
        document=given.document,
        root=given.root,
        name=given.name,
        path=spec.path,
        arguments=(
            *as_options(spec.get("model"), _CONFIG),
            *as_options(config, _CONFIG),
            *words_of(config.get("extraArgs")),
        ),
        model=spec.get("model", "modelURL"),
        version=spec.get("deploymentConfig", "image", "name"),
        num_gpus=resources.get("gpu"),
        hints=(*_resource(resources.get("gpuType")), *node_hints(spec.get("deploymentConfig"))),
    )
