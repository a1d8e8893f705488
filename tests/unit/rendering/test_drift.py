"""What counts as a difference between the cluster and what was rendered."""

from typing import Any

import pytest

from kvgate.rendering.drift import carries


@pytest.mark.parametrize(
    ("live", "wanted"),
    [
        ({"a": 1, "default": 2}, {"a": 1}),
        ({"resources": {"limits": {"cpu": "500m"}}}, {"resources": {"limits": {"cpu": "0.5"}}}),
        ({"emptyDir": {"sizeLimit": "1Gi"}}, {"emptyDir": {"sizeLimit": "1024Mi"}}),
        ({"resources": {"requests": {"cpu": "1m"}}}, {"resources": {"requests": {"cpu": "0.0001"}}}),
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
        ({"resources": {"cpu": "1"}}, {"resources": {"cpu": "500m"}}),
        ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "A", "value": "1000m"}]}),
        ([{"name": "b"}], [{"name": "a"}]),
        (["--a", "--b"], ["--a"]),
        ([{"key": "x"}, {"key": "y"}], [{"key": "x"}]),
        ("ab", ["ab"]),
    ],
)
def test_what_is_missing_or_other_is_a_difference(live: Any, wanted: Any) -> None:
    assert not carries(live, wanted)
