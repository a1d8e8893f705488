"""Names and values of `helm --set`."""

from typing import Any

import pytest

from kvgate.manifests.platforms.charts import path_below, read_set, with_set


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("a", "x", {"a": "x"}),
        ("a.b.c", "1", {"a": {"b": {"c": 1}}}),
        ("a[1].b", "x", {"a": [None, {"b": "x"}]}),
        ("a[0][1]", "x", {"a": [[None, "x"]]}),
        (r"a.nvidia\.com/gpu\.product", "x", {"a": {"nvidia.com/gpu.product": "x"}}),
        ("a", "true", {"a": True}),
        ("a", "null", {"a": None}),
        ("a", "0.9", {"a": "0.9"}),
        ("a", "007", {"a": "007"}),
        ("a", "-7", {"a": -7}),
        ("a", "{x,1}", {"a": ["x", 1]}),
        ("a", "", {"a": ""}),
    ],
)
def test_one_value_is_set_as_helm_does(name: str, text: str, expected: Any) -> None:
    given = read_set(name, text, as_text=False)
    assert given
    assert with_set(None, given) == expected


def test_what_stands_there_stays_or_gives_way() -> None:
    values = {"a": {"b": [1, {"c": 2}]}, "d": "text"}
    changes = {"a.b[1].c": {"a": {"b": [1, {"c": "5"}]}, "d": "text"}, "d.e": {"a": values["a"], "d": {"e": "5"}}}
    for name, expected in changes.items():
        given = read_set(name, "5", as_text=True)
        assert given
        assert (with_set(values, given), path_below("values", given)) == (expected, f"values.{name}")
    assert values == {"a": {"b": [1, {"c": 2}]}, "d": "text"}


@pytest.mark.parametrize("name", ["", ".", "a.", "a..b", "[0]", "a[x]", "a[-1]", "a[1", "a]", "a[99999]", "a[0]b"])
def test_other_names_are_none(name: str) -> None:
    assert read_set(name, "x", as_text=False) is None
