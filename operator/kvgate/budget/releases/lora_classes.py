"""Modules that vLLM's model classes offer to adapters, by architecture and release.

Read in the classes of 0.6.6, 0.7.3, 0.8.5, 0.9.2, 0.10.0, 0.10.2, 0.11.0, 0.12.0, 0.13.0, 0.14.0, 0.17.0, 0.19.0, 0.20.0, 0.22.0, 0.24.0,
0.27.1, 0.30.0, 0.32.0 and 0.33.0. A class that a release keeps elsewhere than with the others is not here.
"""

from kvgate.budget.releases.versions import Release

_WITHOUT_LORA: dict[str, Release] = {
    "BailingMoeV2_5ForCausalLM": (0, 33), "DeepseekForCausalLM": (0, 9), "DeepseekV2ForCausalLM": (0, 9), "DeepseekV3ForCausalLM": (0, 9),
    "FalconForCausalLM": (0, 33), "FalconMambaForCausalLM": (0, 33), "GPT2LMHeadModel": (0, 33), "GPTJForCausalLM": (0, 33),
    "GPTNeoXForCausalLM": (0, 30), "Glm4MoeForCausalLM": (0, 9), "KimiK25ForConditionalGeneration": (0, 33),
    "KimiLinearForCausalLM": (0, 24), "Llama4ForConditionalGeneration": (0, 10), "LlavaForConditionalGeneration": (0, 13),
    "Mamba2ForCausalLM": (0, 33), "MambaForCausalLM": (0, 33), "MiMoV2FlashForCausalLM": (0, 33), "MiniMaxM1ForCausalLM": (0, 22),
    "MiniMaxM2ForCausalLM": (0, 14), "MiniMaxText01ForCausalLM": (0, 22), "Mistral3ForConditionalGeneration": (0, 7),
    "MllamaForConditionalGeneration": (0, 10), "OPTForCausalLM": (0, 10), "Olmo2ForCausalLM": (0, 9), "OlmoForCausalLM": (0, 9),
    "OrionForCausalLM": (0, 33), "Phi3SmallForCausalLM": (0, 9), "Phi3VForCausalLM": (0, 33), "Qwen2MoeForCausalLM": (0, 9),
    "Qwen3MoeForCausalLM": (0, 9),
    "Qwen3OmniMoeForConditionalGeneration": (0, 24), "StableLmForCausalLM": (0, 33), "Starcoder2ForCausalLM": (0, 24),
    "Step3p5ForCausalLM": (0, 33), "Step3p7ForConditionalGeneration": (0, 33), "VoxtralForConditionalGeneration": (0, 9),
    "WhisperForConditionalGeneration": (0, 14),
}  # fmt: skip
"""The newest release whose class is certain not to take adapters; the patches of one release may differ, so the last minor is left out."""

_EMBEDDINGS_SINCE: dict[str, Release] = {
    "AquilaForCausalLM": (0, 6), "BambaForCausalLM": (0, 7), "Cohere2ForCausalLM": (0, 6), "CohereForCausalLM": (0, 6),
    "DeciLMForCausalLM": (0, 6), "Exaone4ForCausalLM": (0, 10), "Exaone4_5_ForConditionalGeneration": (0, 20),
    "ExaoneForCausalLM": (0, 6), "FalconH1ForCausalLM": (0, 9), "GPTNeoXForCausalLM": (0, 32), "GraniteForCausalLM": (0, 6),
    "GraniteMoeHybridForCausalLM": (0, 9), "InternLM3ForCausalLM": (0, 7), "InternLMForCausalLM": (0, 6), "JambaForCausalLM": (0, 6),
    "Lfm2ForCausalLM": (0, 10), "Lfm2MoeForCausalLM": (0, 12), "Llama4ForCausalLM": (0, 10), "Llama4ForConditionalGeneration": (0, 11),
    "LlamaForCausalLM": (0, 6), "LlamaModel": (0, 6), "LlavaForConditionalGeneration": (0, 14), "MiniCPM3ForCausalLM": (0, 6),
    "MiniCPMForCausalLM": (0, 6), "MistralForCausalLM": (0, 6), "MistralModel": (0, 6), "MixtralForCausalLM": (0, 6),
    "NemotronForCausalLM": (0, 6), "NemotronHForCausalLM": (0, 9), "Olmo2ForCausalLM": (0, 27), "Olmo3ForCausalLM": (0, 30),
    "OlmoForCausalLM": (0, 27), "Phi3ForCausalLM": (0, 6), "PhiForCausalLM": (0, 32), "PhiMoEForCausalLM": (0, 6),
    "Qwen3ForCausalLM": (0, 17), "Qwen3MoeForCausalLM": (0, 17), "Qwen3VLForConditionalGeneration": (0, 17),
    "Qwen3VLMoeForConditionalGeneration": (0, 17), "Qwen3_5ForCausalLM": (0, 30), "Qwen3_5ForConditionalGeneration": (0, 30),
    "Qwen3_5MoeForCausalLM": (0, 30), "Qwen3_5MoeForConditionalGeneration": (0, 30), "SeedOssForCausalLM": (0, 32),
    "Starcoder2ForCausalLM": (0, 27), "VoxtralForConditionalGeneration": (0, 10), "XverseForCausalLM": (0, 6), "YiForCausalLM": (0, 6),
}  # fmt: skip
"""The first release that was read in which the class, or its language model, has `embedding_modules`."""
_EMBEDDINGS_UNTIL: dict[str, Release] = {"MistralForCausalLM": (0, 17)}
"""The first release in which it has none any more."""

_HEAD_IS_EMBEDDING_UNTIL: dict[str, Release] = {"Qwen3ForCausalLM": (0, 28)}
"""The first release in which a tied head is a module of its own. Before, it is the embedding's, which vLLM wraps once more under the
head's name (0.17 to 0.26, `LoRAModelManager._create_lora_modules`; 79.0 MiB for a slot of Qwen3-4B in six starts of 0.27.1)."""

_ONE_MODULE: dict[str, frozenset[str]] = {
    "BaiChuanForCausalLM": frozenset({"qkv_proj"}),
    "BaichuanForCausalLM": frozenset({"qkv_proj"}),
    "ChatGLMModel": frozenset({"qkv_proj", "gate_up_proj"}),
    "GraniteMoeHybridForCausalLM": frozenset({"shared_experts"}),
    "Glm4vForConditionalGeneration": frozenset({"gate_up_proj"}),
    "InternLM2ForCausalLM": frozenset({"qkv_proj"}),
    "Phi3ForCausalLM": frozenset({"qkv_proj", "gate_up_proj"}),
    "Qwen3NextForCausalLM": frozenset({"conv1d", "in_proj_qkvz", "in_proj_ba"}),
    "Qwen3_5ForCausalLM": frozenset({"conv1d"}),
    "Qwen3_5ForConditionalGeneration": frozenset({"conv1d"}),
    "Qwen3_5MoeForCausalLM": frozenset({"conv1d"}),
    "Qwen3_5MoeForConditionalGeneration": frozenset({"conv1d"}),
}
"""Fused matrices that are one matrix in the checkpoint too, so that an adapter has one pair for all parts (`packed_modules_mapping`)."""
_EXPERTS_AS_ONE = frozenset({
    "GptOssForCausalLM", "Qwen3OmniMoeForConditionalGeneration", "Qwen3VLMoeForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
})  # fmt: skip
"""Classes whose adapters hold gate and up of the experts as one matrix (`is_3d_moe_weight`)."""


def takes_no_adapters(architecture: str, release: Release) -> bool:
    """True where the release's class is certain to refuse adapters (`SupportsLoRA`)."""
    return release <= _WITHOUT_LORA.get(architecture, (0, 0))


def has_embeddings(architecture: str, release: Release) -> bool:
    """True where adapters may change the embedding and the head."""
    since, until = _EMBEDDINGS_SINCE.get(architecture), _EMBEDDINGS_UNTIL.get(architecture)
    return since is not None and since <= release and (until is None or release < until)


def wraps_embedding_twice(architecture: str, release: Release) -> bool:
    """True where a tied embedding has slots for the head's name too."""
    return release < _HEAD_IS_EMBEDDING_UNTIL.get(architecture, (0, 0))


def is_one_module(architecture: str, name: str) -> bool:
    """True where an adapter has one pair of matrices for all parts of a fused matrix."""
    return name in _ONE_MODULE.get(architecture, ())


def holds_experts_as_one(architecture: str) -> bool:
    """True where an adapter has one pair for gate and up of the experts."""
    return architecture in _EXPERTS_AS_ONE
