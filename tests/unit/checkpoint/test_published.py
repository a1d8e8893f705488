"""Entries of published checkpoints: written, read again, and refused where they are broken."""

import pytest
from msgspec.structs import asdict

from kvgate.checkpoint.published import (
    Published,
    PublishedError,
    by_name,
    from_json,
    from_text,
    name_key,
    to_json,
)
from kvgate.checkpoint.tensors import TensorGroup
from kvgate.text.inert import json_text
from support.builders import new_llama_config

GROUP = TensorGroup(
    name="layers.{}.q.weight", dtype="BF16", shape=(8, 8), count=2, numbers=("0-1",), size_bytes=2 * 8 * 8 * 2
)


def test_an_entry_is_read_as_it_was_written() -> None:
    entry = Published(name="my/own", commit="0a1b", config=new_llama_config(), tensors=(GROUP,), checkpoint_bytes=256)
    again = from_text(json_text(to_json(entry)))
    assert asdict(again) == asdict(entry)


def test_defaults_are_left_out() -> None:
    assert to_json(Published(name="my/own", config={})) == {"name": "my/own", "config": {}}


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ([], "Expected `object`, got `array`"),
        ({"name": "a/b"}, "missing required field `config`"),
        ({"name": "a/b", "config": {}, "checkpointBytes": "5"}, "Expected `int`, got `str` - at `$.checkpointBytes`"),
        ({"name": "a/b", "config": {}, "tensor": []}, "unknown field `tensor`"),
    ],
)
def test_a_broken_entry_names_its_field(value: object, problem: str) -> None:
    with pytest.raises(PublishedError) as raised:
        from_json(value)
    assert problem in str(raised.value)
    assert "kvgate models fetch" in str(raised.value)


@pytest.mark.parametrize("text", ["", "{", '{"name": "a/b", "config": ' + "[" * 100 + "]" * 100 + "}"])
def test_a_broken_text_is_refused(text: str) -> None:
    with pytest.raises(PublishedError):
        from_text(text)


def test_names_are_keys_in_any_case_and_main_is_no_revision() -> None:
    assert name_key(" Org/Name ", "main") == name_key("org/name") == "org/name"
    assert list(by_name([Published(name="a/B", revision="v1", config={})])) == ["a/b@v1"]
