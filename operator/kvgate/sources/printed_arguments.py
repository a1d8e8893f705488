"""The arguments that vLLM prints when it starts, read without running them."""

import ast
import re
from collections.abc import Mapping
from typing import Any

_PRINTED = re.compile(r"non-default args: (?=\{)|\bargs: (?=Namespace\()")
"""A dictionary; until 0.8 the whole namespace of the parser."""
_OBJECT = re.compile(r"<[^<>{}\n]{0,200}>")
"""`<function serve at 0x7f…>`: no Python."""


def prints_arguments(line: str) -> bool:
    """Tell whether a line holds the arguments."""
    return _PRINTED.search(line) is not None


def printed_arguments(text: str) -> tuple[Mapping[str, Any], tuple[str, ...]]:
    """Plain values under vLLM's names, and the names of those that are something else; None is left out."""
    values: dict[str, Any] = {}
    unread: list[str] = []
    for name, node in _entries(text):
        try:
            value = ast.literal_eval(node)
        except (ValueError, TypeError):
            unread.append(name)
            continue
        if value is not None:
            values[name] = value
    return values, tuple(unread)


def _entries(text: str) -> list[tuple[str, ast.expr]]:
    printed = _PRINTED.search(text)
    if printed is None:
        return []
    line = text[printed.end() :].partition("\n")[0]
    expression = line[: max(line.rfind("}"), line.rfind(")")) + 1]
    try:
        tree = ast.parse(_OBJECT.sub("object()", expression), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    if isinstance(tree, ast.Call):
        return [(keyword.arg, keyword.value) for keyword in tree.keywords if keyword.arg]
    pairs = zip(tree.keys, tree.values, strict=True) if isinstance(tree, ast.Dict) else ()
    return [(key.value, value) for key, value in pairs if isinstance(key, ast.Constant) and isinstance(key.value, str)]
