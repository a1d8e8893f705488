"""A draft's config.json in each of its formats, and what is no such config."""

import random
from contextlib import suppress
from copy import deepcopy
from typing import Any

import pytest

from kvgate import catalogue
from kvgate.budget.model.shape import FullAttention, LatentAttention, SharedCache
from kvgate.hf_config import ModelConfigError
from kvgate.hf_config.drafts.reader import method_of, read_draft
from support.tables import table

EAGLE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336,
    "num_attention_heads": 32, "num_key_value_heads": 8, "num_hidden_layers": 1, "vocab_size": 128256, "max_position_embeddings": 2048,
}  # fmt: skip
ASSISTANT: dict[str, Any] = {
    "architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant", "backbone_hidden_size": 5376,
    "text_config": {
        "model_type": "gemma4_text", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512, "sliding_window": 1024, "vocab_size": 262144,
        "layer_types": ["sliding_attention"] * 3 + ["full_attention"], "max_position_embeddings": 262144,
    },
}  # fmt: skip


@table(
    ("name", "config", "given", "method"),
    [
        ("yuhuili/EAGLE-LLaMA3-Instruct-8B", EAGLE, "", "eagle"),
        ("AngelSlim/Qwen3-8B_eagle3", EAGLE, "", "eagle3"),
        ("z-lab/Qwen3-8B-DFlash-b16", EAGLE, "", "dflash"),
        ("/models/head", {**EAGLE, "architectures": ["LlamaForCausalLMEagle3"]}, "", "eagle3"),
        ("/models/head", {**EAGLE, "architectures": ["PeagleQwen3ForCausalLM"]}, "", "eagle3"),
        ("/models/head", EAGLE, "eagle3", "eagle3"),
        ("yuhuili/EAGLE3-X", EAGLE, "eagle", "eagle"),
        ("/models/head", {"model_type": "medusa"}, "", "medusa"),
        ("/models/head", {"model_type": "mlp_speculator"}, "", "mlp_speculator"),
        ("google/gemma-4-31B-it-assistant", ASSISTANT, "", "mtp"),
        ("Qwen/Qwen3-0.6B", EAGLE, "", ""),
        ("Qwen/Qwen3-0.6B", EAGLE, "draft_model", ""),
    ],
)
def test_name_and_config_decide_the_method_as_in_vllm(
    name: str, config: dict[str, Any], given: str, method: str
) -> None:
    assert method_of(config, name=name, given=given) == method


def test_an_eagle3_head_reads_two_states_in_its_first_layer_and_three_of_the_target() -> None:
    draft = read_draft({**EAGLE, "num_hidden_layers": 2, "draft_vocab_size": 32000}, name="x/eagle3")
    first, second = draft.layers
    assert [layer.matrices[0].columns for layer in (first, second)] == [8192, 4096]
    assert (draft.target_states, draft.target_hidden_size, draft.draft_vocab_size) == (3, 4096, 32000)
    assert {matrix.name: matrix.columns for matrix in draft.shape.last}["fc"] == 3 * 4096


def test_a_speculators_config_is_read_through_its_section() -> None:
    config = {
        "speculators_model_type": "eagle3", "draft_vocab_size": 64000, "norm_before_fc": True, "target_hidden_size": 5120,
        "transformer_layer_config": EAGLE,
    }  # fmt: skip
    draft = read_draft(config, name="RedHatAI/some-speculator")
    assert draft.shape.architecture == "Eagle3LlamaForCausalLM"
    assert (draft.draft_vocab_size, draft.target_hidden_size) == (64000, 5120)
    assert {matrix.name for matrix in draft.shape.last} >= {"fc", "input_norm", "draft_id_to_target_id"}


def test_latent_attention_of_a_draft_keeps_latent_vectors() -> None:
    ranks = {
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    config = {**EAGLE, **ranks, "architectures": ["Eagle3DeepseekV2ForCausalLM"], "model_type": "deepseek_v2"}
    (layer,) = read_draft(config).layers
    assert isinstance(layer.mixers[0], LatentAttention)
    assert {matrix.name: matrix.columns for matrix in layer.matrices}["kv_a_proj"] == 2 * 4096


def test_dflash_layers_may_have_windows() -> None:
    kinds = ["sliding_attention", "full_attention"]
    flash = {
        **EAGLE,
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": 2,
        "layer_types": kinds,
        "sliding_window": 2048,
    }
    draft = read_draft({**flash, "dflash_config": {"target_layer_ids": [1, 2, 3, 4]}})
    mixers = [mixer for layer in draft.layers for mixer in layer.mixers if isinstance(mixer, FullAttention)]
    assert [mixer.sliding_window for mixer in mixers] == [2048, 0]
    assert draft.target_states == 4
    assert len(draft.buffers) == 2


def test_dspark_may_be_named_as_its_trainer_names_it() -> None:
    config = {
        **EAGLE,
        "architectures": ["DSparkDraftModel"],
        "model_type": "qwen3",
        "markov_rank": 256,
        "block_size": 7,
    }
    draft = read_draft(config, name="deepseek-ai/dspark_qwen3_8b_block7")
    assert (draft.method, draft.shape.architecture, draft.n_predict) == ("dspark", "Qwen3DSparkModel", 7)


def test_a_selector_without_its_sizes_is_told_so() -> None:
    with pytest.raises(ModelConfigError, match="conv_kernel_size"):
        read_draft({**EAGLE, "architectures": ["DFlash2DraftModel"], "dflash_config": {"conv_group_size": 0}})


def test_an_assistant_of_gemma_4_reads_its_targets_cache() -> None:
    draft = read_draft(ASSISTANT, name="google/gemma-4-31B-it-assistant")
    assert all(isinstance(mixer, SharedCache) for layer in draft.layers for mixer in layer.mixers)
    assert (draft.method, draft.target_hidden_size, draft.embedding, draft.head) == ("mtp", 5376, (), ())


def test_a_class_without_a_reader_is_named_and_not_guessed() -> None:
    draft = read_draft({**EAGLE, "architectures": ["MiniCPMForCausalLM"]}, name="x/eagle-minicpm", method="eagle")
    assert draft.unmodelled_kinds == ("drafts by EagleMiniCPMForCausalLM",)


def test_layers_of_multi_token_prediction_may_stand_in_another_checkpoint() -> None:
    mtp = {
        **EAGLE,
        "architectures": ["MiMoForCausalLM"],
        "model_type": "mimo",
        "num_hidden_layers": 36,
        "num_nextn_predict_layers": 1,
    }
    for method in ("mtp", "", "draft_model"):
        draft = read_draft(mtp, name="XiaomiMiMo/MiMo-7B-RL", method=method)
        assert (draft.method, len(draft.layers), draft.n_predict) == ("mtp", 1, 1)


@table(
    ("config", "parts"),
    [
        ({}, ["architectures is missing"]),
        ({"architectures": [7]}, ["architectures is missing"]),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, ["hidden_size", "vocab_size", "num_attention_heads"]),
        ({**EAGLE, "architectures": ["LlamaForCausalLMEagle3"], "hidden_size": "wide", "vocab_size": -1}, ["hidden_size", "vocab_size"]),
        ({**EAGLE, "architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 10**9}, ["num_hidden_layers is 1000000000"]),
        ({"model_type": "medusa", "hidden_size": [1], "medusa_num_layers": "x"}, ["hidden_size", "medusa_num_layers"]),
        ({"model_type": "mlp_speculator", "emb_dim": -4, "n_predict": {}}, ["emb_dim", "n_predict"]),
        ({"speculators_model_type": "eagle3", "transformer_layer_config": {"hidden_size": 0}}, ["hidden_size"]),
        ({"speculators_model_type": ["eagle3"], "transformer_layer_config": 3}, ["architectures is missing"]),
    ],
)  # fmt: skip
def test_what_is_no_draft_is_told_with_all_its_problems(config: dict[str, Any], parts: list[str]) -> None:
    with pytest.raises(ModelConfigError) as raised:
        read_draft(config, name="x")
    for part in parts:
        assert part in str(raised.value)


WRONG: list[Any] = [
    None,
    -1,
    0,
    "x",
    "",
    [],
    {},
    [1, 2],
    True,
    1e308,
    float("nan"),
    10**30,
    "1e9",
    ["full_attention"],
    [None],
]


@table("seed", range(8))
def test_no_mutation_of_a_config_raises_anything_else(seed: int) -> None:
    choice = random.Random(seed)
    configs = [dict(entry.config) for name in catalogue.draft_names() if (entry := catalogue.find_draft(name))]
    for _ in range(200):
        config = deepcopy(choice.choice([*configs, ASSISTANT]))
        inner = [value for value in config.values() if isinstance(value, dict) and value]
        part = choice.choice([config, *inner])
        part[choice.choice(list(part))] = choice.choice(WRONG)
        with suppress(ModelConfigError):
            read_draft(
                config, method=choice.choice(["", "eagle", "eagle3", "dflash", "medusa", "mlp_speculator", "mtp"])
            )
