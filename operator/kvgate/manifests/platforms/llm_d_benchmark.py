"""llm-d-benchmark: the stacks of a scenario, and a plan by itself.

Layers and defaults: github.com/llm-d/llm-d-benchmark, `llmdbenchmark/parser/render_plans.py` and `config/templates` (0.8.0).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from kvgate.documents.written import NOTHING, Written
from kvgate.manifests.fields import words_of
from kvgate.manifests.platforms.kserve import merged
from kvgate.manifests.pods.engine_found import FoundEngine, Hint, ReaderInput
from kvgate.manifests.pods.pod_engines import engines_of_container
from kvgate.manifests.pods.which_engine import is_simulator
from kvgate.text.patterns import pattern
from kvgate.vllm.variables import ALLOW_LONG, allows_any_length

_SIDES = {"standalone": False, "decode": True, "prefill": False}
"""Section of an engine → whether it is on where nothing is said."""
_DEFAULTS: Mapping[str, Any] = {
    "maxModelLen": 16384, "blockSize": 64, "gpuMemoryUtilization": 0.95, "maxNumSeq": 256, "maxNumBatchedTokens": 256,
}  # fmt: skip
"""Fields of `model` that the benchmark fills."""
_OF_FIELD = {
    "maxModelLen": "VLLM_MAX_MODEL_LEN",
    "blockSize": "VLLM_BLOCK_SIZE",
    "gpuMemoryUtilization": "VLLM_ACCELERATOR_MEM_UTIL",
    "maxNumSeq": "VLLM_MAX_NUM_SEQ",
    "maxNumBatchedTokens": "VLLM_MAX_NUM_BATCHED_TOKENS",
}
"""Field of `model` → the variable of the container."""
_SIZE_VARIABLES = {
    "TP_SIZE": "tensor",
    "VLLM_TENSOR_PARALLELISM": "tensor",
    "DP_SIZE": "data",
    "DP_SIZE_LOCAL": "dataLocal",
}
_SWITCHES = {
    "enforceEager": "--enforce-eager",
    "disableLogRequests": "--no-enable-log-requests",
    "noPrefixCaching": "--no-enable-prefix-caching",
    "enablePrefixCaching": "--enable-prefix-caching",
}
"""Flags of vllmCommon → options of the benchmark's own command."""
_MAX_STACKS, _MAX_VARIANTS = 200, 20
"""Stacks of one scenario, and variants of one section; nobody has more."""
_PLACEHOLDER = pattern(r"\$\{(\w+(?:\.\w+)+)\}")
_CUDA = {"accelerator": {"dtypeArgs": "--dtype bfloat16"}}
"""The option that `${accelerator.dtypeArgs}` stands for on NVIDIA's GPUs; other fields of the profile add no option there."""


def is_scenario(root: Written) -> bool:
    """Return True for a scenario with stacks that name a model, or for one plan."""
    return any(True for _ in _stacks(root))


def has_no_engines(root: Written) -> bool:
    """Return True for a scenario whose stacks run without GPUs, or from the manifests of a guide."""
    return is_scenario(root) and not any(True for _ in _sections(root))


def read_scenario(given: ReaderInput) -> Iterator[FoundEngine]:
    """Yield the engines of every stack: standalone, or decode and prefill."""
    for stack, written, section, side in _sections(given.values):
        yield from _engines(given, stack, written, section, side)


def _sections(root: Written) -> Iterator[tuple[Written, Written, Written, str]]:
    """Yield (the plan, the stack as it is written, the section, its name) of everything that is switched on and has GPUs."""
    for stack, written in _stacks(root):
        if stack.get("kustomize", "enabled").value is True:
            continue  # a guide's own manifests hold the engines
        is_alone = stack.get("standalone", "enabled").value is True
        is_service = stack.get("modelservice", "enabled").value is not False
        for side, is_on in _SIDES.items():
            section = stack.get(side)
            wanted = section.get("enabled").value if section.get("enabled").is_set else is_on
            replicas = section.get("replicas").value if section.get("replicas").is_set else int(side != "prefill")
            if wanted is not True or replicas == 0 or _num_gpus(stack, section) == 0:
                continue
            if (is_alone if side == "standalone" else is_service) and not is_simulator(_image(stack, section)):
                yield stack, written, section, side


def _stacks(root: Written) -> Iterator[tuple[Written, Written]]:
    """Yield (the plan, with what its scenario shares under its own fields, the stack as it is written) where a model is named."""
    listed = root.get("scenario").items()
    shared = _flat(root.get("shared").value)
    for stack in listed[:_MAX_STACKS] or [root]:
        plan = Written(value=merged(shared, _flat(stack.value)), path=stack.path)
        has_method = plan.get("standalone").is_set or plan.get("modelservice").is_set
        has_side = any(plan.get(name).is_set for name in _SIDES)
        if plan.get("model", "name" if listed else "huggingfaceId").text and (has_side if listed else has_method):
            yield plan, stack


def _flat(stack: Any) -> Any:
    """Lift what stands under `common` and under `modelservice` to the top; the latter wins over the top, the former does not."""
    if not isinstance(stack, Mapping):
        return {}
    common, service = stack.get("common"), stack.get("modelservice")
    nested = (
        {key: service[key] for key in ("decode", "prefill", "multinode") if key in service}
        if isinstance(service, Mapping)
        else {}
    )
    return merged(merged(common if isinstance(common, Mapping) else {}, dict(stack)), nested)


def _image(stack: Written, section: Written) -> str:
    image = next((each for each in (section.get("image"), stack.get("images", "vllm")) if each.is_set), NOTHING)
    parts = (image.get("repository").text, image.get("tag").text)
    return ":".join(part for part in parts if part)


def _num_gpus(stack: Written, section: Written) -> int:
    """Return the GPUs of a pod: those that are written, else one for each rank in it."""
    counts = (section.get("accelerator", "count").count, stack.get("accelerator", "count").count)
    written = next((count for count in counts if count is not None), None)
    return _size(section, "tensor") * _size(section, "dataLocal") if written is None else written


def _size(section: Written, name: str) -> int:
    return section.get("parallelism", name).count or 1


def _engines(
    given: ReaderInput, stack: Written, written: Written, section: Written, side: str
) -> Iterator[FoundEngine]:
    """Yield the engine of a section; where its pods take variants of the lengths and batches, one for each."""
    label, path = section.get("acceleratorType"), _path(written, side)
    workers = _size(section, "workers") if stack.get("multinode", "enabled").value is True else 1
    own = section.get("vllm", "customCommand").text
    any_length = stack.get("vllmCommon", "flags", "allowLongMaxModelLen")
    any_length = replace(any_length, value=any_length.text or "1")  # as the benchmark's defaults.yaml has it
    plan = Written(value=merged(_CUDA, stack.value))
    filled_in = _PLACEHOLDER.sub(lambda match: plan.get(*match[1].split(".")).text, own)
    script = filled_in if own else _command(stack, section)
    fields = {
        "image": _image(stack, section),
        "command": ["sh", "-c", script],
        "env": section.get("extraEnvVars").value,
        "resources": section.get("resources").value,
    }
    container = Written(value=fields, path=path)
    sizes = {name: str(_size(section, field)) for name, field in _SIZE_VARIABLES.items()}
    sizes |= {"LWS_GROUP_SIZE": str(workers), "LWS_WORKER_INDEX": "0"}
    for variant in section.get("vllmVariants").items()[:_MAX_VARIANTS] or [NOTHING]:
        model = Written(value=merged(stack.get("model").value, variant.value), path=_path(written, "model"))
        missing = [(name, variable) for name, variable in _OF_FIELD.items() if not model.get(name).is_set]
        filled = [f"model.{name} {_DEFAULTS[name]}" for name, variable in missing if f"${variable}" in script]
        values = {
            variable: replace(model.get(name), value=model.get(name).text or _DEFAULTS[name])
            for name, variable in _OF_FIELD.items()
        }
        values |= {name: Written(value=value, path=path) for name, value in sizes.items()}
        values |= {"MODEL_NAME": model.get("name"), "MODEL_PATH": model.get("path")}
        values[ALLOW_LONG] = any_length
        for engine in engines_of_container(given, container, pod=section, platform="llm-d-benchmark", added=values):
            yield replace(
                engine.with_words_of(f"{path}.command[2]", f"{path}.vllm.customCommand" if own else path),
                name=f"{stack.get('name').text or model.get('name').text} ({side})",
                model=Written(value=model.get("huggingfaceId").text or model.get("name").text, path=model.path),
                num_gpus=Written(value=_num_gpus(stack, section), path=path),
                num_pods=workers,
                hints=(*_hints(stack, section, label, path), *engine.hints),
                assumed=(f"{', '.join(filled)}, as the benchmark has it",) if filled else (),
                takes_any_length=engine.takes_any_length or allows_any_length(any_length.text),
                has_shared_memory=side != "standalone" or None,
            )


def _hints(stack: Written, section: Written, label: Written, path: str) -> Iterator[Hint]:
    """Yield the resource, NVIDIA's where none is written, and the label of the nodes."""
    accelerators = (section.get("accelerator"), stack.get("accelerator"))
    written = (each.get(name).text for each in accelerators for name in ("resource", "type"))
    resource = next((text for text in written if text not in ("", "auto", "nvidia")), "nvidia.com/gpu")
    yield Hint(name="resource", value=resource, path=path)
    value = label.get("labelValue").text
    if value not in ("", "auto"):
        yield Hint(name=label.get("labelKey").text or "nvidia.com/gpu.product", value=value, path=path)


def _path(written: Written, name: str) -> str:
    """Return the path of a section where it is written: in the stack, or under one of the fields that are lifted to it."""
    places = (written.get("modelservice", name), written.get(name), written.get("common", name))
    return next((place.path for place in places if place.is_set), written.path)


def _command(stack: Written, section: Written) -> str:
    flags = stack.get("vllmCommon", "flags")
    switches = [flag for name, flag in _SWITCHES.items() if flags.get(name).value is True]
    if not flags.get("enforceEager").is_set:
        switches.append("--enforce-eager")  # by default
    if stack.get("model", "gpuMemoryUtilization").text not in ("0", "0.0"):
        switches.append("--gpu-memory-utilization $VLLM_ACCELERATOR_MEM_UTIL")
    if stack.get("model", "maxNumSeq").is_set:
        switches.append("--max-num-seq $VLLM_MAX_NUM_SEQ")
    added = " ".join((*switches, *(word.text for word in words_of(section.get("vllm", "additionalFlags")))))
    sizes = "--block-size $VLLM_BLOCK_SIZE --max-model-len $VLLM_MAX_MODEL_LEN --tensor-parallel-size $TP_SIZE"
    return f"vllm serve $MODEL_NAME {sizes} {added}"
