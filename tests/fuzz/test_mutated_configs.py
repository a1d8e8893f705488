"""Configurations of every family with keys missing, null, negative, huge, of the wrong type or at odds with each other.

Each ends in a finding that names the key, in Unknown, or in a ledger that could be true; none raises, and none is called
Fits with figures that cannot be.
"""

import copy
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvgate import catalogue
from kvgate.budget.interval import Verdict
from kvgate.engine import Assessment
from kvgate.what_if import BadRequest, assess_request

Path = tuple[str, ...]

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, 3, 7, -1, -4096, 10**6, 10**9, 10**30, 0.5, -0.5, 1e308, "", "0", "many", [], [0], ["full_attention"],
    ["no_such_attention"] * 5, {}, {"a": 1}, [[1, 2], {"b": None}],
)  # fmt: skip
GPUS = ("H100-SXM-80GB", "T4-16GB", "B200-SXM-180GB", "MI300X-192GB", "A100-SXM-40GB")


@lru_cache(maxsize=1)
def families() -> tuple[dict[str, Any], ...]:
    """One configuration per model class: the first by name."""
    by_class: dict[str, dict[str, Any]] = {}
    for name in catalogue.model_names():
        config = dict(catalogue.load_model(name).config)
        by_class.setdefault(config["architectures"][0], config)
    return tuple(by_class.values())


def paths_of(config: Any, at: Path = ()) -> Iterator[Path]:
    """Every key, in nested objects as well."""
    for key, value in config.items():
        yield (*at, key)
        if isinstance(value, dict):
            yield from paths_of(value, (*at, key))


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """A family's config.json with one to three keys taken out or given another value."""
    config = copy.deepcopy(draw(st.sampled_from(families())))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(sorted(paths_of(config)) or [("architectures",)]))
        parent = config
        for key in path[:-1]:
            parent = parent[key]
        if draw(st.booleans()):
            parent.pop(path[-1], None)
        else:
            parent[path[-1]] = copy.deepcopy(draw(st.sampled_from(VALUES)))
    return config


@pytest.mark.timeout(600)
@settings(max_examples=10_000, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
@given(
    config=mutated(), gpu=st.sampled_from(GPUS), tensor=st.sampled_from([1, 2, 8]), length=st.sampled_from([None, 4096])
)
def test_a_mutated_config_is_answered(config: dict[str, Any], gpu: str, tensor: int, length: int | None) -> None:
    values = {"model_config": config, "gpu": gpu, "tensor_parallel_size": tensor, "max_model_len": length}
    try:
        assessment = assess_request(values)
    except BadRequest:
        return
    if assessment.verdict is Verdict.UNKNOWN:
        assert assessment.findings
    if assessment.verdict is Verdict.FITS:
        assert_could_be(assessment)


def assert_could_be(assessment: Assessment) -> None:
    """Every figure of a ledger that is called Fits is above zero where it must be, and the whole holds its parts."""
    budget = assessment.budget
    assert budget is not None
    assert budget.tightest is not None
    for stage in budget.stages:
        ledger = stage.ledger
        assert ledger is not None
        assert 0 <= ledger.weights.low <= ledger.weights.expected > 0
        assert all(term.low >= 0 for name, term in ledger.terms if name != "cuda_graph")
        assert 0 < stage.available.low <= stage.available.high <= ledger.total_bytes
        assert stage.bytes_per_block > 0 or budget.kv_cache is None
    assert budget.settings.max_model_len > 0
