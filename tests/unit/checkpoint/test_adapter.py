"""What an adapter_config.json says, and which adapters vLLM refuses."""

from typing import Any

import pytest

from kvgate.budget import accounting_of
from kvgate.checkpoint.adapter import Adapter, is_of_another_model, read_adapter, refusals
from kvgate.checkpoint.tensors import CheckpointError
from support.tables import table

PLAIN = {
    "peft_type": "LORA", "base_model_name_or_path": "meta-llama/Llama-3.1-8B-Instruct", "r": 16, "lora_alpha": 32, "bias": "none",
    "target_modules": ["q_proj", "v_proj"], "modules_to_save": None, "init_lora_weights": True, "rank_pattern": {}, "use_dora": False,
}  # fmt: skip


def adapter(**changes: Any) -> Adapter:
    return read_adapter({**PLAIN, **changes})


def reasons(found: Adapter, *, max_lora_rank: int = 16, release: str = "0.32.0") -> list[str]:
    return list(refusals(found, max_lora_rank=max_lora_rank, accounting=accounting_of(release)))


def test_a_plain_adapter() -> None:
    found = adapter()
    assert (found.rank, found.largest_rank, found.base_model) == (16, 16, "meta-llama/Llama-3.1-8B-Instruct")
    assert found.target_modules == {"q_proj", "v_proj"}
    assert reasons(found) == []


def test_targets_may_be_an_expression_or_all_linear_layers() -> None:
    assert adapter(target_modules="all-linear").target_expression == "all-linear"
    assert adapter(target_modules=r".*\.(q|v)_proj").target_modules == frozenset()
    assert adapter(target_modules=None, target_parameters=["experts.gate_up_proj"]).target_modules == frozenset()


def test_the_largest_rank_counts_since_0_32() -> None:
    found = adapter(rank_pattern={"q_proj": 64})
    assert found.largest_rank == 64
    assert reasons(found) == ["its rank 64 is above --max-lora-rank 16"]
    assert reasons(found, release="0.30.0") == []
    assert reasons(found, max_lora_rank=8, release="0.30.0") == ["its rank 16 is above --max-lora-rank 8"]


@pytest.mark.parametrize(
    ("changes", "reason", "until"),
    [
        ({"use_dora": True}, "it is DoRA", True),
        ({"modules_to_save": ["lm_head", "embed_tokens"]}, "it replaces whole modules (embed_tokens, lm_head)", True),
        ({"bias": "all"}, "it has biases", True),
        ({"peft_type": "IA3"}, "it is of the kind IA3, and vLLM loads LORA only", True),
        ({"init_lora_weights": "pissa_niter_16"}, "its initial weights (pissa_niter_16) changed the base model", False),
        ({"use_qalora": True}, "it has QALoRA", False),
        ({"alora_invocation_tokens": [1]}, "it has activation by tokens (aLoRA)", False),
    ],
)
def test_adapters_that_vllm_refuses(changes: dict[str, Any], reason: str, *, until: bool) -> None:
    found = adapter(**changes)
    assert reasons(found) == [reason]
    assert reasons(found, release="0.20.0") == ([reason] if until else [])


def test_what_is_allowed() -> None:
    assert reasons(adapter(init_lora_weights="gaussian", use_rslora=True)) == []
    assert reasons(adapter(modules_to_save=["score"])) == []
    assert reasons(adapter(modules_to_save=["score"]), release="0.30.0") == ["it replaces whole modules (score)"]
    assert reasons(adapter(bias="all"), release="0.11.0") == []


@pytest.mark.parametrize(
    ("model", "is_another"),
    [
        ("meta-llama/Llama-3.1-8B-Instruct", False),
        ("unsloth/llama-3.1-8b-instruct-bnb-4bit", False),
        ("RedHatAI/Llama-3.1-8B-Instruct-FP8", False),
        ("Qwen/Qwen3-8B", True),
        ("", False),
    ],
)
def test_an_adapter_of_another_model(model: str, *, is_another: bool) -> None:
    assert is_of_another_model(adapter(), model) is is_another
    assert not is_of_another_model(adapter(base_model_name_or_path=None), model)


@table(
    ("changes", "problem"),
    [
        ({"r": None}, "r is missing"),
        ({"lora_alpha": "x"}, "lora_alpha is missing, or is no number"),
        ({"r": 0}, "r is 0; it must be a whole number from 1"),
        ({"r": True}, "r is True"),
        ({"r": 10**30}, "r is 1000"),
        ({"rank_pattern": {"q_proj": "8"}}, "rank_pattern.q_proj is '8'"),
        ({"rank_pattern": [8]}, "rank_pattern must be an object"),
        ({"target_modules": None}, "target_modules is missing"),
        ({"target_modules": [1]}, "target_modules must be a list of names"),
        ({"target_modules": ["x"] * 5000}, "target_modules must be a list of names"),
        ({"modules_to_save": {"a": 1}}, "modules_to_save must be a list of names"),
    ],
)
def test_a_broken_file_is_an_error(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(CheckpointError, match=problem):
        adapter(**changes)


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(CheckpointError) as error:
        read_adapter({})
    assert len(error.value.problems) == 3
