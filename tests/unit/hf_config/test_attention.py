"""Which layers look back only a window: `layer_types`, patterns, and the switches that turn windows off."""

from typing import Any

import pytest

from kvgate.budget.model.shape import FullAttention
from kvgate.hf_config import ModelConfigError, read_config
from support.builders import new_llama_config

SLIDING, FULL = "sliding_attention", "full_attention"


def windows(**overrides: Any) -> list[int]:
    """The window of each layer."""
    mixers = [layer.mixers[0] for layer in read_config(new_llama_config(**overrides)).layers]
    return [mixer.sliding_window for mixer in mixers if isinstance(mixer, FullAttention)]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({}, [4096] * 4),
        ({"use_sliding_window": True}, [4096] * 4),
        ({"use_sliding_window": False}, [0] * 4),
        ({"sliding_window": None}, [0] * 4),
        ({"sliding_window": 0}, [0] * 4),
        ({"layer_types": [SLIDING] * 4}, [4096] * 4),
        ({"layer_types": [FULL] * 4}, [0] * 4),
        ({"layer_types": [SLIDING, SLIDING, SLIDING, FULL]}, [4096, 4096, 4096, 0]),
        ({"layer_types": [FULL, SLIDING] * 4}, [0, 4096, 0, 4096]),
        ({"sliding_window_pattern": 2}, [4096, 0, 4096, 0]),
        ({"_sliding_window_pattern": 4}, [4096, 4096, 4096, 0]),
        ({"sliding_window_pattern": "LG"}, [4096, 0, 4096, 0]),
        ({"max_window_layers": 4}, [4096] * 4),
        ({"max_window_layers": 3}, [0, 0, 0, 4096]),
        ({"layer_types": [FULL] * 4, "sliding_window_pattern": 2}, [0] * 4),
    ],
    ids=repr,
)
def test_a_layer_looks_back(overrides: dict[str, Any], expected: list[int]) -> None:
    assert windows(**{"sliding_window": 4096, **overrides}) == expected


def test_layer_types_without_a_width_mean_full_attention() -> None:
    assert windows(layer_types=[SLIDING] * 4) == [0] * 4


def test_layer_types_that_end_too_early_are_a_problem() -> None:
    with pytest.raises(ModelConfigError, match="layer_types has 3 entries for 4 layers"):
        windows(sliding_window=4096, layer_types=[SLIDING, FULL, FULL])


def test_layers_with_the_same_window_are_one_object() -> None:
    layers = read_config(new_llama_config(sliding_window=4096, sliding_window_pattern=2)).layers
    assert layers[0] is layers[2]
    assert layers[1] is layers[3]
    assert layers[0] is not layers[1]


@pytest.mark.parametrize("window", [True, -1, "4096", 10**13], ids=repr)
def test_a_window_that_is_no_count_is_named_once(window: object) -> None:
    with pytest.raises(ModelConfigError) as error:
        windows(sliding_window=window)
    assert [problem.split()[0] for problem in error.value.problems] == ["sliding_window"]


def test_layers_of_multi_token_prediction_are_like_the_last_one() -> None:
    """GLM-4.5, MiMo, Hy3, Step: each has a projection of two hidden states and three norms more."""
    shape = read_config(new_llama_config(num_nextn_predict_layers=2))
    assert [draft.mixers for draft in shape.draft_layers] == [shape.layers[-1].mixers] * 2
    more = [m for m in shape.draft_layers[0].matrices if m not in shape.layers[-1].matrices]
    assert [(m.name, m.rows[0].count, m.columns) for m in more] == [("eh_proj", 4096, 8192), ("mtp_norms", 12288, 1)]
