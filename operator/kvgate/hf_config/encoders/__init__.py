"""Vision and audio towers: which class has which, and what their weights are."""

from kvgate.hf_config.encoders.clip import llava_vision, phi3_vision
from kvgate.hf_config.encoders.gemma4 import gemma4_towers, gemma4_unified
from kvgate.hf_config.encoders.glm4v_vision import glm4v_vision
from kvgate.hf_config.encoders.llama4_vision import llama4_vision
from kvgate.hf_config.encoders.minimax_vision import minimax_vision
from kvgate.hf_config.encoders.mllama_vision import mllama_vision
from kvgate.hf_config.encoders.moonvit import moonvit
from kvgate.hf_config.encoders.muse_vision import muse_vision
from kvgate.hf_config.encoders.pixtral import pixtral_vision
from kvgate.hf_config.encoders.qwen_omni import qwen_omni_towers
from kvgate.hf_config.encoders.qwen_vision import qwen2_5_vision, qwen2_vision, qwen3_5_vision, qwen3_vision
from kvgate.hf_config.encoders.siglip import gemma3_vision
from kvgate.hf_config.encoders.step_vision import step_vision
from kvgate.hf_config.encoders.whisper import voxtral_audio, whisper_audio
from kvgate.hf_config.family import EncoderReader

LANGUAGE_MODELS: dict[str, str] = {
    "Exaone4_5_ForConditionalGeneration": "Exaone4ForCausalLM",
    "Gemma3ForConditionalGeneration": "Gemma3ForCausalLM",
    "Gemma4ForConditionalGeneration": "Gemma4ForCausalLM",
    "Gemma4UnifiedForConditionalGeneration": "Gemma4ForCausalLM",
    "Glm4vForConditionalGeneration": "Glm4ForCausalLM",
    "Glm4vMoeForConditionalGeneration": "Glm4MoeForCausalLM",
    "KimiK25ForConditionalGeneration": "DeepseekV3ForCausalLM",
    "KimiK3ForConditionalGeneration": "KimiLinearForCausalLM",
    "Llama4ForConditionalGeneration": "Llama4ForCausalLM",
    "MiniMaxM3SparseForConditionalGeneration": "MiniMaxM3SparseForCausalLM",
    "MllamaForConditionalGeneration": "MllamaForCausalLM",
    "MuseGlimmerForConditionalGeneration": "MuseGlimmerForCausalLM",
    "Phi3VForCausalLM": "Phi3ForCausalLM",
    "Qwen2VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen2_5_VLForConditionalGeneration": "Qwen2ForCausalLM",
    "Qwen3OmniMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
    "Qwen3VLForConditionalGeneration": "Qwen3ForCausalLM",
    "Qwen3VLMoeForConditionalGeneration": "Qwen3MoeForCausalLM",
    "Qwen3_5ForConditionalGeneration": "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForConditionalGeneration": "Qwen3_5MoeForCausalLM",
    "Step3p7ForConditionalGeneration": "Step3p5ForCausalLM",
    "VoxtralForConditionalGeneration": "LlamaForCausalLM",
}
"""Multimodal class → the class of its language model, where it is always the same."""

MODEL_TYPES: dict[str, str] = {
    "llama": "LlamaForCausalLM",
    "ministral3": "Ministral3ForCausalLM",
    "mistral": "MistralForCausalLM",
    "mistral4": "Mistral4ForCausalLM",
}
"""`text_config.model_type` → the class of a language model, for multimodal classes that take any."""

ENCODERS: dict[str, EncoderReader] = {
    "Exaone4_5_ForConditionalGeneration": qwen2_5_vision,
    "Gemma3ForConditionalGeneration": gemma3_vision,
    "Gemma4ForConditionalGeneration": gemma4_towers,
    "Gemma4UnifiedForConditionalGeneration": gemma4_unified,
    "Glm4vForConditionalGeneration": glm4v_vision,
    "Glm4vMoeForConditionalGeneration": glm4v_vision,
    "KimiK25ForConditionalGeneration": moonvit,
    "KimiK3ForConditionalGeneration": moonvit,
    "Llama4ForConditionalGeneration": llama4_vision,
    "LlavaForConditionalGeneration": llava_vision,
    "MiniMaxM3SparseForConditionalGeneration": minimax_vision,
    "Mistral3ForConditionalGeneration": pixtral_vision,
    "MllamaForConditionalGeneration": mllama_vision,
    "MuseGlimmerForConditionalGeneration": muse_vision,
    "Phi3VForCausalLM": phi3_vision,
    "Qwen2VLForConditionalGeneration": qwen2_vision,
    "Qwen2_5_VLForConditionalGeneration": qwen2_5_vision,
    "Qwen3OmniMoeForConditionalGeneration": qwen_omni_towers,
    "Qwen3VLForConditionalGeneration": qwen3_vision,
    "Qwen3VLMoeForConditionalGeneration": qwen3_vision,
    "Qwen3_5ForConditionalGeneration": qwen3_5_vision,
    "Qwen3_5MoeForConditionalGeneration": qwen3_5_vision,
    "Step3p7ForConditionalGeneration": step_vision,
    "VoxtralForConditionalGeneration": voxtral_audio,
    "WhisperForConditionalGeneration": whisper_audio,
}
"""Multimodal class → the reader of its towers."""

TIED_BY_WRAPPER = frozenset({"Mistral3ForConditionalGeneration"})
"""Multimodal classes whose config of transformers 5 ties embedding and head where config.json says nothing about it."""
