"""A model class that kvgate has not read, whose tensors are those of a class that it has read: its layers are judged as that class's.

vLLM runs many such classes by its Transformers backend. The answer is assumed, because the class may compute in another way: the
tensors prove the weights and the heads of keys and values, and nothing proves that a layer caches them as others do.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from kvgate.budget.ground.hardware import SINGLE_GPU
from kvgate.budget.model.origin import Assumption
from kvgate.budget.model.shape import FullAttention, ModelShape
from kvgate.budget.model.weights import rank_weights
from kvgate.checkpoint.stored_formats import loaded_bytes
from kvgate.checkpoint.tensors import FLOATS, TensorGroup
from kvgate.hf_config import ModelConfigError, read_config
from kvgate.text.patterns import pattern

CLASSES = (
    "LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "ArceeForCausalLM", "Olmo2ForCausalLM", "Gemma2ForCausalLM",
    "Glm4ForCausalLM", "Cohere2ForCausalLM", "GPTNeoXForCausalLM", "MixtralForCausalLM", "Qwen2MoeForCausalLM",
    "Qwen3MoeForCausalLM", "Glm4MoeForCausalLM",
)  # fmt: skip
"""Classes of plain decoders, one of each make: they differ in norms, biases, feed-forward blocks and experts."""
SHARE = 1000
"""Bytes that differ by less than one part in so many are equal. One KV head of Llama-3.1-8B more or less is 4 parts."""
_KEYS = pattern(r"(?:.*\.)?(?:k_proj|key)\.weight")
_FUSED = pattern(r"(?:.*\.)?(?:qkv_proj|query_key_value|Wqkv|qkv)\.weight")


def look_alike(
    config: Mapping[str, Any], groups: Sequence[TensorGroup], *, name: str, quantization: str | None, dtype: str | None
) -> ModelShape | None:
    """Return the shape of the first class whose tensors these are, as assumed; None where there is none."""
    for architecture in CLASSES:
        try:
            shape = read_config(
                {**config, "architectures": [architecture]}, name=name, quantization=quantization, dtype=dtype
            )
        except ModelConfigError:
            continue
        if not shape.unmodelled_kinds and _has_heads(shape, groups) and _has_bytes(shape, groups):
            words = f"its tensors, which are those of {architecture}"
            return replace(shape, architecture=str(config["architectures"][0]), assumed=Assumption(words=words))
    return None


def _has_bytes(shape: ModelShape, groups: Sequence[TensorGroup]) -> bool:
    weights = rank_weights(
        shape, SINGLE_GPU, (0, len(shape.layers)), unsplit_large_blocks=False, compute_capability=None
    )
    stored_bytes = loaded_bytes(shape, groups)
    return abs(weights.parameter_bytes - stored_bytes) * SHARE <= stored_bytes


def _has_heads(shape: ModelShape, groups: Sequence[TensorGroup]) -> bool:
    """Return True where every plain projection of keys is as wide as the shape's KV heads, and there is one."""
    heads = {mixer for mixer in shape.mixers if isinstance(mixer, FullAttention)}
    if len({(mixer.num_heads, mixer.num_kv_heads, mixer.head_dim) for mixer in heads}) != 1:
        return False
    mixer = heads.pop()
    keys = mixer.num_kv_heads * mixer.head_dim
    fused = 2 * keys + mixer.num_heads * mixer.head_dim
    found = [
        group.shape[0] == (keys if _KEYS.fullmatch(group.name) else fused)
        for group in groups
        if group.dtype in FLOATS and (_KEYS.fullmatch(group.name) or _FUSED.fullmatch(group.name))
    ]
    return bool(found) and all(found)
