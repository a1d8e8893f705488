"""Text of others does nothing where it is printed, and what is harmless stays as it is."""

import json

import pytest

from kvgate.text.inert import inert, inert_json, inert_line, inert_values, json_text
from support.tables import table


@table("text", ["", "plain", "ünï 模型 😀 ⚠\ufe0f", "a\\b", "x::y", "host ::1", "# 3", "### heading", "a`b`@c <d>"])
def test_what_people_write_stays(text: str) -> None:
    assert inert(text) == inert_line(text) == text


@table(
    ("text", "shown"),
    [
        ("\x1b[31m", "\\x1b[31m"), ("a\nb\r\tc", "a\\nb\\r\\tc"), ("\x7f\x9b", "\\x7f\\x9b"), ("\u202e\u2066", "\\u202e\\u2066"),
        ("\u200b\u200d\ufeff\xad", "\\u200b\\u200d\\ufeff\\xad"), ("\u2028\u2029", "\\u2028\\u2029"), ("\ud800\udcff", "\\ud800\\udcff"),
        ("\u3164\u2800\u115f", "\\u3164\\u2800\\u115f"), ("\U000e0101", "\\U000e0101"), ("\xa0\u3000", "\\xa0\\u3000"), ("\0", "\\x00"),
        ("##[error]", "#\\x23[error]"), ("a###vso[x]", "a##\\x23vso[x]"),
    ],
)  # fmt: skip
def test_what_is_not_seen_or_is_obeyed_is_an_escape(text: str, shown: str) -> None:
    assert inert(text) == shown
    assert inert(shown) == shown


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("::error::x", "\\x3a:error::x"),
        ("  ::add-mask::x", "  \\x3a:add-mask::x"),
        ("\n::x::y", "\\n::x::y"),
        (":x", ":x"),
    ],
)
def test_a_line_is_no_command(line: str, shown: str) -> None:
    assert inert_line(line) == shown


@pytest.mark.slow
def test_every_character_becomes_printable() -> None:
    """All of Unicode, so that no category is forgotten."""
    for start in range(0, 0x110000, 0x1000):
        assert inert("".join(map(chr, range(start, start + 0x1000)))).isprintable()


def test_values_keep_their_form_and_lose_their_signs() -> None:
    value = {"a\n": ["\x1b", 1, True, None, 1.5], "b": {"::error::": ("x",)}, "c": {3}}
    shown = {"a\\n": ["\\x1b", 1, True, None, 1.5], "b": {"\\x3a:error::": ["x"]}, "c": "{3}"}
    assert inert_values(value) == shown
    assert json.loads(inert_json({"a\n": ["\x1b"]})) == {"a\\n": ["\\x1b"]}


def test_json_is_what_every_reader_takes() -> None:
    value = {"a": [float("inf"), -float("inf"), float("nan"), 1e308], "b": "\ud800x\U0001f600", "c": "##[x]"}
    text = json_text(value)
    assert text.isascii()
    assert "##" not in text
    read = json.loads(text, parse_constant=pytest.fail)
    assert read == {"a": ["Infinity", "-Infinity", "NaN", 1e308], "b": "\\ud800x\U0001f600", "c": "##[x]"}
