"""Planning asks the engine and nothing else: edges are those of the solver, candidates those that `explain` would confirm."""

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from kvgate import catalogue
from kvgate.budget.answers.solver import largest_max_model_len, largest_max_num_seqs
from kvgate.budget.engine.request import Guarantee
from kvgate.budget.ground.interval import Verdict
from kvgate.budget.ground.units import cdiv
from kvgate.cli.sweep.heatmap import boundary
from kvgate.judgement import assess
from kvgate.judgement.what_if import read_request
from kvgate.planning.candidate import rank
from kvgate.planning.size import Question, find_candidates
from kvgate.planning.sweep import Sweep, judge_pairs
from kvgate.planning.sweep_axes import axis_of
from support.builders import catalogue_shape, new_request, new_workload

pytestmark = pytest.mark.slow

settings.register_profile("kvgate", derandomize=True, deadline=None, max_examples=60, database=None)
settings.load_profile("kvgate")

MODELS = (
    "Qwen/Qwen3-8B", "meta-llama/Llama-2-7b-hf", "Qwen/Qwen3-30B-A3B-FP8", "openai/gpt-oss-20b", "facebook/opt-125m",
    "deepseek-ai/DeepSeek-V3", "Qwen/Qwen3-Next-80B-A3B-Instruct",
)  # fmt: skip
GPUS = ("L4-24GB", "T4-16GB", "A100-SXM-40GB", "H100-SXM-80GB", "MI300X-192GB", "A100-80GB-MIG-3g.40gb", "GB10-128GB")
lengths = st.lists(st.integers(1, 60_000), min_size=1, max_size=4)
sequences = st.lists(st.integers(1, 300), min_size=1, max_size=6)
values = st.fixed_dictionaries(
    {
        "model": st.sampled_from(MODELS),
        "gpu": st.sampled_from(GPUS),
        "vllm_version": st.sampled_from(["0.10.2", "0.33.0"]),
    },
    optional={"tensor_parallel_size": st.sampled_from([1, 2, 4]), "kv_cache_dtype": st.sampled_from(["auto", "fp8"])},
)


def swept(given: dict[str, Any], x: list[int], y: list[int]) -> Sweep:
    return judge_pairs(given, axis_of("max_model_len", x), axis_of("max_num_seqs", y), guarantee=Guarantee.FULL_CONTEXT)


@given(values, lengths, sequences)
def test_the_edge_is_the_largest_number_of_sequences_at_every_length(
    given: dict[str, Any], x: list[int], y: list[int]
) -> None:
    result = swept(given, x, y)
    request, _ = read_request(given, guarantee=Guarantee.FULL_CONTEXT)
    assert request is not None
    assert result.edges is not None
    for length, edge in zip(result.x.values, result.edges, strict=True):
        at_length = request.with_settings(max_model_len=length)
        assert edge.fits == largest_max_num_seqs(at_length, at_most=max(y))
        assert edge.fits <= edge.may_fit <= max(y)


@given(values, lengths, sequences)
def test_cells_change_where_the_edge_says_and_the_boundary_lies_between_them(
    given: dict[str, Any], x: list[int], y: list[int]
) -> None:
    result = swept(given, x, y)
    assert result.edges is not None
    level = {(column, row) for column, row, vertical in boundary(result, "low") if not vertical}
    for column, edge in enumerate(result.edges):
        known = [row[column].by_memory for row in result.rows]
        assert [verdict is Verdict.FITS for verdict in known] == [value <= edge.fits for value in result.y.values]
        assert [verdict is not Verdict.DOES_NOT_FIT for verdict in known] == [
            value <= edge.may_fit for value in result.y.values
        ]
        inside = sum(value <= edge.fits for value in result.y.values)
        drawn = 0 < inside < len(result.y.values) and not all(row[column].refusal for row in result.rows)
        assert ((column, inside) in level) == drawn


@given(values, lengths, sequences)
def test_a_longer_context_never_holds_more(given: dict[str, Any], x: list[int], y: list[int]) -> None:
    edges = swept(given, x, y).edges or ()
    assert [edge.fits for edge in edges] == sorted((edge.fits for edge in edges), reverse=True)
    assert [edge.may_fit for edge in edges] == sorted((edge.may_fit for edge in edges), reverse=True)


@given(values, st.integers(1, 64), st.lists(st.integers(1, 60_000), min_size=2, max_size=5, unique=True))
def test_the_edge_of_lengths_is_the_longest_that_fits(given: dict[str, Any], count: int, y: list[int]) -> None:
    asked = {**given, "max_num_seqs": count}
    axes = axis_of("tensor_parallel_size", [1, 2]), axis_of("max_model_len", y)
    result = judge_pairs(
        {k: v for k, v in asked.items() if k != "tensor_parallel_size"}, *axes, guarantee=Guarantee.FULL_CONTEXT
    )
    for tensor, edge in zip((1, 2), result.edges or (), strict=True):
        request, _ = read_request({**asked, "tensor_parallel_size": tensor}, guarantee=Guarantee.FULL_CONTEXT)
        assert request is not None
        assert edge.fits == largest_max_model_len(request.with_settings(max_model_len=max(y)))


@st.composite
def questions(draw: st.DrawFn) -> Question:
    """Few accelerators, all three guarantees."""
    guarantee = draw(st.sampled_from(Guarantee))
    settings: dict[str, Any] = {"max_model_len": draw(st.integers(2_000, 40_000))}
    workload = None
    if guarantee is Guarantee.WORKLOAD:
        workload = new_workload(draw(st.integers(1, 300)), draw(st.integers(1, 1_500)), draw(st.integers(1, 500)))
    elif guarantee is Guarantee.FULL_CONTEXT:
        settings["max_num_seqs"] = draw(st.integers(1, 200))
    names = draw(st.lists(st.sampled_from(GPUS), min_size=1, max_size=3, unique=True))
    return Question(
        request=new_request(
            shape=catalogue_shape(draw(st.sampled_from(MODELS))), guarantee=guarantee, workload=workload, **settings
        ),
        accelerators=tuple(a for a in catalogue.accelerators() if a.name in names),
        prices={name: Fraction(draw(st.integers(10, 900)), 100) for name in names if draw(st.booleans())},
        max_gpus=draw(st.sampled_from([1, 8, 64])),
    )


@given(question=questions(), every=st.booleans())
@settings(max_examples=30)
def test_every_candidate_is_what_the_engine_says_of_it(question: Question, *, every: bool) -> None:
    found = find_candidates(question, every=every)
    assert {candidate.accelerator.name for candidate in found} == {a.name for a in question.accelerators}
    for candidate in found:
        again = assess.judge(candidate.budget.request, extra=question.findings)
        assert candidate.assessment.verdict is again.verdict
        if candidate.verdict in (Verdict.FITS, Verdict.MAY_NOT_FIT):
            assert candidate.num_gpus <= question.max_gpus
            assert candidate.share == cdiv(question.concurrency, candidate.replicas)
            assert candidate.replicas * candidate.share >= question.concurrency
        if candidate.verdict is Verdict.FITS:
            assert candidate.share <= candidate.surely


@given(questions())
@settings(max_examples=30)
def test_one_replica_less_would_not_do(question: Question) -> None:
    for candidate in find_candidates(question):
        if candidate.verdict is not Verdict.FITS or candidate.replicas == 1:
            continue
        share = cdiv(question.concurrency, candidate.replicas - 1)
        request = candidate.budget.request
        if request.guarantee is Guarantee.WORKLOAD and request.workload:
            request = replace(request, workload=replace(request.workload, peak_concurrency=share))
        assert assess.judge(request.with_settings(max_num_seqs=share)).verdict is not Verdict.FITS


@given(question=questions(), every=st.booleans())
@settings(max_examples=30)
def test_the_order_is_certain_and_cheap_first(question: Question, *, every: bool) -> None:
    found = find_candidates(question, every=every)
    assert found == find_candidates(replace(question, accelerators=question.accelerators[::-1]), every=every)
    assert list(found) == sorted(found, key=rank)
    priced = [c.cost for c in found if c.verdict is Verdict.FITS and c.cost is not None]
    assert priced == sorted(priced)


@given(questions())
@settings(max_examples=20)
def test_what_is_shown_is_the_best_of_all_candidates(question: Question) -> None:
    shown = {c.accelerator.name: c for c in reversed(find_candidates(question)) if c.verdict is Verdict.FITS}
    cheapest: dict[str, int] = {}
    for candidate in find_candidates(question, every=True):
        if candidate.verdict is Verdict.FITS:
            name = candidate.accelerator.name
            cheapest[name] = min(candidate.num_gpus, cheapest.get(name, candidate.num_gpus))
    assert {name: candidate.num_gpus for name, candidate in shown.items()} == cheapest


def test_a_question_without_answer_says_what_comes_closest() -> None:
    question = Question(
        request=new_request(shape=catalogue_shape("deepseek-ai/DeepSeek-V3"), max_model_len=8192),
        accelerators=tuple(a for a in catalogue.accelerators() if a.name == "T4-16GB"),
        max_gpus=8,
    )
    (only,) = find_candidates(question)
    assert only.verdict is Verdict.DOES_NOT_FIT
    assert only.num_gpus == 8
    assert pytest.approx(float(only.full_requests)) == 0
