"""The time that a load is expected to take, and when it counts as slow."""

from datetime import datetime, timedelta

import pytest

from kvgate.api.conditions import Reason
from kvgate.api.v1alpha1 import InferenceDeployment
from kvgate.budget import Budget
from kvgate.controller.decision import assess_owner
from kvgate.rendering.expectations import (
    HUB,
    IMAGE,
    VOLUME,
    expected_seconds,
    next_step_seconds,
    storage_of,
    with_expectation,
)
from kvgate.rendering.hindrances import Hindrance
from kvgate.rendering.workload import load_budget_seconds, loaded_bytes
from support.manifests import NOW, an_owner

VOLUME_OF = {"persistentVolumeClaim": {"claimName": "models"}}
SOURCES = [(None, HUB), (VOLUME_OF, VOLUME), ({"image": {"reference": "example.com/models/qwen:1"}}, IMAGE)]
LOADS = Hindrance(pod="qwen-1-a", template_hash="hash", reason=Reason.LOADING, message="it loads", since=NOW)


def engine(source: object = None) -> tuple[InferenceDeployment, Budget | None]:
    model = {"name": "meta-llama/Llama-3.3-70B-Instruct"} | ({"source": source} if source else {})
    owner = an_owner(model=model, vllm={"maxNumSeqs": 4, "tensorParallelSize": 4, "maxModelLen": 8192})
    return owner, assess_owner(owner, "").assessment.effective


def after(minutes: float) -> str:
    return (datetime.fromisoformat(NOW) + timedelta(minutes=minutes)).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(("source", "storage"), SOURCES)
def test_a_load_is_expected_to_take_as_long_as_its_weights_need_from_where_they_are(
    source: object, storage: object
) -> None:
    owner, budget = engine(source)
    found = expected_seconds(owner.spec, budget)
    assert storage_of(owner.spec) is storage
    assert found is not None
    weights = loaded_bytes(budget) or 0
    assert weights == pytest.approx(141e9, rel=0.02), "70.6 billion parameters of two bytes"
    assert found[0] < found[1] <= load_budget_seconds(budget), "before the kubelet ends the container"


def test_a_load_becomes_slow_after_the_high_end_and_says_so_once_per_doubling() -> None:
    owner, budget = engine(VOLUME_OF)
    told = {minutes: with_expectation(LOADS, owner, None, budget, after(minutes)) for minutes in range(60)}
    assert [minutes for minutes in told if told[minutes].reason is Reason.LOADING_SLOWLY] == list(range(12, 60))
    assert len({each.message for each in told.values()}) == 4
    assert told[50].message.startswith(
        "the engine loads for more than 48 minutes, and 6 to 12 are usual: 131.56 GiB of weights from a PersistentVolumeClaim at 262 to "
        "1048 MB/s, and 3 minutes to compile; that is less than 49 MB/s"
    )
    assert told[50].needs_somebody is False


@pytest.mark.parametrize(
    ("since", "expected", "step"),
    [
        (NOW, (60, 600), (0, 600)),
        (after(-9), (60, 600), (0, 60)),
        (after(-10), (60, 600), (600, 600)),
        (after(-21), (60, 600), (1200, 1140)),
        (after(5), (60, 600), (0, 900)),
        ("", (60, 600), None),
        ("yesterday", (60, 600), None),
        ("2026-11-21T12:00:00", (60, 600), None),
        (NOW, None, None),
    ],
)
def test_the_next_look_is_when_the_load_passes_the_next_step(
    since: str, expected: tuple[int, int] | None, step: object
) -> None:
    assert next_step_seconds(since, expected, NOW) == step


def test_without_known_weights_nothing_is_expected() -> None:
    owner, _ = engine()
    assert with_expectation(LOADS, owner, None, None, after(500)) == LOADS
