"""Facts that the class name of a model settles beside its config.json: biases, norms, positions. One row per architecture.

Read in vLLM 0.32's model classes; rows were checked against the parameter counts of those classes (tests/parity).
"""

from typing import Literal

from kvgate.budget.model_shape import End
from kvgate.record import record

Gate = Literal["", "head", "element"]


@record
class Architecture:
    """Facts of one model class; a `*_key` names the config.json key that decides where the class does not."""

    qkv_bias: bool = False
    output_bias: bool = False
    bias_key: str = ""
    """Sets the biases of attention (`qkv` only where `output_bias_follows` is False)."""
    output_bias_follows: bool = True
    mlp_bias: bool = False
    mlp_bias_key: str = ""
    gated_mlp: bool = True
    fused_mlp: bool = True
    """Gate and up are one matrix."""
    norms: int = 2
    """Norms over the hidden size per layer."""
    norm_bias: bool = False
    head_norms: Literal["", "head", "heads", "whole"] = ""
    """Norms of queries and keys: over one head, over a rank's heads, or over all heads, whole on every rank."""
    head_norm_key: str = ""
    tied: bool = False
    """Default of tie_word_embeddings."""
    learned_positions: int | None = None
    """Rows of the position embedding beyond max_position_embeddings; None: rotary positions."""
    positions: bool = True
    """False where no table of rotary positions is kept: there are none, or transformers' own code runs the model."""
    rotary_share: float = 1
    """Default of partial_rotary_factor."""
    rotary_bytes: int | None = None
    """Bytes of an element of the table where that is not the model's."""
    lm_head_bias: bool = False
    router_bias: bool = False
    router_bytes_per_element: int | None = None
    shared_gate: bool = False
    expert_bias: bool = False
    """Experts and their router have biases (gpt-oss)."""
    ends_everywhere: frozenset[End] = frozenset()
    """Ends that every pipeline stage holds, where the class makes them without asking which stage it is on."""
    attention_gate: Gate = ""
    """A projection that gates what attention gives out: one value per head, or one per element."""
    full_attention_every: int = 0
    """Every how many layers one has no window, where config.json does not say it; 0: none is without."""
    window_surplus: int = 0
    """Tokens that the class adds to config.json's window."""


ALL_ENDS = frozenset(End)
TIED_ENDS = frozenset({End.EMBEDDING, End.NORM})
"""The embedding is the head too, and like the norm it is made on every stage."""

PLAIN = Architecture()
"""Two norms, a gated feed-forward block, rotary positions, no biases."""
LLAMA = Architecture(bias_key="attention_bias", mlp_bias_key="mlp_bias")

ARCHITECTURES: dict[str, Architecture] = {
    "AquilaForCausalLM": LLAMA,
    "BaiChuanForCausalLM": Architecture(),
    "BaichuanForCausalLM": Architecture(),
    "ChatGLMModel": Architecture(
        bias_key="add_qkv_bias", output_bias_follows=False, ends_everywhere=ALL_ENDS, rotary_share=0.5
    ),
    "CohereForCausalLM": Architecture(
        norms=1, head_norms="heads", head_norm_key="use_qk_norm", tied=True, bias_key="attention_bias",
        ends_everywhere=TIED_ENDS,
    ),
    "DeepseekForCausalLM": Architecture(),
    "ExaoneForCausalLM": Architecture(),
    "FalconForCausalLM": Architecture(bias_key="bias", mlp_bias_key="bias", gated_mlp=False, norms=1, norm_bias=True, tied=True),
    "GPT2LMHeadModel": Architecture(
        qkv_bias=True, output_bias=True, mlp_bias=True, gated_mlp=False, norm_bias=True, learned_positions=0, tied=True,
        ends_everywhere=ALL_ENDS,
    ),
    "GPTJForCausalLM": Architecture(mlp_bias=True, gated_mlp=False, norms=1, norm_bias=True, lm_head_bias=True),
    "GPTNeoXForCausalLM": Architecture(
        qkv_bias=True, output_bias=True, mlp_bias=True, gated_mlp=False, norm_bias=True, bias_key="attention_bias",
        positions=False,
    ),
    "GemmaForCausalLM": Architecture(tied=True, bias_key="attention_bias", ends_everywhere=TIED_ENDS),
    "Glm4ForCausalLM": Architecture(bias_key="attention_bias", output_bias_follows=False, norms=4),
    "Glm4MoeForCausalLM": Architecture(
        bias_key="attention_bias", output_bias_follows=False, head_norms="head", head_norm_key="use_qk_norm", router_bias=True,
        router_bytes_per_element=4, rotary_share=0.5,
    ),
    "GraniteForCausalLM": Architecture(bias_key="attention_bias", mlp_bias_key="mlp_bias"),
    "InternLM2ForCausalLM": Architecture(bias_key="bias"),
    "InternLM3ForCausalLM": Architecture(bias_key="qkv_bias"),
    "InternLMForCausalLM": Architecture(bias_key="bias"),
    "LlamaForCausalLM": LLAMA,
    "MiMoForCausalLM": Architecture(qkv_bias=True),
    "MiniCPM3ForCausalLM": Architecture(tied=True, ends_everywhere=ALL_ENDS),
    "MiniCPMForCausalLM": Architecture(tied=True, ends_everywhere=ALL_ENDS),
    "MiniMaxM2ForCausalLM": Architecture(
        head_norms="heads", head_norm_key="use_qk_norm", router_bias=True, router_bytes_per_element=4
    ),
    "Ministral3ForCausalLM": LLAMA,
    "MistralForCausalLM": LLAMA,
    "MixtralForCausalLM": Architecture(ends_everywhere=ALL_ENDS),
    "NemotronForCausalLM": Architecture(bias_key="attention_bias", mlp_bias_key="mlp_bias", gated_mlp=False, norm_bias=True),
    "OPTForCausalLM": Architecture(
        qkv_bias=True, output_bias=True, mlp_bias=True, gated_mlp=False, norm_bias=True, learned_positions=2, tied=True,
        ends_everywhere=ALL_ENDS,
    ),
    "Olmo2ForCausalLM": Architecture(head_norms="whole", ends_everywhere=ALL_ENDS),
    "OlmoForCausalLM": Architecture(norms=0),
    "OrionForCausalLM": Architecture(norm_bias=True),
    "Phi3ForCausalLM": Architecture(),
    "PhiForCausalLM": Architecture(
        qkv_bias=True, output_bias=True, mlp_bias=True, gated_mlp=False, norms=1, norm_bias=True, lm_head_bias=True
    ),
    "QWenLMHeadModel": Architecture(qkv_bias=True),
    "Qwen2ForCausalLM": Architecture(qkv_bias=True),
    "Qwen2MoeForCausalLM": Architecture(qkv_bias=True, shared_gate=True, ends_everywhere=ALL_ENDS),
    "Qwen3ForCausalLM": Architecture(bias_key="attention_bias", head_norms="head"),
    "Qwen3MoeForCausalLM": Architecture(bias_key="attention_bias", head_norms="head", ends_everywhere=ALL_ENDS),
    "SeedOssForCausalLM": Architecture(bias_key="attention_bias", output_bias_follows=False),
    "StableLmForCausalLM": Architecture(bias_key="use_qkv_bias", output_bias_follows=False, norm_bias=True, ends_everywhere=ALL_ENDS),
    "Starcoder2ForCausalLM": Architecture(
        bias_key="use_bias", mlp_bias_key="use_bias", gated_mlp=False, norm_bias=True, tied=True, positions=False
    ),
    "XverseForCausalLM": Architecture(),
    "YiForCausalLM": LLAMA,
}  # fmt: skip
