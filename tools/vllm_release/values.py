"""Values of a parser's definition that are no constants of Python."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from vllm_release.hints import last_name
from vllm_release.source import Module, Ref


@dataclass(frozen=True)
class Unread:
    """A value that the syntax tree does not show: the platform, the environment, another library."""

    text: str


@dataclass(frozen=True)
class Kind:
    """A type of values on a command line, in the words of the table: `int`, `json|str`, `str?`."""

    text: str


@dataclass(frozen=True)
class Bound:
    """A method with the class that it is looked up on."""

    ref: Ref
    owner: Ref


@dataclass(frozen=True)
class EnumMember:
    """One member of an enumeration."""

    value: Any


@dataclass(frozen=True)
class Made:
    """An object of a configuration class with its own defaults."""

    ref: Ref


@dataclass
class Frame:
    """One call: the module whose names it means, its variables, the class that it is a method of."""

    module: Module
    names: dict[str, Any] = field(default_factory=dict)
    owner: Ref | None = None
    """The class that the method belongs to, for `super()`."""
    is_over: bool = False
    result: Any = None


def lineage(ref: Ref) -> list[Ref]:
    """The class and those of vLLM's that it inherits from, nearest first."""
    found = [ref]
    for base in getattr(ref.node, "bases", ()):
        above = ref.module.find(last_name(base))
        if above is not None and isinstance(above.node, ast.ClassDef):
            found.extend(lineage(above))
    return found
