"""The one table from a model class to its reader: what the class name settles beside config.json, and how its layers are read.

Read in vLLM 0.32's model classes; rows were checked against the parameter counts of those classes (tests/parity).
"""

from msgspec.structs import replace

from kvgate.budget.model.shape import End
from kvgate.hf_config.families.gemma import gemma3_stack, gemma3n_stack, gemma4_stack
from kvgate.hf_config.families.nemotron import nemotron_nas_stack, nemotron_stack
from kvgate.hf_config.families.pooling import POOLING, converted, converted_from, embedding_norm
from kvgate.hf_config.family import Architecture, Family
from kvgate.hf_config.fields import Fields
from kvgate.hf_config.layers.heads_by_layer import (
    gpt_oss_stack,
    laguna_stack,
    llama4_stack,
    mimo_stack,
    mllama_stack,
    step_stack,
    whisper_stack,
)
from kvgate.hf_config.layers.latent import deepseek_v4_stack, latent_stack, minimax_m3_stack
from kvgate.hf_config.layers.layers import hunyuan_stack, uniform_stack
from kvgate.hf_config.layers.linear_attention import (
    bailing_stack,
    gdn_stack,
    kimi_stack,
    minimax_stack,
    short_conv_stack,
)
from kvgate.hf_config.layers.mamba import (
    bamba_stack,
    falcon_h1_stack,
    granite_hybrid_stack,
    jamba_stack,
    mamba2_stack,
    mamba_stack,
    zamba2_stack,
)
from kvgate.hf_config.multimodal import MULTIMODAL, Multimodal

_ALL_ENDS = frozenset(End)
_TIED_ENDS = frozenset({End.EMBEDDING, End.NORM})
"""The embedding is the head too, and like the norm it is made on every stage."""
_EMBEDDING = frozenset({End.EMBEDDING})
_LLAMA = Architecture(bias_key="attention_bias", mlp_bias_key="mlp_bias")

_BAILING = Architecture(
    bias_key="use_qkv_bias",
    output_bias_follows=False,
    head_norms="head",
    head_norm_key="use_qk_norm",
)
_HUNYUAN = Architecture(bias_key="attention_bias", head_norms="head", positions=False)

_UNIFORM: dict[str, Architecture] = {
    "AfmoeForCausalLM": Architecture(
        norms=4, head_norms="head", attention_gate="element", full_attention_every=4, router_bias=True, router_bytes_per_element=4
    ),
    "ApertusForCausalLM": Architecture(
        bias_key="attention_bias", mlp_bias_key="mlp_bias", gated_mlp=False, head_norms="head", activation_weights=2
    ),
    "AquilaForCausalLM": _LLAMA,
    "ArceeForCausalLM": Architecture(bias_key="attention_bias", mlp_bias_key="mlp_bias", gated_mlp=False, positions=False),
    "BaiChuanForCausalLM": Architecture(),
    "BaichuanForCausalLM": Architecture(),
    "BailingMoeForCausalLM": _BAILING,
    "BailingMoeV2ForCausalLM": replace(_BAILING, router_bias=True, router_bytes_per_element=4),
    "ChatGLMModel": Architecture(
        bias_key="add_qkv_bias", output_bias_follows=False, ends_everywhere=_ALL_ENDS, rotary_share=0.5
    ),
    "CohereForCausalLM": Architecture(
        norms=1, head_norms="heads", head_norm_key="use_qk_norm", tied=True, bias_key="attention_bias",
        ends_everywhere=_TIED_ENDS,
    ),
    "Cohere2ForCausalLM": Architecture(
        norms=1, tied=True, bias_key="attention_bias", ends_everywhere=_TIED_ENDS, full_attention_every=4, window_surplus=1
    ),
    "Cohere2MoeForCausalLM": Architecture(
        norms=1, tied=True, bias_key="attention_bias", ends_everywhere=_TIED_ENDS, full_attention_every=4, window_surplus=1
    ),
    "CwmForCausalLM": replace(_LLAMA, positions=False, full_attention_every=4),
    "DeepseekForCausalLM": Architecture(),
    "Ernie4_5ForCausalLM": Architecture(tied=True, bias_key="use_bias", mlp_bias_key="use_bias"),
    "Dots1ForCausalLM": Architecture(bias_key="attention_bias", output_bias_follows=False, head_norms="head", router_bias=True),
    "Ernie4_5_MoeForCausalLM": Architecture(
        tied=True, bias_key="use_bias", mlp_bias_key="use_bias", router_bias=True, router_bytes_per_element=4
    ),
    "ExaoneForCausalLM": Architecture(),
    "Exaone4ForCausalLM": Architecture(head_norms="head", bias_key="attention_bias", full_attention_every=4),
    "ExaoneMoeForCausalLM": Architecture(head_norms="head", full_attention_every=4, router_bias=True),
    "ExaoneMoEForCausalLM": Architecture(head_norms="head", full_attention_every=4, router_bias=True),
    "FalconForCausalLM": Architecture(bias_key="bias", mlp_bias_key="bias", gated_mlp=False, norms=1, norm_bias=True, tied=True),
    "FlexOlmoForCausalLM": Architecture(head_norms="whole", bias_key="attention_bias", positions=False),
    "GemmaForCausalLM": Architecture(tied=True, bias_key="attention_bias", ends_everywhere=_TIED_ENDS),
    "Gemma2ForCausalLM": Architecture(
        norms=4, tied=True, bias_key="attention_bias", ends_everywhere=_TIED_ENDS, full_attention_every=2
    ),
    "GlmForCausalLM": Architecture(bias_key="attention_bias", output_bias_follows=False, positions=False),
    "Glm4ForCausalLM": Architecture(bias_key="attention_bias", output_bias_follows=False, norms=4),
    "Glm4MoeForCausalLM": Architecture(
        bias_key="attention_bias", output_bias_follows=False, head_norms="head", head_norm_key="use_qk_norm", router_bias=True,
        router_bytes_per_element=4, rotary_share=0.5,
    ),
    "GPT2LMHeadModel": Architecture(
        qkv_bias=True, output_bias=True, mlp_bias=True, gated_mlp=False, norm_bias=True, learned_positions=0, tied=True,
        ends_everywhere=_ALL_ENDS,
    ),
    "GPTJForCausalLM": Architecture(mlp_bias=True, gated_mlp=False, norms=1, norm_bias=True, lm_head_bias=True),
    "GPTNeoXForCausalLM": Architecture(
        qkv_bias=True, output_bias=True, mlp_bias=True, gated_mlp=False, norm_bias=True, bias_key="attention_bias",
        positions=False,
    ),
    "GraniteForCausalLM": Architecture(bias_key="attention_bias", mlp_bias_key="mlp_bias"),
    "GraniteMoeForCausalLM": Architecture(bias_key="attention_bias", ends_everywhere=_ALL_ENDS),
    "GraniteMoeSharedForCausalLM": Architecture(bias_key="attention_bias", ends_everywhere=_ALL_ENDS),
    "HunYuanDenseV1ForCausalLM": _HUNYUAN,
    "HyperCLOVAXForCausalLM": Architecture(bias_key="attention_bias", mlp_bias_key="mlp_bias", post_norm_key="use_post_norm"),
    "HYV3ForCausalLM": Architecture(
        head_norms="head", head_norm_key="qk_norm", router_bias=True, router_bytes_per_element=4, ends_everywhere=_ALL_ENDS
    ),
    "InternLMForCausalLM": Architecture(bias_key="bias"),
    "InternLM2ForCausalLM": Architecture(bias_key="bias", ends_everywhere=_ALL_ENDS),
    "InternLM3ForCausalLM": Architecture(bias_key="qkv_bias"),
    "IQuestCoderForCausalLM": _LLAMA,
    "Jais2ForCausalLM": Architecture(bias_key="attention_bias", mlp_bias_key="mlp_bias", gated_mlp=False, norm_bias=True, positions=False),
    "LlamaForCausalLM": _LLAMA,
    "LLaMAForCausalLM": _LLAMA,
    "MiMoForCausalLM": Architecture(qkv_bias=True),
    "MiniCPMForCausalLM": Architecture(tied=True, ends_everywhere=_ALL_ENDS),
    "MiniCPM3ForCausalLM": Architecture(tied=True, ends_everywhere=_ALL_ENDS),
    "MiniMaxM2ForCausalLM": Architecture(
        head_norms="heads", head_norm_key="use_qk_norm", router_bias=True, router_bytes_per_element=4
    ),
    "Ministral3ForCausalLM": _LLAMA,
    "MistralForCausalLM": _LLAMA,
    "MixtralForCausalLM": Architecture(ends_everywhere=_ALL_ENDS),
    "MuseGlimmerForCausalLM": Architecture(norms=4, attention_gate="element", ends_everywhere=_ALL_ENDS),
    "NemotronForCausalLM": Architecture(bias_key="attention_bias", mlp_bias_key="mlp_bias", gated_mlp=False, norm_bias=True),
    "OlmoForCausalLM": Architecture(norms=0),
    "Olmo2ForCausalLM": Architecture(head_norms="whole", ends_everywhere=_ALL_ENDS),
    "Olmo3ForCausalLM": Architecture(head_norms="whole", bias_key="attention_bias", full_attention_every=4, positions=False),
    "OlmoeForCausalLM": Architecture(head_norms="whole", bias_key="attention_bias", ends_everywhere=_ALL_ENDS),
    "OPTForCausalLM": Architecture(
        qkv_bias=True, output_bias=True, mlp_bias=True, gated_mlp=False, norm_bias=True, learned_positions=2, tied=True,
        ends_everywhere=_ALL_ENDS,
    ),
    "OrionForCausalLM": Architecture(norm_bias=True),
    "PhiForCausalLM": Architecture(
        qkv_bias=True, output_bias=True, mlp_bias=True, gated_mlp=False, norms=1, norm_bias=True, lm_head_bias=True
    ),
    "Phi3ForCausalLM": Architecture(),
    "Phi3SmallForCausalLM": Architecture(
        qkv_bias=True, output_bias=True, mlp_bias=True, norm_bias=True, tied=True, ends_everywhere=_ALL_ENDS
    ),
    "PhiMoEForCausalLM": Architecture(
        bias_key="attention_bias", norm_bias=True, lm_head_bias=True, ends_everywhere=_ALL_ENDS
    ),
    "Qwen2ForCausalLM": Architecture(qkv_bias=True),
    "Qwen2MoeForCausalLM": Architecture(qkv_bias=True, shared_gate=True, ends_everywhere=_ALL_ENDS),
    "Qwen3ForCausalLM": Architecture(bias_key="attention_bias", head_norms="head"),
    "Qwen3MoeForCausalLM": Architecture(bias_key="attention_bias", head_norms="head", ends_everywhere=_ALL_ENDS),
    "QWenLMHeadModel": Architecture(qkv_bias=True),
    "SeedOssForCausalLM": Architecture(bias_key="attention_bias", output_bias_follows=False),
    "SmolLM3ForCausalLM": replace(_LLAMA, tied=True, positions=False),
    "SolarForCausalLM": _LLAMA,
    "StableLmForCausalLM": Architecture(bias_key="use_qkv_bias", output_bias_follows=False, norm_bias=True, ends_everywhere=_ALL_ENDS),
    "Starcoder2ForCausalLM": Architecture(
        bias_key="use_bias", mlp_bias_key="use_bias", gated_mlp=False, norm_bias=True, tied=True, positions=False
    ),
    "TeleChat3ForCausalLM": _LLAMA,
    "VaultGemmaForCausalLM": Architecture(tied=True, bias_key="attention_bias", full_attention_every=2, positions=False),
    "XverseForCausalLM": Architecture(),
    "YiForCausalLM": _LLAMA,
}  # fmt: skip
"""Classes whose layers differ in nothing but their window and their feed-forward block; one row per class."""

_MAMBA = Architecture(tied=True, positions=False, ends_everywhere=_ALL_ENDS)
_ZAMBA2 = Architecture(tied=True, ends_everywhere=_ALL_ENDS)
_CORRECTED = Architecture(router_bias=True)
"""The router corrects the scores of its experts."""
_FLOAT32_ROUTER = Architecture(router_bias=True, router_bytes_per_element=4)
_MINIMAX_M3 = Architecture(head_norms="head", head_norm_key="use_qk_norm")
_STEP = Family(
    layers=step_stack,
    known=replace(_FLOAT32_ROUTER, head_norms="head", bias_key="attention_bias", output_bias_follows=False),
)

_FAMILIES: dict[str, Family] = {
    **{name: Family(layers=uniform_stack, known=known) for name, known in _UNIFORM.items()},
    **POOLING,
    "BailingMoeV2_5ForCausalLM": Family(layers=bailing_stack),
    "BambaForCausalLM": Family(layers=bamba_stack, known=Architecture(ends_everywhere=_ALL_ENDS)),
    "BloomForCausalLM": Family(
        layers=uniform_stack,
        known=Architecture(
            qkv_bias=True,
            output_bias=True,
            mlp_bias=True,
            gated_mlp=False,
            norm_bias=True,
            tied=True,
            positions=False,
            ends_everywhere=_ALL_ENDS,
        ),
        heads=(embedding_norm,),
    ),
    "DbrxForCausalLM": Family(
        layers=uniform_stack,
        known=Architecture(ends_everywhere=_ALL_ENDS),
        renamed={
            "num_attention_heads": "n_heads",
            "num_key_value_heads": "attn_config.kv_n_heads",
            "num_experts": "ffn_config.moe_num_experts",
            "num_experts_per_tok": "ffn_config.moe_top_k",
            "moe_intermediate_size": "ffn_config.ffn_hidden_size",
        },
    ),
    "DeciLMForCausalLM": Family(layers=nemotron_nas_stack, known=_LLAMA),
    "DeepseekV2ForCausalLM": Family(layers=latent_stack),
    "DeepseekV32ForCausalLM": Family(layers=latent_stack, known=_CORRECTED),
    "DeepseekV3ForCausalLM": Family(layers=latent_stack, known=_CORRECTED),
    "DeepseekV4ForCausalLM": Family(layers=deepseek_v4_stack),
    "FalconH1ForCausalLM": Family(layers=falcon_h1_stack, known=Architecture(bias_key="attention_bias")),
    "FalconMambaForCausalLM": Family(layers=mamba_stack, known=_MAMBA),
    "Gemma3ForCausalLM": Family(
        layers=gemma3_stack,
        known=Architecture(
            norms=4,
            tied=True,
            bias_key="attention_bias",
            head_norms="head",
            ends_everywhere=_TIED_ENDS,
            full_attention_every=6,
        ),
    ),
    "Gemma3nForCausalLM": Family(
        layers=gemma3n_stack,
        known=Architecture(
            tied=True, bias_key="attention_bias", head_norms="head", ends_everywhere=_TIED_ENDS, full_attention_every=5
        ),
        supports_pipeline=False,
    ),
    "Gemma4ForCausalLM": Family(
        layers=gemma4_stack,
        known=Architecture(
            tied=True, bias_key="attention_bias", head_norms="head", ends_everywhere=_TIED_ENDS, full_attention_every=6
        ),
    ),
    "Glm4MoeLiteForCausalLM": Family(layers=latent_stack, known=_FLOAT32_ROUTER),
    "GlmMoeDsaForCausalLM": Family(layers=latent_stack, known=_CORRECTED),
    "GptOssForCausalLM": Family(
        layers=gpt_oss_stack,
        known=Architecture(
            qkv_bias=True, output_bias=True, expert_bias=True, ends_everywhere=_ALL_ENDS, rotary_bytes=4
        ),
    ),
    "GraniteMoeHybridForCausalLM": Family(
        layers=granite_hybrid_stack,
        known=Architecture(tied=True, bias_key="attention_bias", ends_everywhere=_ALL_ENDS),
    ),
    "HunYuanMoEV1ForCausalLM": Family(layers=hunyuan_stack, known=_HUNYUAN),
    "JambaForCausalLM": Family(layers=jamba_stack, known=Architecture(positions=False, ends_everywhere=_ALL_ENDS)),
    "KimiLinearForCausalLM": Family(layers=kimi_stack, known=Architecture(positions=False)),
    "LagunaForCausalLM": Family(
        layers=laguna_stack,
        known=Architecture(
            bias_key="qkv_bias", output_bias_follows=False, head_norms="head", router_bias=True, fused_mlp=False
        ),
    ),
    "Lfm2ForCausalLM": Family(
        layers=short_conv_stack, known=Architecture(tied=True, head_norms="head", ends_everywhere=_EMBEDDING)
    ),
    "Lfm2MoeForCausalLM": Family(
        layers=short_conv_stack,
        known=Architecture(tied=True, head_norms="head", router_bias=True, ends_everywhere=_EMBEDDING),
    ),
    "Llama4ForCausalLM": Family(layers=llama4_stack),
    "Mamba2ForCausalLM": Family(layers=mamba2_stack, known=_MAMBA, supports_pipeline=False),
    "MambaForCausalLM": Family(layers=mamba_stack, known=_MAMBA),
    "MiMoV2FlashForCausalLM": Family(
        layers=mimo_stack, known=replace(_FLOAT32_ROUTER, bias_key="attention_bias", output_bias_follows=False)
    ),
    "MiniMaxM1ForCausalLM": Family(layers=minimax_stack, supports_pipeline=False),
    "MiniMaxM3ForCausalLM": Family(layers=minimax_m3_stack, known=_MINIMAX_M3),
    "MiniMaxM3SparseForCausalLM": Family(layers=minimax_m3_stack, known=_MINIMAX_M3),
    "MiniMaxText01ForCausalLM": Family(layers=minimax_stack, supports_pipeline=False),
    "Mistral4ForCausalLM": Family(layers=latent_stack),
    "MistralLarge3ForCausalLM": Family(layers=latent_stack),
    "MllamaForCausalLM": Family(layers=mllama_stack, supports_pipeline=False),
    "NemotronHForCausalLM": Family(
        layers=nemotron_stack, known=Architecture(positions=False, ends_everywhere=_ALL_ENDS)
    ),
    "Qwen3_5ForCausalLM": Family(layers=gdn_stack, known=Architecture(ends_everywhere=_EMBEDDING)),
    "Qwen3_5MoeForCausalLM": Family(layers=gdn_stack, known=Architecture(shared_gate=True, ends_everywhere=_EMBEDDING)),
    "Qwen3NextForCausalLM": Family(
        layers=gdn_stack,
        known=Architecture(shared_gate=True, ends_everywhere=frozenset({End.EMBEDDING, End.HEAD})),
    ),
    "Step3p5ForCausalLM": _STEP,
    "Step3p7FlashForCausalLM": _STEP,
    "WhisperForConditionalGeneration": Family(
        layers=whisper_stack,
        known=Architecture(norm_bias=True, learned_positions=0),
        supports_pipeline=False,
        own_ends=True,
    ),
    "Zamba2ForCausalLM": Family(layers=zamba2_stack, known=_ZAMBA2, supports_pipeline=False),
}
"""The classes above, and those whose layers are read by a function of their own; one row per class."""

_MODEL_TYPES: dict[str, str] = {
    "cohere": "CohereForCausalLM",
    "cohere2": "Cohere2ForCausalLM",
    "ernie4_5": "Ernie4_5ForCausalLM",
    "exaone4": "Exaone4ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "glm": "GlmForCausalLM",
    "glm4": "Glm4ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
    "granite": "GraniteForCausalLM",
    "granitemoehybrid": "GraniteMoeHybridForCausalLM",
    "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "lfm2": "Lfm2ForCausalLM",
    "llama": "LlamaForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "mistral4": "Mistral4ForCausalLM",
    "mixtral": "MixtralForCausalLM",
    "nemotron_h": "NemotronHForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen2_moe": "Qwen2MoeForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "qwen3_next": "Qwen3NextForCausalLM",
    "seed_oss": "SeedOssForCausalLM",
    "smollm3": "SmolLM3ForCausalLM",
}
"""`text_config.model_type` → the class of a language model, for multimodal classes that take any."""


_READ_IS_CAUSAL = frozenset(
    {"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen2Model", "Qwen3ForCausalLM"}
)
"""Classes whose layers attend both ways where config.json says `is_causal: false` (vLLM 0.32, llama.py, qwen2.py, qwen3.py)."""


def family_of(architecture: str, fields: Fields) -> Family | None:
    """Return the row of the class, or of its language model's class; None for a class that nobody read yet.

    A class that vLLM makes from another one by its name's end has the row of that one, without its head.
    """
    if (row := _row(architecture, fields)) is not None:
        if fields.values.get("is_causal") is False and architecture in _READ_IS_CAUSAL:
            return replace(row, both_ways=True)
        return row
    names, scores = converted_from(architecture)
    base = next((row for row in (_row(name, fields) for name in names) if row is not None), None)
    return None if base is None else converted(base, scores=scores)


def _row(architecture: str, fields: Fields) -> Family | None:
    multimodal = MULTIMODAL.get(architecture)
    if multimodal is None or multimodal.language_model:
        return _FAMILIES.get(multimodal.language_model if multimodal else architecture)
    return nested_family(fields)


def nested_family(fields: Fields) -> Family | None:
    """Return the row of the language model that a multimodal config holds; None where it names none that is known."""
    sections = map(fields.section, ("text_config", "llm_config", "language_config"))
    of_sections = (str(name) for section in sections for name in section.sequence("architectures"))
    named = (*of_sections, _MODEL_TYPES.get(fields.text("model_type")))
    return next((_FAMILIES[name] for name in named if name in _FAMILIES), None)


def multimodal_of(architecture: str) -> Multimodal | None:
    """Return the row of a class with towers; None where it has no towers, or none that kvgate can read."""
    candidates = (architecture, *converted_from(architecture)[0])
    return next((MULTIMODAL[name] for name in candidates if name in MULTIMODAL), None)


def is_read(architecture: str) -> bool:
    """True for a class with a row of its own, and for one that vLLM makes from such a class by its name's end."""
    return not classes_read().isdisjoint((architecture, *converted_from(architecture)[0]))


def classes_read() -> frozenset[str]:
    """Return the model classes that have a row of their own, as a model or as its towers."""
    return frozenset({*_FAMILIES, *MULTIMODAL})
