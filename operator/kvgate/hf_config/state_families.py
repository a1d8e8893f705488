"""Model classes with layers that keep a recurrent state: Mamba 1 and 2, GDN, KDA, linear attention, short convolution."""

from kvgate.budget.model_shape import End
from kvgate.hf_config.architectures import ALL_ENDS, Architecture
from kvgate.hf_config.family import Family
from kvgate.hf_config.gdn import gdn_stack
from kvgate.hf_config.kimi import kimi_stack
from kvgate.hf_config.lightning import bailing_stack, minimax_stack
from kvgate.hf_config.mamba_families import (
    bamba_stack,
    falcon_h1_stack,
    granite_hybrid_stack,
    jamba_stack,
    mamba2_stack,
    mamba_stack,
)
from kvgate.hf_config.nemotron import nemotron_stack
from kvgate.hf_config.short_conv import short_conv_stack

_MAMBA = Architecture(tied=True, positions=False, ends_everywhere=ALL_ENDS)
_EMBEDDING = frozenset({End.EMBEDDING})

STATE_FAMILIES: dict[str, Family] = {
    "BailingMoeV2_5ForCausalLM": Family(layers=bailing_stack),
    "BambaForCausalLM": Family(layers=bamba_stack, known=Architecture(ends_everywhere=ALL_ENDS)),
    "FalconH1ForCausalLM": Family(layers=falcon_h1_stack, known=Architecture(bias_key="attention_bias")),
    "FalconMambaForCausalLM": Family(layers=mamba_stack, known=_MAMBA),
    "GraniteMoeHybridForCausalLM": Family(
        layers=granite_hybrid_stack,
        known=Architecture(tied=True, bias_key="attention_bias", ends_everywhere=ALL_ENDS),
    ),
    "JambaForCausalLM": Family(layers=jamba_stack, known=Architecture(positions=False, ends_everywhere=ALL_ENDS)),
    "KimiLinearForCausalLM": Family(layers=kimi_stack, known=Architecture(positions=False)),
    "Lfm2ForCausalLM": Family(
        layers=short_conv_stack, known=Architecture(tied=True, head_norms="head", ends_everywhere=_EMBEDDING)
    ),
    "Lfm2MoeForCausalLM": Family(
        layers=short_conv_stack,
        known=Architecture(tied=True, head_norms="head", router_bias=True, ends_everywhere=_EMBEDDING),
    ),
    "Mamba2ForCausalLM": Family(layers=mamba2_stack, known=_MAMBA, supports_pipeline=False),
    "MambaForCausalLM": Family(layers=mamba_stack, known=_MAMBA),
    "MiniMaxM1ForCausalLM": Family(layers=minimax_stack, supports_pipeline=False),
    "MiniMaxText01ForCausalLM": Family(layers=minimax_stack, supports_pipeline=False),
    "NemotronHForCausalLM": Family(
        layers=nemotron_stack, known=Architecture(positions=False, ends_everywhere=ALL_ENDS)
    ),
    "Qwen3NextForCausalLM": Family(
        layers=gdn_stack,
        known=Architecture(shared_gate=True, ends_everywhere=frozenset({End.EMBEDDING, End.HEAD})),
    ),
    "Qwen3_5ForCausalLM": Family(layers=gdn_stack, known=Architecture(ends_everywhere=_EMBEDDING)),
    "Qwen3_5MoeForCausalLM": Family(layers=gdn_stack, known=Architecture(shared_gate=True, ends_everywhere=_EMBEDDING)),
}
"""One row per class."""
