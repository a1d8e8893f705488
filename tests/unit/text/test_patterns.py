"""Expressions are compiled when they are first used, and each of ours can be compiled."""

import re
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import kvgate
from kvgate.text.patterns import pattern
from support.tables import table

ROOT = Path(kvgate.__path__[0])
MODULES = [
    f"kvgate.{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}"
    for path in sorted(ROOT.rglob("*.py"))
    if "from kvgate.text.patterns import" in path.read_text(encoding="utf-8")
]


def test_it_matches_as_a_compiled_expression_does() -> None:
    lazily, compiled = pattern("(?P<name>a+)b", re.IGNORECASE), re.compile("(?P<name>a+)b", re.IGNORECASE)
    for text in ("xAAb", "aab", "b"):
        assert [bool(each.search(text)) for each in (lazily, compiled)] == [bool(compiled.search(text))] * 2
    found = lazily.search("xAAb")
    assert found is not None
    assert found["name"] == "AA"
    assert lazily.sub("-", "ab aab") == "- -"
    assert lazily.groups == 1


def test_nothing_is_compiled_before_the_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []
    monkeypatch.setattr(re, "compile", lambda text, flags: compiled.append(text) or re._compile(text, flags))  # type: ignore[attr-defined]
    lazily = pattern("a")
    assert not compiled
    assert lazily.match("a")
    assert lazily.match("a")
    assert compiled == ["a"]


@table("name", MODULES)
def test_every_expression_of_a_module_is_one(name: str) -> None:
    import_module(name)
    lazily = list(expressions_in([*vars(sys.modules[name]).values()]))
    assert lazily
    assert all(each.pattern for each in lazily)


def expressions_in(values: Iterable[object]) -> Iterator[Any]:
    """Those of a module, also in the rows of its tables."""
    for value in values:
        if type(value).__name__ == "_Uncompiled":
            yield value
        elif isinstance(value, tuple):
            yield from expressions_in(value)
