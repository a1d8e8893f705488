"""Where the index of a checkpoint is known, it wins for the total."""

from dataclasses import replace
from fractions import Fraction

import pytest

from kvgate import catalogue
from kvgate.budget.plan import Budget, plan
from kvgate.budget.weights import checkpoint_ratio
from kvgate.judge.facts import look_up_model
from kvgate.judge.what_if import assess_request
from kvgate.rules import judge_budget
from support.builders import catalogue_shape, new_request

QWEN = "Qwen/Qwen3-8B"
INDEX_BYTES = 16_381_470_720
"""`total_size` of its published model.safetensors.index.json."""


def weights_of(budget: Budget) -> int:
    assert budget.tightest is not None
    assert budget.tightest.ledger is not None
    return budget.tightest.ledger.weights.expected


def test_a_published_index_agrees_with_the_formulas() -> None:
    shape, _ = look_up_model(QWEN)
    assert shape is not None
    assert shape.checkpoint_bytes == INDEX_BYTES
    assert checkpoint_ratio(shape) == 1


@pytest.mark.parametrize("name", [n for n in catalogue.model_names() if catalogue.load_model(n).safetensors_bytes])
def test_every_index_of_the_catalogue_agrees(name: str) -> None:
    shape, _ = look_up_model(name)
    assert shape is not None
    assert checkpoint_ratio(shape) == 1


@pytest.mark.parametrize(
    ("index_bytes", "scaled"),
    [
        (INDEX_BYTES * 11 // 10, True),
        (INDEX_BYTES // 2, True),
        (0, False),
        (INDEX_BYTES * 1002 // 1000, False),
    ],
)
def test_the_weights_of_a_rank_are_scaled_to_another_total(index_bytes: int, *, scaled: bool) -> None:
    shape = replace(catalogue_shape(QWEN), checkpoint_bytes=index_bytes)
    budget = plan(new_request(shape=shape, tensor=2))
    plain = weights_of(plan(new_request(shape=catalogue_shape(QWEN), tensor=2)))
    ratio = Fraction(weights_of(budget), plain)
    assert float(ratio) == pytest.approx(index_bytes / INDEX_BYTES if scaled else 1, rel=1e-6)
    assert ("CheckpointDecidesWeights" in {f.rule for f in judge_budget(budget)}) is scaled


def test_a_what_if_can_bring_the_index() -> None:
    assessment = assess_request({"model": QWEN, "gpu": "H100-SXM-80GB", "checkpoint_bytes": 2 * INDEX_BYTES})
    assert "CheckpointDecidesWeights" in {finding.rule for finding in assessment.findings}
