"""Types of vLLM's configuration fields, from their annotations: what decides how the command line reads a field."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vllm_release.source import Module, Ref

_WRAPPERS = frozenset({"Annotated", "SkipValidation", "Optional", "Union", "Required", "NotRequired"})
_COLLECTIONS = {"list": "list", "List": "list", "tuple": "tuple", "Tuple": "tuple", "set": "set", "Set": "set"}
_BUILTINS = frozenset({"bool", "int", "float", "str", "bytes", "object", "type", "complex"})


@dataclass(frozen=True)
class Hint:
    """One alternative of a type: `literal` with its values, a `list` with its elements' hints, a `class`, or a builtin by its name."""

    kind: str
    values: tuple[Any, ...] = ()
    ref: Ref | None = None

    @property
    def is_builtin(self) -> bool:
        return self.kind not in ("class", "other", "literal")


NONE = Hint("none")


def alternatives(node: ast.AST, module: Module) -> tuple[Hint, ...]:
    """The members of a union, without wrappers such as Annotated."""
    return tuple(dict.fromkeys(_alternatives(node, module)))


def contains(hints: tuple[Hint, ...], kind: str) -> bool:
    """True where one of the alternatives is of that kind."""
    return any(hint.kind == kind for hint in hints)


def is_configuration(hint: Hint) -> bool:
    """A class of vLLM's whose JSON an option takes: a dataclass."""
    return hint.ref is not None and bool({"config", "dataclass"} & set(decorators(hint.ref.node)))


def decorators(node: ast.AST) -> tuple[str, ...]:
    """Names of a definition's decorators: `config` of `@config(config=…)`."""
    return tuple(
        last_name(each.func if isinstance(each, ast.Call) else each) for each in getattr(node, "decorator_list", ())
    )


def last_name(node: ast.AST | None) -> str:
    """`dataclass` of `dataclasses.dataclass`, `dict` of `dict[str, int]`."""
    if isinstance(node, ast.Subscript):
        return last_name(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def literal_values(node: ast.AST, module: Module) -> tuple[Any, ...]:
    """Values of a Literal, those of the literals in it included."""
    return tuple(value for hint in alternatives(node, module) if hint.kind == "literal" for value in hint.values)


def _alternatives(node: ast.AST, module: Module) -> Iterator[Hint]:
    if isinstance(node, ast.Constant):
        yield from _constant(node.value, module)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        yield from _alternatives(node.left, module)
        yield from _alternatives(node.right, module)
    elif isinstance(node, ast.Subscript):
        yield from _subscript(node, module)
    else:
        yield from _named(node, module)


def _constant(value: Any, module: Module) -> Iterator[Hint]:
    if isinstance(value, str):
        yield from _alternatives(ast.parse(value, mode="eval").body, module)
    else:
        yield NONE if value is None else Hint("other")


def _subscript(node: ast.Subscript, module: Module) -> Iterator[Hint]:
    name = last_name(node.value)
    arguments = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    if name == "Literal":
        yield Hint("literal", tuple(value for each in arguments for value in _literal(each, module)))
    elif name in _WRAPPERS:
        for each in arguments[:1] if name in ("Annotated", "SkipValidation") else arguments:
            yield from _alternatives(each, module)
        if name == "Optional":
            yield NONE
    elif name in _COLLECTIONS:
        yield Hint(_COLLECTIONS[name], tuple(alternatives(arguments[0], module)))
    elif name in ("dict", "Dict"):
        yield Hint("dict")
    else:
        yield Hint("type" if name == "type" else "other")


def _literal(node: ast.AST, module: Module) -> tuple[Any, ...]:
    return (node.value,) if isinstance(node, ast.Constant) else literal_values(node, module)


def _named(node: ast.AST, module: Module) -> Iterator[Hint]:
    name = last_name(node)
    ref = module.find(name) if isinstance(node, ast.Name) else None
    if ref is None:
        kind = _COLLECTIONS.get(name) or (
            "dict" if name in ("dict", "Dict") else name if name in _BUILTINS else "other"
        )
        yield Hint(kind)
    elif isinstance(ref.node, ast.ClassDef):
        yield Hint("dict") if any(last_name(base) == "dict" for base in ref.node.bases) else Hint("class", ref=ref)
    elif isinstance(ref.node, ast.TypeAlias if hasattr(ast, "TypeAlias") else ()):
        yield from _alternatives(ref.node.value, ref.module)
    else:
        yield from _alternatives(ref.node, ref.module)
