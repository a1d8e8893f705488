"""KAITO: Workspace, InferenceSet and MultiRoleInference, with the options of vLLM in a ConfigMap.

What KAITO adds: github.com/kaito-project/kaito, `pkg/model/interface.go` (0.84 and auto since 2026; `configureParallelism`).
"""

from collections.abc import Iterator

from msgspec.structs import replace

from kvgate import catalogue
from kvgate.documents.nodes import YamlError, value_of
from kvgate.documents.written import Written
from kvgate.manifests.fields import any_options
from kvgate.manifests.pods.accelerator_hints import accelerators_of, gpus_of_instance, node_hints
from kvgate.manifests.pods.engine_found import FoundEngine, Hint, ReaderInput
from kvgate.manifests.pods.pod_engines import engines_of_pod
from kvgate.vllm.arguments import Argument

_CONFIG_KEY = "inference_config.yaml"
_RUNTIME = "kaito.sh/runtime"
_PRESETS = {
    "llama-3.1-8b-instruct": "meta-llama/Llama-3.1-8B-Instruct",
    "llama-3.3-70b-instruct": "meta-llama/Llama-3.3-70B-Instruct",
    "falcon-7b": "tiiuae/falcon-7b",
    "falcon-7b-instruct": "tiiuae/falcon-7b-instruct",
    "falcon-40b": "tiiuae/falcon-40b",
    "falcon-40b-instruct": "tiiuae/falcon-40b-instruct",
    "mistral-7b": "mistralai/Mistral-7B-v0.3",
    "mistral-7b-instruct": "mistralai/Mistral-7B-Instruct-v0.3",
    "phi-2": "microsoft/phi-2",
    "phi-3-mini-4k-instruct": "microsoft/Phi-3-mini-4k-instruct",
    "phi-3-mini-128k-instruct": "microsoft/Phi-3-mini-128k-instruct",
    "phi-3-medium-4k-instruct": "microsoft/Phi-3-medium-4k-instruct",
    "phi-3-medium-128k-instruct": "microsoft/Phi-3-medium-128k-instruct",
    "phi-3.5-mini-instruct": "microsoft/Phi-3.5-mini-instruct",
    "phi-4-mini-instruct": "microsoft/Phi-4-mini-instruct",
    "phi-4": "microsoft/phi-4",
    "qwen2.5-coder-7b-instruct": "Qwen/Qwen2.5-Coder-7B-Instruct",
    "qwen2.5-coder-32b-instruct": "Qwen/Qwen2.5-Coder-32B-Instruct",
    "deepseek-r1-distill-llama-8b": "deepseek-ai/DeepSeek-R1-Distill-Llama-8B",
    "deepseek-r1-distill-qwen-14b": "deepseek-ai/DeepSeek-R1-Distill-Qwen-14B",
    "gpt-oss-20b": "openai/gpt-oss-20b",
    "gpt-oss-120b": "openai/gpt-oss-120b",
}
"""Names of presets that are no Hugging Face ids, and their models (`supported_models.yaml`)."""
_DEFAULTS = {"gpu-memory-utilization": "0.84", "max-model-len": "auto"}
"""Options that KAITO passes where the ConfigMap does not."""


def read_workspace(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of a Workspace, whose `inference` and `resource` stand at the top."""
    if given.root.get("metadata", "annotations", _RUNTIME).text != "transformers":
        yield from _engines(given, given.root.get("inference"), given.root.get("resource"))


def read_inference_set(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of an InferenceSet, which makes Workspaces of one template."""
    template = given.root.get("spec", "template")
    if given.root.get("metadata", "annotations", _RUNTIME).text != "transformers":
        yield from _engines(given, template.get("inference"), template.get("resource"))


def read_multi_role(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of prefill and decode, each of which runs apart."""
    spec = given.root.get("spec")
    for role in spec.get("roles").items():
        name = f"{given.name} ({role.get('type').text})"
        yield _preset(given, role, spec.get("model", "name"), role, role.get("inferenceConfig"), name)


def _engines(given: ReaderInput, inference: Written, resource: Written) -> Iterator[FoundEngine]:
    """Yield the engine of a preset with its ConfigMap, or those of the user's own pod template."""
    template = inference.get("template")
    if template.is_set:
        for engine in engines_of_pod(given, template.get("spec"), platform="kaito"):
            yield replace(engine, hints=(*engine.hints, *_hints(resource)))
    elif inference.get("preset").is_set:
        name = inference.get("preset", "name")
        yield _preset(given, inference, name, resource, inference.get("config"), given.name)


def _preset(
    given: ReaderInput, at: Written, preset: Written, resource: Written, config: Written, name: str
) -> FoundEngine:
    model = Written(value=_PRESETS.get(preset.text.lower(), preset.text), path=preset.path)
    hints = tuple(_hints(resource))
    written, remarks = _config(given, config)
    sizes, assumed = _parallelism(model.text, hints, resource.get("count").count or 1)
    names = {word.text.partition("=")[0].removeprefix("--") for word in written}
    added = {flag: value for flag, value in {**_DEFAULTS, **sizes}.items() if flag not in names}
    words = ", ".join(f"--{flag}={value}" for flag, value in added.items())
    return FoundEngine(
        platform="kaito",
        document=given.document,
        root=given.root,
        name=name,
        path=at.path,
        arguments=(*(Argument(text=f"--{flag}={value}", path=at.path) for flag, value in added.items()), *written),
        model=model,
        hints=hints,
        remarks=remarks,
        is_partial=bool(remarks),
        assumed=(f"{words}, as KAITO adds{assumed}",) if added else (),
        has_shared_memory=True,
    )


def _parallelism(model: str, hints: tuple[Hint, ...], num_nodes: int) -> tuple[dict[str, str], str]:
    """Return (the sizes that KAITO adds, words about them).

    A model that takes less than half of one GPU runs once per GPU; any other takes all GPUs of a node, and one stage per node.
    """
    gpus = gpus_of_instance(hints)
    if gpus is None or (gpus == 1 and num_nodes == 1):
        return {}, ""
    entry, boards = catalogue.find_model(model), accelerators_of(hints)
    stored = entry.safetensors_bytes if entry else None
    if num_nodes == 1 and stored and boards and stored * 2 < boards[0].accelerator.memory_bytes:
        return {"data-parallel-size": str(gpus)}, f" for {gpus} GPUs"
    sizes = {"tensor-parallel-size": str(gpus)} | ({"pipeline-parallel-size": str(num_nodes)} if num_nodes > 1 else {})
    return sizes, f" for {gpus} GPUs on {num_nodes} nodes" if num_nodes > 1 else f" for {gpus} GPUs"


def _hints(resource: Written) -> Iterator[Hint]:
    for name in ("instanceType", "instance_type"):
        if (instance := resource.get(name)).text:
            yield Hint(name="instanceType", value=instance.text, path=instance.path)
    profile = resource.get("mig", "profile")
    if profile.text:
        yield Hint(name="resource", value=f"nvidia.com/mig-{profile.text}", path=profile.path)
    for name, value in resource.get("labelSelector", "matchLabels").fields():
        yield Hint(name=name, value=value.text, path=value.path)
    yield from node_hints(resource)


def _config(given: ReaderInput, reference: Written) -> tuple[tuple[Argument, ...], tuple[tuple[str, str], ...]]:
    """Return (the options in the ConfigMap, remarks where it cannot be read)."""
    if not reference.text:
        return (), ()
    text = (given.config_data(reference.text) or {}).get(_CONFIG_KEY)
    if not isinstance(text, str):
        return (), ((reference.path, f"ConfigMap {reference.text} with {_CONFIG_KEY} is not in the input"),)
    try:
        loaded = value_of(text)
    except YamlError as error:
        return (), ((reference.path, f"{_CONFIG_KEY} of ConfigMap {reference.text} cannot be read: {error}"),)
    words = any_options(Written(value=loaded, path="").get("vllm"))
    return tuple(Argument(text=word.text, path=reference.path) for word in words), ()
