"""The table from a class with vision or audio towers to the reader of the towers and to its language model's class."""

from collections.abc import Callable

from msgspec import Struct

from kvgate.budget.model.shape import Encoder
from kvgate.hf_config.encoders.clip import (
    internvl_hf_vision,
    internvl_vision,
    llava_next_vision,
    llava_vision,
    minimax_vision,
    phi3_vision,
)
from kvgate.hf_config.encoders.gemma import gemma3_vision, gemma3n_towers, gemma4_towers, gemma4_unified
from kvgate.hf_config.encoders.llama import llama4_vision, mllama_vision, muse_vision
from kvgate.hf_config.encoders.mistral import pixtral_vision, qwen2_audio, voxtral_audio, whisper_audio
from kvgate.hf_config.encoders.patch_mergers import (
    glm4v_vision,
    glm_ocr_vision,
    kimi_vl_vision,
    moonvit,
    qwen2_5_omni_towers,
    qwen2_5_vision,
    qwen2_vision,
    qwen3_5_vision,
    qwen3_vision,
    qwen_omni_towers,
    step_vision,
)
from kvgate.hf_config.fields import Fields

EncoderReader = Callable[[Fields, int], tuple[Encoder, ...]]
"""(config.json as it is, the language model's hidden size) → towers with their projectors."""


class Multimodal(Struct, frozen=True, kw_only=True):
    """A model class with vision or audio towers beside its language model."""

    towers: EncoderReader
    language_model: str = ""
    """Class of the language model; empty where config.json names it."""
    ties_embeddings: bool = False
    """True where transformers 5 ties embedding and head unless config.json says otherwise."""


MULTIMODAL: dict[str, Multimodal] = {
    "Exaone4_5_ForConditionalGeneration": Multimodal(towers=qwen2_5_vision, language_model="Exaone4ForCausalLM"),
    "Gemma3ForConditionalGeneration": Multimodal(towers=gemma3_vision, language_model="Gemma3ForCausalLM"),
    "Gemma3nForConditionalGeneration": Multimodal(towers=gemma3n_towers, language_model="Gemma3nForCausalLM"),
    "Gemma4ForConditionalGeneration": Multimodal(towers=gemma4_towers, language_model="Gemma4ForCausalLM"),
    "Gemma4UnifiedForConditionalGeneration": Multimodal(towers=gemma4_unified, language_model="Gemma4ForCausalLM"),
    "Glm4vForConditionalGeneration": Multimodal(towers=glm4v_vision, language_model="Glm4ForCausalLM"),
    "Glm4vMoeForConditionalGeneration": Multimodal(towers=glm4v_vision, language_model="Glm4MoeForCausalLM"),
    "GlmOcrForConditionalGeneration": Multimodal(towers=glm_ocr_vision, language_model="Glm4ForCausalLM"),
    "InternS1ForConditionalGeneration": Multimodal(towers=internvl_hf_vision, ties_embeddings=True),
    "InternVLChatModel": Multimodal(towers=internvl_vision),
    "InternVLForConditionalGeneration": Multimodal(towers=internvl_hf_vision, ties_embeddings=True),
    "KimiK25ForConditionalGeneration": Multimodal(towers=moonvit, language_model="DeepseekV3ForCausalLM"),
    "KimiK3ForConditionalGeneration": Multimodal(towers=moonvit, language_model="KimiLinearForCausalLM"),
    "KimiVLForConditionalGeneration": Multimodal(towers=kimi_vl_vision, language_model="DeepseekV3ForCausalLM"),
    "Llama4ForConditionalGeneration": Multimodal(towers=llama4_vision, language_model="Llama4ForCausalLM"),
    "LlavaForConditionalGeneration": Multimodal(towers=llava_vision),
    "LlavaNextForConditionalGeneration": Multimodal(towers=llava_next_vision),
    "MiniMaxM3SparseForConditionalGeneration": Multimodal(towers=minimax_vision, language_model="MiniMaxM3SparseForCausalLM"),
    "Mistral3ForConditionalGeneration": Multimodal(towers=pixtral_vision, ties_embeddings=True),
    "MllamaForConditionalGeneration": Multimodal(towers=mllama_vision, language_model="MllamaForCausalLM"),
    "MuseGlimmerForConditionalGeneration": Multimodal(towers=muse_vision, language_model="MuseGlimmerForCausalLM"),
    "Phi3VForCausalLM": Multimodal(towers=phi3_vision, language_model="Phi3ForCausalLM"),
    "PixtralForConditionalGeneration": Multimodal(towers=pixtral_vision),
    "Qwen2_5_VLForConditionalGeneration": Multimodal(towers=qwen2_5_vision, language_model="Qwen2ForCausalLM"),
    "Qwen2_5OmniForConditionalGeneration": Multimodal(towers=qwen2_5_omni_towers, language_model="Qwen2ForCausalLM"),
    "Qwen2_5OmniModel": Multimodal(towers=qwen2_5_omni_towers, language_model="Qwen2ForCausalLM"),
    "Qwen2AudioForConditionalGeneration": Multimodal(towers=qwen2_audio, language_model="Qwen2ForCausalLM"),
    "Qwen2VLForConditionalGeneration": Multimodal(towers=qwen2_vision, language_model="Qwen2ForCausalLM"),
    "Qwen3_5ForConditionalGeneration": Multimodal(towers=qwen3_5_vision, language_model="Qwen3_5ForCausalLM"),
    "Qwen3_5MoeForConditionalGeneration": Multimodal(towers=qwen3_5_vision, language_model="Qwen3_5MoeForCausalLM"),
    "Qwen3OmniMoeForConditionalGeneration": Multimodal(towers=qwen_omni_towers, language_model="Qwen3MoeForCausalLM"),
    "Qwen3VLForConditionalGeneration": Multimodal(towers=qwen3_vision, language_model="Qwen3ForCausalLM"),
    "Qwen3VLMoeForConditionalGeneration": Multimodal(towers=qwen3_vision, language_model="Qwen3MoeForCausalLM"),
    "Step3p7ForConditionalGeneration": Multimodal(towers=step_vision, language_model="Step3p5ForCausalLM"),
    "VoxtralForConditionalGeneration": Multimodal(towers=voxtral_audio, language_model="LlamaForCausalLM"),
    "WhisperForConditionalGeneration": Multimodal(towers=whisper_audio, language_model="WhisperForConditionalGeneration"),
}  # fmt: skip
"""Classes with towers; one row per class."""
