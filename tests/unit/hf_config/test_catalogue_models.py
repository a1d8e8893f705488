"""Every model of the catalogue is read: modelled with the parameters that it states, or its kinds are named."""

from functools import cache

import pytest
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget.ground.hardware import Parallelism
from kvgate.budget.model.shape import ModelShape
from kvgate.budget.model.weights import rank_weights
from kvgate.hf_config import read_config
from support.builders import catalogue_shape
from support.tables import table

pytestmark = pytest.mark.slow

NAMES = catalogue.model_names()


@cache
def modelled() -> tuple[str, ...]:
    """Names of those that have no kinds without a formula."""
    return tuple(name for name in NAMES if not catalogue_shape(name).unmodelled_kinds)


def test_most_of_the_catalogue_is_modelled() -> None:
    assert len(NAMES) >= 300
    assert len(modelled()) >= 100


@table("name", NAMES)
def test_a_model_is_read_without_problems(name: str) -> None:
    shape = read_config(catalogue.load_model(name).config, name=name)
    accepts_any_length = shape.architecture in ("BloomForCausalLM", "MambaForCausalLM", "Mamba2ForCausalLM")
    assert (shape.max_model_len == 0) if accepts_any_length else shape.max_model_len >= 448 or shape.unmodelled_kinds
    assert all(kind.strip() for kind in shape.unmodelled_kinds)


def plain(shape: ModelShape) -> ModelShape:
    """The same model as if nobody had quantised it."""
    layers = {
        id(layer): replace(layer, matrices=tuple(replace(m, format=None) for m in layer.matrices))
        for layer in shape.layers
    }
    return replace(shape, layers=tuple(layers[id(layer)] for layer in shape.layers), head_format=None)


def parameters(shape: ModelShape) -> int:
    weights = rank_weights(shape, Parallelism(), (0, len(shape.layers)), unsplit_large_blocks=False)
    return weights.parameter_bytes // 2


STATED = {
    "microsoft/phi-2": 2_779_683_840,
    "EleutherAI/gpt-j-6b": 6_053_381_344,
    "bigcode/starcoder2-15b": 15_957_889_024 - 49_152 * 6144,
    "intfloat/e5-mistral-7b-instruct": 7_241_732_096 - 32_000 * 4096,
    "google/gemma-4-31B-it": 31_383_186_992,
    "nvidia/Gemma-4-31B-IT-NVFP4": 31_383_186_992,
    # vLLM builds no pooler, which the stated counts have
    "BAAI/bge-base-en-v1.5": 109_482_240 - 768 * 769,
    "BAAI/bge-large-en-v1.5": 335_141_888 - 1024 * 1025,
    "BAAI/bge-large-zh-v1.5": 325_522_432 - 1024 * 1025,
    "BAAI/bge-small-en-v1.5": 33_360_000 - 384 * 385,
    "sentence-transformers/all-MiniLM-L6-v2": 22_713_216 - 384 * 385,
    "sentence-transformers/all-MiniLM-L12-v2": 33_360_000 - 384 * 385,
    # their heads are float32, which counts twice here
    "BAAI/bge-reranker-base": 278_044_417 + 768 * 769,
    "BAAI/bge-reranker-large": 559_891_457 + 1024 * 1025,
}
"""Parameters of models whose entry does not say them, counts a head that is tied to the embedding or missing, or leaves out
what vLLM builds: values of ten layers whose keys are values too in the files."""


@table("name", lambda: [name for name in modelled() if name in STATED or catalogue.load_model(name).parameters])
def test_a_modelled_model_has_the_parameters_that_it_states(name: str) -> None:
    """Counted without the quantised formats; layers for multi-token prediction stand in no stated count, towers in some."""
    shape = plain(catalogue_shape(name))
    stated = STATED.get(name) or catalogue.load_model(name).parameters
    counts = {parameters(shape), parameters(replace(shape, encoders=()))}
    assert any(count == pytest.approx(stated, rel=0.002) for count in counts)


@table("name", lambda: [name for name in modelled() if catalogue.load_model(name).safetensors_bytes])
def test_a_modelled_model_has_the_bytes_of_its_files(name: str) -> None:
    """On a Hopper, where the experts of gpt-oss are not padded; a layer for multi-token prediction stands in files alone."""
    shape, entry = catalogue_shape(name), catalogue.load_model(name)
    stage = (0, len(shape.layers))
    weights = rank_weights(shape, Parallelism(), stage, unsplit_large_blocks=False, compute_capability=(9, 0))
    text = entry.config.get("text_config", entry.config)
    drafts = text.get("mtp_num_hidden_layers", 0) * 2 * parameters(plain(shape)) // len(shape.layers)
    assert entry.safetensors_bytes is not None
    assert weights.parameter_bytes + drafts == pytest.approx(entry.safetensors_bytes, rel=0.01)


def test_an_entry_says_its_bytes_only_where_they_are_published() -> None:
    assert catalogue.load_model("openai/gpt-oss-120b").safetensors_bytes == 65_248_815_744
    assert catalogue.load_model("01-ai/Yi-34B").safetensors_bytes is None
