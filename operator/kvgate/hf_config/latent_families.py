"""Model classes with sparse and compressed latent attention."""

from kvgate.hf_config.architectures import PLAIN, Architecture
from kvgate.hf_config.deepseek_v4 import deepseek_v4_stack
from kvgate.hf_config.family import Family
from kvgate.hf_config.latent import latent_stack
from kvgate.hf_config.minimax_m3 import minimax_m3_stack

_CORRECTED = Architecture(router_bias=True)
"""The router corrects the scores of its experts."""

_GLM4_LITE = Architecture(router_bias=True, router_bytes_per_element=4)
"""GLM-4 MoE Lite has a router like GLM-4.5's."""

_MINIMAX_M3 = Architecture(head_norms="head", head_norm_key="use_qk_norm")

LATENT_FAMILIES: dict[str, Family] = {
    "DeepseekV2ForCausalLM": Family(layers=latent_stack, known=PLAIN),
    "DeepseekV3ForCausalLM": Family(layers=latent_stack, known=_CORRECTED),
    "DeepseekV4ForCausalLM": Family(layers=deepseek_v4_stack),
    "DeepseekV32ForCausalLM": Family(layers=latent_stack, known=_CORRECTED),
    "Glm4MoeLiteForCausalLM": Family(layers=latent_stack, known=_GLM4_LITE),
    "GlmMoeDsaForCausalLM": Family(layers=latent_stack, known=_CORRECTED),
    "MiniMaxM3ForCausalLM": Family(layers=minimax_m3_stack, known=_MINIMAX_M3),
    "MiniMaxM3SparseForCausalLM": Family(layers=minimax_m3_stack, known=_MINIMAX_M3),
    "Mistral4ForCausalLM": Family(layers=latent_stack),
}
"""One row per class."""
