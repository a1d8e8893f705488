"""Formats that names of checkpoints state, and the configs that their publishers' tools write."""

import time
from typing import get_args

import pytest

from kvgate.budget.model.matrix import FormatName
from kvgate.hf_config.formats.quantization import read_quantization
from kvgate.hf_config.names import MAX_NAME, PLAIN, stated_format, usual_quantization_config
from support.tables import table

STATED = [
    ("Qwen/Qwen3-32B-AWQ", "Qwen/Qwen3-32B", ("AWQ",)),
    ("Qwen/Qwen2.5-14B-Instruct-GPTQ-Int4", "Qwen/Qwen2.5-14B-Instruct", ("GPTQ", "INT4")),
    ("RedHatAI/Qwen3-14B-FP8-dynamic", "RedHatAI/Qwen3-14B", ("FP8",)),
    ("Qwen/Qwen3-32B-FP8-Static-PerTensor", "Qwen/Qwen3-32B", ("FP8",)),
    ("neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", "neuralmagic/Meta-Llama-3.1-70B-Instruct", ("W8A8",)),
    ("RedHatAI/Qwen3-8B-NVFP4A16", "RedHatAI/Qwen3-8B", ("NVFP4",)),
    ("RedHatAI/DeepSeek-V4-Flash-NVFP4-FP8", "RedHatAI/DeepSeek-V4-Flash", ("NVFP4", "FP8")),
    ("nvidia/NVIDIA-Nemotron-3-Super-120B-NVFP4-FP8KV", "nvidia/NVIDIA-Nemotron-3-Super-120B", ("NVFP4",)),
    ("amd/Llama-3.1-8B-Instruct-FP8-KV", "amd/Llama-3.1-8B-Instruct", ("FP8",)),
    ("unsloth/qwen2.5-0.5b-instruct-unsloth-bnb-4bit", "unsloth/qwen2.5-0.5b-instruct", ("bitsandbytes", "4 bits")),
    ("huihui-ai/Huihui-gpt-oss-20b-mxfp4-abliterated-v2", "huihui-ai/Huihui-gpt-oss-20b-abliterated-v2", ("MXFP4",)),
    ("QuantTrio/Qwen3-30B-A3B-GPTQ-Int4-Int8Mix", "QuantTrio/Qwen3-30B-A3B", ("GPTQ", "INT8", "INT4")),
    ("BioMistral/BioMistral-7B-AWQ-QGS128-W4-GEMM", "BioMistral/BioMistral-7B", ("AWQ",)),
    ("Intel/Qwen2.5-Omni-7B-int4-AutoRound", "Intel/Qwen2.5-Omni-7B", ("AutoRound", "INT4")),
    ("unsloth/Qwen3-0.6B-GGUF:Q4_K_M", "unsloth/Qwen3-0.6B", ("GGUF",)),
    ("google/gemma-3-27b-it-qat-q4_0-gguf", "google/gemma-3-27b-it", ("GGUF",)),
    ("google/gemma-4-26B-A4B-it-qat-q4_0-unquantized", "google/gemma-4-26B-A4B-it", ("BF16",)),
    ("unsloth/gpt-oss-20b-BF16", "unsloth/gpt-oss-20b", ("BF16",)),
    ("/models/Qwen3-8B-AWQ/", "/models/Qwen3-8B", ("AWQ",)),
    ("AWQ", "", ("AWQ",)),
]
PLAIN_NAMES = ["Qwen/Qwen3-8B", "meta-llama/Llama-3.1-8B-Instruct", "gptq-tools/llama", "x/Incredible", "x/qat-Q4", ""]


@table(("name", "base", "kinds"), STATED)
def test_a_name_states_its_format_and_the_model_before_it(name: str, base: str, kinds: tuple[str, ...]) -> None:
    stated = stated_format(name)
    assert stated is not None
    assert (stated.base, stated.kinds) == (base, kinds)


@pytest.mark.parametrize("name", PLAIN_NAMES)
def test_a_name_without_a_format_states_none(name: str) -> None:
    assert stated_format(name) is None


@pytest.mark.parametrize(
    ("name", "has", "has_not"),
    [
        ("x/y-AWQ-INT4", "int4-packed", "int8-packed"),  # a number narrows a tool
        ("x/y-NVFP4-FP8", "fp8-block", "int4-packed"),  # two numbers: a mixture
        ("x/y-BF16", PLAIN, "fp8-block"),
        ("x/y-AWQ-BF16-INT8", "int8-packed", PLAIN),
        ("x/y-W4A16", "nf4", "fp8-block"),
        ("x/y-2bit", "int2-packed", "int4-packed"),
    ],
)
def test_stated_formats_are_those_that_tools_store(name: str, has: str, has_not: str) -> None:
    stated = stated_format(name)
    assert stated is not None
    assert has in stated.formats
    assert has_not not in stated.formats


@pytest.mark.parametrize("name", ["x/y-GGUF", "x/y-4bit-MLX", "x/y-EXL2"])
def test_containers_that_are_no_safetensors_have_no_formats(name: str) -> None:
    stated = stated_format(name)
    assert stated is not None
    assert stated.formats == frozenset()


@pytest.mark.parametrize("part", ["-fp8-kv", "-quantized", "-4-bit-", "-", "Q", "-auto-round-gptq", "İ-AWQ"])
def test_a_hostile_name_is_read_at_once(part: str) -> None:
    before = time.perf_counter()
    for end in ("", "x", "-AWQ"):
        stated_format((part * MAX_NAME)[: MAX_NAME - 4] + end)
        stated_format(part * 100_000 + end)
    assert time.perf_counter() - before < 0.5


USUAL = [
    ("RedHatAI/Qwen3-14B-FP8-dynamic", "fp8-channel"),
    ("RedHatAI/Qwen3-14B-FP8-block", "fp8-block"),
    ("neuralmagic/Meta-Llama-3.1-8B-Instruct-FP8", "fp8-tensor"),
    ("neuralmagic/Meta-Llama-3.1-70B-Instruct-quantized.w8a8", "int8-channel"),
    ("RedHatAI/Qwen3-0.6B-quantized.w4a16", "int4-packed"),
    ("cyankiwi/Qwen3.8-27B-AWQ-INT4", "int4-packed"),
    ("cpatonn/Qwen3-Coder-30B-A3B-Instruct-GPTQ-4bit", "int4-packed"),
    ("cyankiwi/Hermes-4.3-36B-AWQ-8bit", "int8-packed"),
    ("RedHatAI/Qwen3-0.6B-quantized.w8a16", "int8-packed"),
    ("RedHatAI/Qwen3-8B-NVFP4", "nvfp4"),
    ("RedHatAI/Qwen3-8B-NVFP4A16", "nvfp4-weights"),
    ("Qwen/Qwen3-32B-AWQ", "int4-awq"),
    ("Qwen/Qwen3-30B-A3B-GPTQ-Int4", "int4-gptq"),
    ("Qwen/Qwen3-30B-A3B-GPTQ-Int8", "int8-gptq"),
    ("Qwen/Qwen3-30B-A3B-FP8", "fp8-block"),
    ("hugging-quants/Meta-Llama-3.1-70B-Instruct-AWQ-INT4", "int4-awq"),
    ("unsloth/Meta-Llama-3.1-8B-Instruct-bnb-4bit", "nf4"),
    ("nvidia/Llama-3.1-70B-Instruct-FP8", "fp8-tensor"),
    ("Intel/Qwen3-8B-int4-AutoRound", "int4-gptq"),
]


@table(("name", "form"), USUAL)
def test_the_usual_config_is_one_that_the_reader_reads_and_that_fits_the_name(name: str, form: str) -> None:
    config, stated = usual_quantization_config(name), stated_format(name)
    assert config is not None
    assert stated is not None
    quantization = read_quantization(config, num_layers=2)
    assert quantization is not None
    assert quantization.main.format == form
    assert form in stated.formats


@pytest.mark.parametrize(
    "name",
    ["Qwen3-8B-AWQ", "somebody/Qwen3-8B-AWQ", "nvidia/Qwen3-8B-NVFP4", "unsloth/x-unsloth-bnb-4bit", "Qwen/Qwen3-8B"],
)
def test_where_no_rule_is_certain_there_is_no_usual_config(name: str) -> None:
    assert usual_quantization_config(name) is None


def test_every_format_that_a_name_can_state_is_one_that_the_budget_has() -> None:
    stated = [
        stated_format(f"x/y-{part}") for part in ("AWQ", "AutoRound", "bnb", "W4A16", "W8A8", "3bit", "MXFP8", "BF16")
    ]
    names = {name for each in stated if each for name in each.formats}
    assert names - {PLAIN} <= set(get_args(FormatName))
