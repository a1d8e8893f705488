"""Rotary tables: how many a model keeps, how long and how wide; bytes are those of vLLM 0.32's own buffers."""

from typing import Any

import pytest

from kvgate.budget.model.shape import DTYPE_BYTES, ModelShape
from kvgate.hf_config import ModelConfigError, read_config
from support.builders import catalogue_shape, new_llama_config
from support.tables import table


def table_bytes(shape: ModelShape) -> int:
    plain = DTYPE_BYTES[shape.dtype]
    return sum(table.max_position * table.rotary_dim * (table.element_bytes or plain) for table in shape.rotary)


@table(
    ("name", "expected"),
    [
        ("meta-llama/Llama-3.1-8B", 131_072 * 128 * 2),
        ("openai/gpt-oss-120b", 131_072 * 64 * 4),
        ("XiaomiMiMo/MiMo-V2-Flash", 2 * 262_144 * 64 * 2),
        ("google/gemma-3-1b-it", 2 * 32_768 * 256 * 2),
        ("poolside/Laguna-XS.2-FP8", 262_144 * (64 + 128) * 2),
        ("microsoft/Phi-4-mini-instruct", (131_072 + 4096) * 96 * 2),
        ("openbmb/MiniCPM3-4B", (32_768 + 32_768) * 32 * 2),
        ("THUDM/glm-4-9b-chat", 131_072 * 64 * 2),
        ("zai-org/GLM-4.7-FP8", 202_752 * 64 * 2),
        ("bigcode/starcoder2-15b", 0),
        ("openai/whisper-large-v3", 0),
    ],
)
def test_a_model_keeps_tables_of(name: str, expected: int) -> None:
    assert table_bytes(catalogue_shape(name)) == expected


def test_full_layers_of_gemma_3_have_a_table_as_long_as_they_are_scaled() -> None:
    """gemma-3-4b-it: 131,072 positions, and eight times as many; logged weights show it (8.58 GiB in 0.10 and 0.19)."""
    text: dict[str, Any] = {"model_type": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    shape = read_config({"architectures": ["Gemma3ForCausalLM"], "text_config": text, "torch_dtype": "bfloat16"})
    assert [(table.max_position, table.rotary_dim) for table in shape.rotary] == [(1_048_576, 256), (131_072, 256)]


def test_a_type_of_layer_turns_its_own_part_of_its_own_heads() -> None:
    by_type = {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25},
        "sliding_attention": {"rope_type": "default"},
    }
    config = new_llama_config(
        architectures=["Gemma4ForCausalLM"], rope_parameters=by_type, global_head_dim=512, head_dim=256
    )  # fmt: skip
    assert [table.rotary_dim for table in read_config(config).rotary] == [512, 256]


@pytest.mark.parametrize("factor", [0, -1, True, "8", float("inf")], ids=repr)
def test_a_factor_by_type_that_is_none_is_named(factor: object) -> None:
    by_type = {"full_attention": {"rope_type": "yarn", "factor": factor}}
    config = new_llama_config(architectures=["LagunaForCausalLM"], rope_parameters=by_type)
    with pytest.raises(ModelConfigError, match="the factor of rope scaling is"):
        read_config(config)
