"""A GGUF file becomes a config.json, a summary of tensors and a shape."""

from typing import Any

import pytest

from kvgate.budget import plan
from kvgate.budget.ground.hardware import SINGLE_GPU, Parallelism
from kvgate.budget.model.matrix import WeightFormat
from kvgate.budget.model.shape import ModelShape
from kvgate.budget.model.weights import checkpoint_ratio, rank_weights
from kvgate.checkpoint.gguf import GgufFile, read_gguf
from kvgate.checkpoint.gguf_models import (
    file_of_quant_type,
    gguf_config,
    gguf_spelling,
    gguf_tensors,
)
from kvgate.checkpoint.published import Published, shape_of
from kvgate.checkpoint.tensors import CheckpointError, bytes_of, summarize
from kvgate.hf_config import read_config
from support.builders import new_request
from support.checkpoints import gguf_bytes, qwen3_gguf
from support.tables import table

Entries = list[tuple[str, str, tuple[int, ...]]]


def file_of(metadata: dict[str, object], entries: Entries | None = None) -> GgufFile:
    return read_gguf(gguf_bytes(metadata, entries or [])[0])


def shape_of_file(file: GgufFile) -> ModelShape:
    tensors = summarize(gguf_tensors(file))
    return shape_of(Published(name="a/b:Q4_K_M", config=gguf_config(file), tensors=tensors))


def parameter_bytes(shape: ModelShape, tensor: int = 1) -> int:
    ranks = SINGLE_GPU if tensor == 1 else Parallelism(tensor=tensor)
    return rank_weights(shape, ranks, (0, len(shape.layers)), unsplit_large_blocks=False).parameter_bytes


def test_a_file_becomes_the_config_of_its_model() -> None:
    assert gguf_config(file_of(*qwen3_gguf())) == {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "max_position_embeddings": 40960, "num_hidden_layers": 2,
        "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128,
        "rope_theta": 1e6, "tie_word_embeddings": True, "vocab_size": 5120, "quantization_config": {"quant_method": "gguf"},
    }  # fmt: skip


def test_the_weights_are_the_stored_blocks_with_padded_rows() -> None:
    """vLLM 0.22, by rule: q and k are padded to the width of v; norms are in the model dtype; no start is known."""
    shape = shape_of_file(file_of(*qwen3_gguf()))
    stored = {
        "qkv": 4096 * 1024 // 256 * 210,  # Q6_K, the widest of the three
        "o": bytes_of("Q4_K", (1024, 2048)),
        "gate_up": bytes_of("Q4_K", (6144, 1024)),
        "down": bytes_of("Q6_K", (1024, 3072)),
        "norms": 2 * (2 * 1024 + 2 * 128),
    }
    embedding = bytes_of("Q6_K", (5120, 1024))
    assert parameter_bytes(shape) == 2 * sum(stored.values()) + embedding + 2 * 1024
    assert checkpoint_ratio(shape) == 1
    assert shape.unmodelled_kinds == ()
    assert shape.quantization is not None
    assert shape.quantization.method == "gguf"
    assert len(shape.distinct_layers) == 1


def test_tensor_parallelism_cuts_blocks_as_it_cuts_matrices() -> None:
    shape = shape_of_file(file_of(*qwen3_gguf()))
    norms = 2 * 2 * (2 * 1024 + 2 * 128) + 2 * 1024
    assert parameter_bytes(shape, tensor=2) == norms + (parameter_bytes(shape) - norms) // 2


def test_a_file_of_plain_weights_is_a_plain_model() -> None:
    metadata, entries = qwen3_gguf()
    plain = shape_of_file(file_of(metadata, [(name, "BF16", shape) for name, _, shape in entries]))
    config = gguf_config(file_of(metadata, entries))
    del config["quantization_config"]
    assert parameter_bytes(plain) == parameter_bytes(read_config(config))
    assert plain.quantization == WeightFormat(method="gguf", format="as-stored")


def test_a_head_of_its_own_is_counted() -> None:
    metadata, entries = qwen3_gguf()
    shape = shape_of_file(file_of(metadata, [*entries, ("output.weight", "Q8_0", (5120, 1024))]))
    assert not shape.tie_word_embeddings
    assert shape.head_format is not None
    assert shape.head_format.stored_bytes == bytes_of("Q8_0", (5120, 1024))


def metadata_of(architecture: str, **more: object) -> dict[str, object]:
    base = {
        "context_length": 4096, "block_count": 2, "embedding_length": 1024, "feed_forward_length": 2048,
        "attention.head_count": 16, "attention.head_count_kv": 8, "vocab_size": 512,
    }  # fmt: skip
    values = {f"{architecture}.{key.replace('__', '.')}": value for key, value in {**base, **more}.items()}
    return {"general.architecture": architecture, **values, "tokenizer.ggml.tokens": [str(i) for i in range(5000)]}


EXPERTS = {"expert_count": 8, "expert_used_count": 2}
DEEPSEEK = {
    **EXPERTS, "expert_shared_count": 1, "expert_feed_forward_length": 256, "leading_dense_block_count": 1,
    "attention.kv_lora_rank": 512, "attention.q_lora_rank": 256, "rope.dimension_count": 64,
}  # fmt: skip
MAMBA = {"ssm.conv_kernel": 4, "ssm.state_size": 16, "ssm.time_step_rank": 64, "ssm.inner_size": 2048}


@table(
    ("architecture", "more", "model_class"),
    [
        ("llama", {"rope.dimension_count": 64}, "LlamaForCausalLM"),
        ("llama", {"rope.dimension_count": 64, **EXPERTS}, "MixtralForCausalLM"),
        ("mistral", {"rope.dimension_count": 64}, "MistralForCausalLM"),
        ("qwen2", {}, "Qwen2ForCausalLM"),
        ("qwen2moe", {**EXPERTS, "expert_feed_forward_length": 256, "expert_shared_feed_forward_length": 512}, "Qwen2MoeForCausalLM"),
        ("qwen3", {"attention.key_length": 128}, "Qwen3ForCausalLM"),
        ("qwen3moe", {**EXPERTS, "attention.key_length": 128, "expert_feed_forward_length": 256}, "Qwen3MoeForCausalLM"),
        ("gemma2", {"attention.key_length": 256, "attention.sliding_window": 4096}, "Gemma2ForCausalLM"),
        ("gemma3", {"attention.key_length": 256, "attention.sliding_window": 1024}, "Gemma3ForCausalLM"),
        ("phi3", {}, "Phi3ForCausalLM"),
        ("starcoder2", {}, "Starcoder2ForCausalLM"),
        ("falcon", {}, "FalconForCausalLM"),
        ("stablelm", {}, "StableLmForCausalLM"),
        ("nemotron", {}, "NemotronForCausalLM"),
        ("gpt2", {}, "GPT2LMHeadModel"),
        ("mamba", MAMBA, "MambaForCausalLM"),
        ("minimax-m2", {**EXPERTS, "attention.key_length": 128, "expert_feed_forward_length": 256}, "MiniMaxM2ForCausalLM"),
        ("gpt-oss", {**EXPERTS, "attention.key_length": 64, "attention.sliding_window": 128}, "GptOssForCausalLM"),
        ("deepseek2", {**DEEPSEEK, "attention.key_length": 192}, "DeepseekV3ForCausalLM"),
        ("deepseek2", {**DEEPSEEK, "attention.key_length_mla": 192, "attention.value_length_mla": 128}, "DeepseekV3ForCausalLM"),
        ("command-r", {}, "CohereForCausalLM"),
    ],
)  # fmt: skip
def test_every_architecture_becomes_a_shape(architecture: str, more: dict[str, Any], model_class: str) -> None:
    config = gguf_config(file_of(metadata_of(architecture, **more)))
    assert config["architectures"] == [model_class]
    del config["quantization_config"]
    shape = read_config(config)
    assert shape.unmodelled_kinds == ()
    assert len(shape.layers) == 2
    assert shape.vocab_size == 5000


def test_widths_of_mla_are_the_same_in_old_and_new_files() -> None:
    old = gguf_config(file_of(metadata_of("deepseek2", **DEEPSEEK, **{"attention.key_length": 192})))
    new = gguf_config(
        file_of(metadata_of("deepseek2", **DEEPSEEK, **{"attention.key_length": 576, "attention.key_length_mla": 192}))
    )
    assert (old["qk_nope_head_dim"], new["qk_nope_head_dim"]) == (128, 128)


def test_stable_lm_states_its_biases_by_their_tensors() -> None:
    metadata = metadata_of("stablelm")
    bare = gguf_config(file_of(metadata))
    full = gguf_config(file_of(metadata, [("blk.0.attn_q.bias", "F32", (8,)), ("blk.0.ffn_norm.weight", "F32", (8,))]))
    assert (bare["use_qkv_bias"], bare["use_parallel_residual"]) == (False, True)
    assert (full["use_qkv_bias"], full["use_parallel_residual"]) == (True, False)


def test_widths_that_the_metadata_lacks_are_read_from_the_tensors() -> None:
    metadata = metadata_of("qwen2moe", **EXPERTS)
    entries: Entries = [
        ("blk.0.ffn_up_shexp.weight", "F32", (512, 1024)),
        ("blk.0.ffn_up_exps.weight", "F32", (8, 256, 1024)),
    ]
    config = gguf_config(file_of(metadata, entries))
    assert (config["shared_expert_intermediate_size"], config["moe_intermediate_size"]) == (512, 256)


@pytest.mark.parametrize(
    ("metadata", "problem"),
    [
        ({}, "general.architecture is ''"),
        ({"general.architecture": "x" * 500}, "general.architecture is 'xxx"),
        ({**metadata_of("llama"), "llama.block_count": "many"}, "llama.block_count is 'many'"),
        ({**metadata_of("llama"), "llama.attention.head_count_kv": [8, 4]}, "differs by layer"),
    ],
)
def test_a_file_that_is_no_known_model_is_an_error(metadata: dict[str, object], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        gguf_config(file_of(metadata))


def test_a_list_of_equal_numbers_is_that_number() -> None:
    config = gguf_config(file_of({**metadata_of("llama"), "llama.attention.head_count_kv": [8, 8]}))
    assert config["num_key_value_heads"] == 8


def test_tensors_that_vllm_does_not_load_are_left_out() -> None:
    entries: Entries = [("rope_freqs.weight", "F32", (64,)), ("blk.7.ffn_down_exps.weight", "F32", (8, 2, 2))]
    assert [each.name for each in gguf_tensors(file_of({}, entries))] == ["model.layers.7.mlp.experts.down_proj.weight"]


@table(
    ("name", "spelling"),
    [
        ("unsloth/Qwen3-0.6B-GGUF:Q4_K_M", "type"),
        ("unsloth/Qwen3-0.6B-GGUF:UD-Q4_K_XL", "type"),
        ("unsloth/Qwen3-0.6B-GGUF:BF16", "type"),
        ("a/b:IQ3_XXS", "type"),
        ("a/b/model-Q4_K_M.gguf", "file"),
        ("./model.gguf", "file"),
        ("https://example.org/m.gguf", "file"),
        ("unsloth/Qwen3-0.6B-GGUF:latest", ""),
        ("unsloth/Qwen3-0.6B-GGUF", ""),
        ("registry:5000/a/b:Q4_K", ""),
        ("a/b:RANDOM-X", ""),
        ("", ""),
    ],
)
def test_names_that_mean_a_file(name: str, spelling: str) -> None:
    assert gguf_spelling(name) == spelling


def test_a_whole_file_goes_before_a_split() -> None:
    names = [
        "m-Q4_K_M-00001-of-00002.gguf",
        "m-Q4_K_M-00002-of-00002.gguf",
        "m-Q4_K_M.gguf",
        "m-UD-Q4_K_M.gguf",
        "m-Q4_K_S.gguf",
    ]
    assert file_of_quant_type(names, "Q4_K_M") == "m-Q4_K_M.gguf"
    assert file_of_quant_type(names[:2], "Q4_K_M") == names[0]
    assert file_of_quant_type(["Q8_0/m-Q8_0-00001-of-00002.gguf"], "Q8_0") == "Q8_0/m-Q8_0-00001-of-00002.gguf"
    assert file_of_quant_type(["../m-Q4_K_M.gguf", "m.gguf"], "Q4_K_M") is None


def test_a_config_beside_the_file_counts() -> None:
    file = file_of(*qwen3_gguf())
    config = gguf_config(
        file, {"architectures": ["Qwen3ForCausalLM"], "vocab_size": 7, "quantization_config": {"quant_method": "awq"}}
    )
    assert config == {
        "architectures": ["Qwen3ForCausalLM"], "vocab_size": 7, "tie_word_embeddings": True,
        "quantization_config": {"quant_method": "gguf"},
    }  # fmt: skip
    assert gguf_config(file, {"model_type": "qwen3"}) == gguf_config(file)
    headed = file_of({}, [("output.weight", "F32", (8, 8))])
    assert "tie_word_embeddings" not in gguf_config(headed, {"architectures": ["X"]})


def test_experts_keep_their_blocks_without_padding() -> None:
    metadata = metadata_of(
        "qwen3moe", **EXPERTS, **{"attention.key_length": 64, "expert_feed_forward_length": 256, "block_count": 1}
    )
    block = "blk.0"
    entries: Entries = [
        ("token_embd.weight", "Q4_K", (5120, 1024)),
        ("output.weight", "Q6_K", (5120, 1024)),
        (f"{block}.attn_q.weight", "Q4_K", (1024, 1024)),
        (f"{block}.attn_k.weight", "Q4_K", (512, 1024)),
        (f"{block}.attn_v.weight", "Q4_K", (512, 1024)),
        (f"{block}.attn_output.weight", "Q4_K", (1024, 1024)),
        (f"{block}.ffn_gate_exps.weight", "Q4_K", (8, 256, 1024)),
        (f"{block}.ffn_up_exps.weight", "Q4_K", (8, 256, 1024)),
        (f"{block}.ffn_down_exps.weight", "Q6_K", (8, 1024, 256)),
    ]
    shape = shape_of_file(file_of(metadata, entries))
    stored = sum(bytes_of(dtype, sizes) for _, dtype, sizes in entries)
    plain = 2 * (8 * 1024 + 2 * 1024 + 2 * 64 + 1024)  # router, norms of the layer, of heads, and of the end
    assert parameter_bytes(shape) == stored + plain
    experts = [matrix for matrix in shape.layers[0].matrices if matrix.experts]
    assert {matrix.format.method for matrix in experts if matrix.format} == {"gguf"}


def test_the_profile_run_of_a_file_holds_more_at_once() -> None:
    """The outputs of gate and up are concatenated; at the high end one of them is unpacked (vLLM 0.22, by rule)."""
    config = gguf_config(file_of(*qwen3_gguf()))
    del config["quantization_config"]
    ours, plain = (
        plan(new_request(shape=shape, vllm_version="0.22.0", max_num_batched_tokens=8192)).stages[0].ledger
        for shape in (shape_of_file(file_of(*qwen3_gguf())), read_config(config))
    )
    assert ours is not None
    assert plain is not None
    inputs, others = (dict(found.lines[1].inputs) for found in (ours, plain))
    assert inputs["layer_bytes"] == int(others["layer_bytes"]) + 8192 * 3072 * 2
    unpacked = 3072 * 1024 * 2
    assert ours.peak_activation.high - plain.peak_activation.high >= unpacked
