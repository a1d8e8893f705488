"""Records that are compared by some of their fields only: both operators and the hash agree."""

import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module

import pytest
from msgspec import Struct

import kvgate
from kvgate.findings.finding import Rule, Scope, Severity
from kvgate.rendering.observation import Observation
from kvgate.vllm.metric_names import EngineReading

PAIRS = [
    (Observation(remark="one"), Observation(remark="another")),
    (EngineReading(num_gpu_blocks=8, block_size=16, usage_ratio=0.1), EngineReading(num_gpu_blocks=8, block_size=16)),
    (
        Rule(id="A", severities=(Severity.ERROR,), scope=Scope.MEMORY, title="one"),
        Rule(id="A", severities=(Severity.INFO,), scope=Scope.MEMORY, title="another"),
    ),
]


@pytest.mark.parametrize(("one", "other"), PAIRS, ids=[type(pair[0]).__name__ for pair in PAIRS])
def test_two_that_differ_only_in_a_field_that_does_not_count_are_equal(one: object, other: object) -> None:
    assert one == other
    assert not one != other  # noqa: SIM202 - a Struct has an own operator for it
    assert hash(one) == hash(other)


def records() -> Iterator[type[Struct]]:
    """Every Struct of the package."""
    for module in pkgutil.walk_packages(kvgate.__path__, "kvgate."):
        if not module.name.endswith(("__main__", "judgement.warm")):
            yield from (
                each for _, each in inspect.getmembers(import_module(module.name), inspect.isclass)
                if issubclass(each, Struct) and each.__module__ == module.name
            )  # fmt: skip


def test_a_record_with_its_own_equality_has_its_own_inequality() -> None:
    own = [record for record in records() if "__eq__" in vars(record) and "_identity" in vars(record)]
    assert len(own) >= 4
    assert [record.__name__ for record in own if "__ne__" not in vars(record)] == []
