"""Mistral's `params.json` → the config.json that vLLM makes of it (0.32, `transformers_utils/configs/mistral.py`, `adapt_config_dict`)."""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from kvgate.checkpoint.tensors import CheckpointError, StoredTensor
from kvgate.text.patterns import pattern

PARAMS = "params.json"
CONFIG = "config.json"
_DEFAULT_LENGTH = 128_000
"""Tokens that vLLM takes where neither file states a length."""

_NAMES = {
    "dim": "hidden_size",
    "norm_eps": "rms_norm_eps",
    "n_kv_heads": "num_key_value_heads",
    "n_layers": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "hidden_dim": "intermediate_size",
    "activation": "hidden_act",
    "tied_embeddings": "tie_word_embeddings",
}
_MOE_NAMES = {
    "route_every_n": "moe_layer_freq",
    "first_k_dense_replace": "first_k_dense_replace",
    "num_experts_per_tok": "num_experts_per_tok",
    "num_experts": "n_routed_experts",
    "expert_hidden_dim": "moe_intermediate_size",
    "num_shared_experts": "n_shared_experts",
    "num_expert_groups": "n_group",
    "num_expert_groups_per_tok": "topk_group",
}
_YARN_NAMES = {
    "factor": "factor",
    "original_max_position_embeddings": "original_max_position_embeddings",
    "beta": "beta_fast",
    "alpha": "beta_slow",
}
_AUDIO_NAMES = {
    "dim": "d_model",
    "n_layers": "encoder_layers",
    "hidden_dim": "encoder_ffn_dim",
    "n_heads": "encoder_attention_heads",
    "head_dim": "encoder_head_dim",
    "vocab_size": "vocab_size",
    "max_source_positions": "max_source_positions",
    "sliding_window": "sliding_window",
}
_AUDIO_POSITIONS = 1500
"""Default of `WhisperConfig.max_source_positions`."""
_MODULES = {
    "attention.wq": "self_attn.q_proj", "attention.wk": "self_attn.k_proj", "attention.wv": "self_attn.v_proj",
    "attention.wo": "self_attn.o_proj", "attention.wq_a": "self_attn.q_a_proj", "attention.wq_b": "self_attn.q_b_proj",
    "attention.wkv_a_with_mqa": "self_attn.kv_a_proj_with_mqa", "attention.wkv_b": "self_attn.kv_b_proj",
    "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj", "feed_forward.w3": "mlp.up_proj",
    "shared_experts.w1": "mlp.shared_experts.gate_proj", "shared_experts.w2": "mlp.shared_experts.down_proj",
    "shared_experts.w3": "mlp.shared_experts.up_proj", "gate": "mlp.gate",
    "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
}  # fmt: skip
"""Modules of a layer → their names in Hugging Face's checkpoints (vLLM 0.32, `mistral_mapping` and `MistralLarge3ForCausalLM`)."""
_ENDS = {"tok_embeddings": "model.embed_tokens", "output": "lm_head", "norm": "model.norm"}
_SUFFIXES = {"qscale_weight": "weight_scale", "qscale_act": "input_scale"}
_LAYER = pattern(r"layers\.(?P<layer>\d+)\.(?P<module>[\w.]+)\.(?P<suffix>\w+)", re.ASCII)


def reads_params(names: Collection[str]) -> bool:
    """Return True where vLLM reads params.json: where it is alone, and since 0.16 where the weights are in Mistral's format too
    (`get_config`, `is_mistral_model_repo`).
    """
    has_weights = any(name.startswith("consolidated") and name.endswith(".safetensors") for name in names)
    return PARAMS in names and (has_weights or CONFIG not in names)


def config_of_params(params: Mapping[str, Any], beside: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the config.json; `beside` is the repository's own, whose values count where params.json has none.

    Raises CheckpointError.
    """
    problems = [
        f"{key} is {str(params[key])[:40]!r}; it must be an object"
        for key in ("moe", "yarn", "quantization", "multimodal", "vision_encoder")
        if params.get(key) is not None and not isinstance(params[key], Mapping)
    ]
    if "dim" not in params or "n_layers" not in params:
        problems.append("dim or n_layers is missing; this is not a params.json of a model")
    if problems:
        raise CheckpointError(*problems)
    beside = dict(beside or {})
    length = params.get("max_position_embeddings") or beside.get("max_position_embeddings") or _DEFAULT_LENGTH
    config: dict[str, Any] = {_NAMES.get(key, key): value for key, value in params.items()}
    config.update(max_position_embeddings=length, **_window(config), **_model_class(config), **_quantization(config))
    config.setdefault("tie_word_embeddings", False)
    config.setdefault("model_type", "transformer")
    if yarn := config.pop("yarn", None):
        renamed = {_YARN_NAMES[key]: value for key, value in yarn.items() if key in _YARN_NAMES}
        theta = {"rope_theta": config["rope_theta"]} if config.get("rope_theta") else {}
        config["rope_parameters"] = {"rope_type": "yarn", "mscale_all_dim": 1, **theta, **renamed}
    multimodal = config.pop("multimodal", None) or {}
    vision = multimodal.get("vision_encoder_args") or config.pop("vision_encoder", None)
    audio = multimodal.get("whisper_model_args")
    if isinstance(vision, Mapping):
        config = _with_vision(config, vision)
    elif isinstance(audio, Mapping) and isinstance(audio.get("encoder_args"), Mapping):
        config = _with_audio(config, audio["encoder_args"])
    return {
        **{key: value for key, value in beside.items() if key not in ("architectures", "quantization_config")},
        **config,
    }


def hugging_face_names(tensors: Iterable[StoredTensor]) -> Iterator[StoredTensor]:
    """Yield the tensors of `consolidated*.safetensors` by the names of Hugging Face's checkpoints; towers keep theirs."""
    for tensor in tensors:
        module, _, suffix = tensor.name.rpartition(".")
        if found := _LAYER.fullmatch(tensor.name):
            inside = _MODULES.get(found["module"], f"mlp.{found['module']}")  # `experts.0.w1` keeps its end
            end = _SUFFIXES.get(found["suffix"], found["suffix"])
            yield replace(tensor, name=f"model.layers.{found['layer']}.{inside}.{end}")
        else:
            yield replace(tensor, name=f"{_ENDS[module]}.{suffix}") if module in _ENDS else tensor


def _window(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return one window and the kind of each layer, where the file lists a window or null for each layer of a period."""
    windows, num_layers = config.get("sliding_window"), config.get("num_hidden_layers")
    if not isinstance(windows, list) or not windows or not isinstance(num_layers, int) or num_layers > 1024:
        return {}
    kinds = ["full_attention" if window is None else "sliding_attention" for window in windows]
    return {
        "layer_types": kinds * (num_layers // len(windows)),
        "sliding_window": next((window for window in windows if window), None),
    }


def _model_class(config: dict[str, Any]) -> dict[str, Any]:
    """Return the class, and for experts their sizes by the names that the class reads."""
    moe: Mapping[str, Any] = config.pop("moe", None) or {}
    if config.get("model_type") == "mamba":
        return {"architectures": ["Mamba2ForCausalLM"]}
    if config.get("qk_nope_head_dim") and not moe:  # MLA without experts: vLLM makes one shared expert of the block
        layers, width = config.get("num_hidden_layers"), config.get("intermediate_size")
        moe = {"num_experts": 1, "first_k_dense_replace": layers, "num_shared_experts": 1, "expert_hidden_dim": width}
    if (moe.get("num_shared_experts") or 0) > 0:
        renamed = {_MOE_NAMES[key]: value for key, value in moe.items() if key in _MOE_NAMES}
        return {"architectures": ["MistralLarge3ForCausalLM"], "model_type": "deepseek_v3", **renamed}
    if moe:
        experts = {"num_local_experts": moe.get("num_experts"), "num_experts_per_tok": moe.get("num_experts_per_tok")}
        return {"architectures": ["MixtralForCausalLM"], **experts}
    return {"architectures": ["MistralForCausalLM"]}


def _quantization(config: dict[str, Any]) -> dict[str, Any]:
    """Return Mistral's own spelling of fp8, or what stands in the file for compressed-tensors. Raises CheckpointError."""
    stated: Mapping[str, Any] = config.pop("quantization", None) or {}
    if not stated:
        return {}
    if stated.get("qformat_weight") == "fp8_e4m3":
        scheme = "dynamic" if stated.get("qscheme_act") == "NO_SCALES" else "static"
        return {"quantization_config": {"quant_method": "fp8", "activation_scheme": scheme}}
    if str(stated.get("quant_method", "")).lower().replace("_", "-") == "compressed-tensors":
        return {"quantization_config": {**stated, "quant_method": "compressed-tensors"}}
    raise CheckpointError(f"quantization is {str(dict(stated))[:80]}, which vLLM does not take in a params.json")


def _with_vision(text: dict[str, Any], vision: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Pixtral model around the text model; the projector has biases where `adapter_bias` does not say otherwise."""
    return {
        "model_type": "pixtral",
        "architectures": ["PixtralForConditionalGeneration"],
        "text_config": text,
        "vision_config": dict(vision),
        "spatial_merge_size": vision.get("spatial_merge_size", 1),
        "multimodal_projector_bias": vision.get("adapter_bias", True),
        "vision_feature_layer": -1,
        "tie_word_embeddings": text["tie_word_embeddings"],
        **({"quantization_config": text["quantization_config"]} if "quantization_config" in text else {}),
    }


def _with_audio(text: dict[str, Any], encoder: Mapping[str, Any]) -> dict[str, Any]:
    """Return a Voxtral model around the text model; a causal encoder makes it the one for streams."""
    renamed = {_AUDIO_NAMES[key]: value for key, value in encoder.items() if key in _AUDIO_NAMES and value is not None}
    spectrum = encoder.get("audio_encoding_args")
    if isinstance(spectrum, Mapping) and "num_mel_bins" in spectrum:
        renamed["num_mel_bins"] = spectrum["num_mel_bins"]
    renamed.setdefault("max_source_positions", _AUDIO_POSITIONS)
    name = "VoxtralRealtimeGeneration" if encoder.get("causal") else "VoxtralForConditionalGeneration"
    return {
        "model_type": "voxtral",
        "architectures": [name],
        "text_config": text,
        "audio_config": renamed,
        "tie_word_embeddings": text["tie_word_embeddings"],
        **({"quantization_config": text["quantization_config"]} if "quantization_config" in text else {}),
    }
