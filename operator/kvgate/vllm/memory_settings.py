"""Settings that move GPU memory, or the longest request, in a way without a formula here; by vLLM's names."""

from collections.abc import Mapping
from typing import Any

from kvgate.budget.request import AUTO_MAX_MODEL_LEN

_OVERRIDES = "overrides of the model's config"
MEMORY_KINDS: dict[str, str] = {
    "speculative_model": "speculative decoding",
    "enable_lora": "LoRA",
    "lora_config": "LoRA",
    "cpu_offload_gb": "weight offloading to the CPU",
    "offload_group_size": "weight offloading to the CPU",
    "load_format": "a load format of its own",
    "quantization_config": "a quantisation of its own",
    "num_redundant_experts": "redundant experts",
    "worker_cls": "a worker of its own",
    "model_class_overrides": "a model class of its own",
    "hf_config_path": _OVERRIDES,
    "hf_overrides": _OVERRIDES,
    "rope_scaling": _OVERRIDES,
}
"""Name of each setting in findings."""
MENTIONED: dict[str, tuple[Any, ...]] = {
    "enable_eplb": (False,),
    "enable_dbo": (False,),
    "ubatch_size": (0, 1),
    "all2all_backend": ("allgather_reducescatter", "naive"),
    "mm_ipc_gpu_memory_gb": (0,),
    "mm_processor_device": ("auto", "cpu"),
    "attention_backend": ("auto",),
    "model_impl": ("auto", "vllm"),
    "worker_extension_cls": ("",),
}
"""Settings that move less than a layout, each with the values that change nothing: a finding names them, and the budget leaves them out."""
ALLOW_LONG = "VLLM_ALLOW_LONG_MAX_MODEL_LEN"
"""vLLM's variable by which it takes any max_model_len."""
_STRETCHING = ("rope_scaling", "hf_overrides", ALLOW_LONG)
_SAME_WEIGHTS = frozenset({
    "auto", "hf", "pt", "safetensors", "npcache", "dummy", "mistral", "fastsafetensors", "runai_streamer", "runai_streamer_sharded",
})  # fmt: skip
"""Values of load_format that only say how the same weights come in."""
_ABOUT_LENGTH = frozenset({"rope_scaling", "rope_parameters", "rope_theta", "max_position_embeddings"})
"""Keys of a model's config that say how long a request may be, and move no bytes."""


def unmodelled_kinds(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Name each feature without a formula that the values switch on."""
    kinds = {key: kind for key, kind in MEMORY_KINDS.items() if _is_set(values.get(key))}
    if values.get("max_model_len") not in (None, AUTO_MAX_MODEL_LEN, "auto", "-1"):
        kinds.pop("rope_scaling", None)
        if _is_about_length(values.get("hf_overrides")):
            kinds.pop("hf_overrides", None)
    return tuple(dict.fromkeys(kinds.values()))


def stretches_length(values: Mapping[str, Any]) -> bool:
    """True where the model's own longest request need not bind."""
    return any(_is_set(values.get(key)) for key in _STRETCHING)


def allows_any_length(variable: str) -> bool:
    """Read the variable ALLOW_LONG; an unknown text counts as yes."""
    return variable.strip().lower() not in ("0", "false")


def _is_about_length(overrides: object) -> bool:
    """True where the overrides are about the length only."""
    return isinstance(overrides, Mapping) and all(
        key in _ABOUT_LENGTH or (key == "text_config" and _is_about_length(value)) for key, value in overrides.items()
    )


def _is_set(value: object) -> bool:
    return bool(value) and not (isinstance(value, str) and value in _SAME_WEIGHTS)
