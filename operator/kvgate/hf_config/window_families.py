"""Model classes with sliding windows, chunks and layers that differ in their attention."""

from dataclasses import replace

from kvgate.hf_config.architectures import ALL_ENDS, LLAMA, TIED_ENDS, Architecture
from kvgate.hf_config.encoder_decoder import mllama_stack, whisper_stack
from kvgate.hf_config.family import Family
from kvgate.hf_config.gemma import gemma3_stack, gemma4_stack
from kvgate.hf_config.heads_by_layer import gpt_oss_stack, laguna_stack, llama4_stack, mimo_stack, step_stack
from kvgate.hf_config.layers import headless_stack, uniform_stack
from kvgate.hf_config.nemotron_nas import nemotron_nas_stack

_UNIFORM: dict[str, Architecture] = {
    "Cohere2ForCausalLM": Architecture(
        norms=1, tied=True, bias_key="attention_bias", ends_everywhere=TIED_ENDS, full_attention_every=4, window_surplus=1
    ),
    "Exaone4ForCausalLM": Architecture(head_norms="head", bias_key="attention_bias", full_attention_every=4),
    "Gemma2ForCausalLM": Architecture(
        norms=4, tied=True, bias_key="attention_bias", ends_everywhere=TIED_ENDS, full_attention_every=2
    ),
    "HYV3ForCausalLM": Architecture(
        head_norms="head", head_norm_key="qk_norm", router_bias=True, router_bytes_per_element=4, ends_everywhere=ALL_ENDS
    ),
    "MuseGlimmerForCausalLM": Architecture(norms=4, attention_gate="element", ends_everywhere=ALL_ENDS),
    "Olmo3ForCausalLM": Architecture(head_norms="whole", bias_key="attention_bias", full_attention_every=4, positions=False),
    "Phi3SmallForCausalLM": Architecture(
        qkv_bias=True, output_bias=True, mlp_bias=True, norm_bias=True, tied=True, ends_everywhere=ALL_ENDS
    ),
    "PhiMoEForCausalLM": Architecture(
        bias_key="attention_bias", norm_bias=True, lm_head_bias=True, ends_everywhere=ALL_ENDS
    ),
}  # fmt: skip
"""Layers differ in their window alone."""

_FLOAT32_ROUTER = Architecture(router_bias=True, router_bytes_per_element=4)
_STEP = Family(
    layers=step_stack,
    known=replace(_FLOAT32_ROUTER, head_norms="head", bias_key="attention_bias", output_bias_follows=False),
)

_HEADLESS_LLAMA = Family(layers=headless_stack, known=LLAMA, own_ends=True)

WINDOW_FAMILIES: dict[str, Family] = {
    **{name: Family(layers=uniform_stack, known=known) for name, known in _UNIFORM.items()},
    "DeciLMForCausalLM": Family(layers=nemotron_nas_stack, known=LLAMA),
    "Gemma3ForCausalLM": Family(
        layers=gemma3_stack,
        known=Architecture(
            norms=4,
            tied=True,
            bias_key="attention_bias",
            head_norms="head",
            ends_everywhere=TIED_ENDS,
            full_attention_every=6,
        ),
    ),
    "Gemma4ForCausalLM": Family(
        layers=gemma4_stack,
        known=Architecture(
            tied=True, bias_key="attention_bias", head_norms="head", ends_everywhere=TIED_ENDS, full_attention_every=6
        ),
    ),
    "GptOssForCausalLM": Family(
        layers=gpt_oss_stack,
        known=Architecture(qkv_bias=True, output_bias=True, expert_bias=True, ends_everywhere=ALL_ENDS, rotary_bytes=4),
    ),
    "LagunaForCausalLM": Family(
        layers=laguna_stack,
        known=Architecture(
            bias_key="qkv_bias", output_bias_follows=False, head_norms="head", router_bias=True, fused_mlp=False
        ),
    ),
    "Llama4ForCausalLM": Family(layers=llama4_stack),
    "MllamaForCausalLM": Family(layers=mllama_stack, supports_pipeline=False),
    "MiMoV2FlashForCausalLM": Family(
        layers=mimo_stack, known=replace(_FLOAT32_ROUTER, bias_key="attention_bias", output_bias_follows=False)
    ),
    "LlamaModel": _HEADLESS_LLAMA,
    "MistralModel": _HEADLESS_LLAMA,
    "Step3p5ForCausalLM": _STEP,
    "Step3p7FlashForCausalLM": _STEP,
    "WhisperForConditionalGeneration": Family(
        layers=whisper_stack,
        known=Architecture(norm_bias=True, learned_positions=0),
        supports_pipeline=False,
        own_ends=True,
    ),
}
"""One row per class."""
