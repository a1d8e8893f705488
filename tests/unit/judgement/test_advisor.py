"""Advice: changes that would fit, alone and together, that vLLM takes and that the user allows."""

from collections.abc import Callable
from itertools import combinations
from typing import Any

import pytest
from msgspec.structs import replace

from kvgate.budget import COSTS, TOGETHER, Alternative, BudgetRequest, Guarantee, Loss, Scope, Verdict, Workload, plan
from kvgate.budget.answers.changes import safe_utilization, with_change
from kvgate.catalogue import accelerators
from kvgate.findings.finding import Severity
from kvgate.judgement.advisor import ADMISSION, EVERYTHING, advice, most, smaller_checkpoints
from kvgate.judgement.what_if import read_request
from kvgate.rules.checks import BUDGET_RULES, judge_budget


def question(
    model: str, gpu: str, *, guarantee: Guarantee = Guarantee.STARTUP, workload: Workload | None = None, **values: Any
) -> BudgetRequest:
    request, _ = read_request({"model": model, "gpu": gpu, **values}, guarantee=guarantee, workload=workload)
    assert request is not None
    return request


def changed(request: BudgetRequest, changes: Any) -> BudgetRequest:
    scope = Scope(accelerators=tuple(accelerators()), checkpoints=smaller_checkpoints(request))
    for each in changes:
        request = with_change(request, each.field, each.after, scope)
    return request


def values_of(alternative: Alternative) -> dict[str, Any]:
    return {each.field: each.after for each in alternative.changes}


AWQ_32B = question("Qwen/Qwen3-32B-AWQ", "RTX-4090-24GB")
QUESTIONS = (
    AWQ_32B,
    question("Qwen/Qwen3-32B", "RTX-4090-24GB"),
    question("Qwen/Qwen3-8B", "L4-24GB", guarantee=Guarantee.FULL_CONTEXT, max_model_len=8192, max_num_seqs=16),
    question("google/gemma-3-27b-it", "L40S-48GB"),
    question("Qwen/Qwen3.6-27B", "H100-SXM-80GB"),
    question("meta-llama/Llama-3.1-70B-Instruct", "H100-SXM-80GB", tensor_parallel_size=2),
    question("deepseek-ai/DeepSeek-V3", "H200-SXM-141GB", tensor_parallel_size=4),
    question("Qwen/Qwen3-8B", "L4-24GB", guarantee=Guarantee.WORKLOAD,
             workload=Workload(peak_concurrency=64, prompt_tokens=6000, output_tokens=500)),
    question("Qwen/Qwen2.5-VL-7B-Instruct", "A10G-24GB", max_model_len=65_536, vllm_version="0.9.2"),
    question("Qwen/Qwen3-32B-AWQ", "L4-24GB", capacity="Pinned"),
)  # fmt: skip


def test_a_4090_with_32b_awq_gets_twelve_times_the_context_of_the_best_single_setting() -> None:
    found = advice(AWQ_32B)
    single = {each.field: each.value for each in found if each.field != TOGETHER}
    best = values_of(next(each for each in found if each.field == TOGETHER))
    assert single["max_model_len"] == 2064
    assert set(best) == {"kv_cache_dtype", "enforce_eager", "max_num_seqs", "gpu_memory_utilization", "max_model_len"}
    assert best["max_model_len"] >= 26_000
    assert found[0].field == TOGETHER


@pytest.mark.parametrize("request_", QUESTIONS, ids=lambda each: f"{each.shape.name}-{each.guarantee}")
def test_each_proposal_fits_starts_is_minimal_and_is_neither_refused_nor_warned_of(request_: BudgetRequest) -> None:
    known = {each.rule for each in judge_budget(plan(request_))}
    found = advice(request_)
    assert found
    assert [each.points for each in found] == sorted(each.points for each in found)
    for each in found:
        budget = plan(changed(request_, each.changes))
        assert (budget.verdict, budget.starts) == (Verdict.FITS, Verdict.FITS)
        findings = judge_budget(budget)
        assert not {one.rule for one in findings if one.severity is Severity.ERROR} - BUDGET_RULES
        assert {one.rule for one in findings if one.severity is Severity.WARNING} <= known
        for fewer in range(len(each.changes)):
            for subset in combinations(each.changes, fewer):
                assert plan(changed(request_, subset)).verdict is not Verdict.FITS, (each.changes, subset)


@pytest.mark.parametrize(
    ("request_", "sequences"),
    [(AWQ_32B, lambda most: 4 * most), (QUESTIONS[2], lambda most: most + 1)],
    ids=["default, in quarters", "stated, one by one"],
)
def test_within_a_set_no_number_could_be_nearer_to_the_one_before(
    request_: BudgetRequest, sequences: Callable[[int], int]
) -> None:
    best = next(each for each in advice(request_) if each.field == TOGETHER)
    nearer: dict[str, Callable[[int], int]] = {"max_model_len": lambda most: most + 16, "max_num_seqs": sequences}
    numbers = [change for change in best.changes if change.field in nearer]
    assert len(numbers) == 2
    for change in numbers:
        others = changed(request_, [each for each in best.changes if each is not change])
        further = others.with_settings(**{change.field: nearer[change.field](int(change.after))})
        assert plan(further).verdict is not Verdict.FITS


@pytest.mark.parametrize(
    "kept", [{"max_model_len"}, {"kv_cache_dtype", "enforce_eager"}, {"accelerator", "tensor_parallel_size"}]
)
def test_what_the_user_keeps_is_never_changed(kept: set[str]) -> None:
    for request in QUESTIONS:
        for each in advice(request, Scope(keep=frozenset(kept))):
            assert kept.isdisjoint(values_of(each))


def test_no_proposal_is_below_the_users_floors() -> None:
    found = advice(AWQ_32B, Scope(min_max_model_len=16_384, min_max_num_seqs=32))
    assert any("max_model_len" in values_of(each) for each in found)
    for each in found:
        assert int(values_of(each).get("max_model_len", 16_384)) >= 16_384
        assert int(values_of(each).get("max_num_seqs", 32)) >= 32


@pytest.mark.parametrize("request_", QUESTIONS, ids=lambda each: f"{each.shape.name}-{each.guarantee}")
def test_no_proposal_takes_more_of_the_gpu_than_is_free_when_vllm_looks(request_: BudgetRequest) -> None:
    """0.97 of an RTX 4090 leaves 0.71 GiB: the CUDA context alone may take 0.69, and an fp8 cache brings workspaces of 0.38."""
    for each in advice(request_):
        if share := values_of(each).get("gpu_memory_utilization"):
            budget = plan(changed(request_, each.changes))
            gpu = budget.request.accelerator
            assert float(share) <= float(safe_utilization(budget)[0])
            assert gpu.memory_low_bytes * (1 - float(share)) >= safe_utilization(budget)[1]


def test_on_a_gpu_that_others_share_the_share_is_never_raised() -> None:
    request = question("Qwen/Qwen3-8B", "L4-24GB", shared_by=2, gpu_memory_utilization="0.45")
    found = advice(request)
    assert all(float(values_of(each).get("gpu_memory_utilization", 0)) <= 0.45 for each in found)


MEDIA = {"language_model_only", "limit_mm_per_prompt"}


@pytest.mark.parametrize(
    ("release", "length", "change"),
    [
        ("0.33.0", 12_288, {"language_model_only": True}),
        ("0.9.2", 10_240, {"limit_mm_per_prompt": '{"image": 0, "video": 0}'}),  # before there was a switch
    ],
)
def test_a_model_that_takes_images_is_proposed_without_them_in_the_words_of_the_release(
    release: str, length: int, change: dict[str, Any]
) -> None:
    request = question(
        "Qwen/Qwen2.5-VL-7B-Instruct", "A10G-24GB", vllm_version=release, guarantee=Guarantee.FULL_CONTEXT,
        max_model_len=length, max_num_seqs=4,
    )  # fmt: skip
    assert [values_of(each) for each in advice(request, Scope(keep=frozenset(COSTS) - MEDIA))] == [change]


def test_a_model_of_text_alone_is_never_told_to_leave_out_images() -> None:
    text = [each for each in QUESTIONS if not each.shape.encoders]
    assert len(text) > 5
    assert all(MEDIA.isdisjoint(values_of(each)) for request in text for each in advice(request))


def test_an_fp8_cache_is_proposed_only_where_the_gpu_has_it() -> None:
    old = question("Qwen/Qwen3-8B", "T4-16GB")
    on_this = Scope(keep=frozenset({"accelerator"}))
    assert all(values_of(each).get("kv_cache_dtype") is None for each in advice(old, on_this))


def test_a_checkpoint_that_the_catalogue_knows_is_proposed_in_place_of_one_that_is_too_large() -> None:
    found = advice(
        question("Qwen/Qwen3-32B", "RTX-4090-24GB"), Scope(keep=frozenset({"tensor_parallel_size", "accelerator"}))
    )
    assert {values_of(each)["model"] for each in found} == {"Qwen/Qwen3-32B-AWQ"}
    assert smaller_checkpoints(question("Qwen/Qwen3-32B-AWQ", "RTX-4090-24GB")) == ()


def test_more_replicas_share_a_workload() -> None:
    load = Workload(peak_concurrency=64, prompt_tokens=1000, output_tokens=500)
    request = question("Qwen/Qwen3-8B", "L4-24GB", guarantee=Guarantee.WORKLOAD, workload=load, max_model_len=8192)
    replicas = next(each for each in advice(request) if each.field == "replicas")
    fewer = with_change(request, "replicas", int(replicas.value) - 1, EVERYTHING)
    assert plan(changed(request, replicas.changes)).verdict is Verdict.FITS
    assert plan(fewer).verdict is not Verdict.FITS or int(replicas.value) > 4


def test_an_admission_gets_single_changes_and_one_set_within_its_plans() -> None:
    found = advice(AWQ_32B, ADMISSION, checkpoints=False)
    assert sum(each.field == TOGETHER for each in found) <= 1
    assert {each.field for each in found} >= {"max_model_len", "tensor_parallel_size", "accelerator"}
    assert "cpu_offload_gb" not in {name for each in found for name in values_of(each)}


def test_every_setting_says_what_it_costs() -> None:
    assert {cost.loss for cost in COSTS.values()} == set(Loss)
    assert all(cost.points > 0 and cost.words for cost in COSTS.values())


@pytest.mark.parametrize("what", ["context", "users"])
def test_the_most_that_settings_make_room_for_fits_and_one_more_does_not(what: str) -> None:
    request = question("Qwen/Qwen3-8B", "L4-24GB", max_model_len=8192, max_num_seqs=8)
    found = most(request, what)
    field = "max_model_len" if what == "context" else "max_num_seqs"
    assert found.value > found.as_it_is
    full = changed(request, found.changes).with_settings(**{field: found.value})
    full = replace(full, guarantee=Guarantee.FULL_CONTEXT)
    assert plan(full).verdict is Verdict.FITS
    assert plan(full.with_settings(**{field: found.value + 16})).verdict is not Verdict.FITS
    assert {each.field for each in found.changes}.isdisjoint({"tensor_parallel_size", "accelerator", "model", field})
