"""Model classes with sliding windows, chunks and layers that differ in their attention."""

from dataclasses import replace

from kvgate.hf_config.architectures import ALL_ENDS, TIED_ENDS, Architecture
from kvgate.hf_config.family import Family
from kvgate.hf_config.heads_by_layer import gpt_oss_stack, laguna_stack, llama4_stack, mimo_stack, step_stack
from kvgate.hf_config.layers import uniform_stack

_UNIFORM: dict[str, Architecture] = {
    "Cohere2ForCausalLM": Architecture(
        norms=1, tied=True, bias_key="attention_bias", ends_everywhere=TIED_ENDS, full_attention_every=4, window_surplus=1
    ),
    "Exaone4ForCausalLM": Architecture(head_norms="head", bias_key="attention_bias", full_attention_every=4),
    "Gemma2ForCausalLM": Architecture(
        norms=4, tied=True, bias_key="attention_bias", ends_everywhere=TIED_ENDS, full_attention_every=2
    ),
    "Gemma3ForCausalLM": Architecture(
        norms=4, tied=True, bias_key="attention_bias", head_norms="head", ends_everywhere=TIED_ENDS, full_attention_every=6
    ),
    "HYV3ForCausalLM": Architecture(
        head_norms="head", head_norm_key="qk_norm", router_bias=True, router_bytes_per_element=4, ends_everywhere=ALL_ENDS
    ),
    "MuseGlimmerForCausalLM": Architecture(norms=4, attention_gate="element", ends_everywhere=ALL_ENDS),
    "Olmo3ForCausalLM": Architecture(head_norms="whole", bias_key="attention_bias", full_attention_every=4),
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

WINDOW_FAMILIES: dict[str, Family] = {
    **{name: Family(layers=uniform_stack, known=known) for name, known in _UNIFORM.items()},
    "GptOssForCausalLM": Family(
        layers=gpt_oss_stack,
        known=Architecture(qkv_bias=True, output_bias=True, expert_bias=True, ends_everywhere=ALL_ENDS),
    ),
    "LagunaForCausalLM": Family(
        layers=laguna_stack,
        known=Architecture(
            bias_key="qkv_bias", output_bias_follows=False, head_norms="head", router_bias=True, fused_mlp=False
        ),
    ),
    "Llama4ForCausalLM": Family(layers=llama4_stack),
    "MiMoV2FlashForCausalLM": Family(
        layers=mimo_stack, known=replace(_FLOAT32_ROUTER, bias_key="attention_bias", output_bias_follows=False)
    ),
    "Step3p5ForCausalLM": _STEP,
    "Step3p7FlashForCausalLM": _STEP,
}
"""One row per class."""
