"""`@record`: a frozen dataclass with slots and fields by keyword, made in a third of the time.

The standard library compiles six methods of each class, and a command imports a hundred classes: that was a third of what `kvgate check`
takes for one file. Here only `__init__` is compiled. `fields`, `replace`, `asdict`, copies and pickles are those of a dataclass.
"""

from collections.abc import Sequence
from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, field, fields
from operator import attrgetter
from typing import Any, NoReturn, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def record(cls: type[T]) -> type[T]:
    """The decorator; a method that the class has itself stays."""
    made = dataclass(init=False, repr=False, eq=False, kw_only=True, slots=True)(cls)
    own = fields(made)  # type: ignore[arg-type]  # it is a dataclass by now
    methods = {"__init__": _init(cls, own), **_comparison(own), "__repr__": _repr(own), **_FROZEN}
    for name in methods.keys() - cls.__dict__.keys():
        setattr(made, name, methods[name])
    return made


def _init(cls: type, own: Sequence[Field[Any]]) -> Any:
    """As the standard library writes it: one keyword for each field, a default or what its factory makes."""
    scope: dict[str, Any] = {"_set": object.__setattr__, "_missing": MISSING}
    parameters, body = [], []
    for each in (each for each in own if each.init):
        name, value = each.name, each.name
        if each.default is not MISSING:
            scope[f"_{name}"] = each.default
        elif each.default_factory is not MISSING:
            scope[f"_{name}_factory"], scope[f"_{name}"] = each.default_factory, MISSING
            value = f"_{name}_factory() if {name} is _missing else {name}"
        parameters.append(f"{name}=_{name}" if f"_{name}" in scope else name)
        body.append(f"_set(self, {name!r}, {value})")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    keywords = ", ".join(["self", "*", *parameters] if parameters else ["self"])
    exec(f"def __init__({keywords}):\n " + ("; ".join(body) or "pass"), scope)  # noqa: S102 - names of fields only
    scope["__init__"].__qualname__ = f"{cls.__qualname__}.__init__"
    return scope["__init__"]


def _comparison(own: Sequence[Field[Any]]) -> dict[str, Any]:
    """Equal are objects of one class whose compared fields are equal."""
    names = [each.name for each in own if each.compare]
    key = attrgetter(*names) if names else type

    def equal(self: object, other: object) -> bool:
        return key(self) == key(other) if other.__class__ is self.__class__ else NotImplemented

    return {"__eq__": equal, "__hash__": lambda self: hash(key(self))}


def _repr(own: Sequence[Field[Any]]) -> Any:
    names = [each.name for each in own if each.repr]
    return lambda self: f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"


def _refuse_to_set(_: object, name: str, __: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(_: object, name: str) -> NoReturn:
    raise FrozenInstanceError(f"cannot delete field {name!r}")


def _get_state(self: Any) -> list[Any]:
    return [getattr(self, each.name) for each in fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    for each, value in zip(fields(self), state, strict=True):
        object.__setattr__(self, each.name, value)


_FROZEN = {
    "__setattr__": _refuse_to_set,
    "__delattr__": _refuse_to_delete,
    "__getstate__": _get_state,
    "__setstate__": _set_state,
}
"""Copies and pickles would set attributes one by one."""
