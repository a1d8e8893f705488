"""`$((…))` of a shell where every part of it is known: whole numbers, names that hold them, `+ - * / %` and parentheses."""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping

from kvgate.documents.written import Written

_EXPRESSION = re.compile(r"\$\(\(((?:[^()]|\([^()]{0,200}\)){0,500})\)\)")
_NAME = re.compile(r"\$?([A-Za-z_]\w*)|\$\{([A-Za-z_]\w*)(?::?-([^}]{0,200}))?\}")
_NUMBERS = re.compile(r"[\d\s+\-*/%()]{1,200}")
_MAX_DIGITS = 15
"""More than vLLM takes anywhere; a shell's numbers overflow later."""
_OPERATIONS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: lambda left, right: math.trunc(left / right),
    ast.Mod: lambda left, right: int(math.fmod(left, right)),
}


def calculated(text: str, variables: Mapping[str, Written]) -> str:
    """Every `$((…))` as its number; one that nobody can know here stays as it is written."""
    if "$((" not in text:
        return text
    return _EXPRESSION.sub(lambda match: _calculated(match, variables), text)


def _calculated(match: re.Match[str], variables: Mapping[str, Written]) -> str:
    filled = _NAME.sub(lambda name: _value(name, variables), match[1])
    number = _number(filled)
    return match[0] if number is None else str(number)


def _value(name: re.Match[str], variables: Mapping[str, Written]) -> str:
    known = variables.get(name[1] or name[2])
    text = known.text if known is not None else name[3]
    return f"({text})" if text else name[0]


def _number(text: str) -> int | None:
    if not _NUMBERS.fullmatch(text):
        return None
    try:
        number = _of_node(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError, MemoryError):
        return None
    return number if len(str(number)) <= _MAX_DIGITS else None


def _of_node(node: ast.expr) -> int:
    """Raises ValueError where it is none of these."""
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and node.value < 10**_MAX_DIGITS:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_of_node(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATIONS:
        return _OPERATIONS[type(node.op)](_of_node(node.left), _of_node(node.right))
    raise ValueError
