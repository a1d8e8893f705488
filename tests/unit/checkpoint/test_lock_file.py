"""The file of published models: readable, the same for the same models, and refused where somebody broke it."""

import json
from math import inf

import pytest
from msgspec.structs import asdict

from kvgate.checkpoint.published import SCHEMA, LockFileError, Published, lock_text, read_lock
from kvgate.checkpoint.tensors import TensorGroup
from support.builders import new_llama_config
from support.tables import table

GROUP = TensorGroup(
    name="layers.{}.q.weight", dtype="BF16", shape=(8, 8), count=2, numbers=("0-1",), size_bytes=2 * 8 * 8 * 2
)
FIRST = Published(name="a/First", commit="0a1b", config=new_llama_config(), tensors=(GROUP,), checkpoint_bytes=256)
SECOND = Published(name="b/second", revision="v1", config={"rope": inf, "architectures": ["X"]})
LORA = Published(name="c/lora", config={}, adapter={"r": 16})


def test_entries_are_read_as_they_were_written() -> None:
    """Numbers that JSON does not have are among them."""
    again = read_lock(lock_text([SECOND, LORA, FIRST]))
    assert [asdict(each) for each in again] == [asdict(each) for each in (FIRST, SECOND, LORA)]


def test_the_text_is_the_same_whatever_the_order() -> None:
    """Neither the order of the models nor that of the keys in a config matters."""
    other = Published(**{**asdict(FIRST), "config": dict(reversed(FIRST.config.items()))})
    assert lock_text([FIRST, SECOND]) == lock_text([SECOND, other])
    assert lock_text(read_lock(lock_text([FIRST, SECOND]))) == lock_text([FIRST, SECOND])


def test_a_difference_is_a_few_lines() -> None:
    """What is short stands on one line: a group of tensors, a list of names."""
    lines = lock_text([FIRST]).splitlines()
    assert max(map(len, lines)) < 200
    assert any('"layers.{}.q.weight"' in line and '"sizeBytes": 256' in line for line in lines)
    assert '        "hidden_size": 4096,' in lines


def written(*models: object, schema: object = SCHEMA) -> str:
    return json.dumps({"schema": schema, "models": list(models)})


ENTRY = {"name": "a/b", "config": {}}


@table(
    ("text", "problem"),
    [
        ("", "it is not JSON"),
        ("{", "it is not JSON"),
        ("[" * 100_000, "it is not JSON"),
        ("[]", "it has no schema, and this kvgate reads kvgate-models/1"),
        (written(schema="kvgate-models/2"), "its schema is kvgate-models/2, and this kvgate reads kvgate-models/1"),
        (written(schema=["\x1b"]), "its schema is"),
        ('{"schema": "kvgate-models/1"}', "models is not a list"),
        (written({**ENTRY, "config": json.loads("[" * 80 + "]" * 80)}), "nested deeper than 64 levels"),
        (written({**ENTRY, "config": {"a": "\ud800"}}), "surrogate"),
        (written({**ENTRY, "checkpointBytes": "5"}), "models[0] (a/b): Expected `int`, got `str`"),
        (written(ENTRY, 7), "models[1]: Expected `object`, got `int`"),
        (written(ENTRY, {"name": "A/B", "config": {}}), "a/b stands twice"),
        (written({**ENTRY, "tensors": [{"name": "x", "dtype": "BF16", "shape": [4], "sizeBytes": 1}]}), "models[0] (a/b): "),
    ],
)  # fmt: skip
def test_a_broken_file_says_what_is_wrong(text: str, problem: str) -> None:
    """Every message says what to do."""
    with pytest.raises(LockFileError) as raised:
        read_lock(text)
    assert problem in str(raised.value)
    assert "kvgate models lock" in str(raised.value)
    assert str(raised.value).isprintable()


def test_all_problems_at_once() -> None:
    """Of many problems the first ten are shown, and the rest is counted."""
    with pytest.raises(LockFileError, match=r"models\[9\].*; and 5 more; write it anew"):
        read_lock(written(*range(15)))
