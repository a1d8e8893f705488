"""KServe's LLMInferenceService with its base configurations."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.fields import as_options
from kvgate.manifests.platforms.merged import merged
from kvgate.manifests.pods.containers import is_simulator, names_other_server
from kvgate.manifests.pods.engine_found import FoundEngine, ReaderInput
from kvgate.manifests.pods.gpu_requests import gpus_of
from kvgate.manifests.pods.pod_engines import engines_of_container
from kvgate.vllm.arguments import Argument

_PARALLELISM = {
    "tensor": "--tensor-parallel-size",
    "pipeline": "--pipeline-parallel-size",
    "data": "--data-parallel-size",
    "expert": "--enable-expert-parallel",
}
_CONFIG_KIND = "LLMInferenceServiceConfig"
_MAIN = "main"
_UNKNOWN = "what this starts is not understood: it is judged as vLLM without options"


def read_llm_inference_service(given: ReaderInput) -> Iterator[FoundEngine]:
    """The decode side, and prefill where it stands apart."""
    bases, missing = _bases(given)
    value: Any = {}
    for base in bases:
        value = merged(value, _without_scripts(base.get("spec").value))
    spec = Written(value=merged(value, given.root.get("spec").value), path="spec")
    sides = {given.name: spec, f"{given.name} (prefill)": spec.get("prefill")}
    for name, side in sides.items():
        if side.is_set and not _is_other(spec, _main(_pod(side))):
            yield _side(given, spec, side, name, missing)


def _is_other(spec: Written, container: Written) -> bool:
    """A simulator, or another server by its runtime, image or command."""
    image = container.get("image").text
    words = f"{spec.get('runtime').text} {image} {container.get('command').value}"
    return is_simulator(image) or names_other_server(words)


def _bases(given: ReaderInput) -> tuple[list[Written], tuple[tuple[str, str], ...]]:
    found, missing = [], []
    for reference in given.root.get("spec", "baseRefs").items():
        name = reference.get("name")
        base = given.find(_CONFIG_KIND, name.text)
        if base:
            found.append(base)
        else:
            missing.append((name.path, f"{_CONFIG_KIND} {name.text} is not in the input: what it adds is not known"))
    return found, tuple(missing)


def _without_scripts(spec: Any) -> Any:
    """Commands of KServe's own configurations are templates around `vllm serve … $@`; what they take is read instead."""
    if isinstance(spec, Mapping):
        kept = {key: value for key, value in spec.items() if key != "command" or "{{" not in str(value)}
        return {key: _without_scripts(value) for key, value in kept.items()}
    if isinstance(spec, list):
        return [_without_scripts(item) for item in spec if not (isinstance(item, str) and "{{" in item)]
    return spec


def _side(
    given: ReaderInput, spec: Written, side: Written, name: str, missing: tuple[tuple[str, str], ...]
) -> FoundEngine:
    pod = _pod(side)
    container = _main(pod)
    engines = engines_of_container(given, container, pod=pod, platform="kserve", own_program=True)
    plain = FoundEngine(platform="kserve", document=given.document, root=given.root, name=name, path=side.path)
    found = next(engines, plain)
    image = found.image.text
    unknown = ((container.get("command").path, _UNKNOWN),) if container.get("command").is_set and found is plain else ()
    return replace(
        found,
        name=name,
        path=side.path,
        arguments=(*as_options(side.get("parallelism"), _PARALLELISM), *_extras(spec), *found.arguments),
        model=spec.get("model", "uri"),
        model_name=spec.get("model", "name"),
        remarks=(*found.remarks, *missing, *unknown),
        is_partial=bool(missing or unknown),
        num_pods=_pods(side),
        has_shared_memory=True if not image else found.has_shared_memory or _mounts_nothing(container),
    )


def _mounts_nothing(container: Written) -> bool:
    """KServe's own template, which mounts shared memory, lies under what is written."""
    return not container.get("volumeMounts").is_set


def _pod(side: Written) -> Written:
    """The leader's, where it has one of its own."""
    return next((pod for pod in (side.get("template"), side.get("worker")) if _main(pod).is_set), side.get("template"))


def _main(pod: Written) -> Written:
    """Return the main container by its name, else the one that requests GPUs."""
    containers = pod.get("containers").items()
    named = [container for container in containers if container.get("name").text == _MAIN]
    with_gpus = [container for container in containers if gpus_of(container.get("resources"))[0].is_set]
    return next(iter((*named, *with_gpus, *containers)), NOTHING)


def _pods(side: Written) -> int:
    """Data parallel ranks that do not fit one pod are spread over several, as stages are where workers stand by."""
    parallelism = side.get("parallelism")
    data, local = parallelism.get("data").count, parallelism.get("dataLocal").count
    if data and local:
        return max(1, data // local)
    return (parallelism.get("pipeline").count or 1) if side.get("worker").is_set else 1


def _extras(spec: Written) -> Iterator[Argument]:
    """Adapters and the speculator, as the controller hands them to vLLM."""
    lora = spec.get("model", "lora")
    active = [adapter for adapter in lora.get("adapters").items() if adapter.get("disabled").value is not True]
    if active:
        ranks = lora.get("maxAdapters").count or len(active)
        yield Argument(text="--enable-lora", path=lora.path)
        yield Argument(text=f"--max-loras={ranks}", path=lora.get("maxAdapters").path)
        yield from as_options(lora, {"maxRank": "--max-lora-rank"})
    speculator = spec.get("speculator")
    if speculator.is_set:
        yield from _speculation(speculator)


def _speculation(speculator: Written) -> Iterator[Argument]:
    """`config` is vLLM's speculative_config with every value as text."""
    model = speculator.get("model", "uri").text.removeprefix("hf://")
    for name, field in speculator.get("config").fields():
        yield Argument(text=f"--speculative-config.{name}={field.text}", path=field.path)
    if model:
        yield Argument(text=f"--speculative-config.model={model}", path=speculator.get("model").path)
