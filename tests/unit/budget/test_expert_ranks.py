"""Ranks that hold experts, their copies and their balance; and ranks that share a prompt."""

from typing import Any

import pytest

from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.answers.support import parallelism_refusals, prompt_refusals
from kvgate.budget.engine.request import LoraSettings, Speculation
from kvgate.budget.ground.hardware import Parallelism
from kvgate.budget.ground.interval import Verdict
from kvgate.budget.ground.units import GIB
from kvgate.budget.releases.versions import DEFAULT_VERSION
from support.builders import catalogue_shape, new_request
from support.tables import table

MOE, MLA, SPARSE = "Qwen/Qwen3-30B-A3B", "deepseek-ai/DeepSeek-V3", "deepseek-ai/DeepSeek-V3.2"


def budget_of(model: str = MOE, **changes: Any) -> Budget:
    return plan(new_request(shape=catalogue_shape(model), max_model_len=4096, **changes))


def weights(model: str = MOE, **changes: Any) -> int:
    budget = budget_of(model, **changes)
    assert budget.tightest is not None
    assert budget.tightest.ledger is not None
    return budget.tightest.ledger.weights.expected


def test_copies_of_the_attention_cut_the_experts_between_them() -> None:
    """vLLM's own example: with TP 2, DP 2 and no expert parallelism the experts are cut over 4 devices."""
    alone, four, replicas = weights(), weights(tensor=4), weights(data=4)
    assert four < replicas < alone // 2
    assert Parallelism(tensor=2, data=2).expert_tensor == 4
    assert Parallelism(tensor=2, data=2, expert=True).expert_tensor == 1
    assert Parallelism(tensor=2, data=2, prefill_context=2, expert=True).num_expert_ranks == 8


@pytest.mark.parametrize(("tensor", "total"), [(1, 32_073_216_000), (2, 16_049_401_856)])
def test_two_copies_of_the_attention_hold_the_parameters_that_vllm_builds(tensor: int, total: int) -> None:
    """Qwen3MoeForCausalLM of vLLM 0.32.0 on the meta device, with two data parallel ranks and no expert parallelism."""
    budget = budget_of(tensor=tensor, data=2)
    assert budget.tightest is not None
    assert budget.tightest.ledger is not None
    assert budget.tightest.ledger.parameter_bytes == total


def test_copies_of_experts_are_spread_over_the_ranks() -> None:
    cut = Parallelism(tensor=8, expert=True, balances_experts=True, redundant_experts=32)
    assert cut.num_experts_per_rank(256) == 36
    plain = weights(tensor=8, expert=True)
    balanced = weights(tensor=8, expert=True, balances_experts=True)
    copied = weights(tensor=8, expert=True, balances_experts=True, redundant_experts=8)
    one_expert = 3 * 768 * 2048 * 2
    assert balanced - plain == pytest.approx(
        16 * one_expert + 4 * 128 * 48 * 1000, rel=0.02
    )  # a layer's buffer, and the loads
    assert (
        49 * one_expert <= copied - balanced <= 55 * one_expert
    )  # one more in 48 layers and in the buffer, in the allocator's blocks


@pytest.mark.parametrize(
    ("cut", "setting"),
    [
        ({"tensor": 8, "redundant_experts": 8}, "num_redundant_experts"), ({"tensor": 8, "balances_experts": True}, "enable_eplb"),
        ({"balances_experts": True, "expert": True}, "enable_eplb"), ({"tensor": 8, "expert": True, "elastic": True}, "enable_elastic_ep"),
        ({"tensor": 8, "expert": True, "balances_experts": True, "redundant_experts": 4}, "num_redundant_experts"),
        ({"tensor": 2, "pipeline": 2, "expert": True, "balances_experts": True, "elastic": True}, "enable_elastic_ep"),
        ({"tensor": 8, "expert": True, "balances_experts": True, "redundant_experts": 8, "elastic": True}, ""),
    ],
)  # fmt: skip
def test_balance_that_vllm_refuses(cut: dict[str, Any], setting: str) -> None:
    found = [name for name, _ in parallelism_refusals(catalogue_shape(MOE), Parallelism(**cut), DEFAULT_VERSION)]
    assert found == [setting] * bool(setting)


def test_elastic_ranks_keep_their_memory() -> None:
    asked: dict[str, Any] = {"data": 4, "expert": True, "balances_experts": True}
    assert weights(**asked, elastic=True) == weights(**asked)


def test_every_rank_that_shares_a_prompt_holds_the_whole_cache() -> None:
    budget, alone = (budget_of(MLA, tensor=8, prefill_context=ranks, kv_cache_memory_bytes=GIB) for ranks in (2, 1))
    assert budget.verdict is Verdict.FITS
    assert budget.request.settings.parallelism.num_gpus == 16
    assert (budget.num_tokens, budget.demand) == (alone.num_tokens, alone.demand)
    divided = budget_of(
        SPARSE, tensor=8, prefill_context=2, decode_context=2, kv_cache_memory_bytes=GIB, kv_cache_dtype="fp8"
    )
    assert divided.kv_cache is not None
    assert divided.kv_cache.reach.decode_context == 2


@table(
    ("changes", "setting"),
    [
        ({}, ""), ({"vllm_version": "0.24.0"}, "prefill_context_parallel_size"), ({"vllm_version": "0.26.0"}, ""),
        ({"model": MOE}, "prefill_context_parallel_size"), ({"decode_context": 4}, "decode_context_parallel_size"),
        ({"decode_context": 16}, ""),
        ({"lora": LoraSettings(enabled=True)}, "prefill_context_parallel_size"),
        ({"pipeline": 2, "vllm_version": "0.30.0"}, "prefill_context_parallel_size"), ({"pipeline": 2}, ""),
        ({"speculation": Speculation(method="ngram", num_speculative_tokens=2)}, "prefill_context_parallel_size"),
        ({"speculation": Speculation(method="dspark", model="a/draft", num_speculative_tokens=2)}, ""),
        ({"speculation": Speculation(method="mtp", num_speculative_tokens=1)}, ""),
        ({"model": "Qwen/Qwen3-VL-8B-Instruct"}, "prefill_context_parallel_size"),
    ],
)  # fmt: skip
def test_prompts_are_shared_by_mla_of_new_releases(changes: dict[str, Any], setting: str) -> None:
    model = changes.pop("model", MLA)
    request = new_request(shape=catalogue_shape(model), tensor=8, prefill_context=2, **changes)
    assert {name for name, _ in prompt_refusals(request)} == ({setting} if setting else set())


def test_a_release_that_nobody_read_leaves_the_verdict_open() -> None:
    assert budget_of(MLA, tensor=8, prefill_context=2, vllm_version="0.26.0").verdict is Verdict.UNKNOWN
