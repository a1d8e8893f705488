"""Mistral's params.json becomes the config.json that vLLM makes of it."""

from typing import Any

import pytest

from kvgate import catalogue
from kvgate.budget.ground.hardware import SINGLE_GPU
from kvgate.budget.model.shape import FullAttention, LatentAttention, ModelShape
from kvgate.budget.model.weights import rank_weights
from kvgate.checkpoint.mistral_params import config_of_params, hugging_face_names, reads_params
from kvgate.checkpoint.tensors import CheckpointError
from kvgate.hf_config import read_config
from support.checkpoints import new_tensors

TEXT = {
    "dim": 5120, "n_layers": 4, "head_dim": 128, "hidden_dim": 32768, "n_heads": 32, "n_kv_heads": 8, "norm_eps": 1e-05,
    "rope_theta": 1e9, "vocab_size": 131072,
}  # fmt: skip
"""As Mistral Small states it."""
VISION = {
    "image_token_id": 10, "image_break_token_id": 12, "image_end_token_id": 13, "intermediate_size": 4096, "num_hidden_layers": 24,
    "num_attention_heads": 16, "mm_projector_id": "patch_merge", "spatial_merge_size": 2, "hidden_size": 1024, "num_channels": 3,
    "image_size": 1540, "max_image_size": 1540, "patch_size": 14, "rope_theta": 10000.0, "add_pre_mm_projector_layer_norm": True,
    "adapter_bias": False,
}  # fmt: skip
AUDIO = {
    "encoder_args": {
        "audio_encoding_args": {"sampling_rate": 16000, "num_mel_bins": 128, "hop_length": 160, "window_size": 400},
        "dim": 1280, "n_layers": 32, "head_dim": 64, "hidden_dim": 5120, "n_heads": 20, "vocab_size": 51866,
        "max_source_positions": None,
    },
    "downsample_args": {"downsample_factor": 4},
}  # fmt: skip
LARGE = {
    **TEXT, "q_lora_rank": 1536, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "kv_lora_rank": 512, "v_head_dim": 128,
    "llama_4_scaling": {"original_max_position_embeddings": 8192, "beta": 0.1},
    "moe": {
        "num_experts": 16, "num_experts_per_tok": 4, "expert_hidden_dim": 4096, "num_shared_experts": 1, "first_k_dense_replace": 1,
        "route_every_n": 1, "num_expert_groups": 1, "num_expert_groups_per_tok": 1, "routed_scale": 1.0,
    },
}  # fmt: skip


def parameter_bytes(shape: ModelShape) -> int:
    return rank_weights(shape, SINGLE_GPU, (0, len(shape.layers)), unsplit_large_blocks=False).parameter_bytes


def test_a_text_model() -> None:
    shape = read_config(config_of_params(TEXT))
    (mixer,) = shape.mixers
    assert shape.architecture == "MistralForCausalLM"
    assert mixer == FullAttention(num_heads=32, num_kv_heads=8, head_dim=128)
    assert (shape.max_model_len, shape.vocab_size, shape.hidden_size) == (128_000, 131072, 5120)


def test_params_and_config_of_mistral_small_are_the_same_model() -> None:
    entry = catalogue.find_model("mistralai/Mistral-Small-3.1-24B-Instruct-2503")
    assert entry is not None
    published = read_config({**entry.config, "tie_word_embeddings": False})
    params = {**TEXT, "n_layers": 40, "max_position_embeddings": 131072, "vision_encoder": VISION}
    ours = read_config(config_of_params(params))
    assert ours.architecture == "PixtralForConditionalGeneration"
    assert ours.unmodelled_kinds == ()
    assert parameter_bytes(ours) == parameter_bytes(published)
    assert (ours.layers, ours.max_model_len) == (published.layers, published.max_model_len)
    assert ours.encoders[0].items == published.encoders[0].items


def test_params_and_config_of_voxtral_are_the_same_model() -> None:
    entry = catalogue.find_model("mistralai/Voxtral-Mini-3B-2507")
    assert entry is not None
    published = read_config(entry.config)
    text = {
        **TEXT,
        "dim": 3072,
        "n_layers": 30,
        "hidden_dim": 8192,
        "rope_theta": 1e8,
        "max_position_embeddings": 131072,
    }
    ours = read_config(config_of_params({**text, "multimodal": {"whisper_model_args": AUDIO}}))
    assert ours.unmodelled_kinds == ()
    assert parameter_bytes(ours) == parameter_bytes(published)


def test_a_causal_encoder_is_the_realtime_model() -> None:
    causal = {**AUDIO, "encoder_args": {**AUDIO["encoder_args"], "causal": True}}  # type: ignore[dict-item]
    config = config_of_params({**TEXT, "multimodal": {"whisper_model_args": causal}})
    assert config["architectures"] == ["VoxtralRealtimeGeneration"]


def test_experts_with_a_shared_one_are_mistral_large_3() -> None:
    shape = read_config(config_of_params(LARGE))
    assert shape.architecture == "MistralLarge3ForCausalLM"
    assert shape.unmodelled_kinds == ()
    assert isinstance(shape.mixers[0], LatentAttention)
    assert [layer.mlps[0].intermediate_size for layer in shape.layers] == [32768, 4096, 4096, 4096]


def test_mla_without_experts_is_one_shared_expert() -> None:
    config = config_of_params({key: value for key, value in LARGE.items() if key != "moe"})
    assert (config["n_routed_experts"], config["n_shared_experts"], config["first_k_dense_replace"]) == (1, 1, 4)


def test_experts_without_a_shared_one_are_mixtral() -> None:
    shape = read_config(config_of_params({**TEXT, "moe": {"num_experts": 8, "num_experts_per_tok": 2}}))
    assert shape.architecture == "MixtralForCausalLM"
    assert shape.is_sparse


def test_codestral_mamba_gets_the_rest_from_its_config() -> None:
    beside = {"architectures": ["Mamba2ForCausalLM"], "state_size": 128, "vocab_size": 5}
    config = config_of_params({**TEXT, "model_type": "mamba"}, beside)
    assert (config["architectures"], config["state_size"], config["vocab_size"]) == (["Mamba2ForCausalLM"], 128, 131072)


def test_windows_of_a_period_are_kinds_of_layers() -> None:
    config = config_of_params({**TEXT, "sliding_window": [None, 4096]})
    assert config["layer_types"] == ["full_attention", "sliding_attention"] * 2
    assert config["sliding_window"] == 4096
    assert [mixer.sliding_window for mixer in read_config(config).mixers if isinstance(mixer, FullAttention)] == [
        0,
        4096,
    ]


def test_the_length_may_stand_in_config_json() -> None:
    assert config_of_params(TEXT, {"max_position_embeddings": 40960})["max_position_embeddings"] == 40960
    yarn = {"factor": 4, "original_max_position_embeddings": 32768, "beta": 32, "alpha": 1, "apply_scale": False}
    config = config_of_params({**TEXT, "yarn": yarn, "max_position_embeddings": 131072})
    assert config["rope_parameters"] == {
        "rope_type": "yarn", "mscale_all_dim": 1, "rope_theta": 1e9, "factor": 4, "original_max_position_embeddings": 32768,
        "beta_fast": 32, "beta_slow": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("quantization", "expected"),
    [
        ({"qformat_weight": "fp8_e4m3"}, {"quant_method": "fp8", "activation_scheme": "static"}),
        (
            {"qformat_weight": "fp8_e4m3", "qscheme_act": "NO_SCALES"},
            {"quant_method": "fp8", "activation_scheme": "dynamic"},
        ),
        ({"quant_method": "compressed_tensors", "a": 1}, {"quant_method": "compressed-tensors", "a": 1}),
    ],
)
def test_quantisation_in_mistrals_spelling(quantization: dict[str, Any], expected: dict[str, Any]) -> None:
    assert config_of_params({**TEXT, "quantization": quantization})["quantization_config"] == expected
    with_towers = config_of_params({**TEXT, "quantization": quantization, "vision_encoder": VISION})
    assert with_towers["quantization_config"] == expected


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({}, "dim or n_layers is missing"),
        ({**TEXT, "moe": 5}, "moe is '5'; it must be an object"),
        ({**TEXT, "yarn": "x" * 1000}, "yarn is 'xxx"),
        ({**TEXT, "quantization": {"qformat_weight": "int3"}}, "which vLLM does not take in a params.json"),
    ],
)
def test_a_broken_file_is_an_error(params: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        config_of_params(params)


def test_absurd_numbers_are_left_to_the_reader_of_configs() -> None:
    config = config_of_params({**TEXT, "n_layers": 10**9, "sliding_window": [None] * 10})
    with pytest.raises(ValueError, match="no model has more than 1024"):
        read_config(config)


WEIGHTS = "consolidated.safetensors"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (("params.json", WEIGHTS), True),
        (("params.json",), True),
        (("params.json", "config.json"), False),
        (("params.json", "config.json", WEIGHTS), True),
        (("config.json", WEIGHTS), False),
        ((), False),
    ],
)
def test_which_file_is_read(names: tuple[str, ...], *, expected: bool) -> None:
    assert reads_params(names) is expected


def test_tensors_get_the_names_of_hugging_face() -> None:
    renamed = {
        "layers.3.attention.wq.weight": "model.layers.3.self_attn.q_proj.weight",
        "layers.3.attention.wo.qscale_weight": "model.layers.3.self_attn.o_proj.weight_scale",
        "layers.0.feed_forward.w2.weight": "model.layers.0.mlp.down_proj.weight",
        "layers.1.experts.7.w3.weight": "model.layers.1.mlp.experts.7.w3.weight",
        "layers.1.gate.weight": "model.layers.1.mlp.gate.weight",
        "tok_embeddings.weight": "model.embed_tokens.weight",
        "output.weight": "lm_head.weight",
        "norm.weight": "model.norm.weight",
        "vision_encoder.transformer.layers.0.attention.wq.weight": "vision_encoder.transformer.layers.0.attention.wq.weight",
    }  # fmt: skip
    tensors = new_tensors([(name, "BF16", (2, 2)) for name in renamed])
    assert [tensor.name for tensor in hugging_face_names(tensors)] == list(renamed.values())
