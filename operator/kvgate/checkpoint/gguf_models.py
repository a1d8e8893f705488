"""A GGUF file's metadata → the config.json that vLLM works with, its tensors by the names of Hugging Face, and its spelling.

vLLM lets transformers make a config from the metadata (4.57 and 5.19, `GGUF_CONFIG_MAPPING`), which leaves out some widths and takes
the class's defaults for them. The weights are made as large as the file has them, so the file's own widths are used here.
"""

import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, Literal

from msgspec import Struct

from kvgate.checkpoint.gguf import GGML_TYPES, GgufFile, Value
from kvgate.checkpoint.tensors import CheckpointError, StoredTensor
from kvgate.hf_config.fields import LARGEST
from kvgate.text.patterns import pattern

_KEYS = {
    "context_length": "max_position_embeddings",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "embedding_length": "hidden_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "rope.freq_base": "rope_theta",
}
"""Keys of all architectures, after their name."""
_EXPERT_KEYS = {
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
_DEEPSEEK_KEYS = {
    "expert_count": "n_routed_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_shared_count": "n_shared_experts",
    "expert_feed_forward_length": "moe_intermediate_size",
    "leading_dense_block_count": "first_k_dense_replace",
    "attention.q_lora_rank": "q_lora_rank",
    "attention.kv_lora_rank": "kv_lora_rank",
    "attention.key_length_mla": "qk_head_dim",
    "attention.value_length_mla": "v_head_dim",
    "rope.dimension_count": "qk_rope_head_dim",
}
_MAMBA_KEYS = {
    "ssm.conv_kernel": "conv_kernel",
    "ssm.state_size": "state_size",
    "ssm.time_step_rank": "time_step_rank",
    "ssm.inner_size": "intermediate_size",
}


class _Family(Struct, frozen=True, kw_only=True):
    """The rules by which the files of one GGUF architecture become a config."""

    model_type: str
    model_class: str
    keys: Mapping[str, str] = {}
    """Keys beside those of all architectures."""
    values: Mapping[str, Any] = {}
    """Values of the class's own defaults, which the file does not state."""


_WINDOW = {"attention.sliding_window": "sliding_window"}
_ROTARY_HEAD = {"rope.dimension_count": "head_dim"}
_FAMILIES: dict[str, _Family] = {
    "llama": _Family(
        model_type="llama", model_class="LlamaForCausalLM",
        keys={**_ROTARY_HEAD, "expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok"},
    ),
    "mistral": _Family(model_type="mistral", model_class="MistralForCausalLM", keys=_ROTARY_HEAD, values={"sliding_window": None}),
    "qwen2": _Family(model_type="qwen2", model_class="Qwen2ForCausalLM"),
    "qwen2moe": _Family(model_type="qwen2_moe", model_class="Qwen2MoeForCausalLM", keys=_EXPERT_KEYS),
    "qwen3": _Family(model_type="qwen3", model_class="Qwen3ForCausalLM"),
    "qwen3moe": _Family(model_type="qwen3_moe", model_class="Qwen3MoeForCausalLM", keys=_EXPERT_KEYS),
    "gemma2": _Family(model_type="gemma2", model_class="Gemma2ForCausalLM", keys=_WINDOW),
    "gemma3": _Family(model_type="gemma3_text", model_class="Gemma3ForCausalLM", keys=_WINDOW),
    "phi3": _Family(model_type="phi3", model_class="Phi3ForCausalLM"),
    "starcoder2": _Family(
        model_type="starcoder2", model_class="Starcoder2ForCausalLM", values={"use_bias": True, "sliding_window": None}
    ),
    "falcon": _Family(model_type="falcon", model_class="FalconForCausalLM", values={"multi_query": True, "parallel_attn": True}),
    "stablelm": _Family(model_type="stablelm", model_class="StableLmForCausalLM"),
    "nemotron": _Family(model_type="nemotron", model_class="NemotronForCausalLM"),
    "gpt2": _Family(model_type="gpt2", model_class="GPT2LMHeadModel", keys={"context_length": "n_positions"}),
    "mamba": _Family(model_type="mamba", model_class="MambaForCausalLM", keys=_MAMBA_KEYS),
    "minimax-m2": _Family(
        model_type="minimax_m2", model_class="MiniMaxM2ForCausalLM",
        keys={
            "expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok", "rope.dimension_count": "rotary_dim",
            "expert_feed_forward_length": "intermediate_size",
        },
        values={"use_qk_norm": True},
    ),
    "gpt-oss": _Family(
        model_type="gpt_oss", model_class="GptOssForCausalLM",
        keys={
            **_WINDOW, "expert_count": "num_local_experts", "expert_used_count": "num_experts_per_tok",
            "expert_feed_forward_length": "intermediate_size",
        },
    ),
    "deepseek2": _Family(model_type="deepseek_v3", model_class="DeepseekV3ForCausalLM", keys=_DEEPSEEK_KEYS),
    "command-r": _Family(model_type="cohere", model_class="CohereForCausalLM"),
}  # fmt: skip
"""`general.architecture` → the model that vLLM runs, as far as kvgate reads its class.

transformers makes no config of gpt-oss, deepseek2 and command-r: vLLM takes them with a config.json beside them, or --hf-config-path.
"""

_LAYER = pattern(r"blk\.(?P<layer>\d+)\.(?P<module>\w+)\.(?P<suffix>\w+)", re.ASCII)
_ENDS = {
    "token_embd": "model.embed_tokens",
    "output": "lm_head",
    "output_norm": "model.norm",
    "position_embd": "model.embed_positions",
}
_MODULES = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj", "attn_output": "self_attn.o_proj",
    "attn_q_a": "self_attn.q_a_proj", "attn_q_b": "self_attn.q_b_proj", "attn_kv_a_mqa": "self_attn.kv_a_proj_with_mqa",
    "attn_kv_b": "self_attn.kv_b_proj", "attn_k_b": "self_attn.kv_b_proj.k", "attn_v_b": "self_attn.kv_b_proj.v",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate", "exp_probs_b": "mlp.gate.e_score_correction",
    "ffn_gate_exps": "mlp.experts.gate_proj", "ffn_up_exps": "mlp.experts.up_proj", "ffn_down_exps": "mlp.experts.down_proj",
    "ffn_gate_shexp": "mlp.shared_experts.gate_proj", "ffn_up_shexp": "mlp.shared_experts.up_proj",
    "ffn_down_shexp": "mlp.shared_experts.down_proj",
    "ssm_in": "mixer.in_proj", "ssm_out": "mixer.out_proj",
}  # fmt: skip
"""Module of a layer → its name in Hugging Face's checkpoints; others keep their own (`gguf-py`, `tensor_mapping.py`)."""
_NOT_LOADED = frozenset({"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"})

_QUANT_TYPES = frozenset(GGML_TYPES.values())
_ENDINGS = ("_M", "_S", "_L", "_XL", "_XS", "_XXS")


def gguf_config(file: GgufFile, beside: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the config.json of a GGUF model, with `gguf` as its quantisation.

    `beside` is the repository's own config.json, which vLLM reads where the file is named by its type (0.22, `get_config`); only
    whether the head is tied is read from the file (`GGUFModelLoader.load_model`). Raises CheckpointError.
    """
    has_head = any(tensor.name == "output.weight" for tensor in file.tensors)
    if beside and beside.get("architectures"):
        tied = {} if has_head else {"tie_word_embeddings": True}
        return {**beside, **tied, "quantization_config": {"quant_method": "gguf"}}
    architecture = file.architecture
    family = _FAMILIES.get(architecture)
    if family is None:
        raise CheckpointError(
            f"general.architecture is {architecture[:40]!r}, which kvgate does not read from GGUF; give the config.json of the "
            "model that it was made from"
        )
    config: dict[str, Any] = {"architectures": [family.model_class], "model_type": family.model_type, **family.values}
    for short, name in {**_KEYS, **family.keys}.items():
        if (key := f"{architecture}.{short}") in file.metadata:
            config[name] = _number(key, file.metadata[key])
    config["tie_word_embeddings"] = not has_head or architecture == "falcon"
    # the rows of the embedding may be more than the tokenizer has words
    rows = next((tensor.shape[0] for tensor in file.tensors if tensor.name == "token_embd.weight" and tensor.shape), 0)
    config["vocab_size"] = rows or file.lengths.get("tokenizer.ggml.tokens", 0)
    _complete(config, file)
    return {**config, "quantization_config": {"quant_method": "gguf"}}


def gguf_tensors(file: GgufFile) -> tuple[StoredTensor, ...]:
    """Return the tensors by the names of Hugging Face's checkpoints, without those that vLLM does not load."""
    named = list[StoredTensor]()
    for tensor in (each for each in file.tensors if each.name not in _NOT_LOADED):
        module, _, suffix = tensor.name.rpartition(".")
        name = f"{_ENDS.get(module, module)}.{suffix}"
        if found := _LAYER.fullmatch(tensor.name):
            module = _MODULES.get(found["module"], found["module"])
            name = f"model.layers.{found['layer']}.{module}.{found['suffix']}"
        named.append(StoredTensor(name=name, dtype=tensor.dtype, shape=tensor.shape))
    return tuple(named)


def _number(key: str, value: Value) -> Any:
    """Return a number; a list of one number per layer becomes that number where all layers have the same."""
    if isinstance(value, tuple) and value and len(set(value)) == 1:
        value = value[0]
    if isinstance(value, tuple):
        raise CheckpointError(
            f"{key} differs by layer, which kvgate does not read from GGUF; give the model's config.json"
        )
    if isinstance(value, str) or not 0 <= value <= LARGEST:
        raise CheckpointError(f"{key} is {str(value)[:40]!r}; it must be a number from 0 to 10^12")
    return value


def _complete(config: dict[str, Any], file: GgufFile) -> None:
    """Complete the config of architectures that need more than other names for the keys."""
    names = [tensor.name for tensor in file.tensors]
    match file.architecture:
        case "llama" if config.get("num_local_experts"):
            config.update(architectures=["MixtralForCausalLM"], model_type="mixtral", sliding_window=None)
        case "stablelm":
            config["use_qkv_bias"] = any(name.endswith(("attn_q.bias", "attn_k.bias", "attn_v.bias")) for name in names)
            config["use_parallel_residual"] = not any("ffn_norm" in name for name in names)
        case "deepseek2":
            # newer files have the widths of heads under `…_mla`, older ones in the keys of all architectures
            whole = config.pop("qk_head_dim", None) or config.get("head_dim", 0)
            config.pop("head_dim", None)
            config["qk_nope_head_dim"] = max(0, whole - config.get("qk_rope_head_dim", 0))
            config.setdefault("v_head_dim", config["qk_nope_head_dim"])
            config["num_key_value_heads"] = config.get("num_attention_heads", 0)
        case "qwen2moe" | "qwen3moe":  # the widths of experts stand in their weights where the metadata lacks them
            shapes = {tensor.name: tensor.shape for tensor in file.tensors}
            shared, experts = (shapes.get(f"blk.0.ffn_up_{name}.weight", ()) for name in ("shexp", "exps"))
            if shared and shared[0]:
                config.setdefault("shared_expert_intermediate_size", shared[0])
            if len(experts) == 3 and experts[1]:
                config.setdefault("moe_intermediate_size", experts[1])


def gguf_spelling(name: str) -> Literal["", "file", "type"]:
    """Say how a model name means a GGUF file: by its path or address, by `repository:TYPE`, or not at all.

    vLLM 0.22, `is_remote_gguf` and `GGUFModelLoader._prepare_weights`.
    """
    if name.endswith(".gguf"):
        return "file"
    repository, separator, rest = name.rpartition(":")
    if not separator or not re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", repository, re.ASCII):
        return ""
    is_known = _is_quant_type(rest) or ("-" in rest and _is_quant_type(rest.rpartition("-")[2]))
    return "type" if is_known else ""


def _is_quant_type(text: str) -> bool:
    return text in _QUANT_TYPES or any(
        text.endswith(end) and text.removesuffix(end) in _QUANT_TYPES for end in _ENDINGS
    )


def file_of_quant_type(names: Iterable[str], quant_type: str) -> str | None:
    """Return the file that vLLM picks for `repo:QUANT_TYPE`, the first one of a split; None where there is none.

    vLLM 0.22, `get_gguf_file_path_from_hf`: fewest hyphens first, so that a whole file goes before a split.
    """
    ends = (f"-{quant_type}.gguf", f"-{quant_type}-*.gguf")
    found = [name for name in names if any(fnmatchcase(name, f"*{end}") for end in ends) and ".." not in name]
    return min(found, key=lambda name: (name.count("-"), name), default=None)
