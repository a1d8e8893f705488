"""Another model drafts: its weights, its layers beside the target's, and what vLLM refuses of it."""

from typing import Any

import pytest
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget import Draft, Speculation, Verdict, accounting_of, plan
from kvgate.budget.answers.speculation import draft_refusals, method_refusal, mismatches, new_slots
from kvgate.budget.ground.hardware import SINGLE_GPU, Parallelism
from kvgate.budget.ground.units import gib
from kvgate.budget.model.draft import draft_weights, own_ends_bytes
from kvgate.hf_config.drafts.reader import read_draft
from support.builders import catalogue_shape, known_draft, new_request
from support.tables import table

LLAMA, EAGLE3 = "meta-llama/Llama-3.1-8B-Instruct", "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B"
EMBEDDING, HEAD = 128_256 * 4096 * 2, 32_000 * 4096 * 2


def asked(draft: Draft | None = None, *, target: str = LLAMA, **overrides: Any) -> Any:
    """A question with a draft; fields of the speculative config by name, its max_model_len as `longest`."""
    keys = {key: key for key in Speculation.__struct_fields__} | {"max_model_len": "longest", "kv_cache_dtype": "cache"}
    given = {key: overrides.pop(name) for key, name in keys.items() if name in overrides}
    speculation = Speculation(**{"model": "a/draft", "num_speculative_tokens": 3, **given})
    return new_request(shape=catalogue_shape(target), draft=draft, speculation=speculation, **overrides)


def own_bytes(draft: Draft, *, alone: bool = True, compares_ends: bool = True) -> tuple[int, int]:
    least, most = draft_weights(
        draft, catalogue_shape(LLAMA), SINGLE_GPU, tokens=3, alone=alone, compares_ends=compares_ends, unsplit_large_blocks=True,
        compute_capability=(9, 0),
    )  # fmt: skip
    return least.parameter_bytes, most.parameter_bytes


def test_the_targets_embedding_is_shared_unless_stages_part_them_or_the_checkpoint_may_have_its_own() -> None:
    draft = known_draft(EAGLE3)
    shared = 849_635_328
    assert own_bytes(draft) == (shared, shared + EMBEDDING)
    assert own_bytes(draft, compares_ends=False) == (shared, shared)
    assert own_bytes(draft, alone=False) == (shared + EMBEDDING, shared + EMBEDDING)
    assert own_bytes(replace(draft, stored_ends=frozenset({"lm_head"}))) == (shared, shared)
    assert own_bytes(replace(draft, stored_bytes=shared)) == (shared, shared)


def test_a_head_of_the_targets_size_is_shared_before_vllm_compares_weights() -> None:
    entry = catalogue.find_draft(EAGLE3)
    assert entry is not None
    whole = read_draft({**entry.config, "draft_vocab_size": 128_256}, name=EAGLE3)
    least, most = own_bytes(whole)
    assert most - least == 2 * EMBEDDING
    assert least == 849_635_328 - HEAD - 32_000 * 8


def test_a_draft_of_another_width_keeps_its_ends() -> None:
    least, most = own_bytes(known_draft("AngelSlim/Qwen3-4B_eagle3"))
    assert least == most == 1_214_658_560


def test_the_drafts_layer_keeps_its_cache_in_the_same_blocks() -> None:
    alone, both = plan(new_request(shape=catalogue_shape(LLAMA))), plan(asked(known_draft(EAGLE3)))
    assert alone.kv_cache is not None
    assert both.kv_cache is not None
    assert both.kv_cache.bytes_per_block * 32 == alone.kv_cache.bytes_per_block * 33
    assert [group.num_layers for group in both.kv_cache.groups] == [33]


def test_gpt_oss_and_a_draft_are_padded_to_groups_of_the_larger_kind() -> None:
    """12 windows beside 13 layers of full attention, as the comment in vLLM's `_get_kv_cache_groups_uniform_page_size` has it."""
    eagle = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "hidden_size": 2880, "intermediate_size": 8640,
        "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "num_hidden_layers": 1, "vocab_size": 201_088,
    }  # fmt: skip
    kv_cache = plan(asked(read_draft(eagle, name="x"), target="openai/gpt-oss-20b")).kv_cache
    assert kv_cache is not None
    assert sorted(group.num_layers for group in kv_cache.groups) == [12, 13]
    assert kv_cache.bytes_per_block == 13 * 2 * 8 * 64 * 2 * 16


def test_a_complete_model_drafts_with_all_of_its_layers() -> None:
    both = plan(asked(known_draft("meta-llama/Llama-3.2-1B-Instruct"), target=LLAMA))
    assert both.kv_cache is not None
    assert sum(group.num_layers for group in both.kv_cache.groups) == 32 + 16
    assert both.verdict is Verdict.FITS


def test_the_last_stage_alone_holds_the_draft() -> None:
    first, last = plan(asked(known_draft(EAGLE3), pipeline=2)).stages
    assert first.ledger is not None
    assert last.ledger is not None
    assert "draft_bytes" not in dict(first.ledger.lines[0].inputs)
    assert int(dict(last.ledger.lines[0].inputs)["draft_bytes"]) > EMBEDDING


def test_a_draft_that_nobody_knows_leaves_the_answer_open_unless_the_target_alone_is_refused() -> None:
    assert plan(asked(None)).verdict is Verdict.UNKNOWN
    refused = plan(asked(None, target="meta-llama/Llama-3.3-70B-Instruct"))
    assert refused.verdict is Verdict.DOES_NOT_FIT
    assert refused.unmodelled == ("drafts by a/draft",)


@table(
    ("method", "version", "refused"),
    [
        ("draft_model", "0.9.2", False), ("draft_model", "0.11.0", True), ("draft_model", "0.15.1", False),
        ("draft_model", "0.17.0", False),
        ("medusa", "0.32.0", False), ("medusa", "0.33.0", True), ("mlp_speculator", "0.9.2", False), ("mlp_speculator", "0.12.0", True),
        ("dflash", "0.19.0", True), ("dflash", "0.20.0", False), ("suffix", "0.11.0", True), ("ngram", "0.6.6", False),
        ("eagle3", "0.7.3", True), ("eagle3", "0.8.5", False), ("", "0.6.6", False),
    ],
)  # fmt: skip
def test_each_release_has_its_methods(method: str, version: str, refused: bool) -> None:  # noqa: FBT001
    assert (method_refusal(method, version) is not None) == refused


@table(
    ("method", "without", "between", "has"),
    [
        ("eagle3", "0.7.3", "0.7.4", "0.8.5"), ("mtp", "0.6.6", "0.6.7", "0.7.3"), ("suffix", "0.11.0", "0.11.1", "0.12.0"),
        ("extract_hidden_states", "0.16.0", "0.16.1", "0.17.0"), ("ngram_gpu", "0.17.0", "0.17.1", "0.18.0"),
        ("dflash", "0.19.0", "0.19.1", "0.20.0"), ("custom_class", "0.21.0", "0.21.1", "0.22.0"),
        ("dspark", "0.24.0", "0.24.1", "0.25.0"), ("draft_model", "0.14.0", "0.14.1", "0.16.0"),
    ],
)  # fmt: skip
def test_a_method_is_refused_up_to_the_last_release_whose_config_lacks_it(
    method: str, without: str, between: str, has: str
) -> None:
    """Words of `SpeculativeConfig.method` in vllm/config/speculative.py (config.py before 0.9); V0's MTP was called deepseek_mtp."""
    assert method_refusal(method, without)
    assert method_refusal(method, between) is None  # nobody read it
    assert method_refusal(method, has) is None


@pytest.mark.parametrize(("method", "last", "gone"), [
    ("draft_model", "0.9.2", "0.10.0"), ("mlp_speculator", "0.9.2", "0.10.0"), ("medusa", "0.32.0", "0.33.0"),
])  # fmt: skip
def test_a_method_of_v0_is_refused_from_the_first_release_without_it(method: str, last: str, gone: str) -> None:
    assert method_refusal(method, last) is None
    assert method_refusal(method, gone)


@table(
    ("draft", "settings", "reason"),
    [
        (EAGLE3, {"draft_tensor_parallel_size": 2, "tensor": 4}, "neither 1 nor the 4"),
        (EAGLE3, {"num_speculative_tokens": 0}, "num_speculative_tokens is missing"),
        ("meta-llama/Llama-3.2-1B-Instruct", {"draft_tensor_parallel_size": 1, "tensor": 2, "vllm_version": "0.20.0"},
         "which this release needs of a complete model"),
        ("meta-llama/Llama-3.2-1B-Instruct", {"draft_tensor_parallel_size": 1, "tensor": 2}, None),
        (EAGLE3, {"longest": 4096}, None),
        (EAGLE3, {"longest": 200_000}, "max_model_len 200000 of the draft is above"),
        ("Qwen/Qwen3-0.6B", {}, "a vocabulary of 151936 tokens"),
        ("Qwen/Qwen3-0.6B", {"takes_other_vocabulary": True}, None),
        ("Qwen/Qwen3-0.6B", {"vllm_version": "0.9.2"}, None),
        ("meta-llama/Llama-3.2-1B-Instruct", {"tensor": 64}, "32 attention heads of the draft are not divisible by 64"),
        ("z-lab/Qwen3-8B-DFlash-b16", {"num_speculative_tokens": 9, "vllm_version": "0.24.0", "max_num_seqs": 1024},
         "8 slots for the drafts of each of 1024 sequences"),
        ("z-lab/Qwen3-8B-DFlash-b16", {"num_speculative_tokens": 8, "vllm_version": "0.24.0", "max_num_seqs": 1024}, None),
        ("z-lab/Qwen3-8B-DFlash-b16", {"num_speculative_tokens": 8, "max_num_seqs": 1024}, None),
        ("z-lab/Qwen3-8B-DFlash-b16", {"num_speculative_tokens": 512, "max_num_batched_tokens": 512, "max_num_seqs": 4},
         "512 slots for the drafts of a request"),
    ],
)  # fmt: skip
def test_values_that_vllm_refuses_are_refused(draft: str, settings: dict[str, Any], reason: str | None) -> None:
    budget = plan(asked(known_draft(draft), **settings))
    reasons = [*draft_refusals(budget.request, budget.resolved, budget.accounting)]
    assert [reason in each for each in reasons] == [True] if reason else reasons == []


@pytest.mark.parametrize(
    ("draft", "settings", "slots"),
    [
        (EAGLE3, {}, 0), (EAGLE3, {"parallel_drafting": True}, 2), ("z-lab/Qwen3-8B-DFlash-b16", {}, 3),
        ("meta-llama/Llama-3.2-1B-Instruct", {}, 1), ("meta-llama/Llama-3.2-1B-Instruct", {"parallel_drafting": True}, 3),
    ],
)  # fmt: skip
def test_drafting_adds_slots_as_vllms_table_says(draft: str, settings: dict[str, Any], slots: int) -> None:
    assert new_slots(asked(known_draft(draft), **settings), 3, dflash_keeps_none=False) == slots


@pytest.mark.parametrize(("method", "count"), [("ngram", 0), ("draft_model", 2)])
def test_sizes_of_a_draft_count_for_no_method_without_one(method: str, count: int) -> None:
    draft = known_draft("meta-llama/Llama-3.2-1B-Instruct") if method == "draft_model" else None
    budget = plan(asked(draft, method=method, draft_tensor_parallel_size=4, longest=1 << 30))
    assert len([*draft_refusals(budget.request, budget.resolved, budget.accounting)]) == count


def test_a_head_of_another_model_is_recognised_by_its_sizes() -> None:
    assert [*mismatches(asked(known_draft(EAGLE3)))] == []
    assert len([*mismatches(asked(known_draft("AngelSlim/Qwen3-4B_eagle3")))]) == 2


FULL_DFLASH = {"layer_types": ["full_attention"] * 5}


@pytest.mark.parametrize(
    ("target", "draft", "tokens", "settings", "logged"),
    [
        ("Qwen/Qwen3.6-27B", "z-lab/Qwen3.6-27B-DFlash", 5,
         {"tensor": 2, "vllm_version": "0.20.1", "max_model_len": 180_000, "kv_cache_memory_bytes": gib(9.74)}, 67_728),
        ("Qwen/Qwen3.6-27B", "z-lab/Qwen3.6-27B-DFlash", 5,
         {"tensor": 2, "vllm_version": "0.21.0", "max_model_len": 185_000, "kv_cache_memory_bytes": gib(9.58),
          "enable_prefix_caching": True}, 188_838),
        ("Qwen/Qwen3.6-27B", "z-lab/Qwen3.6-27B-DFlash", 5,
         {"tensor": 2, "vllm_version": "0.21.0", "max_model_len": 200_000, "kv_cache_memory_bytes": gib(10.36),
          "enable_prefix_caching": True}, 204_615),
        ("Qwen/Qwen3.6-35B-A3B", "z-lab/Qwen3.6-35B-A3B-DFlash", 6,
         {"vllm_version": "0.22.0", "max_model_len": 200_000, "max_num_seqs": 8, "kv_cache_memory_bytes": gib(71.59),
          "enable_prefix_caching": True}, 1_470_588),
    ],
)  # fmt: skip
def test_four_logged_pools_hold_the_tokens_that_vllm_printed(
    target: str, draft: str, tokens: int, settings: dict[str, Any], logged: int
) -> None:
    """Each log states its KV cache memory to 0.01 GiB; the drafts of that time attended to everything in every layer."""
    entry = catalogue.find_draft(draft)
    assert entry is not None
    config = {**entry.config, **FULL_DFLASH} if "27B" in draft else entry.config
    request = asked(read_draft(config, name=draft), target=target, num_speculative_tokens=tokens, **settings)
    printed = plan(request).num_tokens
    assert printed is not None
    assert abs(printed.expected - logged) <= logged / 1000


@pytest.mark.parametrize(
    ("model", "version", "pipeline", "copies"),
    [
        ("deepseek-ai/DeepSeek-V3", "0.32.0", 1, 0), ("deepseek-ai/DeepSeek-V3", "0.14.0", 1, 1),
        ("deepseek-ai/DeepSeek-V3", "0.14.0", 2, 2),
        ("Qwen/Qwen3-Next-80B-A3B-Instruct", "0.14.0", 1, 0), ("Qwen/Qwen3-Next-80B-A3B-Instruct", "0.32.0", 2, 1),
    ],
)  # fmt: skip
def test_layers_of_the_model_share_its_ends_by_release_and_by_stages(
    model: str, version: str, pipeline: int, copies: int
) -> None:
    shape = catalogue_shape(model)
    found = own_ends_bytes(shape, Parallelism(pipeline=pipeline), shares_head=accounting_of(version).mtp_shares_head)
    assert found == copies * shape.vocab_size * shape.hidden_size * 2


@pytest.mark.parametrize(("version", "tensor"), [("0.7.3", 1), ("0.32.0", 4)])
def test_only_v0_cuts_a_complete_draft_as_the_user_requests(version: str, tensor: int) -> None:
    draft = known_draft("meta-llama/Llama-3.2-1B-Instruct")
    request = asked(draft, draft_tensor_parallel_size=1, tensor=4, vllm_version=version)
    assert request.draft_parallelism.tensor == tensor
