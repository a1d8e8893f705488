"""The file beside a config.json that states the quantisation, chosen as vLLM chooses it."""

from typing import Any

import pytest

from kvgate.hf_config import ModelConfigError, read_config
from kvgate.hf_config.formats.quantization import QUANTIZATION_FILES, quantization_files, with_quantization_beside
from support.builders import new_llama_config
from support.tables import table

MODELOPT = {"producer": {"name": "modelopt", "version": "0.29.0"}, "quantization": {"quant_algo": "FP8"}}
OLD_AWQ = {"zero_point": True, "q_group_size": 128, "w_bit": 4, "version": "GEMM"}
OLD_GPTQ = {"bits": 4, "group_size": 128, "desc_act": False, "sym": True, "model_name_or_path": None}
LAYERS = {"model.layers.0.mlp.down_proj": {"quant_algo": "FP8"}}
MIXED = {"quant_method": "modelopt", "quant_algo": "MIXED_PRECISION"}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128}


def formats_with(files: dict[str, Any], **config: Any) -> set[str]:
    shape = read_config(with_quantization_beside(new_llama_config(**config), files))
    assert shape.unmodelled_kinds == ()
    return {matrix.format.format for layer in shape.layers for matrix in layer.matrices if matrix.format}


@table(
    ("files", "expected"),
    [
        ({"hf_quant_config.json": MODELOPT}, {"fp8-tensor"}),
        ({"quantize_config.json": OLD_GPTQ}, {"int4-gptq"}),
        ({"quantize_config.json": OLD_AWQ}, {"int4-awq"}),
        ({"quant_config.json": OLD_AWQ}, {"int4-awq"}),
        ({"quantization_config.json": {"bits": 4, "group_size": 128, "sym": True}}, {"int4-gptq"}),
        ({"quantization_config.json": AWQ}, {"int4-awq"}),
        ({"quantize_config.json": OLD_GPTQ, "hf_quant_config.json": MODELOPT}, {"fp8-tensor"}),
        ({"tokenizer_config.json": AWQ}, set()),
        ({}, set()),
    ],
)
def test_the_file_of_each_tool_counts_where_the_config_states_nothing(
    files: dict[str, Any], expected: set[str]
) -> None:
    assert formats_with(files) == expected


def test_the_config_itself_goes_before_every_file() -> None:
    files = {"hf_quant_config.json": MODELOPT, "quantize_config.json": OLD_GPTQ}
    assert formats_with(files, quantization_config=AWQ) == {"int4-awq"}
    assert quantization_files({"quantization_config": AWQ}) == ()


def test_modelopts_file_goes_before_what_stands_deeper_in_the_config() -> None:
    """vLLM sets the outer `quantization_config` from the file, and looks there first."""
    for inner in ({"compression_config": AWQ}, {"text_config": {"quantization_config": AWQ}}):
        assert quantization_files(inner) == ("hf_quant_config.json",)
        assert with_quantization_beside(inner, {"hf_quant_config.json": MODELOPT})["quantization_config"] == MODELOPT
        assert with_quantization_beside(inner, {"quantize_config.json": OLD_GPTQ}) == inner


@pytest.mark.parametrize("own", [MIXED, {"quantization": MIXED}, {"quant_method": "modelopt_mixed"}])
def test_mixed_precision_without_its_layers_takes_them_from_modelopts_file(own: dict[str, Any]) -> None:
    file = {"producer": {"name": "modelopt"}, "quantization": {**MIXED, "quantized_layers": LAYERS}}
    config = {"quantization_config": own}
    assert with_quantization_beside(config, {"hf_quant_config.json": file})["quantization_config"] == file
    assert quantization_files({"quantization_config": {**MIXED, "quantized_layers": LAYERS}}) == ()


@pytest.mark.parametrize("name", QUANTIZATION_FILES)
@pytest.mark.parametrize("content", [[], "text", 1, None, True])
def test_a_file_of_another_type_is_named(name: str, content: object) -> None:
    with pytest.raises(ModelConfigError, match=f"{name} beside it is JSON of type {type(content).__name__}"):
        with_quantization_beside(new_llama_config(), {name: content})


@pytest.mark.parametrize("config", [{"quantization_config": []}, {"text_config": 3}, {"compression_config": "x"}, {}])
def test_a_strange_config_chooses_files_without_a_crash(config: dict[str, Any]) -> None:
    assert set(quantization_files(config)) <= set(QUANTIZATION_FILES)
