"""KAITO: Workspace, InferenceSet and MultiRoleInference, with the options of vLLM in a ConfigMap.

What KAITO adds: github.com/kaito-project/kaito as of August 2026, `pkg/model/interface.go` (`buildVLLMInferenceCommand`,
`configureParallelism`) and `pkg/workspace/estimator/nodesestimator` (`EstimateNodeCount`).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import SINGLE_GPU
from kvgate.budget.ground.units import cdiv
from kvgate.budget.model.weights import rank_weights
from kvgate.documents.nodes import YamlError, value_of
from kvgate.documents.written import Written
from kvgate.hf_config import read_config
from kvgate.manifests.fields import options_in
from kvgate.manifests.pods.accelerator_hints import accelerators_of, gpus_of_instance, node_hints
from kvgate.manifests.pods.engine_found import FoundEngine, Hint, ReaderInput, mounted_texts, place_of_text
from kvgate.manifests.pods.pod_engines import engines_of_pod
from kvgate.vllm.arguments import Argument

_CONFIG_KEY = "inference_config.yaml"
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
_UTILIZATION = {"A10-24GB": "0.82"}
"""GPUs to which KAITO leaves more memory outside the budget."""
_ESTIMATED_UTILIZATION = 0.84
_WEIGHTS_FACTOR, _OVERHEAD_FACTOR = 1.02, 1.05
"""The share that KAITO's estimate adds to the weights of the files, and to those of a GPU for what runs beside them."""
_OVERHEAD_BYTES = 2.3 * (1 << 30)
_DEFAULT_LENGTH = 2048
"""max_model_len of the estimate where the ConfigMap has no number."""


def read_workspace(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of a Workspace, or of an InferenceSet, which makes Workspaces of one template."""
    at = given.root.get("spec", "template") if given.document.kind == "InferenceSet" else given.root
    inference, resource = at.get("inference"), at.get("resource")
    template = inference.get("template")
    if given.root.get("metadata", "annotations", "kaito.sh/runtime").text == "transformers":
        return
    if template.is_set:  # the user's own pod
        for engine in engines_of_pod(given, template.get("spec"), platform="kaito"):
            yield replace(engine, hints=(*engine.hints, *_hints(resource)))
    elif inference.get("preset").is_set:
        name = inference.get("preset", "name")
        yield _preset(given, inference, name, resource, inference.get("config"), given.name)


def read_multi_role(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of prefill and decode, each of which runs apart."""
    spec = given.root.get("spec")
    for role in spec.get("roles").items():
        name = f"{given.name} ({role.get('type').text})"
        yield _preset(given, role, spec.get("model", "name"), role, role.get("inferenceConfig"), name)


def _preset(
    given: ReaderInput, at: Written, preset: Written, resource: Written, config: Written, name: str
) -> FoundEngine:
    model = Written(value=_PRESETS.get(preset.text.lower(), preset.text), path=preset.path)
    hints = tuple(_hints(resource))
    written, remarks = _config(given, config)
    length = next((word.text.partition("=")[2] for word in written if word.text.startswith("--max-model-len=")), "")
    known_length = int(length) if length.isdecimal() and len(length) < 9 else None
    num_nodes, gpus, is_certain = _nodes(model.text, resource, hints, known_length)
    sizes, assumed = _parallelism(model.text, num_nodes, gpus, hints)
    board = next((each.accelerator.name for each in accelerators_of(hints)[:1]), "")
    usual = {"gpu-memory-utilization": _UTILIZATION[board]} if board in _UTILIZATION else {}
    names = {word.text.partition("=")[0].removeprefix("--") for word in written}
    added = {flag: value for flag, value in {**_DEFAULTS, **usual, **sizes}.items() if flag not in names}
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
        is_overridden=not is_certain,
        assumed=(f"{words}, as KAITO adds{assumed}",) if added else (),
        has_shared_memory=True,
        files=mounted_texts(given, written),
    )


def _nodes(model: str, resource: Written, hints: tuple[Hint, ...], length: int | None) -> tuple[int, int | None, bool]:
    """Return (nodes, GPUs of each, whether both are certain) as KAITO counts: the weights must fit beside what else runs.

    `count` is not read where KAITO can compute. The GPUs are None where the instance type does not tell; nothing is certain where the
    number depends on facts that are only near KAITO's.
    """
    partition, written = resource.get("partition"), resource.get("count").count or 1
    is_slice = bool(partition.get("profile").text or resource.get("mig", "profile").text)
    gpus = 1 if is_slice else partition.get("count").count or gpus_of_instance(hints)
    entry, boards, stored_bytes = catalogue.find_model(model), accelerators_of(hints), _stored_bytes(model)
    if not gpus or entry is None or stored_bytes is None or not boards:
        return written, gpus, False
    board = boards[0].accelerator
    # KAITO's table has the nominal size, in GiB
    nominal = board.name.rpartition("-")[2].removesuffix("GB")
    gpu_bytes = float(int(nominal) << 30) if nominal.isdecimal() else float(board.memory_bytes)
    counts = {
        _count(stored_bytes * about, gpu_bytes, gpus, kv_bytes)
        for about in (0.98, 1.02)
        for kv_bytes in (0.0, float((length or _DEFAULT_LENGTH) * _bytes_per_token(entry.config)))
    }
    num_nodes = max(counts)
    is_certain = len(counts) == 1 and num_nodes == written and entry.safetensors_bytes is not None
    return num_nodes, gpus, is_certain


def _stored_bytes(model: str) -> int | None:
    """Return the bytes of a checkpoint: as published, else as its config describes them."""
    entry = catalogue.find_model(model)
    if entry is None or entry.safetensors_bytes is not None:
        return entry.safetensors_bytes if entry else None
    shape = read_config(entry.config, name=entry.name)
    return rank_weights(shape, SINGLE_GPU, (0, len(shape.layers)), unsplit_large_blocks=False).parameter_bytes


def _count(stored_bytes: float, gpu_bytes: float, gpus: int, kv_bytes: float) -> int:
    """Return the nodes of KAITO's estimate; one where it refuses the workspace."""
    left = (gpu_bytes * _ESTIMATED_UTILIZATION - _OVERHEAD_BYTES - kv_bytes / gpus) / _OVERHEAD_FACTOR
    return 1 if left <= 0 else cdiv(int(stored_bytes * _WEIGHTS_FACTOR / left) + 1, gpus)


def _bytes_per_token(config: Mapping[str, Any]) -> int:
    """Return the bytes of a token as KAITO counts them: keys and values of 2 bytes in every layer."""
    text = config.get("text_config") if isinstance(config.get("text_config"), Mapping) else config
    layers, heads, hidden = (
        _number(text, name) for name in ("num_hidden_layers", "num_attention_heads", "hidden_size")
    )
    head = _number(text, "head_dim") or (hidden // heads if heads else 0)
    return 4 * layers * (_number(text, "num_key_value_heads") or heads) * head


def _number(config: Mapping[str, Any] | None, name: str) -> int:
    value = (config or {}).get(name)
    return value if isinstance(value, int) else 0


def _parallelism(model: str, num_nodes: int, gpus: int | None, hints: tuple[Hint, ...]) -> tuple[dict[str, str], str]:
    """Return (the sizes that KAITO adds, words about them).

    A model that takes less than half of one GPU runs once per GPU; any other takes all GPUs of a node, and one stage per node.
    """
    if gpus is None or (gpus == 1 and num_nodes == 1):
        return {}, ""
    stored, boards = _stored_bytes(model), accelerators_of(hints)
    if num_nodes == 1 and stored and boards and stored * 2 < boards[0].accelerator.memory_bytes:
        return {"data-parallel-size": str(gpus)}, f" for {gpus} GPUs"
    sizes = {"tensor-parallel-size": str(gpus)}
    if num_nodes == 1:
        return sizes, f" for {gpus} GPUs"
    stages = {"pipeline-parallel-size": str(num_nodes), "distributed-executor-backend": "ray"}
    each = "1 GPU" if gpus == 1 else f"{gpus} GPUs"
    return sizes | stages, f" for {num_nodes} nodes with {each} each, as many as it computes for this model"


def _hints(resource: Written) -> Iterator[Hint]:
    for name in ("instanceType", "instance_type"):
        if (instance := resource.get(name)).text:
            yield Hint(name="instanceType", value=instance.text, path=instance.path)
    for profile in (resource.get("mig", "profile"), resource.get("partition", "profile")):
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
        value_of(text)
    except YamlError as error:
        return (), ((reference.path, f"{_CONFIG_KEY} of ConfigMap {reference.text} cannot be read: {error}"),)
    return tuple(options_in(text, place_of_text(reference.text, _CONFIG_KEY), "vllm") or ()), ()
