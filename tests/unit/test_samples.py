"""The samples say in comments what happens to them; this is what happens."""

import pytest

from kvgate.budget.answers.answer import Budget, plan
from kvgate.budget.ground.interval import Verdict
from kvgate.budget.ground.units import GIB
from kvgate.explained.textbook import textbook_of
from kvgate.judgement.assessment import Decision
from support.samples import SAMPLES, judged

EXPECTED = {
    "adjusted.yaml": (Verdict.DOES_NOT_FIT, Decision.ADMIT_ADJUSTED),
    "fits.yaml": (Verdict.FITS, Decision.ADMIT),
    "hybrid.yaml": (Verdict.FITS, Decision.ADMIT),
    "long-context.yaml": (Verdict.FITS, Decision.ADMIT),
    "tight.yaml": (Verdict.MAY_NOT_FIT, Decision.ADMIT_WITH_WARNING),
    "too-long.yaml": (Verdict.DOES_NOT_FIT, Decision.REFUSE),
    "unknown.yaml": (Verdict.UNKNOWN, Decision.ADMIT_WITH_WARNING),
}


def budget_of(name: str) -> Budget:
    budget = judged(name)[1].budget
    assert budget is not None
    return budget


def verdict_with(budget: Budget, **settings: object) -> Verdict:
    return plan(budget.request.with_settings(**settings)).verdict


@pytest.mark.parametrize("name", SAMPLES)
def test_a_sample_is_decided_as_it_says(name: str) -> None:
    _, assessment = judged(name)
    assert (assessment.verdict, assessment.decision) == EXPECTED[name]


def test_eight_long_requests_need_32_gib_and_more_is_there() -> None:
    budget = budget_of("fits.yaml")
    assert budget.demand_bytes == 32 * GIB
    assert budget.tightest is not None
    assert budget.tightest.available.low > 32 * GIB


def test_whole_contexts_of_a_70b_need_5_gib_each_on_eight_gpus_and_ten_of_them_fit() -> None:
    budget = budget_of("long-context.yaml")
    assert budget.kv_cache is not None
    assert budget.kv_cache.request_bytes == 131_072 * 40 * 1024 == 5 * GIB
    assert budget.demand_bytes == 40 * GIB
    assert budget.tightest is not None
    assert budget.tightest.ledger is not None
    assert round(budget.tightest.ledger.weights.expected / GIB, 1) == 16.5
    assert budget.tightest.available.expected / GIB == pytest.approx(55, abs=1)
    assert verdict_with(budget, max_num_seqs=10) is Verdict.FITS
    assert verdict_with(budget, max_num_seqs=12) is Verdict.DOES_NOT_FIT


def test_eight_whole_contexts_of_a_hybrid_take_720_blocks_where_the_textbook_says_that_not_even_three_fit() -> None:
    budget = budget_of("hybrid.yaml")
    assert budget.kv_cache is not None
    assert (budget.kv_cache.request_blocks, budget.kv_cache.bytes_per_block) == (90, 51_380_224)
    assert round(budget.kv_cache.request_bytes / GIB, 2) == 4.31
    assert budget.demand is not None
    assert budget.demand.blocks == 720
    assert budget.usable_blocks is not None
    assert budget.usable_blocks.low >= 720
    assert budget.usable_blocks.expected == pytest.approx(820, abs=30)
    textbook = textbook_of(budget)
    assert textbook is not None
    assert textbook.request_bytes == 16 * GIB
    assert budget.tightest is not None
    assert budget.tightest.available.high < 3 * textbook.request_bytes


def test_sixteen_whole_contexts_need_160_gib_on_four_gpus() -> None:
    budget = budget_of("too-long.yaml")
    assert budget.demand_bytes == 160 * GIB


def test_the_adjusted_sample_keeps_its_floors() -> None:
    _, assessment = judged("adjusted.yaml")
    assert assessment.effective is not None
    assert 2 <= assessment.effective.resolved.max_num_seqs < 64
    assert assessment.effective.resolved.max_model_len == 32_768
    assert assessment.effective.verdict is Verdict.FITS
