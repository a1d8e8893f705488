"""LLMKube: an InferenceService whose runtime is vLLM, with its Model.

What the operator passes to vLLM: github.com/defilantech/LLMKube, `internal/controller/runtime_vllm.go` and `runtime_vllm_args.go`.
Its pods have the volumes of the model and `extraVolumes`, and nothing else at /dev/shm (`deployment_builder.go`, `constructDeployment`).
"""

from collections.abc import Iterator

from msgspec.structs import replace

from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.fields import as_option, as_options, words_of
from kvgate.manifests.pods.engine_found import FoundEngine, Hint, ReaderInput
from kvgate.manifests.pods.pod_engines import CRIO_SHM_SIZE, engines_of_container
from kvgate.vllm.arguments import Argument

_FLAGS = {
    "maxModelLen": "--max-model-len", "quantization": "--quantization", "dtype": "--dtype",
    "enablePrefixCaching": "--enable-prefix-caching", "enableChunkedPrefill": "--enable-chunked-prefill",
    "maxNumBatchedTokens": "--max-num-batched-tokens", "attentionBackend": "--attention-backend",
    "enableExpertParallel": "--enable-expert-parallel", "cpuOffloadGB": "--cpu-offload-gb",
    "gpuMemoryUtilization": "--gpu-memory-utilization", "tensorParallelSize": "--tensor-parallel-size",
}  # fmt: skip
"""Fields of vllmConfig → options; a switch that is off is not passed."""
_RESOURCES = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "intel": "gpu.intel.com/i915"}
"""Vendor of a Model's GPUs → the resource that pods request."""


def read_service(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engine of a service that runs vLLM, or of a generic one whose command starts it."""
    spec, found = given.root.get("spec"), given.find("Model", given.root.get("spec", "modelRef").text)
    model = found if found and found.get("apiVersion").text.startswith("inference.llmkube.dev/") else NOTHING
    is_vllm = spec.get("runtime").text == "vllm"
    if not isinstance(spec.value, dict) or not (is_vllm or spec.get("runtime").text == "generic"):
        return
    container = replace(
        spec, value={**spec.value, "resources": None, "volumeMounts": spec.get("extraVolumeMounts").value}
    )
    if is_vllm:
        container = replace(container, value={**container.value, "command": None, "args": []})
    pod = replace(spec, value={**spec.value, "volumes": spec.get("extraVolumes").value})
    gpus, resource = _gpus(spec, model)
    reference = spec.get("modelRef")
    message = f"Model {reference.text} is not in the input: what it downloads and its GPUs are not known"
    missing = ((reference.path, message),) if reference.text and not model.is_set else ()
    for engine in engines_of_container(given, container, pod=pod, platform="llmkube", own_program=is_vllm):
        yield replace(
            engine,
            arguments=tuple(_options(spec, gpus)) if is_vllm else engine.arguments,
            model=replace(model.get("spec", "source"), path=reference.path) if model.is_set else NOTHING,
            model_name=NOTHING if model.is_set else reference,
            num_gpus=gpus,
            hints=(*((resource,) if resource else ()), *engine.hints),
            remarks=(*engine.remarks, *missing),
            is_partial=bool(missing),
            is_shared_memory_certain=is_vllm and CRIO_SHM_SIZE not in str(spec.get("podAnnotations").value),
        )


def _gpus(spec: Written, model: Written) -> tuple[Written, Hint | None]:
    """Return (the number of GPUs, their resource); the Model's own number wins."""
    of_model, sharing = model.get("spec", "hardware", "gpu"), spec.get("resources", "gpuSharing")
    counts = (of_model.get("count"), spec.get("resources", "gpu"))
    count = next((each for each in counts if each.count), NOTHING)
    # A number that stands in another document is shown at the reference.
    count = replace(count, path=spec.get("modelRef").path) if count.path == of_model.get("count").path else count
    name = of_model.get("resourceName").text or _RESOURCES.get(of_model.get("vendor").text or "nvidia", "")
    if sharing.get("mode").text == "partitioned":
        name = f"nvidia.com/mig-{sharing.get('profile').text}"
    return count, Hint(name="resource", value=name, path=count.path) if name and count.is_set else None


def _options(spec: Written, gpus: Written) -> Iterator[Argument]:
    """Yield the fields, then what the operator derives, then the words of the user, which win."""
    config, extra = spec.get("vllmConfig"), words_of(spec.get("extraArgs"))
    flags = {name: flag for name, flag in _FLAGS.items() if config.get(name).value is not False}
    yield from as_options(config, flags)
    custom = config.get("kvCacheCustomDtype")
    dtype = custom if custom.text else config.get("kvCacheDtype")
    yield from as_option(dtype, "--kv-cache-dtype")
    if (gpus.count or 0) > 1 and not config.get("tensorParallelSize").is_set:
        yield Argument(text=f"--tensor-parallel-size={gpus.count}", path=gpus.path)
    if not any(word.text.startswith("--max-num-seqs") for word in extra):
        yield from as_options(spec, {"parallelSlots": "--max-num-seqs"})
    draft = config.get("speculative")
    if draft.get("enabled").value is True and draft.get("model").text:
        yield from as_options(
            draft, {"model": "--speculative-model", "numSpeculativeTokens": "--num-speculative-tokens"}
        )
    yield from extra
