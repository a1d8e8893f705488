"""A catalogue entry is stored as its name says: the weight format, the bytes per parameter and the number of parameters."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget.ground.hardware import Parallelism
from kvgate.budget.model.shape import DTYPE_BYTES, ModelShape
from kvgate.budget.model.weights import rank_weights
from kvgate.hf_config import read_config
from kvgate.judgement.what_if import assess_request
from support.tables import table

pytestmark = pytest.mark.slow

Config = Mapping[str, Any]

PLAIN = r"bf16|fp16"
FORMATS = {
    r"nvfp4|(?<!mx)fp4": r"nvfp4",
    r"mxfp4": r"mxfp4",
    r"mxfp8": r"mxfp8",
    r"(?<!mx)fp8": r"fp8",
    r"awq": r"int4-awq",
    r"gptq": r"int[48]-gptq",
    r"bnb|nf4": r"nf4|int8-channel",
    r"int4|w4a\d+|4-?bits?": r"int4|nf4|nvfp4|mxfp4",
    r"int8|w8a\d+|8-?bits?": r"int8|fp8",
    PLAIN: r"plain",
    r"gguf|mlx|exl\d|hqq|aqlm": r"a format that kvgate does not read",
}
"""What a name may state, as an expression → the formats that its weights must have one of (`budget/weight_format.py`)."""
MAX_BYTES_PER_PARAMETER = 1.25
"""Of the layers of a checkpoint of 8 bits and fewer; embeddings and towers mostly stay plain. Gemma-4-31B-IT-NVFP4 leaves its attention
plain and has 1.05; those who forget the format count 2.0 and a little more."""
NAMED_COUNT = re.compile(
    r"(?<![\w.])(?:(?P<experts>\d+)x)?(?P<count>\d+(?:[._]\d+)?)(?P<unit>[bmt])(?![a-z0-9])", re.IGNORECASE
)
UNITS = {"m": 10**6, "b": 10**9, "t": 10**12}
TOLERANCE = (0.92, 1.14)
"""Computed over named parameters. Names are rounded to the last digit that they show, mostly down: the widest of those that are no
exception are RedPajama-3B with 0.925 and Qwen3.5-4B with 1.135. A checkpoint entered under the name of its neighbour in size is off
by 1.3 and more."""
WHOLE_EXPERTS = (0.75, 1.0)
"""`8x7B` names whole models as experts; they share attention and embeddings, so that there are fewer (Mixtral: 0.80 and 0.83)."""
COUNTED_OTHERWISE = {
    "Qwen2-VL-7B": "the name leaves out the image encoder and the embeddings",
    "Qwen2.5-VL-7B": "the name leaves out the image encoder and the embeddings",
    "Voxtral-Mini-3B": "the name leaves out the audio encoder and the embeddings",
    "Ministral-3-3B": "the name leaves out the image encoder and the embeddings",
    "Qwen2.5-VL-3B": "the name leaves out the image encoder and the embeddings",
    "DeepSeek-R1-Distill-Qwen-1.5B": "the name leaves out the head",
    "gemma-7b": "the name leaves out the embeddings",
    "gemma-1.1-7b": "the name leaves out the embeddings",
    "gemma-1.1-2b": "the name leaves out the embeddings",
    "gemma-2b": "the name leaves out the embeddings",
    "gemma-2-2b": "the name leaves out the embeddings",
    "MiniCPM-2B": "the name leaves out the embeddings",
    "granite-3.3-2b": "the name is rounded down by a quarter",
    "granite-3.1-2b": "the name is rounded down by a quarter",
    "codegemma-7b": "the name leaves out the embeddings",
    "Llama-3.2-1B": "the name is rounded down by a quarter",
    "gemma-4-E2B": "E counts the parameters that one token needs on the device",
    "gemma-4-E4B": "E counts the parameters that one token needs on the device",
    "Llama-4-Scout-17B-16E": "17B are the active parameters",
    "Llama-4-Maverick-17B-128E": "17B are the active parameters",
}
"""Beginning of a name, after the publisher → why its number is another one than that of the parameters."""


def stated_formats(name: str) -> list[str]:
    """The expressions of FORMATS that the name states, as whole words."""
    base = name.rpartition("/")[2]
    return [form for form in FORMATS if re.search(rf"(?<![a-z0-9])(?:{form})(?![a-z0-9])", base, re.IGNORECASE)]


def shape_of(config: Config, name: str = "x") -> ModelShape:
    return read_config(config, name=name)


def formats_of(shape: ModelShape) -> set[str]:
    """Formats that the weights of the layers are stored in; `plain` where none is."""
    found = {m.format.format for layer, _ in shape.distinct_layers for m in layer.matrices if m.format is not None}
    return {str(form) for form in found} or {"plain"}


def without_format(config: Config) -> dict[str, Any]:
    return {
        key: without_format(value) if isinstance(value, Mapping) else value
        for key, value in config.items()
        if key not in ("quantization_config", "compression_config")
    }


def parameter_bytes(shape: ModelShape) -> int:
    return rank_weights(shape, Parallelism(), (0, len(shape.layers)), unsplit_large_blocks=False).parameter_bytes


def parameters_of(config: Config) -> float:
    plain = shape_of(without_format(config))
    return parameter_bytes(plain) / DTYPE_BYTES[plain.dtype]


def _layer_bytes(shape: ModelShape) -> int:
    return parameter_bytes(replace(shape, vocab_size=0, encoders=()))


def parameters_of_layers(config: Config) -> float:
    plain = shape_of(without_format(config))
    return _layer_bytes(plain) / DTYPE_BYTES[plain.dtype]


def lies(name: str, config: Config) -> Iterator[str]:
    """What the name says and the data do not."""
    shape, parameters = shape_of(config), parameters_of(config)
    formats, stated = formats_of(shape), stated_formats(name)
    for form in stated:
        if not any(re.match(FORMATS[form], stored) for stored in formats):
            yield f"{name} states {form} and its data have {', '.join(sorted(formats))}"
    if (
        set(stated) - {PLAIN}
        and (ratio := _layer_bytes(shape) / parameters_of_layers(config)) > MAX_BYTES_PER_PARAMETER
    ):
        yield f"{name} states a format of 8 bits or fewer and has {ratio:.2f} bytes per parameter"
    yield from _another_size(name, parameters)


def _another_size(name: str, parameters: float) -> Iterator[str]:
    base = name.rpartition("/")[2]
    match = NAMED_COUNT.search(base)
    if match is None or any(base.startswith(beginning) for beginning in COUNTED_OTHERWISE):
        return
    experts = int(match["experts"] or 1)
    named = experts * float(match["count"].replace("_", ".")) * UNITS[match["unit"].lower()]
    low, high = WHOLE_EXPERTS if experts > 1 else TOLERANCE
    if not low <= parameters / named <= high:
        yield f"{name} names {named:.3g} parameters and its shape has {parameters:.3g}"


@table("name", catalogue.model_names())
def test_an_entry_whose_name_states_what_its_data_lack_is_refused(name: str) -> None:
    entry = catalogue.load_model(name)
    assert [lie for name in (entry.name, *entry.aliases) for lie in lies(name, entry.config)] == []


LLAMA_2_7B = catalogue.load_model("meta-llama/Llama-2-7b-hf").config
MIXTRAL = catalogue.load_model("mistralai/Mixtral-8x7B-Instruct-v0.1").config


@table(
    ("name", "config"),
    [
        *((f"x/Llama-2-7B-{form}", LLAMA_2_7B) for form in (
            "FP8", "FP8-dynamic", "NVFP4", "FP4", "MXFP4", "AWQ", "GPTQ", "GPTQ-Int4", "INT4", "int8", "W4A16", "W8A8",
            "quantized.w4a16", "bnb-4bit", "4bit", "4-bit", "8bit", "GGUF", "MLX", "mxfp8",
        )),
        ("TheBloke/Mixtral-8x7B-Instruct-v0.1-GPTQ", MIXTRAL),
        ("x/Llama-2-13B", LLAMA_2_7B),
        ("x/Llama-2-7B", MIXTRAL),
        ("x/Mixtral-8x22B", MIXTRAL),
        ("x/Qwen3-30B-A3B", LLAMA_2_7B),
        ("x/Llama-3.1-8B-AWQ-BF16", catalogue.load_model("nvidia/Llama-3.1-70B-Instruct-FP8").config),
    ],
)  # fmt: skip
def test_a_name_that_lies_is_found_out(name: str, config: Config) -> None:
    assert list(lies(name, config))


def test_each_exception_is_still_one() -> None:
    """An exception that no entry needs any more would hide the next mistake."""
    bases = [name.rpartition("/")[2].lower() for name in catalogue.names_and_aliases()]
    assert [name for name in COUNTED_OTHERWISE if not any(base.startswith(name.lower()) for base in bases)] == []


CORRECTED = {
    "nvidia/DeepSeek-V3-0324-NVFP4": 0.60,
    "nvidia/DeepSeek-V3.1-NVFP4": 0.60,
    "nvidia/DeepSeek-V3.2-NVFP4": 0.60,
    "nvidia/GLM-5-NVFP4": 0.60,
    "nvidia/Llama-3.1-70B-Instruct-FP8": 1.04,
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-NVFP4": 0.62,
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-FP8": 1.03,
    "nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4": 0.62,
    "nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4": 0.61,
    "nvidia/NVIDIA-Nemotron-3.5-Lightning-30B-A3B-NVFP4": 0.61,
    "nvidia/Qwen3-235B-A22B-NVFP4": 0.58,
    "nvidia/Qwen3-30B-A3B-NVFP4": 0.60,
    "zai-org/GLM-4.7-FP8": 1.02,
}
"""Entries that were counted as bf16 → bytes per parameter that they stay below."""


@table("name", CORRECTED)
def test_an_entry_that_counted_as_bf16_has_the_bytes_of_its_format(name: str) -> None:
    config = catalogue.load_model(name).config
    assert parameter_bytes(shape_of(config)) / parameters_of(config) < CORRECTED[name]


@pytest.mark.parametrize(
    "name",
    ["nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-FP8", "nvidia/NVIDIA-Nemotron-3-Super-120B-NVFP4-FP8KV"],
)
def test_a_checkpoint_whose_format_nobody_published_has_no_entry(name: str) -> None:
    assert catalogue.find_model(name) is None


def test_the_hybrid_checkpoint_of_nemotron_ultra_has_its_published_size() -> None:
    """328 GiB in 113 files, 20 GiB of them the draft layers in bfloat16, which vLLM loads for speculation only."""
    shape = shape_of(catalogue.load_model("nvidia/NVIDIA-Nemotron-3-Ultra-550B-A55B-NVFP4").config)
    drafts = 2 * 512 * 2 * 2048 * 5120
    assert (parameter_bytes(shape) + drafts) / 2**30 == pytest.approx(328, rel=0.005)


@pytest.mark.parametrize(
    ("model", "release", "cache"),
    [
        ("nvidia/Llama-3.1-70B-Instruct-FP8", "0.13.0", "bfloat16"),
        ("nvidia/Llama-3.1-70B-Instruct-FP8", "0.14.0", "fp8"),
        ("nvidia/Llama-3.1-70B-Instruct-FP8", "0.33.0", "fp8"),
        ("poolside/Laguna-XS.2-FP8", "0.14.0", "bfloat16"),
        ("poolside/Laguna-XS.2-FP8", "0.16.0", "fp8"),
        ("zai-org/GLM-4.7-FP8", "0.33.0", "bfloat16"),
    ],
)
def test_auto_takes_the_cache_dtype_of_the_checkpoint_in_releases_that_read_it(
    model: str, release: str, cache: str
) -> None:
    """ModelOpt's is read from 0.14 on, the one of compressed-tensors after it (`resolve_kv_cache_dtype_string`, `Attention`)."""
    asked = {"model": model, "gpu": "H100-SXM-80GB", "tensor_parallel_size": 8, "max_model_len": 4096}
    budget = assess_request({**asked, "vllm_version": release}).budget
    assert budget is not None
    assert budget.kv_cache is not None
    assert budget.kv_cache.dtype.name == cache


@table("name", [name for name in catalogue.model_names() if catalogue.load_model(name).safetensors_bytes])
def test_published_bytes_are_those_of_the_format(name: str) -> None:
    """A second witness: between 0.92 (mxfp4 is padded by vLLM) and 1.07 (draft layers are in the files) of what vLLM allocates."""
    entry = catalogue.load_model(name)
    assert 0.92 <= (entry.safetensors_bytes or 0) / parameter_bytes(shape_of(entry.config)) <= 1.07
