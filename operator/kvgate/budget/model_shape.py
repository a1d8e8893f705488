"""What a model's config.json says about memory: layers, heads, experts, formats. Bytes come later."""

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
"""Bytes of one element of a model dtype."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FullAttention:
    """Softmax attention over the whole sequence: MHA, GQA and MQA differ only in the number of KV heads."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    qkv_bias: bool = False
    output_bias: bool = False
    head_norm_elements: int = 0
    """Elements of norms over one head (Qwen3's q_norm and k_norm), replicated on every rank."""
    norm_over_heads: bool = False
    """Norms span all heads of a projection (OLMo-2, MiniMax-M2)."""
    low_rank: "LowRankProjections | None" = None
    """MiniCPM3 projects as MLA does and yet caches whole heads."""

    kind = "full attention"


@dataclass(frozen=True, kw_only=True, slots=True)
class LowRankProjections:
    """Ranks and head widths of latent projections, as config.json names them."""

    q_lora_rank: int | None
    kv_lora_rank: int
    qk_nope_head_dim: int
    qk_rope_head_dim: int
    v_head_dim: int


@dataclass(frozen=True, kw_only=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (MLA): the cache holds one latent vector per token, not divided by tensor parallelism."""

    num_heads: int
    projections: LowRankProjections

    kind = "MLA"


@dataclass(frozen=True, kw_only=True, slots=True)
class UnmodelledLayer:
    """A kind of layer whose cache or weights have no formula here; `kind` is what a finding names."""

    kind: str


Mixer = FullAttention | LatentAttention | UnmodelledLayer


@dataclass(frozen=True, kw_only=True, slots=True)
class DenseMlp:
    """A feed-forward block; `gated` ones hold a gate beside the up projection."""

    intermediate_size: int
    gated: bool = True
    bias: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class SparseMlp:
    """A mixture of experts with an optional shared part that every token passes."""

    num_experts: int
    num_experts_per_token: int
    intermediate_size: int
    """Of one expert."""
    shared_intermediate_size: int = 0
    shared_gate: bool = False
    router_bias: bool = False
    """A correction term per expert (DeepSeek-V3 and its kin), float32 unless the model says otherwise."""
    router_bytes_per_element: int | None = None
    """The router's own precision where it is not the model's (GLM-4.5, MiniMax-M2: float32)."""


Mlp = DenseMlp | SparseMlp


@dataclass(frozen=True, kw_only=True, slots=True)
class LayerShape:
    """One decoder layer."""

    mixer: Mixer
    mlp: Mlp
    norm_elements: int
    """Elements of all norms of the layer that span the hidden size, biases included."""
    unquantized: frozenset[str] = frozenset()
    """Modules of this layer that a quantised checkpoint keeps in the model dtype, by vLLM's names (`qkv_proj`, `experts` …)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quantization:
    """The weight format of the quantised linear layers; everything else keeps the model dtype."""

    method: str
    """vLLM's name: `fp8`, `awq`, `gptq`, `compressed-tensors` …"""
    format: Literal["fp8-block", "fp8-tensor", "fp8-channel", "int4-awq", "int4-gptq", "int4-packed", "int8-gptq"]
    group_size: int = 0
    """Input features that share a scale; 0: one scale for all of them."""
    block: tuple[int, int] = (0, 0)
    """Rows and columns of an fp8 block."""
    static_activation_scale: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class RotaryCache:
    """One cosine and sine table, kept in the model dtype on every rank."""

    max_position: int
    rotary_dim: int


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ModelShape:
    """Everything the budget needs to know of a model; identity is the object, so that results can be cached by it."""

    name: str
    architecture: str
    hidden_size: int
    vocab_size: int
    layers: tuple[LayerShape, ...]
    dtype: str
    """The checkpoint's own dtype as vLLM runs it: float32 checkpoints are served in bfloat16 or float16."""
    max_model_len: int
    """The longest context that vLLM accepts without an override; 0 where an unmodelled config leaves it open."""
    tie_word_embeddings: bool = False
    lm_head_bias: bool = False
    ends_on_every_stage: bool = False
    """Every pipeline stage holds embedding and head."""
    final_norm_elements: int = 0
    position_rows: int = 0
    """Rows of a learned position embedding (GPT-2, OPT)."""
    rotary: tuple[RotaryCache, ...] = ()
    quantization: Quantization | None = None
    kv_cache_scheme: str | None = None
    """The KV cache dtype that the checkpoint asks for (`fp8`), used where the user says `auto`."""
    unmodelled: tuple[str, ...] = ()
    """Parts beside the layers that have no formula here (a vision encoder, a quantisation format)."""
    num_heads: int = 0
    """Attention heads that tensor parallelism must divide."""

    @property
    def is_sparse(self) -> bool:
        """True for a mixture of experts."""
        return any(isinstance(layer.mlp, SparseMlp) for layer, _ in distinct_layers(self, 0, len(self.layers)))

    @property
    def unmodelled_kinds(self) -> tuple[str, ...]:
        """Every kind without a formula, named once, in order of appearance."""
        mixers = (layer.mixer for layer, _ in distinct_layers(self, 0, len(self.layers)))
        return tuple(dict.fromkeys((*(m.kind for m in mixers if isinstance(m, UnmodelledLayer)), *self.unmodelled)))


@lru_cache(maxsize=4096)
def distinct_layers(shape: ModelShape, first: int, last: int) -> tuple[tuple[LayerShape, int], ...]:
    """The layers first ≤ i < last as (layer, how many), in order of appearance; equal layers are one object."""
    part = shape.layers[first:last]
    by_identity, counts = {id(layer): layer for layer in part}, Counter(map(id, part))
    return tuple((by_identity[key], count) for key, count in counts.items())
