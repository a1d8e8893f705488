"""What counts as a difference between the cluster and what was rendered."""

from typing import Any

import pytest

from kvgate.rendering.drift import carries


@pytest.mark.parametrize(
    ("live", "wanted"),
    [
        ({"a": 1, "default": 2}, {"a": 1}),
        ({"cpu": "500m"}, {"cpu": "0.5"}),
        ({"memory": "1Gi"}, {"memory": "1024Mi"}),
        ([{"name": "a", "protocol": "TCP"}, {"name": "sidecar"}], [{"name": "a"}]),
        ([{"key": "x", "effect": "NoSchedule"}], [{"key": "x"}]),
        ({"name": "X"}, {"name": "X", "value": ""}),
        (["--a"], ["--a"]),
    ],
)
def test_defaults_other_spellings_and_other_peoples_fields_are_no_difference(live: Any, wanted: Any) -> None:
    assert carries(live, wanted)


@pytest.mark.parametrize(
    ("live", "wanted"),
    [
        ({"a": 2}, {"a": 1}),
        ({}, {"a": 1}),
        (None, {"a": 1}),
        ({"cpu": "1"}, {"cpu": "500m"}),
        ([{"name": "b"}], [{"name": "a"}]),
        (["--a", "--b"], ["--a"]),
        ([{"key": "x"}, {"key": "y"}], [{"key": "x"}]),
        ("ab", ["ab"]),
    ],
)
def test_what_is_missing_or_other_is_a_difference(live: Any, wanted: Any) -> None:
    assert not carries(live, wanted)
