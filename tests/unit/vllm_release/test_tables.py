"""Tables keep spans of releases; one release put into them changes what that release has, and nothing else."""

from typing import Any

import pytest

from vllm_release.options import OptionFacts
from vllm_release.spans import Span, put_names, put_value, value_at
from vllm_release.tables import put_options

RELEASES = ["0.30.0", "0.31.0", "0.32.0", "0.33.0"]


@pytest.mark.parametrize(
    ("span", "release", "is_there", "expected"),
    [
        pytest.param(None, "0.33.0", True, Span("0.33.0"), id="it came with the newest"),
        pytest.param(None, "0.31.0", True, Span("0.31.0", "0.32.0"), id="only a release in the middle has it"),
        pytest.param(Span("0.30.0"), "0.33.0", False, Span("0.30.0", "0.33.0"), id="it went with the newest"),
        pytest.param(Span("0.30.0"), "0.32.0", False, Span("0.30.0"), id="a gap counts as there"),
        pytest.param(Span("0.30.0", "0.32.0"), "0.33.0", True, Span("0.30.0"), id="it came back"),
        pytest.param(Span("0.30.0", "0.32.0"), "0.32.0", True, Span("0.30.0", "0.33.0"), id="it went later"),
        pytest.param(Span("0.30.0", "0.32.0"), "0.31.0", False, Span("0.30.0", "0.31.0"), id="it went earlier"),
        pytest.param(Span("0.32.0"), "0.31.0", True, Span("0.31.0"), id="it came earlier"),
        pytest.param(Span("0.31.0"), "0.31.0", False, Span("0.32.0"), id="it came later"),
        pytest.param(Span("0.33.0"), "0.33.0", False, None, id="it never was there"),
        pytest.param(Span("0.31.0", "0.32.0"), "0.31.0", False, None, id="it never was there, in the middle"),
        pytest.param(Span("0.30.0", "0.31.0"), "0.33.0", False, Span("0.30.0", "0.31.0"), id="it is gone already"),
        pytest.param(Span("0.31.0"), "0.33.0", True, Span("0.31.0"), id="nothing changes"),
    ],
)
def test_a_span_holds_what_the_release_has(
    *, span: Span | None, release: str, is_there: bool, expected: Span | None
) -> None:
    found = put_names({"x": span} if span else {}, ["x"] if is_there else [], release, RELEASES)
    assert found == ({"x": expected} if expected else {})


@pytest.mark.parametrize(
    ("history", "release", "value", "expected"),
    [
        pytest.param([], "0.33.0", 1, [["0.30.0", 0], ["0.33.0", 1]], id="the newest has another value"),
        pytest.param(
            [["0.30.0", 5]], "0.31.0", 6, [["0.30.0", 5], ["0.31.0", 6], ["0.32.0", 5]], id="one in the middle has"
        ),
        pytest.param([["0.30.0", 5], ["0.33.0", 6]], "0.33.0", 5, [["0.30.0", 5]], id="it is the same again"),
        pytest.param([["0.30.0", 5]], "0.30.0", 0, [["0.30.0", 0], ["0.31.0", 5]], id="the oldest has another value"),
        pytest.param([], "0.31.0", 0, [], id="a value that needs no writing"),
        pytest.param([], "0.33.0", False, [["0.30.0", 0], ["0.33.0", False]], id="false is not 0"),
        pytest.param([["0.30.0", 5.0]], "0.33.0", 5, [["0.30.0", 5.0]], id="5 is 5.0"),
    ],
)
def test_a_history_is_written_where_a_value_changes(
    history: list[list[Any]], release: str, value: Any, expected: list[list[Any]]
) -> None:
    found = put_value(history, Span("0.30.0"), value, release, RELEASES, absent=0)
    assert found == expected
    assert value_at(found, release, RELEASES, 0) == value


def row(**keys: Any) -> dict[str, Any]:
    return {"flag": "--x", "dest": "x", "since": "0.30.0", "type": [["0.30.0", "int"]], **keys}


def test_what_was_written_by_hand_stays() -> None:
    rows = {"--x": row(deprecated_since="0.32.0", replacement="--y")}
    option = OptionFacts(flag="--x", dest="x", type="float", is_deprecated=True)
    assert put_options(rows, {"--x": option}, "0.33.0", RELEASES) == {
        "--x": row(type=[["0.30.0", "int"], ["0.33.0", "float"]], deprecated_since="0.32.0", replacement="--y")
    }
    assert put_options(rows, {}, "0.33.0", RELEASES)["--x"]["replacement"] == "--y"


def test_an_option_is_deprecated_from_the_first_release_that_says_so() -> None:
    option = OptionFacts(flag="--x", dest="x", type="int", is_deprecated=True)
    once = put_options({"--x": row()}, {"--x": option}, "0.33.0", RELEASES)
    assert once["--x"]["deprecated_since"] == "0.33.0"
    assert put_options(once, {"--x": option}, "0.31.0", RELEASES)["--x"]["deprecated_since"] == "0.31.0"


def test_keys_stand_in_one_order_and_empty_ones_are_left_out() -> None:
    option = OptionFacts(
        flag="--x", dest="x", type="str", default="a", choices=("a", None), aliases=("-x",), is_negatable=True
    )
    found = put_options({}, {"--x": option}, "0.33.0", RELEASES)["--x"]
    assert list(found) == ["flag", "dest", "since", "type", "choices", "default", "aliases", "has_no_form"]
    plain = put_options({}, {"--x": OptionFacts(flag="--x", dest="x", type="str")}, "0.33.0", RELEASES)["--x"]
    assert list(plain) == ["flag", "dest", "since", "type"]
