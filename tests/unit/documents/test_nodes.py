"""The quick walk makes the same values as PyYAML's constructor, or none."""

import pytest
import yaml

from kvgate.documents.nodes import NodeRoom, NotPlain, YamlError, compose, construct, plain_value
from support.tables import table


def composed(text: str) -> yaml.Node:
    node = compose(text)
    assert node is not None
    return node


@table(
    "scalar",
    ["text", "'7'", '"true"', "7", "-3", "0", "0.9", "-12.50", "true", "No", "off", "~", "null", "''", "", "a: b", "|\n  x\n  y"],
)  # fmt: skip
def test_plain_values_are_what_a_safe_loader_makes(scalar: str) -> None:
    text = f"a: {{b: [1]}}\nb:\n  {scalar}\n" if ": " in scalar else f"a: {{b: [1]}}\nb: {scalar}\n"
    assert plain_value(composed(text)) == yaml.safe_load(text)
    assert type(plain_value(composed(text))["b"]) is type(yaml.safe_load(text)["b"])


@table(
    "text",
    ["a: 0x1F", "a: 017", "a: 1_000", "a: 1:30", "a: 1.0e+3", "a: .inf", "1: a", "a: &x [1]\nb: *x",
     "<<: {a: 1}\nb: 2"],
)  # fmt: skip
def test_what_is_not_plain_is_left_to_the_constructor(text: str) -> None:
    with pytest.raises(NotPlain):
        plain_value(composed(text))
    assert construct(composed(text)) == yaml.safe_load(text)


@pytest.mark.parametrize("text", ["a: 1\na: 2", f"a: {'9' * 5000}", "a: &a [*a]", "a: " + "[" * 200 + "]" * 200])
def test_what_is_wrong_is_left_to_whoever_tells_it(text: str) -> None:
    with pytest.raises(NotPlain):
        plain_value(composed(text))
    with pytest.raises(YamlError):
        construct(composed(text))


@table(
    ("text", "expected"),
    [
        ("a: !own 1", {"a": "1"}),
        ("a: !reference [.job, script]", {"a": [".job", "script"]}),
        ("!own {a: !!python/object:os.system {b: 1}}", {"a": {"b": 1}}),
        ("a: !!python/name:os.system", {"a": ""}),
        ("a: !reset [1]", {"a": None}),
        ("a: !!set {x}", {"a": {"x": None}}),
        ("a: !!omap [x: 1]", {"a": [{"x": 1}]}),
        ("a: !!pairs [x: 1, x: 2]", {"a": [{"x": 1}, {"x": 2}]}),
        ("a: !!binary aGk=", {"a": "hi"}),
    ],
)
def test_a_tag_of_another_program_says_nothing(text: str, expected: object) -> None:
    assert construct(composed(text)) == expected


def test_a_loader_resolves_tags_as_pyyaml_does() -> None:
    words = [
        "a",
        "1",
        "-1",
        "+1",
        "0o7",
        "1.5",
        ".5",
        "1e3",
        "y",
        "yes",
        "ON",
        "~",
        "null",
        "NULL",
        "=",
        "<<",
        "2026-11-21",
        "''",
        "'1'",
    ]
    text = "".join(f"- {word}\n" for word in [*words, "", "{}", "[]", "!x y"])
    ours, theirs = composed(text), yaml.compose(text, yaml.SafeLoader)
    assert [node.tag for node in ours.value] == [node.tag for node in theirs.value]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- &x 1\n- *x\n- &x 2\n- *x\n", [1, 1, 2, 2]),
        ("- &x [1]\n- &x [2]\n- *x\n", [[1], [2], [2]]),
        ("{a: &x {b: &y 1}, c: &x {b: *y, d: &y 3}, e: *y}", {"a": {"b": 1}, "c": {"b": 1, "d": 3}, "e": 3}),
    ],
)
def test_an_alias_stands_for_the_nearest_anchor_before_it(text: str, expected: object) -> None:
    room = NodeRoom(left=20)
    node = compose(text, room)
    assert node is not None
    assert construct(node) == expected
    assert 0 < room.left < 20


@pytest.mark.parametrize("text", ["- &x 1\n- &x [*x]", "- &x 1\n- &x 2\n- *y", "- &x 1\n- &x 2\n- ["])
def test_what_is_wrong_beside_anchors_given_twice_is_told(text: str) -> None:
    with pytest.raises(YamlError):
        construct(composed(text))


def test_anchors_given_twice_leave_no_more_room() -> None:
    with pytest.raises(YamlError, match="keys and values"):
        compose("- &x 1\n" * 100, NodeRoom(left=50))
