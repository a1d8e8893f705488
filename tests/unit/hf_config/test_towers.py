"""Vision and audio towers: weights to the parameter, what is cut and what is whole, what the largest item gives."""

from typing import Any

import pytest
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget.engine.request import EngineSettings
from kvgate.budget.engine.run import built_shape
from kvgate.budget.ground.hardware import Parallelism
from kvgate.budget.model.shape import MediaItem, ModelShape
from kvgate.budget.model.weights import rank_weights
from kvgate.budget.releases.versions import accounting_of
from kvgate.hf_config import ModelConfigError, read_config
from support.builders import catalogue_shape, new_llama_config


def rank_parameters(shape: ModelShape, tensor: int = 1) -> int:
    stage = (0, len(shape.layers))
    return rank_weights(shape, Parallelism(tensor=tensor), stage, unsplit_large_blocks=False).parameter_bytes // 2


def tower_parameters(shape: ModelShape, tensor: int = 1) -> int:
    """Of the towers alone, on one of `tensor` ranks."""
    return rank_parameters(shape, tensor) - rank_parameters(replace(shape, encoders=()), tensor)


def llava_config(**overrides: Any) -> dict[str, Any]:
    vision = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
              "image_size": 336, "patch_size": 14}  # fmt: skip
    text = {"model_type": "llama", "vocab_size": 32064, "max_position_embeddings": 4096}
    values = {"architectures": ["LlavaForConditionalGeneration"], "model_type": "llava", "torch_dtype": "float16"}
    return {**values, "vision_config": vision, "text_config": text, **overrides}


PUBLISHED = {
    "Qwen/Qwen2-VL-2B-Instruct": 2_208_985_600,
    "Qwen/Qwen2-VL-7B-Instruct": 8_291_375_616,
    "Qwen/Qwen2.5-VL-7B-Instruct": 8_292_166_656,
    "Qwen/Qwen2.5-VL-72B-Instruct": 73_410_777_344,
    "Qwen/Qwen3-VL-8B-Instruct": 8_767_123_696,
    "Qwen/Qwen3-VL-30B-A3B-Instruct": 31_070_754_032,
}
"""Parameters of the safetensors files, towers included (https://huggingface.co, "Model size" of each)."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_model_with_its_tower_has_the_parameters_of_its_files(name: str) -> None:
    assert rank_parameters(catalogue_shape(name)) == PUBLISHED[name]


def test_layers_are_dealt_out_and_patches_positions_and_norms_are_whole() -> None:
    """Qwen3-VL: 16 heads and 4304 inner channels on 8 ranks."""
    shape = catalogue_shape("Qwen/Qwen3-VL-30B-A3B-Instruct")
    patches, positions, norms = 1536 * 1152 + 1152, 2304 * 1152, 27 * 4 * 1152 + 2 * 1152 + 3 * 2 * 4608
    whole_biases = 27 * 2 * 1152 + 4 * 2048
    whole = patches + positions + norms + whole_biases
    assert tower_parameters(shape, 8) == whole + (tower_parameters(shape) - whole) // 8


def test_the_layers_above_the_one_that_is_used_are_not_built() -> None:
    used, all_of_them = read_config(llava_config()), read_config(llava_config(vision_feature_layer=-1))
    layer = 4 * 1024 + 4 * (1024 * 1024 + 1024) + 2 * 4096 * 1024 + 4096 + 1024
    assert tower_parameters(all_of_them) - tower_parameters(used) == layer


@pytest.mark.parametrize("layer", [-30, 25, "last", []], ids=repr)
def test_a_layer_that_the_tower_does_not_have_is_named(layer: object) -> None:
    with pytest.raises(ModelConfigError, match="vision_feature_layer"):
        read_config(llava_config(vision_feature_layer=layer))


def test_a_key_of_a_tower_is_named_with_the_object_it_stands_in() -> None:
    with pytest.raises(ModelConfigError) as error:
        read_config(llava_config(vision_config={"hidden_size": -1}))
    assert error.value.problems == ("vision_config.hidden_size is -1; it must be a whole number above 0",)


def test_what_a_nested_config_leaves_out_is_filled_in_by_its_model_type() -> None:
    shape = read_config(llava_config())
    assert (shape.hidden_size, len(shape.layers), shape.num_heads, shape.vocab_size) == (4096, 32, 32, 32064)
    with pytest.raises(ModelConfigError, match="hidden_size or n_embd"):
        read_config(new_llama_config(hidden_size=...))


@pytest.mark.parametrize(("text", "kind"), [
    ({"model_type": "qwen9"}, "architecture LlavaForConditionalGeneration"),
    ({"model_type": ["llama"]}, "architecture LlavaForConditionalGeneration"),
])  # fmt: skip
def test_a_language_model_that_nobody_read_is_no_guess(text: dict[str, Any], kind: str) -> None:
    assert read_config(llava_config(text_config=text)).unmodelled_kinds == (kind,)


def test_a_language_model_named_by_its_class_needs_no_type() -> None:
    text = {"architectures": ["LlamaForCausalLM"], **new_llama_config(architectures=...), "model_type": "vicuna"}
    assert read_config(llava_config(text_config=text)).unmodelled_kinds == ()


def test_a_video_has_as_many_frames_as_the_context_has_room_for() -> None:
    """Qwen2.5-VL: budgets of 114688 (max_model_len 128000, 0.23) and 16384 (8192, 0.21) stand in published logs."""
    (tower,) = catalogue_shape("Qwen/Qwen2.5-VL-7B-Instruct").encoders
    assert tower.max_item_tokens == 114688
    video = next(item for item in tower.items if item.modality == "video")
    assert [video.tokens_within(length) for length in (8192, 40000, 128000)] == [16384, 32768, 114688]


@pytest.mark.parametrize(("name", "tokens"), [
    ("Qwen/Qwen3-VL-30B-A3B-Instruct", 16384),
    ("mistralai/Mistral-Small-3.1-24B-Instruct-2503", 55 * 55),
    ("llava-hf/llava-1.5-7b-hf", 576),
])  # fmt: skip
def test_a_picture_gives_the_same_embeddings_in_any_context(name: str, tokens: int) -> None:
    (tower,) = catalogue_shape(name).encoders
    assert tower.items[0] == MediaItem(modality="image", tokens=tokens)
    assert tower.items[0].tokens_within(2048) == tower.max_item_tokens == tokens


def test_mistral_3_is_tied_by_the_config_around_it_since_transformers_5() -> None:
    """0.19.0 loaded 44.76 GiB, head included; vLLM's own classes at 0.32 have 46.68 GB."""
    shape = catalogue_shape("mistralai/Mistral-Small-3.1-24B-Instruct-2503")
    before, since = (built_shape(shape, accounting_of(release), EngineSettings()) for release in ("0.19.0", "0.32.0"))
    assert (rank_parameters(before), rank_parameters(since)) == (24_011_361_280, 23_340_272_640)
    told = catalogue_shape("mistralai/Devstral-Small-2-24B-Instruct-2512")
    assert not built_shape(told, accounting_of("0.32.0"), EngineSettings()).tie_word_embeddings


def test_llama_3_2_vision_has_the_parameters_of_its_files_and_padded_rows() -> None:
    """10,670,220,835 parameters in the files; 128,264 rows of the embedding become 128,320."""
    assert rank_parameters(catalogue_shape("meta-llama/Llama-3.2-11B-Vision-Instruct")) == 10_670_220_835 + 56 * 4096


def test_phi_3_vision_leaves_out_the_last_layer_of_clip_and_the_norm_behind_it() -> None:
    """4,146,621,440 parameters in the files."""
    layer = 4 * (1024 * 1024 + 1024) + 2 * 4096 * 1024 + 4096 + 1024 + 4 * 1024
    shape = catalogue_shape("microsoft/Phi-3.5-vision-instruct")
    assert rank_parameters(shape) == 4_146_621_440 - layer - 2 * 1024


def test_glm_4_1v_has_the_parameters_of_its_files() -> None:
    text = {"model_type": "glm4v_text", "attention_bias": True, "hidden_size": 4096, "intermediate_size": 13696,
            "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 2, "vocab_size": 151552,
            "max_position_embeddings": 65536}  # fmt: skip
    config = {"architectures": ["Glm4vForConditionalGeneration"], "text_config": text, "vision_config": {"depth": 24},
              "tie_word_embeddings": False}  # fmt: skip
    assert rank_parameters(read_config(config)) == 10_292_777_472


def test_gemma_4_hears_where_its_config_says_so() -> None:
    """305 million parameters, and a projection from 1536."""
    deaf = dict(catalogue.load_model("google/gemma-4-E4B-it").config)
    hearing = read_config({**deaf, "audio_config": {"model_type": "gemma4_audio"}})
    assert [encoder.is_unlisted for encoder in read_config(deaf).encoders] == [False, True]
    assert tower_parameters(hearing) - tower_parameters(read_config(deaf)) == 304_824_608 + 1536 * 2560
    assert [item.modality for encoder in hearing.encoders for item in encoder.items] == ["image", "video", "audio"]


def test_gemma_4s_towers_are_whole_on_every_rank() -> None:
    shape = catalogue_shape("google/gemma-4-31B-it")
    assert tower_parameters(shape, 4) == tower_parameters(shape)


def test_qwen3_omni_sees_and_hears_and_its_talker_is_not_there() -> None:
    shape = catalogue_shape("Qwen/Qwen3-Omni-30B-A3B-Instruct")
    sees, hears = shape.encoders
    assert {item.modality for item in sees.items} == {"image", "video"}
    assert tower_parameters(replace(shape, encoders=(sees,))) == 538_631_408
    assert tower_parameters(replace(shape, encoders=(hears,))) == pytest.approx(650_000_000, rel=0.01)
    assert shape.architecture == "Qwen3OmniMoeForConditionalGeneration"
    assert len(shape.layers) == 48


def test_step_3_7_reads_a_perception_encoder() -> None:
    vision = {
        "width": 1536,
        "layers": 2,
        "heads": 16,
        "mlp_ratio": 5.5,
        "image_size": 728,
        "patch_size": 14,
        "ls_init_value": 0.1,
    }
    text = dict(catalogue.load_model("stepfun-ai/Step-3.7-Flash").config)
    shape = read_config(
        {"architectures": ["Step3p7ForConditionalGeneration"], "vision_config": vision, "text_config": text}
    )
    layer = 4 * (1536 * 1536 + 1536) + 2 * 1536 * 8448 + 8448 + 1536 + 6 * 1536
    convolutions = 9 * 2 * 1536 * 1536 + 2 * 1536 + 18 * 4 * 1536 * 1536 + 4 * 1536
    around = 588 * 1536 + 52 * 52 * 1536 + 2 * 1536 + 4 * 1536 * 4096
    assert tower_parameters(shape) == 2 * layer + convolutions + around


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"architectures": ["Gemma4ForConditionalGeneration"], "audio_config": {"subsampling_conv_channels": [128]}},
     "subsampling_conv_channels must be two whole numbers"),
    ({"architectures": ["KimiK25ForConditionalGeneration"], "vision_config": {"merge_kernel_size": [2, 0]}},
     "merge_kernel_size must be two whole numbers"),
    ({"architectures": ["Step3p7ForConditionalGeneration"], "vision_config": {"mlp_ratio": "4"}}, "mlp_ratio must be a number"),
    ({"architectures": ["VoxtralForConditionalGeneration"], "audio_config": {"hidden_size": 8}}, "audio_config.num_mel_bins"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "problem"), BROKEN, ids=[problem for _, problem in BROKEN])
def test_a_tower_that_cannot_be_read_names_its_keys(config: dict[str, Any], problem: str) -> None:
    with pytest.raises(ModelConfigError) as error:
        read_config({**new_llama_config(model_type="llama"), **config})
    assert any(problem in found for found in error.value.problems)


def test_gemma_4s_experts_stand_beside_the_block_that_a_checkpoint_leaves_plain() -> None:
    """nvidia/Gemma-4-26B-A4B-NVFP4 at 0.20.2 loaded 17.89 GiB: its list names `mlp`, and the experts are not in it."""
    shape = catalogue_shape("nvidia/Gemma-4-26B-A4B-NVFP4")
    stage = (0, len(shape.layers))
    loaded = rank_weights(shape, Parallelism(), stage, unsplit_large_blocks=False).loaded_bytes
    assert loaded / 2**30 == pytest.approx(17.89, abs=0.1)


def test_a_list_of_exceptions_that_misses_the_tower_leaves_it_converted() -> None:
    """25.36 GB on one rank by vLLM 0.32's own classes; with a tower in 16 bits it would be 25.79."""
    shape = catalogue_shape("mistralai/Devstral-Small-2-24B-Instruct-2512")
    weights = rank_weights(shape, Parallelism(), (0, len(shape.layers)), unsplit_large_blocks=True)
    assert weights.parameter_bytes / 1e9 == pytest.approx(25.36, abs=0.005)
