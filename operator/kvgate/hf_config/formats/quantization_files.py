"""Files beside a config.json that state the quantisation of the checkpoint, and the one of them that counts."""

from collections.abc import Mapping
from typing import Any

from kvgate.hf_config.fields import ModelConfigError

HF_QUANT_CONFIG = "hf_quant_config.json"
"""ModelOpt 0.29 and older write it instead of the config's `quantization_config`; vLLM reads it since 0.10.2 without being told to."""
QUANTIZATION_FILES = (HF_QUANT_CONFIG, "quantize_config.json", "quant_config.json", "quantization_config.json")
"""Files worth reading, in the order in which they count: ModelOpt's, AutoGPTQ's and AutoAWQ's, old AWQ's, auto-round's."""
_KEYS = ("quantization_config", "compression_config")
_METHODS = {"quantize_config.json": "gptq", "quant_config.json": "awq", "quantization_config.json": "auto-round"}
"""The method whose class reads a file that names none (vLLM 0.32, `get_config_filenames`)."""


def quantization_files(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the files beside a config.json that can change what it says: none where it states its quantisation itself.

    vLLM 0.32: `get_config` for ModelOpt's file, `get_quant_config` for the others and for layers that are listed elsewhere.
    """
    own = config.get("quantization_config")
    if own is not None:
        return (HF_QUANT_CONFIG,) if _lists_layers_elsewhere(own) else ()
    text = config.get("text_config")
    inner = text if isinstance(text, Mapping) else {}
    stated = any(part.get(key) is not None for part in (config, inner) for key in _KEYS)
    return (HF_QUANT_CONFIG,) if stated else QUANTIZATION_FILES


def with_quantization_beside(config: Mapping[str, Any], files: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the config with the quantisation that stands beside it, under the key that vLLM gives it.

    `files` has the parsed content of files by their names. vLLM reads all but ModelOpt's file only if `--quantization` names
    their method; without it the checkpoint does not load, so the file counts here in any case. Raises ModelConfigError for a
    content that is not an object.
    """
    name = next((name for name in quantization_files(config) if name in files), None)
    if name is None:
        return config
    stated = files[name]
    if not isinstance(stated, Mapping):
        raise ModelConfigError((f"{name} beside it is JSON of type {type(stated).__name__}, not an object",))
    method = "awq" if "w_bit" in stated else _METHODS.get(name)
    return {**config, "quantization_config": {"quant_method": method, **stated} if method else stated}


def _lists_layers_elsewhere(stated: Any) -> bool:
    """True for ModelOpt's mixed precision without its list of layers."""
    if not isinstance(stated, Mapping):
        return False
    nested = stated.get("quantization")
    flat = {**stated, **nested} if isinstance(nested, Mapping) else stated
    is_mixed = flat.get("quant_method") == "modelopt_mixed" or flat.get("quant_algo") == "MIXED_PRECISION"
    return is_mixed and not flat.get("quantized_layers")
