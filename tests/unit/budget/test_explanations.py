"""Every figure can be asked for, its formula gives it, and its name is the machine contract's."""

import math
import re

import pytest

from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.engine.request import LoraSettings, Speculation
from kvgate.budget.ground.units import GIB, gib
from kvgate.explained.explanations import TERMS, Explanation, explain_term, format_bytes, term_named
from support.builders import catalogue_shape, known_draft, new_gdn, new_layer, new_model_shape, new_request
from support.tables import table

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
SPELLED = {"×": "*", "−": "-", "ceil": "math.ceil", "floor": "math.floor"}


def llama(**settings: object) -> Budget:
    return plan(new_request(shape=catalogue_shape(LLAMA), **{"max_model_len": 32_768, "max_num_seqs": 64, **settings}))


def explained(budget: Budget, term: str) -> Explanation:
    explanation = explain_term(budget, term)
    assert explanation is not None
    assert explanation.name == term
    return explanation


def value_of(told: Explanation) -> float:
    """The formula, computed from its inputs."""
    formula = re.sub("|".join(SPELLED), lambda match: SPELLED[match[0]], told.formula)
    names = dict(told.inputs) | {
        re.sub("_(bytes|graphs)$", "", name): value for name, value in told.inputs if name != "links"
    }
    share = names.get("gpu_memory_utilization", 0)
    return float(eval(formula, {"math": math}, {**names, "gpu_memory_utilization": float(share)}))


@pytest.mark.parametrize("term", ["available", "bytes_per_block", "blocks", "tokens", "request"])
def test_a_formula_gives_the_figure(term: str) -> None:
    told = explained(llama(lora=LoraSettings(enabled=True)), term)
    assert value_of(told) == told.amount.expected


def test_what_is_requested_is_a_share_of_the_total_rounded_up() -> None:
    told = explained(llama(utilization="0.9"), "requested")
    assert told.numbers == "ceil(79.19 GiB × 0.9)"
    assert value_of(told) == pytest.approx(told.amount.expected, rel=1e-9)


def test_concurrency_is_told_as_it_is_printed() -> None:
    told = explained(llama(kv_cache_memory_bytes=9 * GIB), "concurrency")
    assert (told.amount.expected, told.notes) == (2, ("vLLM prints 2.25x",))


@table("term", TERMS)
def test_every_figure_says_where_it_is_from_and_why_it_may_be_off(term: str) -> None:
    told = explained(llama(lora=LoraSettings(enabled=True)), term)
    assert told.formula
    assert told.source
    assert told.doubt


def test_weights_come_with_a_table_that_sums_to_them() -> None:
    told = explained(llama(), "weights")
    assert {part.name for part in told.parts} >= {
        "embedding",
        "attention",
        "feed-forward",
        "norms",
        "head",
        "rotary tables",
    }
    assert sum(part.size_bytes for part in told.parts) == told.amount.expected


def test_weights_that_are_given_have_no_table() -> None:
    told = explained(llama(weights_bytes=15 * GIB), "weights")
    assert (told.parts, told.formula, told.numbers) == ((), "as given", "")
    assert explain_term(llama(weights_bytes=15 * GIB), "parameter") is None


def test_memory_that_is_given_is_not_explained_by_a_ledger() -> None:
    told = explained(llama(kv_cache_memory_bytes=9 * GIB), "available")
    assert (told.amount.expected, told.formula) == (9 * GIB, "as given")


def test_a_request_of_a_hybrid_says_why_the_textbook_is_wrong() -> None:
    layer = new_layer(new_gdn())
    attention = new_model_shape().layers[0]
    shape = new_model_shape(layers=(layer, layer, layer, attention) * 8)
    told = explained(plan(new_request(shape=shape, max_model_len=32_768)), "request")
    assert told.notes[0].startswith("the textbook's 2 × 32 layers × 8 KV heads × 128")
    assert any("recurrent state" in note for note in told.notes)


@table(
    ("name", "term"),
    [
        ("weights", "weights"), ("weights_bytes", "weights"), ("peak-activation", "peak_activation"), ("num_blocks", "blocks"),
        ("available_kv_cache_bytes", "available"), ("request_bytes", "request"), ("request_blocks", "request"),
        ("bytes_per_block", "bytes_per_block"), ("max_model_len_that_fits", "max_model_len"), ("num_tokens", "tokens"),
        ("max_concurrency", "concurrency"), ("parameter_bytes", "parameter"), ("weight", None), ("", None),
    ],
)  # fmt: skip
def test_a_figure_has_the_name_that_the_contract_gives_it(name: str, term: str | None) -> None:
    assert term_named(name) == term


def test_what_has_no_formula_is_not_explained() -> None:
    budget = plan(new_request(unmodelled_settings=("LoRA",)))
    assert [term for term in TERMS if explain_term(budget, term)] == ["bytes_per_block", "request"]


@pytest.mark.parametrize(
    ("size", "text"), [(12, "12 bytes"), (65_536, "65536 bytes"), (GIB // 512, "2.00 MiB"), (-GIB, "-1.00 GiB")]
)
def test_bytes_are_told_in_the_unit_in_which_they_have_digits(size: int, text: str) -> None:
    assert format_bytes(size) == text


@table("version", ["0.11.0", "0.19.0", "0.26.0", "0.33.0"])
@table(
    ("model", "tensor"),
    [
        (LLAMA, 1),
        ("Qwen/Qwen3-VL-30B-A3B-Instruct", 2),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", 4),
        ("deepseek-ai/DeepSeek-V3", 8),
    ],
)
@table("term", ["peak_activation", "non_torch", "cuda_graph"])
def test_a_formula_of_the_ledger_gives_its_figure(term: str, model: str, tensor: int, version: str) -> None:
    budget = plan(new_request(shape=catalogue_shape(model), tensor=tensor, vllm_version=version))
    told = explained(budget, term)
    if told.amount.high:
        assert value_of(told) == pytest.approx(told.amount.expected, abs=1)


@pytest.mark.parametrize(("pipeline", "tight"), [(1, 0), (2, 1)])
def test_the_table_of_weights_has_the_draft_on_the_last_stage(pipeline: int, tight: int) -> None:
    asked = {
        "draft": known_draft("meta-llama/Llama-3.2-1B-Instruct"),
        "speculation": Speculation(num_speculative_tokens=3),
    }
    budget = llama(pipeline=pipeline, **asked)
    assert budget.tightest is budget.stages[tight]  # the draft makes the last stage the fullest
    told = explained(budget, "weights")
    drafts = [part.size_bytes for part in told.parts if part.name == "draft"]
    assert drafts == [dict(told.inputs)["draft_bytes"]]
    assert gib(2) < drafts[0] < gib(3)  # 1.24 billion parameters of 16 bits
    assert "draft" not in [part.name for part in explained(llama(pipeline=pipeline), "weights").parts]
