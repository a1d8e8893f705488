"""Candidates: how engines are cut, how many replicas, why not, and which change would be smallest."""

import re
from fractions import Fraction
from typing import Any

import pytest
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget.answers.answer import plan
from kvgate.budget.engine.request import Guarantee
from kvgate.budget.ground.hardware import Parallelism
from kvgate.budget.ground.interval import Verdict
from kvgate.planning.candidate import Candidate, why_not
from kvgate.planning.size import Question, candidates_on, engine_sizes, find_candidates, hints
from support.builders import (
    catalogue_accelerator,
    catalogue_shape,
    new_accelerator,
    new_model_shape,
    new_request,
    new_workload,
)

RAG = new_workload(64, 6000, 500)


def question(model: str = "Qwen/Qwen3-32B-FP8", *gpus: str, **overrides: Any) -> Question:
    """64 requests of 6,500 tokens, unless the overrides say otherwise."""
    fields = {key: overrides.pop(key) for key in ("kv_cache_dtypes", "prices", "max_gpus") if key in overrides}
    values: dict[str, Any] = {"guarantee": Guarantee.WORKLOAD, "workload": RAG, "max_model_len": 6500, **overrides}
    accelerators = tuple(map(catalogue_accelerator, gpus)) or catalogue.accelerators()
    return Question(request=new_request(shape=catalogue_shape(model), **values), accelerators=accelerators, **fields)


def fitting(found: tuple[Candidate, ...]) -> list[Candidate]:
    return [candidate for candidate in found if candidate.verdict is Verdict.FITS]


# ── engines ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_tensor_parallelism_comes_first_and_stages_where_the_heads_do_not_divide() -> None:
    request = new_request(shape=new_model_shape(num_heads=12, num_kv_heads=4))
    cuts = [engine.settings.parallelism for engine in engine_sizes(request)]
    assert [(cut.tensor, cut.pipeline) for cut in cuts] == [(1, 1), (2, 1), (4, 1), (4, 2)]


def test_a_model_that_cannot_be_cut_at_all_is_refused_by_the_engine() -> None:
    shape = new_model_shape(num_heads=7, num_kv_heads=7, supports_pipeline=False)
    (*_, widest) = engine_sizes(new_request(shape=shape))
    assert widest.settings.parallelism == Parallelism(tensor=8)
    asked = Question(request=new_request(shape=shape), accelerators=(catalogue_accelerator("T4-16GB"),))
    refused = [candidate for candidate in find_candidates(asked, every=True) if candidate.parallelism.tensor == 8]
    assert "7 attention heads are not divisible by 8" in why_not(refused[0])


@pytest.mark.parametrize("name", ["A100-80GB-MIG-3g.40gb", "GB10-128GB"])
def test_slices_and_boards_with_unified_memory_stand_alone(name: str) -> None:
    request = new_request(accelerator=catalogue_accelerator(name))
    assert [engine.settings.parallelism.num_gpus for engine in engine_sizes(request)] == [1]


def test_several_nodes_are_tried_where_no_node_is_enough() -> None:
    found = find_candidates(question("deepseek-ai/DeepSeek-V3", "H100-SXM-80GB", "L4-24GB"))
    (best,) = fitting(found)
    assert (best.accelerator.name, best.parallelism.tensor, best.parallelism.pipeline) == ("H100-SXM-80GB", 8, 2)
    assert (
        max(
            c.parallelism.num_gpus
            for c in find_candidates(question("deepseek-ai/DeepSeek-V3", "H100-SXM-80GB", "H200-SXM-141GB"))
        )
        == 8
    )


# ── replicas and order ────────────────────────────────────────────────────────────────────────────────────────────


def test_replicas_share_the_requests_where_one_engine_cannot_hold_them() -> None:
    (candidate,) = fitting(find_candidates(question("Qwen/Qwen3-8B", "L4-24GB", kv_cache_dtypes=("fp8",))))
    assert candidate.replicas > 1
    assert candidate.share == -(-64 // candidate.replicas)
    request = candidate.budget.request
    assert request.settings.max_num_seqs == candidate.share
    assert request.workload is not None
    assert request.workload.peak_concurrency == candidate.share


def test_max_num_seqs_of_the_user_limits_a_replica_and_is_kept() -> None:
    (candidate,) = fitting(find_candidates(question("Qwen/Qwen3-8B", "H200-SXM-141GB", max_num_seqs=16)))
    assert (candidate.replicas, candidate.share) == (4, 16)
    assert candidate.budget.resolved.max_num_seqs == 16


def test_full_context_deals_out_max_num_seqs() -> None:
    asked = question(
        "Qwen/Qwen3-8B", "L4-24GB", guarantee=Guarantee.FULL_CONTEXT, workload=None, max_model_len=8192, max_num_seqs=20
    )
    (best,) = fitting(find_candidates(asked))
    assert best.replicas * best.share >= 20
    assert best.budget.resolved.max_num_seqs == best.share


def test_cheapest_first_then_without_a_price_then_what_may_fit() -> None:
    prices = {"H200-SXM-141GB": Fraction("3.99"), "H100-NVL-94GB": Fraction("3.19")}
    found = find_candidates(question(prices=prices))
    assert [c.accelerator.name for c in found[:2]] == ["H100-NVL-94GB", "H200-SXM-141GB"]
    assert [c.cost for c in found[:3]] == [Fraction("3.19"), Fraction("3.99"), None]
    order = [c.verdict for c in found]
    assert order == sorted(order, key=[Verdict.FITS, Verdict.MAY_NOT_FIT, Verdict.DOES_NOT_FIT].index)
    free = [c.num_gpus for c in fitting(found)[2:]]
    assert free == sorted(free)


def test_the_model_dtype_is_preferred_where_fp8_saves_no_gpu() -> None:
    (large,) = fitting(find_candidates(question("Qwen/Qwen3-32B-FP8", "B200-SXM-180GB")))
    (small,) = fitting(find_candidates(question("Qwen/Qwen3-32B-FP8", "H100-NVL-94GB")))
    assert large.kv_cache_dtype == "auto"
    assert (small.kv_cache_dtype, small.num_gpus) == ("fp8", 1)


def test_formats_that_come_to_the_same_are_tried_once() -> None:
    asked = question("Qwen/Qwen3-8B", "H100-SXM-80GB", kv_cache_dtypes=("auto", "bfloat16", "fp8"))
    tried = {candidate.kv_cache_dtype for candidate in find_candidates(asked, every=True)}
    assert tried == {"auto", "fp8"}


def test_more_gpus_than_allowed_are_no_answer() -> None:
    found = find_candidates(question("Qwen/Qwen3-8B", "L4-24GB", max_gpus=2))
    assert not fitting(found)
    assert "more than the 2 allowed" in why_not(found[0])


# ── reasons and hints ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("model", "gpu", "overrides", "words"),
    [
        ("meta-llama/Llama-3.1-70B-Instruct", "A100-80GB-MIG-3g.40gb", {}, ["weights too large", "GiB for vLLM itself"]),
        ("Qwen/Qwen3-8B", "T4-16GB", {"max_gpus": 1}, ["weights too large"]),
        ("Qwen/Qwen3-8B", "L4-24GB", {"max_gpus": 1, "max_model_len": 40960, "kv_cache_dtypes": ("auto",)},
         ["KV cache at least", "one request of 40960 tokens needs"]),
        ("Qwen/Qwen3-32B-FP8", "V100-SXM-32GB", {}, ["fp8 weights need compute capability 7.5"]),
        ("Qwen/Qwen3-8B", "H100-SXM-80GB", {"max_model_len": 50_000}, ["above the 40960 tokens"]),
        ("openai/gpt-oss-20b", "A100-SXM-40GB", {"kv_cache_dtypes": ("fp8",), "max_gpus": 1}, ["fp8 needs compute capability 8.9"]),
    ],
)  # fmt: skip
def test_a_failure_says_why_with_the_numbers(model: str, gpu: str, overrides: dict[str, Any], words: list[str]) -> None:
    (candidate,) = find_candidates(question(model, gpu, **overrides))
    assert candidate.verdict is Verdict.DOES_NOT_FIT
    assert all(word in why_not(candidate) for word in words), why_not(candidate)


def test_what_may_fit_says_how_much_may_be_missing() -> None:
    asked = question("Qwen/Qwen3-32B-FP8", "RTX-A6000-48GB", workload=new_workload(66, 6000, 500))
    may = [c for c in find_candidates(asked) if c.verdict is Verdict.MAY_NOT_FIT]
    assert "KV cache up to" in why_not(may[0])
    assert "66 requests need" in why_not(may[0])


def test_states_that_the_default_of_max_num_seqs_asks_for_are_named() -> None:
    asked = question(
        "Qwen/Qwen3.5-27B",
        "RTX-5090-32GB",
        guarantee=Guarantee.STARTUP,
        workload=None,
        kv_cache_dtypes=("auto",),
    )
    tight = [
        c
        for c in find_candidates(asked, every=True)
        if "a state for each of 256 sequences (max_num_seqs) needs" in why_not(c)
    ]
    assert all(c.verdict is not Verdict.FITS and c.budget.demand and c.budget.demand.is_for_sequences for c in tight)
    assert tight


def test_what_fits_has_no_reason() -> None:
    assert why_not(fitting(find_candidates(question("Qwen/Qwen3-8B", "H100-SXM-80GB")))[0]) == ""


def test_an_unknown_kind_is_named_and_not_guessed() -> None:
    asked = question("Qwen/Qwen3-8B", "H100-SXM-80GB", unmodelled_settings=("LoRA",))
    (candidate,) = find_candidates(asked)
    assert candidate.verdict is Verdict.UNKNOWN
    assert "LoRA is not modelled" in why_not(candidate)
    assert hints(asked, (candidate,)) == ()


def test_the_smallest_changes_are_fewer_requests_and_what_may_be_enough() -> None:
    asked = question("Qwen/Qwen3-32B-FP8", "RTX-A6000-48GB", workload=new_workload(66, 6000, 500))
    found = find_candidates(asked)
    assert any(hint.startswith("2 × RTX-A6000-48GB may be enough") for hint in hints(asked, found))
    shared = question("Qwen/Qwen3-32B-FP8", "H200-MIG-3g.71gb")
    (best,) = fitting(find_candidates(shared))
    fewer = best.surely * (best.replicas - 1)
    assert f"{fewer} requests at the same time instead of 64 would need" in hints(shared, find_candidates(shared))[0]
    smaller = replace(shared, request=replace(shared.request, workload=new_workload(fewer, 6000, 500)))
    assert fitting(find_candidates(smaller))[0].replicas == best.replicas - 1


def test_an_fp8_cache_is_a_hint_where_it_was_not_tried() -> None:
    asked = question("Qwen/Qwen3-32B-FP8", "H100-NVL-94GB", kv_cache_dtypes=("auto",))
    assert "an fp8 KV cache would need 1 × H100-NVL-94GB instead of 2" in hints(asked, find_candidates(asked))


def test_engines_over_several_nodes_are_a_hint_where_many_replicas_cost_more() -> None:
    asked = question("inclusionAI/Ling-2.5-1T", "MI355X-288GB", workload=new_workload(440, 20_000, 1_000), max_model_len=21_000,
                     kv_cache_dtypes=("auto",))  # fmt: skip
    found = find_candidates(asked)
    assert (found[0].num_gpus, found[0].parallelism.num_gpus) == (64, 8)
    assert "engines over several nodes would need 16 × MI355X-288GB instead of 64" in hints(asked, found)
    assert find_candidates(replace(asked, max_gpus=16))[0].verdict is Verdict.FITS


def test_where_nothing_fits_the_hint_is_the_longest_request_or_the_weights() -> None:
    long = question("Qwen/Qwen3-8B", "L4-24GB", guarantee=Guarantee.STARTUP, workload=None, max_model_len=40960, max_gpus=1,
                    kv_cache_dtypes=("auto",))  # fmt: skip
    (candidate,) = find_candidates(long)
    assert f"the longest request that starts for sure has {candidate.longest} tokens, on 1 × L4-24GB" in hints(
        long, (candidate,)
    )
    heavy = question("meta-llama/Llama-3.1-70B-Instruct", "L4-24GB", max_gpus=1)
    assert "quantised checkpoint" in hints(heavy, find_candidates(heavy))[0]


def test_prices_do_not_change_a_verdict() -> None:
    names = ("T4-16GB", "RTX-A6000-48GB", "H100-SXM-80GB")
    plain = find_candidates(question("Qwen/Qwen3-32B-FP8", *names), every=True)
    priced = find_candidates(question("Qwen/Qwen3-32B-FP8", *names, prices={"T4-16GB": Fraction(1, 100)}), every=True)

    def verdicts(found: tuple[Candidate, ...]) -> set[tuple[Any, ...]]:
        return {(c.accelerator.name, c.parallelism, c.kv_cache_dtype, c.replicas, c.verdict) for c in found}

    assert verdicts(plain) == verdicts(priced)


def test_an_unnamed_accelerator_can_be_asked_about() -> None:
    asked = Question(
        request=new_request(max_model_len=8192), accelerators=(new_accelerator(name="ours", memory_gib=40),)
    )
    assert next(candidates_on(asked, asked.accelerators[0])).verdict is Verdict.FITS


def test_what_may_be_enough_for_nobody_promises_no_number() -> None:
    asked = question("Qwen/Qwen3-14B-FP8", "A10G-24GB", "H100-SXM-80GB", guarantee=Guarantee.FULL_CONTEXT, workload=None,
                     max_model_len=40960, max_num_seqs=1, prices={"A10G-24GB": Fraction(1), "H100-SXM-80GB": Fraction(3)})  # fmt: skip
    assert not [hint for hint in hints(asked, find_candidates(asked)) if " 0 requests" in hint]
    assert "1 × A10G-24GB may be enough" in hints(asked, find_candidates(asked))


def test_where_states_of_sequences_do_not_fit_fewer_of_them_start() -> None:
    asked = question("tiiuae/Falcon-H1-7B-Instruct", "L4-24GB", guarantee=Guarantee.STARTUP, workload=None, max_model_len=4096,
                     max_gpus=1, kv_cache_dtypes=("auto",))  # fmt: skip
    found = find_candidates(asked)
    assert found[0].longest == 0
    (hint,) = hints(asked, found)
    assert hint.startswith("on 1 × L4-24GB it would fit with any one of: --max-num-seqs ")
    sequences = int(hint.partition("--max-num-seqs ")[2].partition(",")[0])
    verdicts = [
        {c.verdict for c in find_candidates(replace(asked, request=asked.request.with_settings(max_num_seqs=count)))}
        for count in (sequences, sequences + 1)
    ]
    assert Verdict.FITS in verdicts[0]
    assert Verdict.FITS not in verdicts[1]


@pytest.mark.parametrize(
    ("model", "gpu", "overrides"),
    [
        ("Qwen/Qwen3-8B", "L4-24GB", {"max_model_len": 40960}),
        ("microsoft/Phi-3-mini-128k-instruct", "A100-80GB-MIG-1g.10gb", {"max_model_len": 101, "max_num_seqs": 1}),
        ("Qwen/Qwen2.5-VL-7B-Instruct", "RTX-A6000-48GB", {"max_model_len": 128_000}),
        ("tiiuae/Falcon-H1-7B-Instruct", "RTX-5090-32GB", {"max_model_len": 4096}),
    ],
)
def test_the_longest_request_is_the_last_that_the_engine_lets_start(
    model: str, gpu: str, overrides: dict[str, Any]
) -> None:
    asked = question(model, gpu, guarantee=Guarantee.STARTUP, workload=None, max_gpus=1, **overrides)
    for candidate in find_candidates(asked):
        request, longest = candidate.budget.request, candidate.longest
        assert not longest or plan(request.with_settings(max_model_len=longest)).verdict is Verdict.FITS
        assert longest == request.shape.max_model_len or (
            plan(request.with_settings(max_model_len=longest + 1)).verdict is not Verdict.FITS
        )


# ── several engines on one GPU ────────────────────────────────────────────────────────────────────────────────────


def test_the_engines_that_one_gpu_holds_are_told_with_their_share() -> None:
    request = {"guarantee": Guarantee.FULL_CONTEXT, "workload": None, "max_model_len": 8192, "max_num_seqs": 4}
    (best, *_) = find_candidates(question("Qwen/Qwen3-4B", "H100-SXM-80GB", **request))
    engines, part = best.on_one_gpu
    assert engines == 5
    assert part is not None
    told = hints(question("Qwen/Qwen3-4B", "H100-SXM-80GB", **request), (best,))
    assert f"one H100-SXM-80GB holds 5 of these engines, each with --gpu-memory-utilization {float(part):g}" in told[0]


def test_an_engine_of_several_gpus_is_not_shared() -> None:
    (best, *_) = find_candidates(question("Qwen/Qwen3-32B", "L40S-48GB"))
    assert best.parallelism.num_gpus > 1
    assert best.on_one_gpu == (0, None)


def test_where_nothing_fits_settings_that_would_are_named_and_kept_ones_are_not() -> None:
    asked = question(
        "Qwen/Qwen3-32B-AWQ",
        "RTX-4090-24GB",
        guarantee=Guarantee.STARTUP,
        workload=None,
        max_gpus=1,
        max_model_len=40_960,
    )
    *_, hint = hints(asked, find_candidates(asked))
    assert hint.startswith("on 1 × RTX-4090-24GB it would fit with any one of: --max-model-len ")
    assert "together: --enforce-eager" in hint
    *_, kept = hints(replace(asked, keep=frozenset({"enforce_eager"})), find_candidates(asked))
    assert "together" in kept
    assert "--enforce-eager" not in kept


def test_the_most_context_that_settings_make_room_for_is_a_hint() -> None:
    asked = question(
        "Qwen/Qwen3-8B", "L4-24GB", guarantee=Guarantee.FULL_CONTEXT, workload=None, max_model_len=8192, max_num_seqs=4
    )
    (hint,) = (
        each for each in hints(replace(asked, maximize="context"), find_candidates(asked)) if each.startswith("most")
    )
    assert re.fullmatch(r"most context: \d+ tokens with --.*; \d+ without a change", hint)
