"""LoRA: bytes of the adapter slots, and the CUDA graphs with and without adapters."""

from typing import Any

import pytest

from kvgate.budget import accounting_of
from kvgate.budget.answers.answer import plan
from kvgate.budget.engine.request import LoraSettings
from kvgate.budget.gpu.ledger import Ledger
from kvgate.budget.gpu.lora import graph_cases, lora_refusals
from kvgate.budget.ground.units import MIB
from kvgate.budget.releases.lora_classes import has_embeddings, takes_no_adapters
from support.builders import catalogue_shape, new_model_shape, new_request
from support.tables import table

ON = LoraSettings(enabled=True)


def ledger(model: str = "Qwen/Qwen3-8B", **changes: Any) -> Ledger:
    budget = plan(new_request(shape=catalogue_shape(model), **{"lora": ON, "max_model_len": 4096, **changes}))
    assert budget.tightest is not None
    assert budget.tightest.ledger is not None
    return budget.tightest.ledger


def slots(**changes: Any) -> int:
    return ledger(**changes).lines[4].amount.expected


def test_there_is_no_line_without_lora() -> None:
    assert [name for name, _ in ledger(lora=LoraSettings(max_loras=8)).terms] == [
        "weights", "peak_activation", "non_torch", "cuda_graph",
    ]  # fmt: skip
    assert ledger().terms[4][0] == "lora"


def test_slots_grow_with_their_number_and_rank() -> None:
    one = slots()
    assert slots(lora=LoraSettings(enabled=True, max_loras=4)) == pytest.approx(4 * one, rel=0.02)
    assert slots(lora=LoraSettings(enabled=True, max_rank=64)) == pytest.approx(4 * one, rel=0.02)


def test_tensor_parallelism_cuts_one_matrix_of_a_pair_and_sharding_both() -> None:
    alone, cut = slots(), slots(tensor=4)
    sharded = slots(tensor=4, lora=LoraSettings(enabled=True, fully_sharded=True))
    assert alone // 4 < sharded < cut < alone


def test_target_modules_leave_the_others_out_and_the_low_end_open() -> None:
    some = ledger(lora=LoraSettings(enabled=True, target_modules=("q_proj", "v_proj"))).lines[4].amount
    assert 20 * MIB < some.expected < slots() // 3
    assert some.low <= some.expected // 2


def test_experts_have_slots_since_0_12() -> None:
    old, new = (slots(model="Qwen/Qwen3-30B-A3B", vllm_version=version) for version in ("0.11.0", "0.12.0"))
    assert new > 50 * old
    shared = LoraSettings(enabled=True, moe_shared=True)
    assert slots(model="Qwen/Qwen3-30B-A3B", lora=shared) < slots(model="Qwen/Qwen3-30B-A3B") * 2 // 3


def test_whole_experts_take_whole_slots() -> None:
    cut, whole = (slots(model="Qwen/Qwen3-30B-A3B", tensor=4, expert=expert) for expert in (False, True))
    assert whole < cut


@pytest.mark.parametrize(
    ("changes", "cases"),
    [({}, 2), ({"specializes_active": True}, 3), ({"specializes_active": True, "max_loras": 4}, 5),
     ({"specializes_active": True, "max_loras": 7}, 5), ({"enabled": False}, 1)],
)  # fmt: skip
def test_graphs_are_captured_once_for_each_case(changes: dict[str, Any], cases: int) -> None:
    """max_loras 4: with 0, 1, 2, 4 and 5 adapters, where 5 counts the base model too (`get_captured_lora_counts`)."""
    assert graph_cases(LoraSettings(**{"enabled": True, **changes}), specializes=True) == cases
    assert graph_cases(LoraSettings(**{"enabled": True, **changes}), specializes=False) == 1


def test_adapters_in_host_memory_are_uncut_and_at_most_as_many_as_the_user_allows() -> None:
    host = ledger(lora=LoraSettings(enabled=True, max_cpu_loras=10)).host_bytes
    assert host.low == 0
    assert host.high == 10 * host.expected
    assert ledger(tensor=4).host_bytes.expected == host.expected


@pytest.mark.parametrize(
    ("lora", "version", "setting"),
    [
        ({"max_rank": 12}, "0.32.0", "max_lora_rank"), ({"max_rank": 1}, "0.11.0", "max_lora_rank"), ({"max_rank": 1}, "0.12.0", ""),
        ({"max_rank": 512}, "0.7.3", "max_lora_rank"), ({"max_rank": 512}, "0.8.5", ""),
        ({"max_cpu_loras": 1, "max_loras": 2}, "0.32.0", "max_cpu_loras"),
        ({"max_cpu_loras": 2, "max_loras": 2}, "0.32.0", ""),
    ],
)  # fmt: skip
def test_values_that_vllm_refuses(lora: dict[str, Any], version: str, setting: str) -> None:
    request = new_request(lora=LoraSettings(enabled=True, **lora), vllm_version=version)
    found = [name for name, _ in lora_refusals(request, plan(request).accounting)]
    assert found == [setting] * bool(setting)


def test_a_rank_is_cut_over_the_ranks_where_both_matrices_are() -> None:
    request = new_request(lora=LoraSettings(enabled=True, max_rank=8, fully_sharded=True), tensor=16)
    ((name, reason),) = lora_refusals(request, plan(request).accounting)
    assert (name, reason) == ("max_lora_rank", "is 8, which 16 ranks cannot divide between them")


@table(
    ("version", "tensor", "fully_sharded", "setting"),
    [
        ("0.11.0", 2, True, ""), ("0.12.0", 2, False, "enable_lora"), ("0.20.0", 2, True, "enable_lora"), ("0.21.0", 2, False, ""),
        ("0.21.0", 2, True, "fully_sharded_loras"), ("0.32.0", 2, True, "fully_sharded_loras"), ("0.32.0", 1, True, ""),
        ("0.14.0", 1, False, ""),
    ],
)  # fmt: skip
def test_adapters_beside_whole_experts_by_release(
    version: str,
    tensor: int,
    fully_sharded: bool,  # noqa: FBT001
    setting: str,
) -> None:
    """`FusedMoEWithLoRA.__init__`: `assert not self.base_layer.use_ep` in 0.12 to 0.20."""
    lora = LoraSettings(enabled=True, fully_sharded=fully_sharded)
    shape = catalogue_shape("Qwen/Qwen3-30B-A3B")
    request = new_request(shape=shape, lora=lora, tensor=tensor, expert=True, vllm_version=version)
    assert [name for name, _ in lora_refusals(request, plan(request).accounting)] == [setting] * bool(setting)


@table(
    ("version", "architecture", "vocabulary", "refused"),
    [
        ("0.33.0", "LlamaForCausalLM", 262_144, True), ("0.33.0", "Gemma3ForCausalLM", 262_144, False),
        ("0.33.0", "LlamaForCausalLM", 258_048, False), ("0.33.0", "LlamaForCausalLM", 258_049, True),
        ("0.17.0", "LlamaForCausalLM", 258_048, False), ("0.16.0", "LlamaForCausalLM", 258_048, True),
        ("0.16.0", "LlamaForCausalLM", 257_024, False), ("0.16.0", "LlamaForCausalLM", 257_025, True),
    ],
)  # fmt: skip
def test_a_head_beyond_the_kernels_is_refused_where_the_class_offers_it(
    version: str, architecture: str, vocabulary: int, *, refused: bool
) -> None:
    """Up to 258,048 rows since 0.17, and 257,024 before (`LogitsProcessorWithLoRA`)."""
    shape = new_model_shape(vocab_size=vocabulary, architecture=architecture)
    request = new_request(shape=shape, lora=ON, vllm_version=version)
    found = [name for name, _ in lora_refusals(request, plan(request).accounting)]
    assert found == ["enable_lora"] * refused


def test_classes_by_release() -> None:
    assert takes_no_adapters("DeepseekV3ForCausalLM", (0, 9))
    assert not takes_no_adapters("DeepseekV3ForCausalLM", (0, 11))
    assert not takes_no_adapters("NeverSeenForCausalLM", (0, 6))
    assert has_embeddings("MistralForCausalLM", (0, 14))
    assert not has_embeddings("MistralForCausalLM", (0, 32))
    assert accounting_of("0.32.0").lora_ranks[0] == 1
