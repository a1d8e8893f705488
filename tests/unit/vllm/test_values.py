"""Readers of setting values: a value of the wrong form is refused with what it must be."""

import pytest

from kvgate.vllm.values import UnusableValue, layers, optimization_level


@pytest.mark.parametrize("value", ["first", [1.5], {"0": 1}, [["0"]]])
def test_what_is_no_list_of_layers_is_told_so(value: object) -> None:
    with pytest.raises(UnusableValue, match="list of layers"):
        layers(value)


@pytest.mark.parametrize("value", ["4", -1, "fast", True, 1.0])
def test_what_is_no_level_is_told_so(value: object) -> None:
    with pytest.raises(UnusableValue, match="0, 1, 2 or 3"):
        optimization_level(value)
