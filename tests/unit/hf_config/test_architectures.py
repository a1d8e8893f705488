"""The table of model classes: one row is enough to read a class, and published models have the layers that their rows give."""

from collections import Counter

import pytest

from kvgate import catalogue
from kvgate.budget.model.shape import FullAttention
from kvgate.hf_config import architectures, multimodal, read_config
from kvgate.hf_config.family import PLAIN, Family
from kvgate.hf_config.multimodal import Multimodal
from support.builders import catalogue_shape, new_llama_config
from support.tables import table

Layers = dict[int, int]
"""Window (0: none) → layers."""


def windows_of(name: str) -> Layers:
    mixers = [layer.mixers[0] for layer in catalogue_shape(name).layers]
    return dict(Counter(mixer.sliding_window for mixer in mixers if isinstance(mixer, FullAttention)))


@table(
    ("name", "expected"),
    [
        ("allenai/Olmo-3-32B-Think", {4096: 48, 0: 16}),
        ("bigcode/starcoder2-7b", {4096: 32}),
        ("CohereLabs/c4ai-command-a-03-2025", {4097: 48, 0: 16}),
        ("google/gemma-2-27b-it", {4096: 23, 0: 23}),
        ("google/gemma-2-9b-it", {4096: 21, 0: 21}),
        ("google/gemma-3-1b-it", {512: 22, 0: 4}),
        ("LGAI-EXAONE/EXAONE-4.0-32B", {4096: 48, 0: 16}),
        ("microsoft/Phi-3-mini-128k-instruct", {262_144: 32}),
        ("microsoft/Phi-3.5-MoE-instruct", {131_072: 32}),
        ("mistralai/Mistral-7B-v0.1", {4096: 32}),
        ("tencent/Hy3-preview", {0: 80}),
    ],
)
def test_the_layers_of_a_published_model_look_back(name: str, expected: Layers) -> None:
    assert windows_of(name) == expected


def test_the_last_of_every_six_gemma_3_layers_has_no_window() -> None:
    layers = catalogue_shape("google/gemma-3-1b-it").layers
    full = [i for i, layer in enumerate(layers) if layer.mixers[0].kind == "full attention"]
    assert full == [5, 11, 17, 23]


def test_a_config_that_is_silent_means_the_defaults_of_its_config_class() -> None:
    """`google/gemma-3-4b-it` names its width and depth, and leaves heads and vocabulary to transformers."""
    text = {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34}
    shape = read_config({"architectures": ["Gemma3ForCausalLM"], "text_config": {**text, "sliding_window": 1024}})
    assert shape.layers[5].mixers == (FullAttention(num_heads=8, num_kv_heads=4, head_dim=256),)
    assert (shape.vocab_size, shape.max_model_len) == (262_144, 131_072)


def test_one_row_is_enough_for_a_class_of_plain_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe "an architecture" of CONTRIBUTING, followed with a toy."""
    config = new_llama_config(architectures=["ToyForCausalLM"])
    assert read_config(config).unmodelled_kinds == ("architecture ToyForCausalLM",)
    row = Family(layers=architectures.uniform_stack, known=PLAIN)
    monkeypatch.setitem(architectures._FAMILIES, "ToyForCausalLM", row)
    read = read_config(config)
    assert (read.unmodelled_kinds, read.layers) == ((), read_config(new_llama_config()).layers)


def test_one_row_is_enough_for_a_class_with_a_known_tower(monkeypatch: pytest.MonkeyPatch) -> None:
    known = catalogue.load_model("Qwen/Qwen2-VL-7B-Instruct").config
    toy = {**known, "architectures": ["ToyForConditionalGeneration"]}
    assert read_config(toy).unmodelled_kinds
    row = Multimodal(towers=multimodal.qwen2_vision, language_model="Qwen2ForCausalLM")
    monkeypatch.setitem(multimodal.MULTIMODAL, "ToyForConditionalGeneration", row)
    assert read_config(toy).encoders == read_config(known).encoders != ()


def test_the_language_model_of_a_class_with_towers_has_a_row() -> None:
    named = {row.language_model for row in multimodal.MULTIMODAL.values()} - {""}
    assert named <= architectures._FAMILIES.keys()
