"""Mutants of the budget: which changes are made, what is left alone, and that each is another program."""

import ast

from mutants.changes import changes_of
from support.tables import table


def texts(source: str) -> list[str]:
    return [change.after for change in changes_of(source.encode())]


@table(("source", "after"), [
    ("a < b", ["(a <= b)"]),
    ("a <= b < c", ["(a < b < c)", "(a <= b <= c)"]),
    ("a + b * c", ["(a - b * c)", "(b // c)"]),
    ("a and b", ["(a or b)"]),
    ("not a", ["(a)"]),
    ("min(a)", ["(max(a))"]),
    ("x = 3", ["4"]),
    ("x = 0.5", ["1.0"]),
    ("x = True", ["False"]),
    ("x = 'fp8'", ["'not fp8'"]),
    ("x = a if b else c", ["(not b)"]),
    ("x = a | b", ["(a)"]),
])  # fmt: skip
def test_each_change_is_one_other_thing(source: str, after: list[str]) -> None:
    assert sorted(texts(source)) == sorted(after)


@table("source", [
    '"""A docstring with 3 words."""',
    "x: int | None",
    "x = 'a sentence for people'",
    "x = f'{a + 1} bytes'",
    "class A(Struct, frozen=True): pass",
    "@lru_cache(maxsize=4096)\ndef f(a: Literal[1]) -> None: pass",
    "async def f(a: int | None) -> str | None: pass",
    "Kind = Literal['a', 'b']",
    "from a import b",
])  # fmt: skip
def test_what_computes_nothing_is_left_alone(source: str) -> None:
    assert texts(source) == []


def test_a_change_stands_where_the_expression_stood() -> None:
    source = "é = 1\ny = (a\n     + 2)\n".encode()
    for change in changes_of(source):
        changed = change.applied(source)
        assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))
        assert changed.decode().count("\n") <= source.decode().count("\n")
