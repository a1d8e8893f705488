"""Readers of setting values: a value of the wrong form is refused with what it must be."""

import pytest

from kvgate.budget.request import Speculation
from kvgate.vllm.values import UnusableValue, graph_settings, layers, optimization_level, speculation


@pytest.mark.parametrize("value", ["mtp", "[1]", 3, {"num_speculative_tokens": -1}, {"num_speculative_tokens": True}])
def test_what_is_no_speculation_is_told_so(value: object) -> None:
    with pytest.raises(UnusableValue):
        speculation(value)


def test_a_draft_without_a_method_is_a_model() -> None:
    assert speculation({"model": "x", "num_speculative_tokens": 3}) == Speculation(
        method="draft_model", num_speculative_tokens=3
    )


@pytest.mark.parametrize("value", ["first", [1.5], {"0": 1}, [["0"]]])
def test_what_is_no_list_of_layers_is_told_so(value: object) -> None:
    with pytest.raises(UnusableValue, match="list of layers"):
        layers(value)


@pytest.mark.parametrize(
    ("config", "compiles"),
    [
        ({"mode": 0}, False),
        ({"level": 0}, False),
        ({"mode": "none"}, False),
        ({"mode": 3}, True),
        ({"mode": "VLLM_COMPILE"}, True),
        ({"mode": 1}, None),
        ({"mode": None}, None),
        ({}, None),
    ],
)
def test_a_mode_of_compilation_is_certain_or_left_open(config: dict[str, object], compiles: bool | None) -> None:  # noqa: FBT001
    assert graph_settings(config).compiles is compiles


@pytest.mark.parametrize("value", ["4", -1, "fast", True, 1.0])
def test_what_is_no_level_is_told_so(value: object) -> None:
    with pytest.raises(UnusableValue, match="0, 1, 2 or 3"):
        optimization_level(value)
