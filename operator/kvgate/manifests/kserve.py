"""KServe: LLMInferenceService with its base configurations, and InferenceService."""

from collections.abc import Iterator
from dataclasses import replace

from kvgate.manifests.accelerator_hints import node_hints
from kvgate.manifests.containers import command_of
from kvgate.manifests.engine_found import FoundEngine
from kvgate.manifests.fields_as_options import as_options
from kvgate.manifests.pods import Input, engine_of_container, engines_of_pod
from kvgate.manifests.vllm_args import Argument
from kvgate.manifests.written import NOTHING, Written

_PARALLELISM = {
    "tensor": "--tensor-parallel-size",
    "pipeline": "--pipeline-parallel-size",
    "data": "--data-parallel-size",
    "expert": "--enable-expert-parallel",
}
_SERVER_OPTIONS = frozenset(
    {"--model_name", "--model_id", "--model_dir", "--backend", "--http_port", "--enable_docs_url", "--task"}
)
"""Of KServe's own server, before vLLM's."""


def read_llm_inference_service(given: Input) -> Iterator[FoundEngine]:
    """The decode side, and prefill where it stands apart; base configurations are merged under what is written."""
    spec = given.root.get("spec")
    bases = [
        base
        for reference in spec.get("baseRefs").items()
        if (base := given.find("LLMInferenceServiceConfig", reference.get("name").text))
    ]
    yield _engine(given, spec, spec, bases, given.name)
    if spec.get("prefill").is_set:
        yield _engine(given, spec, spec.get("prefill"), bases, f"{given.name} (prefill)")


def _engine(given: Input, spec: Written, side: Written, bases: list[Written], name: str) -> FoundEngine:
    container = _main(side.get("template")) or _main(side.get("worker")) or NOTHING
    based = [_main(base.get("spec", "template")) for base in bases]
    inherited = next((base for base in based if base), NOTHING)
    found = engine_of_container(given, container, platform="kserve")
    command = command_of(container, given.config_value)
    image = container.get("image") if container.get("image").is_set else inherited.get("image")
    return replace(
        found,
        name=name,
        path=side.path,
        arguments=(*as_options(side.get("parallelism"), _PARALLELISM), *command.arguments),
        model=spec.get("model", "uri"),
        image=image,
        hints=(*found.hints, *node_hints(side.get("template"))),
        num_pods=_pods(side),
    )


def _main(pod: Written) -> Written | None:
    containers = pod.get("containers").items()
    return next((c for c in containers if c.get("name").text == "main"), containers[0] if containers else None)


def _pods(side: Written) -> int:
    """Data parallel ranks that do not fit one pod are spread over several."""
    data, local = side.get("parallelism", "data").count, side.get("parallelism", "dataLocal").count
    return max(1, data // local) if data and local else 1


def read_inference_service(given: Input) -> Iterator[FoundEngine]:
    """KServe's Hugging Face server takes vLLM's options beside its own; a predictor with containers is a pod."""
    predictor = given.root.get("spec", "predictor")
    model = predictor.get("model")
    if model.get("modelFormat", "name").text == "huggingface" or model.get("runtime").text.find("vllm") >= 0:
        yield _hugging_face(given, predictor, model)
    yield from engines_of_pod(given, predictor, platform="kserve")


def _hugging_face(given: Input, predictor: Written, model: Written) -> FoundEngine:
    found = engine_of_container(given, model, platform="kserve")
    names = {"--model_id": NOTHING, "--model-id": NOTHING}
    kept: list[Argument] = []
    for word in found.arguments:
        name, _, value = word.text.partition("=")
        if name in names and value:
            names[name] = Written(value=value, path=word.path)
        elif name not in _SERVER_OPTIONS:
            kept.append(word)
    identifier = names["--model_id"] if names["--model_id"].is_set else names["--model-id"]
    storage = model.get("storageUri")
    return replace(
        found,
        path=model.path,
        arguments=tuple(kept),
        model=identifier if identifier.is_set else storage,
        hints=(*found.hints, *node_hints(predictor)),
        is_wrapped=True,
    )
