"""Kubernetes' own types in a spec: their schema in the CRD, and what in a value does not pass it.

The types are read from an API server (tools/generate/kubernetes_types.py), and not before a document has a field of one of them. The bounds
of texts, lists and maps are kvgate's: the API server estimates the cost of rules from them.
"""

from collections.abc import Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any, get_args

import msgspec
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from kvgate.api.base import QUANTITY_SCHEMA, Document
from kvgate.api.quantity import parse_quantity

DATA = Path(__file__).parent / "data" / "kubernetes_types.json"
ERROR = "kubernetes_type"
"""Type of pydantic's error about such a value. Its context has `details`: further errors, each with its place inside the value."""
MAX_TEXT, MAX_ITEMS, MAX_KEYS = 4096, 64, 64
_PYTHON = {"object": dict, "array": list, "string": str, "boolean": bool, "integer": int}
_ERRORS = {
    "object": "dict_type",
    "array": "list_type",
    "string": "string_type",
    "boolean": "bool_type",
    "integer": "int_type",
}
_NUMBER_OR_TEXT = {
    "IntOrString": "It must be a whole number, or text",
    "Quantity": "It must be a quantity of 0 or more, such as 4, 500m, 1.5Gi or 2e9",
}
_MOST = {"string": MAX_TEXT, "array": MAX_ITEMS, "object": MAX_KEYS}
Detail = dict[str, Any]
"""An error in the form of pydantic's."""


class KubernetesType:
    """Annotation of a field whose value is a dictionary of this type of Kubernetes."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get_pydantic_core_schema__(self, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(partial(_read, self.name))

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return structural(self.name)


def kubernetes_type_in(annotation: Any) -> str:
    """Return the name of the type of Kubernetes in an annotation, or in the items of a list; empty where there is none."""
    if isinstance(annotation, KubernetesType):
        return annotation.name
    inside = (*get_args(annotation), *getattr(annotation, "__metadata__", ()))
    return next(filter(None, map(kubernetes_type_in, inside)), "")


@cache
def _types() -> Mapping[str, Any]:
    types: Mapping[str, Any] = msgspec.json.decode(DATA.read_bytes())["types"]
    return types


def structural(name: str) -> Document:
    """Return the structural schema of a type, with the types inside it in their places."""
    return _inlined(_types()[name])


def _inlined(node: Mapping[str, Any]) -> Document:
    text = {"description": node["description"]} if "description" in node else {}
    if node.get("$ref") == "Quantity":
        return {**QUANTITY_SCHEMA, **text}
    if "$ref" in node:
        return {**structural(node["$ref"]), **text}
    found = dict(node)
    if "properties" in node:
        found["properties"] = {name: _inlined(child) for name, child in node["properties"].items()}
    for keyword, bound in (("items", {"maxItems": MAX_ITEMS}), ("additionalProperties", {"maxProperties": MAX_KEYS})):
        if keyword in node:
            found |= {keyword: _inlined(node[keyword]), **bound}
    if node.get("type") == "string" and "enum" not in node:
        found["maxLength"] = MAX_TEXT
    return found


def _read(name: str, value: Any) -> Any:
    """Return the value without nulls, which the API server drops. Raise an error with all that is wrong in it."""
    value = _without_nulls(value)
    details = list(_problems({"$ref": name}, value, ()))
    if details:
        raise PydanticCustomError(ERROR, "It is not of Kubernetes' type {name}", {"name": name, "details": details})
    return value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(child) for key, child in value.items() if child is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def _problems(node: Mapping[str, Any], value: Any, at: tuple[int | str, ...]) -> Iterator[Detail]:
    name = node.get("$ref", "IntOrString" if node.get("x-kubernetes-int-or-string") else "")
    if name in _NUMBER_OR_TEXT:
        if type(value) not in (int, str) or (name == "Quantity" and parse_quantity(value) is None):
            yield _detail(name, at, value, msg=_NUMBER_OR_TEXT[name])
    elif name:
        yield from _problems(_types()[name], value, at)
    else:
        yield from _of_one_type(node, value, at)


def _is(value: Any, kind: str) -> bool:
    return type(value) is _PYTHON[kind]  # true is no number


def _of_one_type(node: Mapping[str, Any], value: Any, at: tuple[int | str, ...]) -> Iterator[Detail]:
    kind = node["type"]
    if not _is(value, kind) or (kind == "integer" and abs(value) >= 1 << 63):
        yield _detail(_ERRORS[kind], at, value)
    elif "enum" in node and value not in node["enum"]:
        yield _detail("enum", at, value, ctx={"expected": ", ".join(map(repr, node["enum"]))})
    elif kind in _MOST and "properties" not in node and len(value) > _MOST[kind]:
        yield _detail("too_long", at, "", msg=f"It must not be longer than {_MOST[kind]}")
    elif kind == "object":
        yield from _in_object(node, value, at)
    elif kind == "array":
        for index, item in enumerate(value):
            yield from _problems(node["items"], item, (*at, index))


def _in_object(node: Mapping[str, Any], value: Mapping[str, Any], at: tuple[int | str, ...]) -> Iterator[Detail]:
    fields, rest = node.get("properties", {}), node.get("additionalProperties")
    yield from (_detail("missing", (*at, name), None) for name in node.get("required", ()) if name not in value)
    for name, child in value.items():
        if name in fields or rest is not None:
            yield from _problems(fields.get(name, rest), child, (*at, name))
        else:
            yield _detail("extra_forbidden", (*at, name), child, ctx={"fields": list(fields)})


def _detail(kind: str, at: tuple[int | str, ...], value: Any, *, msg: str = "", ctx: Detail | None = None) -> Detail:
    return {"type": kind, "loc": at, "input": value, "msg": msg, "ctx": ctx or {}}
